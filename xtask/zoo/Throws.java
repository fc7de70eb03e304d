package zoo;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** Exceptions: thrown through frames, caught, made by the JVM itself, with and without stack traces. */
final class Throws implements Zoo.Program {
    static final class Quiet extends RuntimeException {
        private static final long serialVersionUID = 1;

        Quiet(long x) {
            super("quiet " + (x & 1), null, false, false);
        }
    }

    static final class Checked extends Exception {
        private static final long serialVersionUID = 1;

        Checked(Throwable cause) {
            super(cause);
        }
    }

    private static final Object[] NOTHING = new Object[3];

    @Override
    public List<Thread> threads() {
        return Collections.singletonList(new Thread(Throws::loop, "throws"));
    }

    private static void loop() {
        long x = 1;
        while (Zoo.running) {
            x = Calls.Base.mix(x);
            x += thrown(x) + implicit((int) (x & 7)) + traces(x);
        }
        Zoo.sink = x;
    }

    private static long thrown(long x) {
        try {
            return down(12, x);
        } catch (Quiet e) {
            return e.getMessage().length();
        } catch (Checked e) {
            return e.getCause().hashCode();
        } finally {
            Zoo.sink = x;
        }
    }

    private static long down(int depth, long x) throws Checked {
        if (depth == 0) {
            throw new Quiet(x);
        }
        try {
            return down(depth - 1, x + 1) + 1;
        } catch (Quiet e) {
            if (depth == (x & 15)) {
                throw new Checked(e);
            }
            throw e;
        }
    }

    private static int implicit(int kind) {
        try {
            switch (kind) {
                case 0:
                    return NOTHING[kind].hashCode();
                case 1:
                    return (int) NOTHING[3 + kind];
                case 2:
                    return 5 / (kind - 2);
                case 3:
                    Object text = "text";
                    return ((Integer) text) + kind;
                case 4:
                    return new int[kind - 9].length;
                case 5:
                    ((Object[]) new String[2])[1] = kind;
                    return 0;
                default:
                    return Integer.parseInt("no number");
            }
        } catch (NullPointerException | ArithmeticException | ClassCastException e) {
            return 1;
        } catch (IndexOutOfBoundsException | NegativeArraySizeException | ArrayStoreException e) {
            return 2;
        } catch (NumberFormatException e) {
            return 3;
        }
    }

    private static int traces(long x) {
        Throwable here = x % 5 == 0 ? new IllegalStateException("here") : new Error();
        return Arrays.hashCode(here.getStackTrace()) & 1;
    }
}
