package zoo;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.OutputStream;
import java.net.URI;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import javax.tools.ForwardingJavaFileManager;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileManager;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;

/** A large program with deep, megamorphic stacks: the JDK's compiler, on these sources (property {@code zoo.sources}). */
final class Javac implements Zoo.Program {
    /** Keeps class files in memory, and forgets them. */
    static final class Memory extends ForwardingJavaFileManager<JavaFileManager> {
        Memory(JavaFileManager files) {
            super(files);
        }

        @Override
        public JavaFileObject getJavaFileForOutput(
                Location location, String name, JavaFileObject.Kind kind, javax.tools.FileObject sibling) {
            return new SimpleJavaFileObject(URI.create("mem:///" + name.replace('.', '/') + kind.extension), kind) {
                @Override
                public OutputStream openOutputStream() {
                    return new ByteArrayOutputStream();
                }
            };
        }
    }

    @Override
    public List<Thread> threads() {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        if (compiler == null) {
            throw Zoo.notHere("this JDK has no compiler");
        }
        return Collections.singletonList(new Thread(() -> loop(compiler), "javac"));
    }

    private static void loop(JavaCompiler compiler) {
        File[] sources = new File(System.getProperty("zoo.sources")).listFiles((dir, name) -> name.endsWith(".java"));
        StandardJavaFileManager standard = compiler.getStandardFileManager(null, null, null);
        Memory memory = new Memory(standard);
        List<String> options = Arrays.asList("-g", "-nowarn", "-proc:none", "-XDuseUnsharedTable");
        while (Zoo.running) {
            Iterable<? extends JavaFileObject> units = standard.getJavaFileObjects(sources);
            Boolean done = compiler.getTask(null, memory, null, options, null, units).call();
            if (!done) {
                throw new IllegalStateException("the sources don't compile");
            }
        }
    }
}
