package zoo;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.Inflater;
import javax.crypto.Cipher;
import javax.crypto.spec.IvParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/** JNI code and intrinsics: deflate, inflate, SHA-256, CRC-32, AES. */
final class Digest implements Zoo.Program {
    @Override
    public List<Thread> threads() {
        return Collections.singletonList(new Thread(() -> {
            try {
                loop();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }, "digest"));
    }

    private static void loop() throws Exception {
        byte[] data = new byte[40_000];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) (i * i >> 5);
        }
        byte[] packed = new byte[50_000];
        long sum = 0;
        while (Zoo.running) {
            int size = pack(data, packed);
            sum += unpack(packed, size) + sha(data) + crc(data) + aes(data);
        }
        Zoo.sink = sum;
    }

    private static int pack(byte[] data, byte[] packed) {
        Deflater deflater = new Deflater(5);
        try {
            deflater.setInput(data);
            deflater.finish();
            return deflater.deflate(packed);
        } finally {
            deflater.end();
        }
    }

    private static long unpack(byte[] packed, int size) throws Exception {
        Inflater inflater = new Inflater();
        inflater.setInput(packed, 0, size);
        byte[] out = new byte[4096];
        long sum = 0;
        while (!inflater.finished()) {
            sum += inflater.inflate(out);
        }
        inflater.end();
        return sum;
    }

    private static int sha(byte[] data) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        digest.update(data);
        return Arrays.hashCode(digest.digest());
    }

    private static long crc(byte[] data) {
        CRC32 crc = new CRC32();
        crc.update(data, 0, data.length);
        ByteBuffer direct = ByteBuffer.allocateDirect(8192);
        direct.put(data, 0, 8192).flip();
        crc.update(direct);
        return crc.getValue();
    }

    private static int aes(byte[] data) throws Exception {
        Cipher cipher = Cipher.getInstance("AES/CBC/PKCS5Padding");
        SecretKeySpec key = new SecretKeySpec(Arrays.copyOf(data, 16), "AES");
        cipher.init(Cipher.ENCRYPT_MODE, key, new IvParameterSpec(new byte[16]));
        return cipher.doFinal(data, 0, 16_000).length;
    }
}
