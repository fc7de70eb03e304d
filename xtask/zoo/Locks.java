package zoo;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/** Monitors and locks with and without contention, waiting, queues, threads that live shortly. */
final class Locks implements Zoo.Program {
    private final Object monitor = new Object();
    private final ReentrantLock lock = new ReentrantLock();
    private final ConcurrentHashMap<Integer, Long> map = new ConcurrentHashMap<>();
    private final BlockingQueue<Long> queue = new ArrayBlockingQueue<>(16);
    private long guarded = 1;

    @Override
    public List<Thread> threads() {
        return Arrays.asList(new Thread(this::fight, "locks-1"), new Thread(this::fight, "locks-2"),
                new Thread(this::put, "locks-put"), new Thread(this::take, "locks-take"));
    }

    private void fight() {
        int i = 0;
        while (Zoo.running) {
            synchronized (monitor) {
                guarded = Calls.Base.grind(guarded, 300);
                if (i++ % 64 == 0) {
                    monitor.notifyAll();
                }
            }
            add();
            lock.lock();
            try {
                guarded = Calls.Base.grind(guarded, 100);
            } finally {
                lock.unlock();
            }
            map.merge(i & 255, guarded, Long::sum);
            map.computeIfAbsent(i & 1023, key -> (long) key);
        }
    }

    private synchronized void add() {
        guarded += Calls.Base.grind(guarded, 50);
    }

    private void put() {
        try {
            for (long i = 0; Zoo.running; i++) {
                queue.offer(i, 10, TimeUnit.MILLISECONDS);
                if (i % 500 == 0) {
                    Thread brief = new Thread(() -> Zoo.sink = Calls.Base.grind(Zoo.sink | 1, 2000), "brief");
                    brief.start();
                    brief.join();
                }
                if (i % 700 == 0) {
                    synchronized (monitor) {
                        monitor.wait(1);
                    }
                }
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private void take() {
        try {
            while (Zoo.running) {
                Long got = queue.poll(10, TimeUnit.MILLISECONDS);
                Zoo.sink = got == null ? 0 : got;
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
