package zoo;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.function.LongUnaryOperator;

/**
 * Classes of one shape, loaded through fresh loaders, run until they are compiled, and dropped, so that the addresses
 * of code and metadata serve one class after the other.
 *
 * <p>The classes are in the folder of the property {@code zoo.shapes}, which isn't on the class path.
 */
final class Churn implements Zoo.Program {
    static final class Loader extends ClassLoader {
        Loader() {
            super(Churn.class.getClassLoader());
        }

        Class<?> define(byte[] bytes) {
            return defineClass(null, bytes, 0, bytes.length);
        }
    }

    @Override
    public List<Thread> threads() throws IOException {
        List<byte[]> shapes = new ArrayList<>();
        try (java.util.stream.Stream<Path> files = Files.list(Paths.get(System.getProperty("zoo.shapes")))) {
            for (Path file : (Iterable<Path>) files::iterator) {
                shapes.add(Files.readAllBytes(file));
            }
        }
        return Arrays.asList(new Thread(() -> loop(shapes, 1), "churn-1"), new Thread(() -> loop(shapes, 2), "churn-2"));
    }

    private static void loop(List<byte[]> shapes, long seed) {
        List<byte[]> order = new ArrayList<>(shapes);
        Random random = new Random(seed);
        try {
            for (int i = 1; Zoo.running; i++) {
                Collections.shuffle(order, random);
                // Some live together, as in a server that is deployed to.
                for (int from = 0; from + 4 <= order.size() && Zoo.running; from += 4) {
                    heat(order.subList(from, from + 4));
                }
                if (seed == 1) {
                    System.gc();
                }
            }
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void heat(List<byte[]> some) throws ReflectiveOperationException {
        List<LongUnaryOperator> alive = new ArrayList<>();
        for (byte[] bytes : some) {
            Class<?> shape = new Loader().define(bytes);
            alive.add((LongUnaryOperator) shape.getDeclaredConstructor().newInstance());
        }
        long until = System.nanoTime() + 40_000_000L;
        long x = 1;
        while (System.nanoTime() < until) {
            for (LongUnaryOperator shape : alive) {
                x = shape.applyAsLong(x);
            }
        }
        Zoo.sink = x;
    }

    /** The class file of a class on the class path. */
    static byte[] read(String name) {
        try (InputStream in = Churn.class.getClassLoader().getResourceAsStream(name.replace('.', '/') + ".class")) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            byte[] buffer = new byte[4096];
            for (int n = in.read(buffer); n > 0; n = in.read(buffer)) {
                bytes.write(buffer, 0, n);
            }
            return bytes.toByteArray();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
