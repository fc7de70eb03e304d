import java.io.File;
import java.io.FileInputStream;
import java.math.BigInteger;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;
import javax.crypto.Cipher;
import javax.crypto.spec.SecretKeySpec;

/** A little of everything that runs generated code, round after round. */
public class Steps {
    interface Shape { int area(int by); }
    static class Square implements Shape { public int area(int by) { return by * by; } }
    static class Line implements Shape { public int area(int by) { return by; } }
    static class Point implements Shape { public int area(int by) { return 1; } }
    static class Box extends Square { @Override public int area(int by) { return super.area(by) + 1; } }

    static long sink;
    static final byte[] BYTES = new byte[200];
    static final Object LOCK = new Object();

    static int many(int a, long b, double c, float d, int e, long f, double g, Object h, int i, long j) {
        return (int) (a + b + c + d + e + f + g + h.hashCode() + i + j);
    }

    static synchronized long locked(long x) { return x + 1; }

    static void copies() {
        byte[] bytes = BYTES.clone();
        System.arraycopy(BYTES, 1, bytes, 3, 57);
        System.arraycopy(bytes, 0, bytes, 5, 100);
        Object[] objects = new Object[20];
        System.arraycopy(new String[] {"a", "b", "c"}, 0, objects, 4, 3);
        int[] ints = new int[30];
        System.arraycopy(ints, 3, ints, 4, 20);
        long[] longs = new long[9];
        System.arraycopy(longs, 0, longs, 1, 8);
        sink += bytes[5] + ints[4] + longs[1] + objects.length;
    }

    static void exceptions(int round) {
        try {
            String[] strings = {"x"};
            Object[] objects = strings;
            if (round % 3 == 0) objects[0] = round;
            else if (round % 3 == 1) sink += strings[round % 5 + 1].length();
            else sink += ((Object) strings == null ? null : (Integer) (Object) "no");
        } catch (ArrayStoreException | ArrayIndexOutOfBoundsException | ClassCastException e) {
            sink++;
        }
        try {
            Shape none = round > 0 ? null : new Line();
            sink += none.area(1);
        } catch (NullPointerException e) {
            sink++;
        }
        try {
            sink += round / (round & 0);
        } catch (ArithmeticException e) {
            sink++;
        }
    }

    static void shapes(Shape[] shapes) {
        for (Shape shape : shapes) sink += shape.area(3);
        sink += ((Square) shapes[3]).area(2);
        sink += many(1, 2, 3, 4, 5, 6, 7, "h", 9, 10);
    }

    /** C2 searches with the stack pointer moved: by copies of short strings, and by what it keeps there. */
    static int find(String in, String what) { return in.indexOf(what); }

    static void searches(int round) {
        String letters = "abcdefghijklmnopqrstuvwxyz";
        String what = letters.substring(round % 20, round % 20 + 1 + round % 5);
        sink += find(letters.substring(round % 13), what) + find("short", what) + find(letters + letters + "#", "z#");
        sink += find("\u03b1\u03b2" + letters, what) + letters.indexOf("xyz") + (letters + what).indexOf("lmnopqrstu");
    }

    static void crypto() throws Exception {
        CRC32 crc = new CRC32();
        crc.update(BYTES);
        crc.update(7);
        sink += crc.getValue();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        sink += digest.digest(BYTES)[0];
        BigInteger big = new BigInteger(1, BYTES);
        sink += big.multiply(big).bitLength();
    }

    static void strings(int round) throws Exception {
        Map<String, Integer> map = new HashMap<>();
        for (int i = 0; i < 10; i++) map.put("key" + i, i);
        List<Object> list = new ArrayList<>();
        for (String key : map.keySet()) list.add(key);
        sink += list.toString().indexOf("key7") + String.valueOf(round * 0.1).length();
        sink += Math.round(Math.sin(round) * Math.pow(round, 0.3) + Math.log(round + 1) + Math.sqrt(round));
        synchronized (LOCK) {
            sink += locked(round) + System.identityHashCode(LOCK) + System.nanoTime() % 2;
        }
        Runnable lambda = () -> sink++;
        lambda.run();
        sink += (Integer) Steps.class.getMethod("reflected", int.class).invoke(null, round);
        Object[][] grid = new Object[3][4];
        sink += grid.length + new long[round % 7].length;
        switch (round % 5) { case 0: sink++; break; case 1: sink += 2; break; case 2: sink += 3; break; default: sink--; }
    }

    public static int reflected(int x) { return x + 1; }

    static int descend(int n) { return n == 0 ? 0 : descend(n - 1) + 1; }

    public static void main(String[] args) throws Exception {
        Shape[] shapes = {new Square(), new Line(), new Point(), new Box()};
        Cipher cipher = Cipher.getInstance("AES/ECB/PKCS5Padding");
        cipher.init(Cipher.ENCRYPT_MODE, new SecretKeySpec(new byte[16], "AES"));
        long until = System.currentTimeMillis() + Long.parseLong(args[0]);
        boolean told = false;
        for (int round = 0; ; round++) {
            shapes(shapes);
            copies();
            exceptions(round);
            crypto();
            strings(round);
            searches(round);
            sink += descend(20) + cipher.doFinal(BYTES)[3];
            if (!told && System.currentTimeMillis() > until) {
                told = true;
                System.out.println(new File("/proc/thread-self").getCanonicalFile().getName());
            }
        }
    }
}
