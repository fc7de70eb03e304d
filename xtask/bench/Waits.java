import java.io.InputStream;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.Pipe;
import java.nio.channels.Selector;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.concurrent.locks.StampedLock;

/**
 * A thread for each kind of wait, which measures its waits by its own clock. Each kind is a method
 * in which nothing else takes time. At the end it prints for each method its name, the nanoseconds
 * and the number of its waits.
 *
 * <p>Arguments: seconds for which it measures, and before that seconds in which a profiler may
 * begin.
 */
public final class Waits {
    interface Step {
        void run() throws Exception;
    }

    /** Waits of one kind. */
    static final class Measured extends Thread {
        final Step wait;
        final Step rest;
        long nanoseconds;
        long count;

        Measured(String method, Step wait, Step rest) {
            super(method);
            this.wait = wait;
            this.rest = rest;
        }

        @Override
        public void run() {
            try {
                while (System.nanoTime() < until) {
                    long begin = System.nanoTime();
                    wait.run();
                    nanoseconds += System.nanoTime() - begin;
                    count++;
                    rest.run();
                }
            } catch (Exception error) {
                throw new IllegalStateException(getName(), error);
            }
        }
    }

    /** A thread that computes: all time in which it doesn't, it waits for a CPU. */
    static final class Computing extends Thread {
        long nanoseconds;

        @Override
        public void run() {
            ThreadMXBean threads = ManagementFactory.getThreadMXBean();
            long begin = System.nanoTime();
            long ran = threads.getCurrentThreadCpuTime();
            compute();
            nanoseconds = System.nanoTime() - begin - (threads.getCurrentThreadCpuTime() - ran);
        }
    }

    static volatile long until;
    static volatile long sink;
    static final List<Measured> MEASURED = new ArrayList<>();

    static final class Stock {}

    static final class Bell {}

    static final Stock STOCK = new Stock();
    static final Bell BELL = new Bell();
    static final ReentrantLock LOCK = new ReentrantLock(true);
    static final ReentrantReadWriteLock READ_WRITE = new ReentrantReadWriteLock();
    static final StampedLock STAMPED = new StampedLock();
    static final Semaphore SEMAPHORE = new Semaphore(1);
    static final ReentrantLock OF_CONDITION = new ReentrantLock();
    static final Condition CONDITION = OF_CONDITION.newCondition();
    static final LinkedBlockingQueue<Integer> QUEUE = new LinkedBlockingQueue<>();
    static final LinkedBlockingQueue<CompletableFuture<Integer>> FUTURES =
            new LinkedBlockingQueue<>();
    static InputStream socketInput;
    static OutputStream socketOutput;
    static Pipe pipe;
    static Selector selector;

    static void monitor() {
        synchronized (STOCK) {
            sink++;
        }
    }

    static void reentrantLock() {
        LOCK.lock();
        LOCK.unlock();
    }

    static void readLock() {
        READ_WRITE.readLock().lock();
        READ_WRITE.readLock().unlock();
    }

    static void stampedLock() {
        STAMPED.unlockRead(STAMPED.readLock());
    }

    static void semaphore() throws Exception {
        SEMAPHORE.acquire();
        SEMAPHORE.release();
    }

    static void objectWait() throws Exception {
        synchronized (BELL) {
            BELL.wait(6);
        }
    }

    static void condition() throws Exception {
        OF_CONDITION.lock();
        try {
            CONDITION.await();
        } finally {
            OF_CONDITION.unlock();
        }
    }

    static void take() throws Exception {
        QUEUE.take();
    }

    static void future() throws Exception {
        CompletableFuture<Integer> future = new CompletableFuture<>();
        FUTURES.add(future);
        future.get();
    }

    static void parkNanos() {
        LockSupport.parkNanos(4_000_000);
    }

    static void sleep() throws Exception {
        Thread.sleep(5);
    }

    static void socketRead() throws Exception {
        socketInput.read();
    }

