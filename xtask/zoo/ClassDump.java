package zoo;

import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Enumeration;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;

/**
 * Writes every class of the JDK that runs it to one file, {@code java zoo.ClassDump OUT}: for each the name as
 * {@link DataOutputStream#writeUTF} has it, the size as a big-endian int, and the class file.
 */
public final class ClassDump {
    private ClassDump() {}

    public static void main(String[] args) throws Exception {
        try (DataOutputStream out =
                new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(Paths.get(args[0])), 1 << 20))) {
            String bootClassPath = System.getProperty("sun.boot.class.path");
            if (bootClassPath == null) {
                modules(out);
            } else {
                String tools = new File(System.getProperty("java.home"), "../lib/tools.jar").getPath();
                String all = bootClassPath + File.pathSeparator + extensions() + tools;
                for (String jar : all.split(File.pathSeparator)) {
                    if (new File(jar).isFile()) {
                        jar(out, jar);
                    }
                }
            }
        }
    }

    private static String extensions() {
        StringBuilder jars = new StringBuilder();
        for (String folder : System.getProperty("java.ext.dirs", "").split(File.pathSeparator)) {
            File[] files = new File(folder).listFiles((dir, name) -> name.endsWith(".jar"));
            for (File file : files == null ? new File[0] : files) {
                jars.append(file).append(File.pathSeparator);
            }
        }
        return jars.toString();
    }

    private static void modules(DataOutputStream out) throws IOException {
        Path modules = FileSystems.getFileSystem(URI.create("jrt:/")).getPath("/modules");
        try (Stream<Path> files = Files.walk(modules)) {
            for (Path file : (Iterable<Path>) files::iterator) {
                String name = modules.relativize(file).toString();
                if (name.endsWith(".class")) {
                    write(out, name.substring(name.indexOf('/') + 1), Files.readAllBytes(file));
                }
            }
        } catch (NoSuchFileException e) {
            throw new IOException("the run-time image has no /modules", e);
        }
    }

    private static void jar(DataOutputStream out, String path) throws IOException {
        try (ZipFile jar = new ZipFile(path)) {
            for (Enumeration<? extends ZipEntry> entries = jar.entries(); entries.hasMoreElements(); ) {
                ZipEntry entry = entries.nextElement();
                if (entry.getName().endsWith(".class")) {
                    write(out, entry.getName(), read(jar.getInputStream(entry)));
                }
            }
        }
    }

    private static byte[] read(InputStream in) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        byte[] buffer = new byte[8192];
        for (int n = in.read(buffer); n > 0; n = in.read(buffer)) {
            bytes.write(buffer, 0, n);
        }
        return bytes.toByteArray();
    }

    private static void write(DataOutputStream out, String path, byte[] bytes) throws IOException {
        out.writeUTF(path.substring(0, path.length() - ".class".length()));
        out.writeInt(bytes.length);
        out.write(bytes);
    }
}
