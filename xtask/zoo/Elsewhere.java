package zoo;

import java.util.Arrays;
import java.util.List;

/**
 * Work that may be taken for its neighbour's: loops that are compiled behind an inlined call, and have no debug
 * information of their own before their end.
 *
 * <p>{@code //% CLASS: METHOD SHARE...} tells which share of the samples of the thread with that class at its root has
 * that method as innermost frame of this class or of {@code Thread.sleep}; what is left is sleep.
 */
final class Elsewhere implements Zoo.Program {
    /** A counted loop: strip-mined, or without any safepoint. */
    //% zoo.Elsewhere$Counted: work 1.0
    static final class Counted extends Thread {
        @Override
        public void run() {
            try {
                while (Zoo.running) {
                    Zoo.sink = slow(Zoo.sink | 1);
                }
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }

        private static long slow(long x) throws InterruptedException {
            Thread.sleep(2);
            return work(x);
        }

        private static long work(long x) {
            for (int i = 0; i < 1_000_000; i++) {
                x ^= x << 13;
                x ^= x >>> 7;
                x ^= x << 17;
            }
            return x;
        }
    }

    /** A loop whose end no compiler can tell. */
    //% zoo.Elsewhere$Uncounted: work 1.0
    static final class Uncounted extends Thread {
        @Override
        public void run() {
            try {
                while (Zoo.running) {
                    Zoo.sink = slow(Zoo.sink | 1);
                }
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }

        private static long slow(long x) throws InterruptedException {
            Thread.sleep(2);
            return work(x);
        }

        private static long work(long x) {
            long end = x + 3_000_003L;
            for (long i = x; i < end; i += (x & 1) + 2) {
                x ^= (i << 13 ^ x >>> 7) & ~1L;
            }
            return x;
        }
    }

    /** The same loop in three methods, once, twice and five times as long. */
    //% zoo.Elsewhere$Split: once 0.125 twice 0.25 often 0.625
    static final class Split extends Thread {
        @Override
        public void run() {
            long x = 1;
            while (Zoo.running) {
                x = once(x);
                x = twice(x);
                x = often(x);
            }
            Zoo.sink = x;
        }

        private static long once(long x) {
            for (int i = 0; i < 40_000; i++) {
                x ^= x << 13;
                x ^= x >>> 7;
                x ^= x << 17;
            }
            return x;
        }

        private static long twice(long x) {
            for (int i = 0; i < 80_000; i++) {
                x ^= x << 13;
                x ^= x >>> 7;
                x ^= x << 17;
            }
            return x;
        }

        private static long often(long x) {
            for (int i = 0; i < 200_000; i++) {
                x ^= x << 13;
                x ^= x >>> 7;
                x ^= x << 17;
            }
            return x;
        }
    }

    @Override
    public List<Thread> threads() {
        return Arrays.asList(new Counted(), new Uncounted(), new Split());
    }
}
