//! Contexts that Java code writes itself: a library says where the thread's variable is, and no
//! more.

use std::collections::BTreeMap;

use super::without_kind;
use crate::support::thread_context::{
    WITH_LABELS, WRITER, are_of_one_request_or_none, are_of_request, gcc, process_context, samples_of,
};
use crate::support::{compile_java_for, jdks, scratch};

/// Platform and virtual threads that work on one request after the other. Each has a record of its
/// own. Only the pointer takes it from a carrier: the record may be valid again on another one.
const KIOSK: &str = r#"
import java.lang.foreign.*;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.VarHandle;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ThreadLocalRandom;
public class Kiosk {
    static final Linker LINKER = Linker.nativeLinker();
    static final VarHandle BYTE = ValueLayout.JAVA_BYTE.varHandle(), POINTER = ValueLayout.ADDRESS.varHandle();
    static final long SPAN = 16, VALID = 24, SIZE = 26, ATTRIBUTES = 28;
    static MethodHandle variable;
    static volatile long sink;
    static final class Writer {
        final MemorySegment block = Arena.global().allocate(640, 8);
        MemorySegment pointer;
        long end;
        /** Of a virtual thread it is its carrier's, which is another one now and then. */
        void find() throws Throwable {
            MemorySegment address = (MemorySegment) variable.invokeExact();
            pointer = address.reinterpret(ValueLayout.ADDRESS.byteSize());
        }
        void append(int key, String text) {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            block.set(ValueLayout.JAVA_BYTE, end, (byte) key);
            block.set(ValueLayout.JAVA_BYTE, end + 1, (byte) bytes.length);
            MemorySegment.copy(bytes, 0, block, ValueLayout.JAVA_BYTE, end + 2, bytes.length);
            end += 2 + bytes.length;
        }
        void attach(int number) {
            BYTE.setRelease(block, VALID, (byte) 0);
            VarHandle.storeStoreFence();
            block.asSlice(0, 16).fill((byte) (0xa0 + number));
            block.asSlice(SPAN, 8).fill((byte) (0x10 + number));
            end = ATTRIBUTES;
            append(0, "GET");
            append(1, "old");
            append(1, "/route/" + number);
            block.set(ValueLayout.JAVA_SHORT, SIZE, (short) (end - ATTRIBUTES));
            BYTE.setRelease(block, VALID, (byte) 1);
            POINTER.setRelease(pointer, 0L, block);
            VarHandle.storeStoreFence();
        }
        void detach(boolean byPointer) {
            if (byPointer) POINTER.setRelease(pointer, 0L, MemorySegment.NULL);
            else BYTE.setRelease(block, VALID, (byte) 0);
            VarHandle.storeStoreFence();
        }
    }
    static void work(long rounds) { long sum = sink; for (long i = 0; i < rounds; i++) sum += sum ^ i; sink = sum; }
    static void request_0() { work(3000); }
    static void request_1() { work(3000); }
    static void request_2() { work(3000); }
    static void request_3() { work(3000); }
    static void request_4() { work(3000); }
    static void request_5() { work(3000); }
    static void request_6() { work(3000); }
    static void request_7() { work(3000); }
    static void between() { work(1000); }
    static void serve(boolean isVirtual) {
        try {
            Writer writer = new Writer();
            writer.find();
            while (true) {
                int number = ThreadLocalRandom.current().nextInt(8);
                if (isVirtual) writer.find();
                writer.attach(number);
                switch (number) {
                    case 0 -> request_0(); case 1 -> request_1(); case 2 -> request_2();
                    case 3 -> request_3(); case 4 -> request_4(); case 5 -> request_5();
                    case 6 -> request_6(); default -> request_7();
                }
                writer.detach(isVirtual || (number & 1) == 1);
                between();
                if (isVirtual) Thread.yield();
            }
        } catch (Throwable error) { throw new RuntimeException(error); }
    }
    public static void main(String[] args) throws Throwable {
        SymbolLookup library = SymbolLookup.libraryLookup(args[1], Arena.global());
        FunctionDescriptor address = FunctionDescriptor.of(ValueLayout.ADDRESS);
        variable = LINKER.downcallHandle(library.find("context_variable").get(), address);
        FunctionDescriptor text = FunctionDescriptor.ofVoid(ValueLayout.ADDRESS);
        MethodHandle publish = LINKER.downcallHandle(library.find("publish").get(), text);
        publish.invokeExact(Arena.global().allocateFrom(args[0]));
        for (int i = 0; i < 4; i++) Thread.ofVirtual().start(() -> serve(true));
        for (int i = 0; i < 2; i++) Thread.ofPlatform().start(() -> serve(false));
    }
}
"#;

#[test]
fn records_that_java_code_writes_itself_give_each_sample_the_trace_of_its_request() {
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 22) {
        let dir = scratch();
        let library = dir.path().join("libwriter.so");
        gcc("gcc", &library, &[WRITER], &["-shared", "-fPIC"]);
        let classes = compile_java_for(22, dir.path(), "Kiosk", KIOSK);
        let [classes, library] = [&classes, &library].map(|path| path.to_str().expect("a path in UTF-8"));
        let (context, java) = (process_context("tls_v1"), home.join("bin/java"));
        let mut arguments = vec!["--enable-native-access=ALL-UNNAMED", "-XX:CompileCommand=quiet"];
        // Methods of their own, so that the stack says which request it is, and when it begins.
        arguments.push("-XX:CompileCommand=dontinline,Kiosk::request_*");
        arguments.push("-XX:CompileCommand=dontinline,Kiosk::between");
        arguments.push("-XX:CompileCommand=dontinline,Kiosk$Writer::attach");
        arguments.extend(["-cp", classes, "Kiosk", &context, library]);
        let samples = samples_of(&[(&java, arguments)], &WITH_LABELS).remove(0);
        let counts = [&samples.in_attach, &samples.between].map(Vec::len);
        println!(
            "JDK {feature}: {} samples of requests, in attach, between: {counts:?}",
            samples.of_requests.len()
        );
        let mut by_kind: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for (number, labels) in &samples.of_requests {
            let (labels, kind) = without_kind(labels);
            assert!(are_of_request(*number, &labels), "JDK {feature}, request {number}: {labels:?}");
            *by_kind.entry(kind).or_default() += 1;
        }
        assert!(!samples.in_attach.is_empty(), "JDK {feature}");
        for labels in &samples.in_attach {
            let (labels, _) = without_kind(labels);
            assert!(are_of_one_request_or_none(&labels), "JDK {feature}, a record being written: {labels:?}");
        }
        assert!(!samples.between.is_empty(), "JDK {feature}");
        for labels in &samples.between {
            let (labels, _) = without_kind(labels);
            assert!(labels.is_empty(), "JDK {feature}, between two requests: {labels:?}");
        }
        for kind in ["java", "virtual"] {
            let stacks = by_kind.get(&Some(kind.to_owned())).copied().unwrap_or_default();
            assert!(stacks > 0, "JDK {feature}, {kind}: {by_kind:?}");
        }
    }
}
