import java.util.*;

/** Garbage for the collector's threads and classes for the compilers' threads, without end. */
public class Load {
    public static volatile Object keep;

    static Object grow(int depth, int seed) {
        return depth == 0 ? Integer.toString(seed) : new Object[] {grow(depth - 1, seed * 3), grow(depth - 1, seed * 5)};
    }

    static void allocate() {
        ArrayDeque<Object> old = new ArrayDeque<>();
        for (int round = 0; ; round++) {
            old.add(grow(12, round));
            if (old.size() > 60) old.poll();
            keep = old;
        }
    }

    /** A loader of its own for each round makes code that is compiled anew. */
    static class Again extends ClassLoader {
        Again() { super(Load.class.getClassLoader()); }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("Load$Hot")) return super.loadClass(name, resolve);
            try (var in = Load.class.getResourceAsStream("/" + name + ".class")) {
                byte[] bytes = in.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (java.io.IOException e) {
                throw new ClassNotFoundException(name, e);
            }
        }
    }

    public static class Hot implements Runnable {
        static int a(int x) { int s = 0; for (int i = 0; i < 60; i++) s += b(x ^ i) * i; return s; }
        static int b(int x) { return c(x) + (x % 3 == 0 ? c(x >> 1) : Integer.bitCount(x)); }
        static int c(int x) { return (x * 31 + 7) % 1013; }

        @Override
        public void run() {
            TreeMap<Integer, String> map = new TreeMap<>();
            for (int i = 0; i < 6_000; i++) map.merge(a(i) % 500, "x", (u, v) -> u.length() > 40 ? v : u + v);
            keep = map;
        }
    }

    public static void main(String[] arguments) throws Exception {
        new Thread(Load::allocate).start();
        System.out.println("ready");
        for (;;) ((Runnable) new Again().loadClass("Load$Hot").getDeclaredConstructor().newInstance()).run();
    }
}
