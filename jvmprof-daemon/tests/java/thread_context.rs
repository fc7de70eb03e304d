//! Contexts that Java code publishes through a library, by the foreign function interface.

use std::collections::BTreeMap;

use crate::support::thread_context::{
    Labels, WITH_LABELS, WRITER, are_of_one_request_or_none, are_of_request, gcc, process_context, samples_of,
};
use crate::support::{compile_java_for, jdks, scratch};

/// Platform and virtual threads that work on one request after the other.
const SHOP: &str = r#"
import java.lang.foreign.*;
import java.lang.invoke.MethodHandle;
import java.util.concurrent.ThreadLocalRandom;
public class Shop {
    static final Linker LINKER = Linker.nativeLinker();
    static MethodHandle attach, detach;
    static volatile long sink;
    static void work(long rounds) { long sum = sink; for (long i = 0; i < rounds; i++) sum += sum ^ i; sink = sum; }
    static void request_0() { work(3000); }
    static void request_1() { work(3000); }
    static void request_2() { work(3000); }
    static void request_3() { work(3000); }
    static void request_4() { work(3000); }
    static void request_5() { work(3000); }
    static void request_6() { work(3000); }
    static void request_7() { work(3000); }
    static void serve(boolean yields) {
        try {
            while (true) {
                int number = ThreadLocalRandom.current().nextInt(8);
                attach.invokeExact(number, number & 1);
                switch (number) {
                    case 0 -> request_0(); case 1 -> request_1(); case 2 -> request_2();
                    case 3 -> request_3(); case 4 -> request_4(); case 5 -> request_5();
                    case 6 -> request_6(); default -> request_7();
                }
                detach.invokeExact(number & 1);
                if (yields) Thread.yield();
            }
        } catch (Throwable error) { throw new RuntimeException(error); }
    }
    public static void main(String[] args) throws Throwable {
        SymbolLookup library = SymbolLookup.libraryLookup(args[1], Arena.global());
        FunctionDescriptor one = FunctionDescriptor.ofVoid(ValueLayout.JAVA_INT);
        FunctionDescriptor two = FunctionDescriptor.ofVoid(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT);
        attach = LINKER.downcallHandle(library.find("attach").get(), two);
        detach = LINKER.downcallHandle(library.find("detach").get(), one);
        FunctionDescriptor text = FunctionDescriptor.ofVoid(ValueLayout.ADDRESS);
        MethodHandle publish = LINKER.downcallHandle(library.find("publish").get(), text);
        publish.invokeExact(Arena.global().allocateFrom(args[0]));
        for (int i = 0; i < 4; i++) Thread.ofVirtual().start(() -> serve(true));
        for (int i = 0; i < 2; i++) Thread.ofPlatform().start(() -> serve(false));
    }
}
"#;

#[test]
fn samples_of_java_code_have_the_trace_of_their_request_on_virtual_threads_too() {
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 22) {
        let dir = scratch();
        let library = dir.path().join("libwriter.so");
        gcc("gcc", &library, &[WRITER], &["-shared", "-fPIC"]);
        let classes = compile_java_for(22, dir.path(), "Shop", SHOP);
        let [classes, library] = [&classes, &library].map(|path| path.to_str().expect("a path in UTF-8"));
        let context = process_context("tls_v1");
        // Methods of their own, so that the stack says which request it is.
        let options = ["--enable-native-access=ALL-UNNAMED", "-XX:CompileCommand=dontinline,Shop::request_*"];
        let arguments =
            [&options[..], &["-XX:CompileCommand=quiet", "-cp", classes, "Shop", &context, library]];
        let java = home.join("bin/java");
        let samples = samples_of(&[(&java, arguments.concat())], &WITH_LABELS).remove(0);
        let without_kind = |labels: &Labels| {
            let mut labels = labels.clone();
            let kind = labels.remove("thread_kind");
            (labels, kind)
        };
        let mut by_kind: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for (number, labels) in &samples.of_requests {
            let (labels, kind) = without_kind(labels);
            assert!(are_of_request(*number, &labels), "JDK {feature}, request {number}: {labels:?}");
            *by_kind.entry(kind).or_default() += 1;
        }
        for labels in &samples.in_attach {
            let (labels, _) = without_kind(labels);
            assert!(are_of_one_request_or_none(&labels), "JDK {feature}, a record being written: {labels:?}");
        }
        for kind in ["java", "virtual"] {
            let stacks = by_kind.get(&Some(kind.to_owned())).copied().unwrap_or_default();
            assert!(stacks > 0, "JDK {feature}, {kind}: {by_kind:?}");
        }
    }
}
