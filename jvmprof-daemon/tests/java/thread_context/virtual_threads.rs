//! Virtual threads whose requests go on after a wait, maybe on another carrier, beside virtual
//! threads without requests on the same carriers.

use std::collections::BTreeSet;

use super::without_kind;
use crate::support::thread_context::{
    Samples, WITH_LABELS, WRITER, are_of_one_request_or_none, are_of_request, gcc, process_context,
    samples_of,
};
use crate::support::{compile_java_for, jdks, scratch};

/// Requests of three parts, with a wait between two of these.
const MARKET: &str = r#"
import java.lang.foreign.*;
import java.lang.invoke.MethodHandle;
import java.util.concurrent.ThreadLocalRandom;
public class Market {
    static final Linker LINKER = Linker.nativeLinker();
    static MethodHandle attach, detach;
    static volatile long sink;
    static void work(long rounds) { long sum = sink; for (long i = 0; i < rounds; i++) sum += sum ^ i; sink = sum; }
    static void request_0() { work(100_000); }
    static void request_1() { work(100_000); }
    static void request_2() { work(100_000); }
    static void request_3() { work(100_000); }
    static void request_4() { work(100_000); }
    static void request_5() { work(100_000); }
    static void request_6() { work(100_000); }
    static void request_7() { work(100_000); }
    static void between() { work(100_000); }
    static void part(int number) {
        switch (number) {
            case 0 -> request_0(); case 1 -> request_1(); case 2 -> request_2(); case 3 -> request_3();
            case 4 -> request_4(); case 5 -> request_5(); case 6 -> request_6(); default -> request_7();
        }
    }
    static void leave() throws InterruptedException {
        if (ThreadLocalRandom.current().nextInt(50) == 0) Thread.sleep(1); else Thread.yield();
    }
    static void serve(boolean again) {
        try {
            while (true) {
                int number = ThreadLocalRandom.current().nextInt(8);
                attach.invokeExact(number, number & 1);
                for (int i = 0; i < 3; i++) {
                    part(number);
                    if (i == 2) break;
                    if (again) detach.invokeExact(number & 1);
                    leave();
                    if (again) attach.invokeExact(number, number & 1);
                }
                detach.invokeExact(number & 1);
                leave();
            }
        } catch (Throwable error) { throw new RuntimeException(error); }
    }
    static void rest() {
        try { while (true) { between(); leave(); } } catch (InterruptedException impossible) { }
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
        boolean again = Boolean.parseBoolean(args[2]);
        for (int i = 0; i < 6; i++) Thread.ofVirtual().start(() -> serve(again));
        for (int i = 0; i < 3; i++) Thread.ofVirtual().start(Market::rest);
        Thread.currentThread().join();
    }
}
"#;

#[test]
fn requests_of_virtual_threads_have_their_trace_on_each_carrier_if_the_writer_attaches_them_again() {
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 22) {
        let dir = scratch();
        let library = dir.path().join("libwriter.so");
        gcc("gcc", &library, &[WRITER], &["-shared", "-fPIC"]);
        let classes = compile_java_for(22, dir.path(), "Market", MARKET);
        let [classes, library] = [&classes, &library].map(|path| path.to_str().expect("a path in UTF-8"));
        let (context, java) = (process_context("tls_v1"), home.join("bin/java"));
        let arguments = |again| {
            let mut arguments = vec!["--enable-native-access=ALL-UNNAMED", "-XX:CompileCommand=quiet"];
            arguments.push("-Djdk.virtualThreadScheduler.parallelism=2");
            // Methods of their own, so that the stack says which request it is, or that it is none.
            arguments.push("-XX:CompileCommand=dontinline,Market::request_*");
            arguments.push("-XX:CompileCommand=dontinline,Market::between");
            arguments.extend(["-cp", classes, "Market", &context, library, again]);
            (&*java, arguments)
        };
        let mut samples = samples_of(&[arguments("true"), arguments("false")], &WITH_LABELS);
        let (without, with) = (samples.remove(1), samples.remove(0));
        let Samples { of_requests, in_attach, between } = with;
        let counts = [of_requests.len(), in_attach.len(), between.len()];
        println!("JDK {feature}: samples of requests, in attach, between: {counts:?}");
        let mut requests = BTreeSet::new();
        for (number, labels) in &of_requests {
            let (labels, kind) = without_kind(labels);
            assert!(are_of_request(*number, &labels), "JDK {feature}, request {number}: {labels:?}");
            requests.insert((*number, kind));
        }
        let all = (0..8).map(|number| (number, Some("virtual".to_owned())));
        assert!(requests.is_superset(&all.collect()), "JDK {feature}: {requests:?}");
        for labels in &in_attach {
            let (labels, _) = without_kind(labels);
            assert!(are_of_one_request_or_none(&labels), "JDK {feature}, a record being written: {labels:?}");
        }
        assert!(!between.is_empty(), "JDK {feature}");
        for labels in &between {
            let (labels, _) = without_kind(labels);
            assert!(labels.is_empty(), "JDK {feature}, a thread without requests: {labels:?}");
        }
        // One that doesn't leaves requests on carriers where others run, as the documentation says.
        let is_another = |(number, labels): &&(usize, _)| !are_of_request(*number, &without_kind(labels).0);
        let others = without.of_requests.iter().filter(is_another).count();
        let none = without.between.iter().filter(|labels| !without_kind(labels).0.is_empty()).count();
        assert!(others > 0 && none > 0, "JDK {feature}: {others} of requests, {none} without");
    }
}
