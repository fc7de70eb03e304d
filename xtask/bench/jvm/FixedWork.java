import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** A fixed amount of mixed work on two threads: so many rounds each. */
public class FixedWork {
    static int recursion(int n) {
        return n < 2 ? n : recursion(n - 1) + recursion(n - 2);
    }

    static long round(Random random, MessageDigest digest, int round) {
        int[] numbers = random.ints(60_000).toArray();
        Arrays.sort(numbers);
        long sum = numbers[round % numbers.length];
        sum += IntStream.range(0, 100_000).mapToObj(i -> "k" + i % 977)
            .collect(Collectors.groupingBy(key -> key, Collectors.counting())).size();
        Map<String, Integer> map = new HashMap<>();
        for (int i = 0; i < 30_000; i++) map.merge("key" + i * 31 % 5000, i, Integer::sum);
        byte[] data = new byte[200_000];
        random.nextBytes(data);
        sum += map.size() + recursion(24) + digest.digest(data)[0];
        return sum + Arrays.stream(numbers).boxed().filter(x -> (x & 3) == 1).mapToLong(x -> x).sum();
    }

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        Thread[] threads = new Thread[2];
        for (int t = 0; t < threads.length; t++) {
            Random random = new Random(t);
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            threads[t] = new Thread(() -> {
                long sum = 0;
                for (int round = 0; round < rounds; round++) sum += round(random, digest, round);
                System.out.println(sum);
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
    }
}
