package zoo;

import java.util.Arrays;
import java.util.List;

/** Deep recursion through virtual and interface calls that no compiler can make direct: five receivers for each. */
final class Calls implements Zoo.Program {
    public interface Step {
        long step(Step[] all, int depth, long x);
    }

    /** Public, as {@link Zoo#sink} is, for classes of other loaders, which are in other packages then. */
    public abstract static class Base implements Step {
        abstract long turn(Step[] all, int depth, long x);

        public static long mix(long x) {
            x ^= x << 13;
            x ^= x >>> 7;
            return x ^ (x << 17);
        }

        public static long grind(long x, int rounds) {
            for (int i = 0; i < rounds; i++) {
                x = mix(x);
            }
            return x;
        }
    }

    static class A extends Base {
        public long step(Step[] all, int depth, long x) {
            return depth == 0 ? grind(x, 40) : turn(all, depth, x + 1);
        }

        long turn(Step[] all, int depth, long x) {
            return all[(int) (x & 3)].step(all, depth - 1, mix(x));
        }
    }

    static final class B extends A {
        @Override
        long turn(Step[] all, int depth, long x) {
            long y = mix(x);
            return all[(int) (y % 5 + 5) % 5].step(all, depth - 1, y) + 1;
        }
    }

    static final class C extends Base {
        public long step(Step[] all, int depth, long x) {
            if (depth <= 0) {
                return grind(x, 30);
            }
            return turn(all, depth, x) ^ depth;
        }

        long turn(Step[] all, int depth, long x) {
            return all[depth % all.length].step(
                    all,
                    depth - 1,
                    mix(x));
        }
    }

    static final class D extends Base {
        public long step(Step[] all, int depth, long x) {
            if (depth == 0) return grind(x, 20);
            if ((x & 64) != 0) return turn(all, depth, x);
            return super.hashCode() + all[(int) (x >>> 3 & 1)].step(all, depth - 1, mix(x));
        }

        long turn(Step[] all, int depth, long x) {
            synchronized (this) {
                return all[4].step(all, depth - 1, mix(x));
            }
        }

        @Override
        public int hashCode() {
            return 4;
        }
    }

    static final class E extends Base {
        public long step(Step[] all, int depth, long x) {
            try {
                return depth == 0 ? grind(x, 10) : turn(all, depth, x);
            } finally {
                Zoo.sink = x;
            }
        }

        long turn(Step[] all, int depth, long x) {
            return all[(depth + 2) % 5].step(all, depth - 1, mix(x));
        }
    }

    @Override
    public List<Thread> threads() {
        return Arrays.<Thread>asList(new Thread(Calls::walk, "calls-40"), new Thread(() -> {
            while (Zoo.running) {
                Zoo.sink = all()[0].step(all(), 300, Zoo.sink | 1);
            }
        }, "calls-300"));
    }

    private static Step[] all() {
        return new Step[] {new A(), new B(), new C(), new D(), new E()};
    }

    private static void walk() {
        Step[] all = all();
        long x = 88172645463325252L;
        while (Zoo.running) {
            for (Step step : all) {
                x = step.step(all, 40, x | 1);
            }
        }
        Zoo.sink = x;
    }
}
