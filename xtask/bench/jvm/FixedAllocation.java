import java.util.ArrayDeque;
import java.util.Deque;

/** A fixed amount of allocation on two threads: some 30 MB a round and thread. */
public class FixedAllocation {
    static final class Node {
        final Node next;
        final long value;

        Node(Node next, long value) {
            this.next = next;
            this.value = value;
        }
    }

    static long round(Deque<Object> kept, int round) {
        long sum = 0;
        Node list = null;
        for (int i = 0; i < 500_000; i++) {
            list = i % 50 == 0 ? null : new Node(list, i);
            if (i % 100 == 0) kept.add(new byte[16 + i % 5000]);
            if (kept.size() > 2000) kept.poll();
        }
        for (int i = 0; i < 20_000; i++) sum += ("key" + i + round).hashCode() + Long.valueOf(i * 1000L);
        return sum + (list == null ? 0 : list.value);
    }

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        Thread[] threads = new Thread[2];
        for (int t = 0; t < threads.length; t++) {
            threads[t] = new Thread(() -> {
                Deque<Object> kept = new ArrayDeque<>();
                long sum = 0;
                for (int round = 0; round < rounds; round++) sum += round(kept, round);
                System.out.println(sum);
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
    }
}
