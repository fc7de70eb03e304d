package zoo;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.locks.LockSupport;

/** Virtual threads that work, park and go on elsewhere; threads of the old kind where there are none. */
final class Virtual implements Zoo.Program {
    @Override
    public List<Thread> threads() {
        return Collections.singletonList(new Thread(() -> {
            try {
                loop();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }, "virtual-starter"));
    }

    private static void loop() throws Exception {
        Method start;
        try {
            start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        } catch (NoSuchMethodException e) {
            start = null;
        }
        while (Zoo.running) {
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                threads.add(start(start, Virtual::work));
            }
            for (Thread thread : threads) {
                thread.join();
            }
        }
    }

    private static Thread start(Method start, Runnable task) throws Exception {
        if (start != null) {
            return (Thread) start.invoke(null, task);
        }
        Thread thread = new Thread(task);
        thread.start();
        return thread;
    }

    private static void work() {
        for (int i = 0; i < 20; i++) {
            Zoo.sink = nested(12, i | 1);
        }
    }

    private static long nested(int depth, long x) {
        if (depth == 0) {
            x = Calls.Base.grind(x, 30_000);
            LockSupport.parkNanos(20_000);
            return Calls.Base.grind(x, 30_000);
        }
        return nested(depth - 1, x + depth) + 1;
    }
}
