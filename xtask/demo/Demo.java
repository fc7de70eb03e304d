package com.acme.shop;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.zip.CRC32;

/**
 * A shop's back end, or what a profiler sees of one: threads with names that parse, sort, search, sign and recurse.
 * Java 8, so that it runs on every JVM that jvmprof knows. Each thread works a fifth of the time, so that all of them need one CPU.
 */
public final class Demo {
    public static void main(String[] args) {
        start("orders-parser", new OrderParsing());
        start("catalog-ranker", new CatalogRanking());
        start("log-search", new LogSearch());
        start("receipt-signer", new ReceiptSigning());
        start("route-planner", new RoutePlanning());
    }

    private static void start(String name, final Work work) {
        new Thread(new Runnable() {
            @Override
            public void run() {
                keepWorking(work);
            }
        }, name).start();
    }

    private static void keepWorking(Work work) {
        while (true) {
            long started = System.nanoTime();
            while (System.nanoTime() - started < 20_000_000L) {
                Sink.take(work.once());
            }
            try {
                Thread.sleep(80);
            } catch (InterruptedException stop) {
                return;
            }
        }
    }
}

/** A piece of work; its result is used, so that no compiler leaves it out. */
interface Work {
    int once();
}

final class Sink {
    private static volatile int last;

    static void take(int value) {
        last ^= value;
    }

    private Sink() {}
}

/** Reads orders from JSON with a recursive-descent parser. */
final class OrderParsing implements Work {
    private final String text;

    OrderParsing() {
        StringBuilder json = new StringBuilder("[");
        for (int i = 0; i < 40; i++) {
            json.append(i == 0 ? "" : ",").append("{\"id\":").append(i).append(",\"customer\":\"c").append(i * 7)
                .append("\",\"lines\":[{\"sku\":\"A-").append(i).append("\",\"count\":").append(i % 5 + 1)
                .append("},{\"sku\":\"B-").append(i).append("\",\"count\":2}],\"paid\":true}");
        }
        text = json.append("]").toString();
    }

    @Override
    public int once() {
        return new Json(text).value().hashCode();
    }
}

final class Json {
    private final String text;
    private int at;

    Json(String text) {
        this.text = text;
    }

    Object value() {
        switch (text.charAt(at)) {
            case '{':
                return object();
            case '[':
                return array();
            case '"':
                return string();
            case 't':
                at += 4;
                return Boolean.TRUE;
            default:
                return number();
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> fields = new HashMap<String, Object>();
        do {
            at++;
            String name = string();
            at++;
            fields.put(name, value());
        } while (text.charAt(at) == ',');
        at++;
        return fields;
    }

    private List<Object> array() {
        List<Object> items = new ArrayList<Object>();
        do {
            at++;
            items.add(value());
        } while (text.charAt(at) == ',');
        at++;
        return items;
    }

    private String string() {
        int from = ++at;
        while (text.charAt(at) != '"') {
            at++;
        }
        return text.substring(from, at++);
    }

    private Integer number() {
        int number = 0;
        while (Character.isDigit(text.charAt(at))) {
            number = number * 10 + text.charAt(at++) - '0';
        }
        return number;
    }
}

/** Sorts a catalog by price and name. */
final class CatalogRanking implements Work {
    private static final class Item {
        final String name;
        final double price;

        Item(String name, double price) {
            this.name = name;
            this.price = price;
        }
    }

    private static final Comparator<Item> BY_PRICE = new Comparator<Item>() {
        @Override
        public int compare(Item one, Item other) {
            int order = Double.compare(one.price, other.price);
            return order != 0 ? order : one.name.compareTo(other.name);
        }
    };

    private final List<Item> items = new ArrayList<Item>();
    private final Random random = new Random(1);

    CatalogRanking() {
        for (int i = 0; i < 2000; i++) {
            items.add(new Item("item-" + i, random.nextInt(500)));
        }
    }

    @Override
    public int once() {
        Collections.shuffle(items, random);
        Collections.sort(items, BY_PRICE);
        return items.get(0).name.hashCode();
    }
}

/** Looks for slow requests in log lines by a regular expression. */
final class LogSearch implements Work {
    private static final Pattern SLOW = Pattern.compile("(GET|POST) (/[a-z]+)+/([0-9]+).* took (\\d{4,}) ms");
    private final List<String> lines = new ArrayList<String>();

    LogSearch() {
        Random random = new Random(2);
        for (int i = 0; i < 300; i++) {
            lines.add("2026-01-01T00:00:00Z GET /shop/orders/lines/" + i + " from 10.0.0.7 took "
                + random.nextInt(2000) + " ms");
        }
    }

    @Override
    public int once() {
        int slow = 0;
        for (String line : lines) {
            Matcher matcher = SLOW.matcher(line);
            if (matcher.find()) {
                slow += matcher.group(4).length();
            }
        }
        return slow;
    }
}

/** Signs receipts: digests, and a checksum that the JVM has as native code. */
final class ReceiptSigning implements Work {
    private final byte[] receipt = new String(new char[4096]).replace('\0', 'r').getBytes(StandardCharsets.UTF_8);

    @Override
    public int once() {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(receipt);
            CRC32 checksum = new CRC32();
            checksum.update(receipt);
            receipt[0]++;
            return digest[0] ^ (int) checksum.getValue();
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}

/** Plans a delivery by trying every order of stops, recursively. */
final class RoutePlanning implements Work {
    private static final int STOPS = 8;
    private final int[][] distance = new int[STOPS][STOPS];

    RoutePlanning() {
        Random random = new Random(3);
        for (int[] row : distance) {
            for (int i = 0; i < STOPS; i++) {
                row[i] = 1 + random.nextInt(90);
            }
        }
    }

    @Override
    public int once() {
        return shortest(0, 1, 0);
    }

    private int shortest(int at, int visited, int length) {
        if (visited == (1 << STOPS) - 1) {
            return length;
        }
        int best = Integer.MAX_VALUE;
        for (int next = 1; next < STOPS; next++) {
            if ((visited & 1 << next) == 0) {
                best = Math.min(best, shortest(next, visited | 1 << next, length + distance[at][next]));
            }
        }
        return best;
    }
}