    static void pipeRead() throws Exception {
        pipe.source().read(ByteBuffer.allocate(1));
    }

    static void select() throws Exception {
        selector.select(6);
    }

    static void compute() {
        while (System.nanoTime() < until) {
            for (int i = 0; i < 100_000; i++) {
                sink += i;
            }
        }
    }

    static void pause(long milliseconds) throws Exception {
        Thread.sleep(milliseconds);
    }

    static void measure(String method, Step wait, Step rest) {
        MEASURED.add(new Measured(method, wait, rest));
    }

    /** Runs a step again and again, beside the threads that are measured. */
    static void repeat(Step step) {
        Thread thread = new Thread(() -> {
            try {
                while (true) {
                    step.run();
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    static void holdMonitor() throws Exception {
        synchronized (STOCK) {
            pause(12);
        }
        pause(1);
    }

    public static void main(String[] args) throws Exception {
        pause(Math.round(Double.parseDouble(args[1]) * 1000));
        ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Socket client = new Socket(server.getInetAddress(), server.getLocalPort());
        client.setTcpNoDelay(true);
        socketOutput = client.getOutputStream();
        socketInput = server.accept().getInputStream();
        pipe = Pipe.open();
        selector = Selector.open();

        Step none = () -> {};
        Step rest = () -> pause(2);
        measure("monitor", Waits::monitor, rest);
        repeat(Waits::holdMonitor);
        measure("reentrantLock", Waits::reentrantLock, rest);
        repeat(() -> {
            LOCK.lock();
            pause(9);
            LOCK.unlock();
            pause(1);
        });
        measure("readLock", Waits::readLock, rest);
        repeat(() -> {
            READ_WRITE.writeLock().lock();
            pause(8);
            READ_WRITE.writeLock().unlock();
            pause(1);
        });
        measure("stampedLock", Waits::stampedLock, rest);
        repeat(() -> {
            long stamp = STAMPED.writeLock();
            pause(8);
            STAMPED.unlockWrite(stamp);
            pause(1);
        });
        measure("semaphore", Waits::semaphore, rest);
        repeat(() -> {
            SEMAPHORE.acquire();
            pause(8);
            SEMAPHORE.release();
            pause(1);
        });
        measure("objectWait", Waits::objectWait, none);
        measure("condition", Waits::condition, none);
        repeat(() -> {
            pause(7);
            OF_CONDITION.lock();
            CONDITION.signal();
            OF_CONDITION.unlock();
        });
        measure("take", Waits::take, none);
        repeat(() -> {
            pause(6);
            QUEUE.add(1);
        });
        measure("future", Waits::future, none);
        repeat(() -> {
            CompletableFuture<Integer> future = FUTURES.take();
            pause(6);
            future.complete(1);
        });
        measure("parkNanos", Waits::parkNanos, none);
        measure("sleep", Waits::sleep, none);
        measure("socketRead", Waits::socketRead, none);
        repeat(() -> {
            pause(7);
            socketOutput.write(1);
        });
        measure("pipeRead", Waits::pipeRead, none);
        repeat(() -> {
            pause(8);
            pipe.sink().write(ByteBuffer.wrap(new byte[1]));
        });
        measure("select", Waits::select, none);

        until = System.nanoTime() + Math.round(Double.parseDouble(args[0]) * 1e9);
        List<Computing> computing = new ArrayList<>();
        for (int i = 0; i <= Runtime.getRuntime().availableProcessors(); i++) {
            computing.add(new Computing());
        }
        MEASURED.forEach(Thread::start);
        computing.forEach(Thread::start);
        for (Measured of : MEASURED) {
            of.join();
            System.out.println(of.getName() + "\t" + of.nanoseconds + "\t" + of.count);
        }
        long waited = 0;
        for (Computing of : computing) {
            of.join();
            waited += of.nanoseconds;
        }
        System.out.println("compute\t" + waited + "\t" + computing.size());
        // Threads that aren't measured go on.
        System.exit(0);
    }
}
