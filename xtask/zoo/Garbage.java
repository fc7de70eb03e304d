package zoo;

import java.lang.ref.SoftReference;
import java.lang.ref.WeakReference;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Allocation faster than a young generation lasts, with some objects that grow old, and finalizers. */
final class Garbage implements Zoo.Program {
    static final class Node {
        final Node left;
        final Node right;
        final byte[] load;

        Node(int depth) {
            left = depth == 0 ? null : new Node(depth - 1);
            right = depth == 0 ? null : new Node(depth - 1);
            load = new byte[depth * 7];
        }

        int count() {
            return load.length + (left == null ? 0 : left.count() + right.count());
        }
    }

    @SuppressWarnings({"deprecation", "removal"})
    static final class Finalized {
        private long x;

        Finalized(long x) {
            this.x = x;
        }

        @Override
        protected void finalize() {
            Zoo.sink = x = Calls.Base.grind(x, 20);
        }
    }

    @Override
    public List<Thread> threads() {
        return Arrays.asList(new Thread(Garbage::trees, "garbage-trees"), new Thread(Garbage::maps, "garbage-maps"));
    }

    private static void trees() {
        ArrayDeque<Node> old = new ArrayDeque<>();
        long sum = 0;
        for (int i = 0; Zoo.running; i++) {
            Node tree = new Node(9);
            sum += tree.count();
            if (i % 8 == 0) {
                old.add(tree);
            }
            if (old.size() > 200) {
                sum += old.poll().count();
            }
        }
        Zoo.sink = sum;
    }

    private static void maps() {
        long sum = 0;
        for (int i = 0; Zoo.running; i++) {
            Map<Long, Object> map = new HashMap<>();
            for (long k = 0; k < 300; k++) {
                map.put(k * i, new long[(int) k]);
            }
            map.put(-1L, new WeakReference<>(new Finalized(i)));
            map.put(-2L, new SoftReference<>(new int[50][20]));
            sum += map.size() + new Object[4000].length;
            if (i % 2000 == 0) {
                System.gc();
            }
        }
        Zoo.sink = sum;
    }
}
