/** A chain of calls known by construction: main, a, b, c, and all the time goes by in c. */
public class Chain {
    /** By then the chain is compiled, where anything gets compiled. */
    static final long WARM_NS = 3_000_000_000L;

    static volatile long sink;

    static long c(long seed) {
        long x = seed;
        for (int i = 0; i < 5_000; i++) {
            x = x * 6364136223846793005L + 1442695040888963407L;
        }
        return x;
    }

    static long b(long seed) {
        return c(seed) + 1;
    }

    static long a(long seed) {
        return b(seed) + 1;
    }

    public static void main(String[] args) {
        long start = System.nanoTime();
        boolean warm = false;
        for (long i = 0; ; i++) {
            sink = a(i);
            if (!warm && System.nanoTime() - start > WARM_NS) {
                warm = true;
                System.out.println("warm");
            }
        }
    }
}
