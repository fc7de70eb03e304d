package zoo;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.security.AccessController;
import java.security.PrivilegedAction;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** The JVM and JNI code call Java: class initialisation, privileged actions, serialization, class loaders, cloning. */
@SuppressWarnings({"deprecation", "removal"})
final class Upcalls implements Zoo.Program {
    /** Its initialiser works for a while; loaded anew again and again. */
    public static final class Late extends LateBase {
        public static final long VALUE = Calls.Base.grind(System.nanoTime() | 1, 20_000);
    }

    public static class LateBase {
        public static final long BASE = Calls.Base.grind(System.nanoTime() | 1, 10_000);
    }

    /** Touches another class, so that its own initialisation begins in the middle of a method. */
    public static final class Toucher implements Runnable {
        public Toucher() {}

        @Override
        public void run() {
            Zoo.sink = Late.VALUE + Late.BASE;
        }
    }

    static final class Pair implements Serializable, Cloneable {
        private static final long serialVersionUID = 1;
        final int[] numbers = {1, 2, 3};
        String text = "text";

        private Object readResolve() {
            return new Pair();
        }

        @Override
        public Pair clone() {
            try {
                return (Pair) super.clone();
            } catch (CloneNotSupportedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /** Defines the classes of this file itself instead of asking its parent. */
    static final class Loader extends ClassLoader {
        Loader(ClassLoader parent) {
            super(parent);
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("zoo.Upcalls$Late") && !name.equals("zoo.Upcalls$Toucher")) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> known = findLoadedClass(name);
                byte[] bytes = known == null ? Churn.read(name) : null;
                return known != null ? known : defineClass(name, bytes, 0, bytes.length);
            }
        }
    }

    @Override
    public List<Thread> threads() {
        return Collections.singletonList(new Thread(() -> {
            try {
                loop();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }, "upcalls"));
    }

    private static void loop() throws Exception {
        for (int i = 0; Zoo.running; i++) {
            initialise();
            privileged(i);
            serialize();
            Zoo.sink = new Pair().clone().numbers.clone().length;
            compare();
        }
    }

    private static void initialise() throws Exception {
        Loader loader = new Loader(Upcalls.class.getClassLoader());
        Constructor<?> constructor = Class.forName("zoo.Upcalls$Toucher", true, loader).getDeclaredConstructor();
        ((Runnable) constructor.newInstance()).run();
    }

    private static void privileged(long x) {
        for (int i = 0; i < 50; i++) {
            Zoo.sink = AccessController.doPrivileged(new PrivilegedAction<Long>() {
                @Override
                public Long run() {
                    return Calls.Base.grind(x | 1, 100)
                            + AccessController.doPrivileged((PrivilegedAction<Long>) () -> Calls.Base.grind(x | 2, 50));
                }
            });
        }
    }

    private static void serialize() throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(new Object[] {new Pair(), "text", 7});
        }
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
            Zoo.sink = ((Object[]) in.readObject()).length;
        }
    }

    private static void compare() {
        Integer[] numbers = new Integer[400];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = i * 7919 % 401;
        }
        Arrays.sort(numbers, (a, b) -> b - a);
        Zoo.sink = numbers[0];
    }
}
