import java.util.concurrent.SynchronousQueue;

/** Virtual threads in a row that hand a fixed number of items from one to the next. */
public class FixedVirtualThreads {
    static final int THREADS = 1_000;

    public static void main(String[] args) throws Exception {
        int items = Integer.parseInt(args[0]);
        SynchronousQueue<Long> first = new SynchronousQueue<>();
        SynchronousQueue<Long> from = first;
        for (int t = 0; t < THREADS; t++) {
            SynchronousQueue<Long> in = from;
            SynchronousQueue<Long> out = new SynchronousQueue<>();
            Thread.ofVirtual().start(() -> {
                try {
                    for (int i = 0; i < items; i++) out.put(in.take() * 31 + i);
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            from = out;
        }
        SynchronousQueue<Long> last = from;
        Thread feeder = Thread.ofVirtual().start(() -> {
            try {
                for (long i = 0; i < items; i++) first.put(i);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        long sum = 0;
        for (int i = 0; i < items; i++) sum += last.take();
        feeder.join();
        System.out.println(sum);
    }
}
