import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntUnaryOperator;

/** Runs a bit of everything until each part is compiled, then says so and goes on. */
public class Names {
    interface Shape { double area(); }

    static final class Circle implements Shape {
        final double radius;
        Circle(double radius) { this.radius = radius; }
        public double area() {
            return Math.PI * radius * radius;
        }
    }

    static class Square implements Shape {
        final double side;
        Square(double side) { this.side = side; }
        public double area() { return side * side; }
    }

    static class Box<T extends Comparable<T>> {
        private T value;
        synchronized void put(T value) {
            if (this.value == null || this.value.compareTo(value) < 0) {
                this.value = value;
            }
        }
        T get() { return value; }
        class Cursor {
            int at;
            int next() { return at++ % 7; }
        }
    }

    static volatile long sink;

    static int größe(int n) {
        int sum = 0;
        for (int i = 0; i < n; i++) {
            sum += step(i);
        }
        return sum;
    }

    private static int step(int i) {
        switch (i % 4) {
            case 0: return twice(i);
            case 1: return twice(twice(i));
            default:
                return i;
        }
    }

    static int twice(int i) { return i << 1; }

    static int fall(int depth) {
        return depth == 0 ? 0 : fall(depth - 1) + 1;
    }

    static long areas(List<Shape> shapes) {
        double sum = 0;
        for (Shape shape : shapes) sum += shape.area();
        return (long) sum;
    }

    static int apply(IntUnaryOperator operator, int n) {
        return operator.applyAsInt(n);
    }

    static int caught(int n) {
        try {
            if (n % 3 == 0) throw new IllegalStateException("x");
            return n;
        } catch (IllegalStateException e) {
            return -1;
        } finally {
            sink++;
        }
    }

    public static String called(Integer n) { return n.toString(); }

    static void round(List<Shape> shapes, Shape proxy, Method method) throws Exception {
        Box<Integer> box = new Box<>();
        Box<Integer>.Cursor cursor = box.new Cursor();
        for (int i = 0; i < 200; i++) {
            box.put(i);
            int n = i;
            sink += größe(i) + apply(k -> k + n, i) + caught(i) + fall(20) + cursor.next();
            sink += areas(shapes) + box.get() + (long) proxy.area() + ((String) method.invoke(null, i)).length();
        }
    }

    public static void main(String[] args) throws Exception {
        List<Shape> shapes = new ArrayList<>();
        for (int i = 0; i < 20; i++) shapes.add(i % 2 == 0 ? new Circle(i) : new Square(i));
        InvocationHandler one = (self, called, arguments) -> 1.0;
        Shape proxy = (Shape) Proxy.newProxyInstance(Names.class.getClassLoader(), new Class<?>[] {Shape.class}, one);
        Method method = Names.class.getMethod("called", Integer.class);
        for (int i = 0; ; i++) {
            round(shapes, proxy, method);
            if (i == 300) System.out.println("warm");
            if (i > 300) Thread.sleep(1);
        }
    }
}
