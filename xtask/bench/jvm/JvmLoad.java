import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.Deflater;

/**
 * Loads of `cargo xtask bench`: two threads of `mixed` work (streams, regular expressions, hashing, deflating, sorting,
 * exceptions), the same work `paced` by sleeps as of a JVM that isn't busy, or megamorphic recursion of so many frames. The
 * threads end after the seconds that the second argument gives.
 */
public final class JvmLoad {
    static volatile long sink;

    public static void main(String[] arguments) throws InterruptedException {
        long end = System.nanoTime() + Long.parseLong(arguments[1]) * 1_000_000_000L;
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            int seed = number;
            Runnable work = arguments[0].equals("mixed")
                    ? () -> mixed(seed, end)
                    : arguments[0].equals("paced")
                    ? () -> paced(seed, end)
                    : () -> deep(Integer.parseInt(arguments[0]), seed, end);
            Thread thread = new Thread(work, "load-" + number);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    static void mixed(int seed, long end) {
        int round = seed;
        while (System.nanoTime() < end) {
            round++;
            sink += words(round) + digest(round) + deflate(round) + sorted(round) + thrown(round);
        }
    }

    static void paced(int seed, long end) {
        int round = seed;
        while (System.nanoTime() < end) {
            round++;
            sink += words(round) + digest(round) + deflate(round) + sorted(round) + thrown(round);
            try {
                Thread.sleep(50);
            } catch (InterruptedException ended) {
                return;
            }
        }
    }

    static final Pattern WORD = Pattern.compile("([a-z]+)([0-9]{1,3})(?:-|$)");

    static long words(int round) {
        String text = IntStream.range(0, 200).mapToObj(i -> "word" + (i * round) % 977).collect(Collectors.joining("-"));
        Map<String, Integer> counts = new HashMap<>();
        Matcher matcher = WORD.matcher(text);
        while (matcher.find()) {
            counts.merge(matcher.group(2), 1, Integer::sum);
        }
        return counts.values().stream().filter(count -> count > 1).mapToLong(count -> (long) count * count).sum();
    }

    static long digest(int round) {
        try {
            byte[] hash = MessageDigest.getInstance("SHA-256").digest(new byte[4096 + round % 64]);
            return hash[0];
        } catch (java.security.NoSuchAlgorithmException absent) {
            throw new IllegalStateException(absent);
        }
    }

    static long deflate(int round) {
        byte[] input = new byte[2048];
        for (int i = 0; i < input.length; i++) {
            input[i] = (byte) ((i * 31) ^ (round >> (i & 7)));
        }
        Deflater deflater = new Deflater(5);
        deflater.setInput(input);
        deflater.finish();
        int length = deflater.deflate(new byte[4096]);
        deflater.end();
        return length;
    }

    static long sorted(int round) {
        List<String> names = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            names.add(Integer.toString((i * 7919 + round) % 10007, 36));
        }
        names.sort(Comparator.comparing(String::length).thenComparing(Comparator.reverseOrder()));
        return names.get(0).hashCode();
    }

    static long thrown(int round) {
        long caught = 0;
        for (int i = 0; i < 20; i++) {
            try {
                Integer.parseInt(i % 2 == 0 ? "12" + round : "x" + i);
            } catch (NumberFormatException expected) {
                caught += expected.getStackTrace().length;
            }
        }
        return caught;
    }

    /** One of five classes, so that the calls between them can't be inlined. */
    abstract static class Step {
        Step[] others;

        abstract long go(int left, long value);
    }

    static long spin(long value) {
        for (int i = 0; i < 2000; i++) {
            value = value * 6364136223846793005L + 1442695040888963407L;
            value ^= value >>> 29;
        }
        return value;
    }

    static final class A extends Step {
        long go(int left, long value) {
            return left == 0 ? spin(value) : others[(int) (value & 3)].go(left - 1, value >> 1) + 1;
        }
    }

    static final class B extends Step {
        long go(int left, long value) {
            return left == 0 ? spin(value) : others[(int) (value & 3)].go(left - 1, value >> 1) + 2;
        }
    }

    static final class C extends Step {
        long go(int left, long value) {
            return left == 0 ? spin(value) : others[(int) (value & 3)].go(left - 1, value >> 1) + 3;
        }
    }

    static final class D extends Step {
        long go(int left, long value) {
            return left == 0 ? spin(value) : others[(int) (value & 3)].go(left - 1, value >> 1) + 4;
        }
    }

    static void deep(int depth, int seed, long end) {
        Step[] steps = {new A(), new B(), new C(), new D()};
        for (Step step : steps) {
            step.others = steps;
        }
        long value = seed + 0x9E3779B97F4A7C15L;
        while (System.nanoTime() < end) {
            value = value * 6364136223846793005L + 1;
            sink += steps[(int) (value >>> 62)].go(depth, value >>> 1);
        }
    }
}
