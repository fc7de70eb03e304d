import java.lang.management.ManagementFactory;
import java.lang.reflect.Array;
import java.util.function.LongSupplier;

/**
 * An oracle for profiles of allocation: it allocates objects of known classes through known call
 * paths, and counts them.
 *
 * Arguments: threads, seconds. Each thread allocates in rounds, in an order that a generator of
 * random numbers chooses, and counts each kind in a field of its own. At the end it prints one line
 * a kind, tab-separated: class, path (the method that allocates), objects, bytes as the JVM lays
 * objects out, and then what the JVM has counted for these threads.
 */
public final class Allocations {
    static volatile boolean running = true;
    static Object[] sinks;

    static final class Small {
        int a;
    }

    static final class Mid implements Cloneable {
        long a, b, c, d, e, f;

        @Override
        public Mid clone() {
            try {
                return (Mid) super.clone();
            } catch (CloneNotSupportedException e) {
                throw new AssertionError(e);
            }
        }
    }

    static final class Shared {
        long a, b;
    }

    static final class Escaped {
        long x;

        Escaped(long x) {
            this.x = x;
        }
    }

    /** One of the ways in which this program allocates. */
    enum Kind {
        SMALL("Allocations$Small", "small"),
        MID("Allocations$Mid", "mid"),
        CLONED("Allocations$Mid", "cloned"),
        SHARED_ONE("Allocations$Shared", "sharedOne"),
        SHARED_TWO("Allocations$Shared", "sharedTwo"),
        BYTES("byte[]", "bytes"),
        BYTES_64K("byte[]", "bytes64k"),
        LONGS("long[]", "longs"),
        REFLECTED("int[]", "reflected"),
        BOXED("java.lang.Long", "boxed"),
        LAMBDA("Allocations$$Lambda", "lambda"),
        DEEP("char[]", "deep"),
        LARGE("double[]", "large");

        final String type;
        final String path;

        Kind(String type, String path) {
            this.type = type;
            this.path = path;
        }
    }

    static final class Worker extends Thread {
        final long[] objects = new long[Kind.values().length];
        final long[] elements = new long[Kind.values().length];
        final int index;
        long state;
        long sum;

        Worker(int index) {
            super("worker-" + index);
            this.index = index;
            state = 0x9e3779b97f4a7c15L * (index + 1);
        }

        int random(int bound) {
            state ^= state << 13;
            state ^= state >>> 7;
            state ^= state << 17;
            return (int) ((state >>> 33) % bound);
        }

        void keep(Kind kind, long length, Object object) {
            objects[kind.ordinal()]++;
            elements[kind.ordinal()] += length;
            sinks[index] = object;
        }

        void small() {
            keep(Kind.SMALL, 0, new Small());
        }

        void mid() {
            keep(Kind.MID, 0, new Mid());
        }

        final Mid original = new Mid();

        void cloned() {
            keep(Kind.CLONED, 0, original.clone());
        }

        void sharedOne() {
            keep(Kind.SHARED_ONE, 0, new Shared());
        }

        void sharedTwo() {
            keep(Kind.SHARED_TWO, 0, new Shared());
        }

        void bytes() {
            int length = random(1024);
            keep(Kind.BYTES, padded(length, 1), new byte[length]);
        }

        void bytes64k() {
            keep(Kind.BYTES_64K, padded(65536, 1), new byte[65536]);
        }

        void longs() {
            int length = random(128);
            keep(Kind.LONGS, padded(length, 8), new long[length]);
        }

        void reflected() {
            int length = random(64);
            keep(Kind.REFLECTED, padded(length, 4), Array.newInstance(int.class, length));
        }

        void boxed() {
            keep(Kind.BOXED, 0, Long.valueOf(1000 + random(1 << 20)));
        }

        void lambda() {
            long value = state;
            LongSupplier supplier = () -> value;
            keep(Kind.LAMBDA, 0, supplier);
        }

        void deep(int depth) {
            if (depth > 0) {
                deep(depth - 1);
            } else {
                keep(Kind.DEEP, padded(100, 2), new char[100]);
            }
        }

        void large() {
            int length = 32768 + random(491520);
            keep(Kind.LARGE, padded(length, 8), new double[length]);
        }

        /** Never on the heap, once it is compiled. */
        void scalarReplaced() {
            Escaped escaped = new Escaped(state);
            sum += escaped.x;
        }

        @Override
        public void run() {
            while (running) {
                for (int i = 0; i < 1000; i++) {
                    switch (random(12)) {
                        case 0: small(); break;
                        case 1: mid(); break;
                        case 2: cloned(); break;
                        case 3: sharedOne(); break;
                        case 4: sharedTwo(); sharedTwo(); sharedTwo(); break;
                        case 5: bytes(); break;
                        case 6: longs(); break;
                        case 7: reflected(); break;
                        case 8: boxed(); break;
                        case 9: lambda(); break;
                        case 10: deep(40); break;
                        default: scalarReplaced(); break;
                    }
                    if (random(400) == 0) {
                        bytes64k();
                    }
                    if (random(100_000) == 0) {
                        large();
                    }
                }
            }
        }
    }

    /** Bytes behind an array's header: what follows it is aligned to eight bytes, as a whole. */
    static long padded(int length, int elementBytes) {
        return ((arrayHeader + (long) length * elementBytes + 7) & ~7) - arrayHeader;
    }

    static int objectHeader = Integer.getInteger("header", 12);
    static int arrayHeader = Integer.getInteger("arrayHeader", 16);

    static long instanceBytes(Kind kind) {
        switch (kind) {
            case SMALL: return aligned(objectHeader, 4);
            case MID: case CLONED: return aligned(objectHeader, 8 * 6);
            case SHARED_ONE: case SHARED_TWO: return aligned(objectHeader, 16);
            case BOXED: case LAMBDA: return aligned(objectHeader, 8);
            default: return arrayHeader;
        }
    }

    /** Longs lie at multiples of eight bytes; an int fits before that. */
    static long aligned(int header, int fields) {
        int begin = fields % 8 == 0 ? (header + 7) & ~7 : header;
        return (begin + fields + 7) & ~7;
    }

    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[0]);
        double seconds = Double.parseDouble(args[1]);
        sinks = new Object[threads];
        Worker[] workers = new Worker[threads];
        for (int i = 0; i < threads; i++) {
            workers[i] = new Worker(i);
        }
        for (Worker worker : workers) {
            worker.start();
        }
        Thread.sleep((long) (seconds * 1000));
        com.sun.management.ThreadMXBean bean = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        long all = 0;
        for (Worker worker : workers) {
            all += bean.getThreadAllocatedBytes(worker.getId());
        }
        running = false;
        for (Worker worker : workers) {
            worker.join();
        }
        StringBuilder text = new StringBuilder();
        for (Kind kind : Kind.values()) {
            long objects = 0;
            long elements = 0;
            for (Worker worker : workers) {
                objects += worker.objects[kind.ordinal()];
                elements += worker.elements[kind.ordinal()];
            }
            text.append(kind.type).append('\t').append(kind.path).append('\t').append(objects).append('\t');
            text.append(objects * instanceBytes(kind) + elements).append('\n');
        }
        text.append("all\t").append(all).append('\n');
        System.out.print(text);
    }
}
