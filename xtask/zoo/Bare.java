package zoo;

/** Compiled without any debug information: its frames are exact all the same, and have no line and no file. */
final class Bare extends Thread {
    @Override
    public void run() {
        while (Zoo.running) {
            Zoo.sink = b1(Zoo.sink);
        }
    }

    private static long b1(long x) {
        return b2(x + 1) + 1;
    }

    private static long b2(long x) {
        return spin(x | 1);
    }

    private static long spin(long x) {
        for (int i = 0; i < 9000; i++) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
        }
        return x;
    }
}
