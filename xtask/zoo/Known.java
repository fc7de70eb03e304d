package zoo;

import java.security.AccessController;
import java.security.PrivilegedAction;
import java.util.ArrayList;
import java.util.List;

/**
 * Threads whose every stack is known.
 *
 * <p>{@code //= CLASS: METHOD...} is the chain of the thread with that class at its root, root first, methods of that
 * class unless they carry another's name: each stack is the chain or its beginning. {@code *N} repeats, {@code ...} is
 * any number of frames of the JDK. Nine samples in ten are in the last method, which spins.
 */
final class Known implements Zoo.Program {
    /** Small methods, inlined into one. */
    //= zoo.Known$Inlined: run a1 a2 a3 a4 spin
    static final class Inlined extends Chain {
        @Override
        public void run() {
            while (Zoo.running) {
                Zoo.sink = a1(Zoo.sink);
            }
        }

        private static long a1(long x) {
            return a2(x + 1) + 1;
        }

        private static long a2(long x) {
            return a3(
                    x * 3);
        }

        private static long a3(long x) {
            long y = x ^ 5;
            return a4(y) - y;
        }

        private static long a4(long x) {
            return 1 + spin(x | 1);
        }

        private static long spin(long x) {
            for (int i = 0; i < 5000; i++) {
                x ^= x << 13;
                x ^= x >>> 7;
                x ^= x << 17;
            }
            return x;
        }
    }

    /** A thousand frames of one method. */
    //= zoo.Known$Deep: run deep*1000 spin
    static final class Deep extends Chain {
        @Override
        public void run() {
            while (Zoo.running) {
                Zoo.sink = deep(999, Zoo.sink | 1);
            }
        }

        private static long deep(int depth, long x) {
            if (depth == 0) {
                return spin(x);
            }
            return deep(depth - 1, x) + 1;
        }

        private static long spin(long x) {
            for (int i = 0; i < 300_000; i++) {
                x ^= x << 13;
                x ^= x >>> 7;
                x ^= x << 17;
            }
            return x;
        }
    }

    interface Link {
        long link(Link[] all, int at, long x);
    }

    /** Calls with four receivers each, in one order. */
    //= zoo.Known$Links: run zoo.Known$L0.link zoo.Known$L1.link zoo.Known$L2.link zoo.Known$L3.link zoo.Known$L0.link zoo.Known$L1.link zoo.Known$L2.link zoo.Known$L3.link zoo.Known$L0.link zoo.Known$L1.link zoo.Known$L2.link zoo.Known$L3.link spin
    static final class Links extends Chain {
        /** Made by another thread: constructors would be further calls of run. */
        private final Link[] all = {new L0(), new L1(), new L2(), new L3()};

        @Override
        public void run() {
            while (Zoo.running) {
                Zoo.sink = all[0].link(all, 0, Zoo.sink);
            }
        }

        /**
         * More than C1 inlines. Behind the loop's poll C1 has debug information at the next call or return only: the caller's,
         * were this inlined there, and a machine on which C2 comes late would spend half of that time with the wrong name.
         */
        static long spin(long x) {
            for (long i = x | 1; (i & 0x3fff) != 0; i += 3) {
                x += i ^ x >>> 3;
                x ^= x << 13;
            }
            return x;
        }
    }

    static final class L0 implements Link {
        @Override
        public long link(Link[] all, int at, long x) {
            return all[at + 1 & 3].link(all, at + 1, x + 1) + 1;
        }
    }

    static final class L1 implements Link {
        @Override
        public long link(Link[] all, int at, long x) {
            long y = all[at + 1 & 3].link(all, at + 1, x * 3);
            return y ^ x;
        }
    }

    static final class L2 implements Link {
        @Override
        public long link(Link[] all, int at, long x) {
            synchronized (this) {
                return all[at + 1 & 3].link(all, at + 1, x * 5);
            }
        }
    }

    static final class L3 implements Link {
        @Override
        public long link(Link[] all, int at, long x) {
            return at == 11 ? Links.spin(x) : all[at + 1 & 3].link(all, at + 1, x - 1);
        }
    }

    /** Through the JVM and back: JNI before JDK 12. The first run of the action is the bridge to the other. */
    //= zoo.Known$Privileged: run p1 ... zoo.Known$Action.run*2 p2 spin
    @SuppressWarnings({"deprecation", "removal"})
    static final class Privileged extends Chain {
        private final Action action = new Action();

        @Override
        public void run() {
            while (Zoo.running) {
                p1(action);
            }
        }

        private static void p1(Action action) {
            AccessController.doPrivileged(action);
            Zoo.sink++;
        }

        static long p2(long x) {
            return spin(x | 1) * 3;
        }

        private static long spin(long x) {
            for (int i = 0; i < 20_000; i++) {
                x ^= x << 13;
                x ^= x >>> 7;
                x ^= x << 17;
            }
            return x;
        }
    }

    static final class Action implements PrivilegedAction<Void> {
        @Override
        public Void run() {
            Zoo.sink = Privileged.p2(Zoo.sink);
            return null;
        }
    }

    /** A thread of this program. */
    abstract static class Chain extends Thread {
        @Override
        public abstract void run();
    }

    @Override
    public List<Thread> threads() {
        List<Thread> threads = new ArrayList<>();
        threads.add(new Inlined());
        threads.add(new Deep());
        threads.add(new Links());
        threads.add(new Privileged());
        //= zoo.Bare: run b1 b2 spin
        threads.add(new Bare());
        return threads;
    }
}
