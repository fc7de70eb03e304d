package zoo;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.List;

/** Java calls C, which calls Java: qsort with comparators in Java, one of which sorts too. Since JDK 22. */
final class Foreign implements Zoo.Program {
    private static MethodHandle qsort;
    private static MemorySegment comparator;
    private static MemorySegment nestingComparator;

    @Override
    public List<Thread> threads() throws Exception {
        Linker linker = Linker.nativeLinker();
        qsort = linker.downcallHandle(
                linker.defaultLookup().find("qsort").orElseThrow(),
                FunctionDescriptor.ofVoid(
                        ValueLayout.ADDRESS, ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG, ValueLayout.ADDRESS));
        comparator = stub(linker, "compare");
        nestingComparator = stub(linker, "compareNesting");
        return List.of(new Thread(Foreign::loop, "foreign"));
    }

    private static MemorySegment stub(Linker linker, String name) throws Exception {
        MethodType type = MethodType.methodType(int.class, MemorySegment.class, MemorySegment.class);
        MethodHandle target = MethodHandles.lookup().findStatic(Foreign.class, name, type);
        var number = ValueLayout.ADDRESS.withTargetLayout(ValueLayout.JAVA_INT);
        return linker.upcallStub(
                target, FunctionDescriptor.of(ValueLayout.JAVA_INT, number, number), Arena.global());
    }

    private static void loop() {
        while (Zoo.running) {
            sort(300, comparator);
            sort(12, nestingComparator);
        }
    }

    private static void sort(int count, MemorySegment by) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment numbers = arena.allocate(ValueLayout.JAVA_INT, count);
            for (int i = 0; i < count; i++) {
                numbers.setAtIndex(ValueLayout.JAVA_INT, i, i * 7919 % 1009);
            }
            qsort.invokeExact(numbers, (long) count, 4L, by);
            Zoo.sink = numbers.getAtIndex(ValueLayout.JAVA_INT, 0);
        } catch (Throwable e) {
            throw new IllegalStateException(e);
        }
    }

    static int compare(MemorySegment a, MemorySegment b) {
        Zoo.sink = Calls.Base.grind(Zoo.sink | 1, 20);
        return Integer.compare(a.get(ValueLayout.JAVA_INT, 0), b.get(ValueLayout.JAVA_INT, 0));
    }

    static int compareNesting(MemorySegment a, MemorySegment b) {
        sort(20, comparator);
        return compare(a, b);
    }
}
