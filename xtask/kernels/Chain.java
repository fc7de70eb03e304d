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

    /**
     * Runs for ever; or, with the time at which it was started, in milliseconds since 1970, for as
     * long again as it took to be warm.
     */
    public static void main(String[] args) {
        long start = System.nanoTime();
        boolean warm = false;
        // Nothing else, so that the compiler makes of this loop what it always has.
        for (long i = 0; ; i++) {
            sink = a(i);
            if (!warm && System.nanoTime() - start > WARM_NS) {
                warm = true;
                System.out.println("warm");
                if (args.length > 0) {
                    endLater(System.currentTimeMillis() - Long.parseLong(args[0]));
                }
            }
        }
    }

    static void endLater(long ms) {
        Thread end = new Thread(() -> {
            try {
                Thread.sleep(ms);
            } catch (InterruptedException e) {
                throw new Error(e);
            }
            System.exit(0);
        });
        end.start();
    }
}
