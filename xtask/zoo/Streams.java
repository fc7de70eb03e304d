package zoo;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** Lambdas, method references, streams in sequence and in parallel. */
final class Streams implements Zoo.Program {
    static final class Item {
        final int key;
        final String name;

        Item(int key) {
            this.key = key;
            this.name = "item-" + key % 97;
        }

        int key() {
            return key;
        }

        String name() {
            return name;
        }
    }

    @Override
    public List<Thread> threads() {
        return Collections.singletonList(new Thread(Streams::loop, "streams"));
    }

    private static void loop() {
        List<Item> items = IntStream.range(0, 3000).mapToObj(Item::new).collect(Collectors.toList());
        long sum = 0;
        while (Zoo.running) {
            sum += group(items) + flat(items) + sorted(items) + parallel() + optional(items);
        }
        Zoo.sink = sum;
    }

    private static long group(List<Item> items) {
        Map<String, List<Integer>> groups = items.stream()
                .filter(item -> item.key() % 3 != 0)
                .map(item -> new Item(item.key() * 31))
                .collect(Collectors.groupingBy(Item::name, TreeMap::new,
                        Collectors.mapping(Item::key, Collectors.toList())));
        return groups.values().stream().mapToLong(List::size).sum();
    }

    private static long flat(List<Item> items) {
        Function<Item, Integer> twice = item -> item.key() * 2;
        return items.stream()
                .limit(200)
                .flatMap(a -> items.stream().skip(2990).map(b -> a.key() ^ b.key()))
                .mapToInt(Integer::intValue)
                .sum() + items.stream().map(twice.andThen(x -> x + 1)).reduce(0, Integer::sum);
    }

    private static long sorted(List<Item> items) {
        List<Item> copy = new ArrayList<>(items);
        copy.sort(Comparator.comparing(Item::name).thenComparing(Item::key, Comparator.reverseOrder()));
        return copy.get(0).key();
    }

    private static long parallel() {
        return LongStream.rangeClosed(1, 20_000).parallel().filter(x -> x % 7 != 0).map(x -> x * x % 1009).sum();
    }

    private static long optional(List<Item> items) {
        Optional<Item> found = items.stream().filter(item -> item.name().endsWith("96")).findFirst();
        return found.map(Item::key).orElseGet(() -> 0);
    }
}
