/**
 * Works and allocates for some milliseconds, waits for a lock, sleeps for many: a JVM of which a host can have
 * twenty.
 */
public class Worker {
    static volatile long sink;
    static volatile byte[] latest;

    static int hash(byte[] data) {
        int h = 7;
        for (byte b : data) h = h * 31 + b;
        return h;
    }

    static int descend(int n, byte[] data) {
        return n == 0 ? hash(data) : descend(n - 1, data) + 1;
    }

    /** Half a MiB: as much as lies between two allocations that are sampled, by default. */
    static void allocate() {
        for (int i = 0; i < 512; i++) latest = new byte[1024];
    }

    /** Has the lock for most of the time. */
    static void keepLocked() {
        while (true) {
            synchronized (Worker.class) {
                try {
                    Thread.sleep(10);
                } catch (InterruptedException impossible) {
                    return;
                }
            }
        }
    }

    public static void main(String[] args) throws InterruptedException {
        byte[] data = new byte[10_000];
        Thread keeper = new Thread(Worker::keepLocked, "keeper");
        keeper.setDaemon(true);
        keeper.start();
        while (true) {
            long until = System.nanoTime() + 2_000_000;
            while (System.nanoTime() < until) sink += descend(30, data);
            allocate();
            synchronized (Worker.class) {
                sink++;
            }
            Thread.sleep(100);
        }
    }
}
