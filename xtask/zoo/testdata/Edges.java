package test;

import java.util.function.Supplier;

/** What the checker's own tests judge by; `javac --release 8 -g Edges.java`. Line numbers are part of the tests. */
class Edges {
    static class Base {
        static int touched = 1;

        int work(int x) {
            return x + 1;
        }
    }

    static class Derived extends Base {
        static int late = compute();

        static int compute() {
            return 7;
        }

        @Override
        int work(int x) {
            return super.work(x)
                    + other(x);
        }

        int other(int x) {
            return x / 3;
        }
    }

    static class Unrelated {
        int work(int x) {
            return x;
        }
    }

    static int caller(Base base, int[] numbers) {
        int a = base.work(1);
        int b = numbers[a];
        int c = Derived.late;
        return a + b + c;
    }

    static Object lambda() {
        Supplier<String> supplier = () -> "x";
        return supplier.get();
    }

    static native int down(int x);
}
