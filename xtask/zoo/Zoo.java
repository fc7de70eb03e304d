package zoo;

import java.util.ArrayList;
import java.util.List;

/** Runs oracle programs side by side for some seconds: {@code java zoo.Zoo SECONDS PROGRAM...}. */
public final class Zoo {
    /** Read by every loop of every program: false, and the program ends. */
    public static volatile boolean running = true;

    /** Keeps results alive, so that no compiler drops the work. */
    public static volatile long sink;

    /** Work of some threads until {@link #running} is false. */
    interface Program {
        List<Thread> threads() throws Exception;
    }

    private Zoo() {}

    /** Ends a run whose threads don't end. */
    private static void watch(long milliseconds) {
        Thread watch = new Thread(() -> {
            try {
                Thread.sleep(milliseconds);
                System.err.println("a program doesn't end");
                Runtime.getRuntime().halt(4);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }, "watch");
        watch.setDaemon(true);
        watch.start();
    }

    private static Program program(String name) throws Exception {
        try {
            return (Program) Class.forName("zoo." + name).getDeclaredConstructor().newInstance();
        } catch (UnsupportedClassVersionError e) {
            throw notHere(e.getMessage());
        }
    }

    /** Ends the run: this JDK can't run the program. */
    static Error notHere(String why) {
        System.out.println("not here: " + why);
        Runtime.getRuntime().halt(0);
        return new Error(why);
    }

    public static void main(String[] args) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(3);
        });
        double seconds = Double.parseDouble(args[0]);
        List<Thread> threads = new ArrayList<>();
        for (int i = 1; i < args.length; i++) {
            threads.addAll(program(args[i]).threads());
        }
        for (Thread thread : threads) {
            thread.start();
        }
        watch((long) (seconds * 1000) + 120_000);
        Thread.sleep((long) (seconds * 1000));
        running = false;
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("done " + sink);
    }
}
