package zoo;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Strings, builders, array copies and regular expressions. */
final class Text implements Zoo.Program {
    private static final Pattern LOG =
            Pattern.compile("(?<host>\\S+) - (\\w+|-) \\[([^\\]]+)\\] \"(GET|POST) (/[a-z/0-9.]*)(\\?.*)?\" (\\d{3})");

    @Override
    public List<Thread> threads() {
        return Collections.singletonList(new Thread(Text::loop, "text"));
    }

    private static void loop() {
        long sum = 0;
        for (int i = 0; Zoo.running; i++) {
            sum += match(line(i)) + words(line(i)) + copies(i) + format(i);
        }
        Zoo.sink = sum;
    }

    private static String line(int i) {
        StringBuilder line = new StringBuilder();
        line.append("host").append(i % 50).append(".example - user").append(i).append(" [01/Jan] \"");
        line.append(i % 3 == 0 ? "POST" : "GET").append(" /a/b").append(i * 31 % 7).append("/c.html?x=")
                .append(i)
                .append("\" ")
                .append(200 + i % 300);
        return line.toString();
    }

    private static int match(String line) {
        Matcher matcher = LOG.matcher(line);
        if (!matcher.matches()) {
            return 1;
        }
        return matcher.group("host").length() + Integer.parseInt(matcher.group(7));
    }

    private static int words(String line) {
        Map<String, Integer> counts = new HashMap<>();
        for (String word : line.toUpperCase().split("[ /.]+")) {
            counts.merge(word, 1, Integer::sum);
        }
        return counts.hashCode() + line.replaceAll("([a-z])\\d", "$1#").indexOf('#');
    }

    private static int copies(int i) {
        int[] from = new int[2000];
        Arrays.fill(from, i);
        int[] to = new int[3000];
        for (int k = 0; k < 20; k++) {
            System.arraycopy(from, 0, to, k * 10, from.length);
        }
        Object[] objects = new Object[300];
        Arrays.fill(objects, "x");
        Object[] more = Arrays.copyOf(objects, 500);
        String[] strings = Arrays.copyOf(objects, 300, String[].class);
        return to[99] + more.length + strings.length + Arrays.hashCode(to);
    }

    private static int format(int i) {
        return i % 64 == 0 ? String.format("%05d %s %x %.3f", i, "abc", i, i / 7.0).length() : 0;
    }
}
