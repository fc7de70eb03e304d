package zoo;

import java.io.IOException;
import java.lang.instrument.ClassDefinition;
import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.ProtectionDomain;
import java.util.Arrays;
import java.util.List;

/**
 * Redefines and retransforms a class over and over while its methods run.
 *
 * <p>Its two versions ({@code Changing.java.in}) are in the folders of the property {@code zoo.versions}; no line is in
 * both, so that a frame with a bytecode index of one and the table of the other can't pass.
 */
final class Redefine implements Zoo.Program {
    /** The agent's entry; {@code -javaagent} names a jar with nothing but its manifest. */
    public static void premain(String args, Instrumentation given) {
        instrumentation = given;
    }

    private static volatile Instrumentation instrumentation;

    @Override
    public List<Thread> threads() throws Exception {
        if (premained() == null) {
            throw new IllegalStateException("this program needs -javaagent");
        }
        byte[][] versions = new byte[2][];
        for (int i = 0; i < 2; i++) {
            versions[i] = Files.readAllBytes(
                    Paths.get(System.getProperty("zoo.versions"), String.valueOf(i), "zoo/Changing.class"));
        }
        Class<?> changing = new ClassLoader(Redefine.class.getClassLoader()) {
            Class<?> define() {
                return defineClass(null, versions[0], 0, versions[0].length);
            }
        }.define();
        Runnable first = (Runnable) changing.getDeclaredConstructor().newInstance();
        return Arrays.asList(new Thread(first, "redefine-1"), new Thread(() -> change(changing, versions), "redefine-2"));
    }

    /** The agent is loaded by the application's loader, as this class is. */
    private static Instrumentation premained() {
        return instrumentation;
    }

    private static void change(Class<?> changing, byte[][] versions) {
        ClassFileTransformer nothing = new ClassFileTransformer() {
            @Override
            public byte[] transform(
                    ClassLoader loader, String name, Class<?> of, ProtectionDomain domain, byte[] bytes) {
                return null;
            }
        };
        try {
            for (int i = 1; Zoo.running; i++) {
                instrumentation.redefineClasses(new ClassDefinition(changing, versions[i & 1]));
                Thread.sleep(30);
                if (i % 5 == 0) {
                    instrumentation.addTransformer(nothing, true);
                    instrumentation.retransformClasses(changing);
                    instrumentation.removeTransformer(nothing);
                    Thread.sleep(30);
                }
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
