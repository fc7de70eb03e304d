//! Contexts that a released agent publishes, Datadog's for Java: each sample of a request has the
//! trace and the span that the agent has given it, by what the program has noted itself. Needs
//! root, and the jars in the folder `JVMPROF_TEST_DATADOG_AGENT`, which `cargo xtask test
//! --datadog-agent` gets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{until_published, without_kind};
use crate::support::thread_context::samples_of_pprof;
use crate::support::{Workload, compile_java_with, jdks, record_json, scratch};

/// Platform and virtual threads that work on one request after the other, each with a trace of its
/// own. Notes the number of each request and the ids of its trace and span in a file.
const DESK: &str = r#"
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Scope;
import java.io.FileWriter;
import java.io.PrintWriter;
public class Desk {
    static PrintWriter oracle;
    static volatile long sink;
    static void work(long millis) {
        long until = System.nanoTime() + millis * 1_000_000, sum = sink;
        while (System.nanoTime() < until) for (int i = 0; i < 1000; i++) sum += sum ^ i;
        sink = sum;
    }
    static void request_0() { work(5); }
    static void request_1() { work(5); }
    static void request_2() { work(5); }
    static void request_3() { work(5); }
    static void between() { work(2); }
    static synchronized void note(int number, SpanContext span) {
        oracle.println(number + " " + span.getTraceId() + " " + span.getSpanId());
        oracle.flush();
    }
    static void serve() {
        Tracer tracer = GlobalOpenTelemetry.getTracer("desk");
        for (int number = 0; ; number = (number + 1) % 4) {
            Span span = tracer.spanBuilder("request").setNoParent().startSpan();
            note(number, span.getSpanContext());
            try (Scope scope = span.makeCurrent()) {
                switch (number) {
                    case 0 -> request_0(); case 1 -> request_1(); case 2 -> request_2(); default -> request_3();
                }
            } finally {
                span.end();
            }
            between();
            Thread.yield();
        }
    }
    public static void main(String[] args) throws Exception {
        oracle = new PrintWriter(new FileWriter(args[0]));
        for (int i = 0; i < 2; i++) Thread.ofPlatform().start(Desk::serve);
        for (int i = 0; i < 2; i++) Thread.ofVirtual().start(Desk::serve);
        Thread.currentThread().join();
    }
}
"#;

/// Settings of the agent: profiling from its start, which is what publishes contexts, and nobody
/// who would take traces.
const SETTINGS: [&str; 9] = [
    "-Ddd.service=desk",
    "-Ddd.profiling.enabled=true",
    "-Ddd.profiling.start-delay=0",
    "-Ddd.profiling.start-force-first=true",
    "-Ddd.trace.otel.enabled=true",
    "-Ddd.trace.agent.url=http://127.0.0.1:9",
    "-Ddd.instrumentation.telemetry.enabled=false",
    "-Ddd.remote_config.enabled=false",
    "-Ddatadog.slf4j.simpleLogger.defaultLogLevel=off",
];

/// Methods of their own, so that the stack says which request it is, or that it is none.
const METHODS: [&str; 3] = [
    "-XX:CompileCommand=quiet",
    "-XX:CompileCommand=dontinline,Desk::request_*",
    "-XX:CompileCommand=dontinline,Desk::between",
];

/// The number of a request by the ids of its trace and span.
type Oracle = BTreeMap<(String, String), usize>;

fn oracle(file: &Path) -> Oracle {
    let text = fs::read_to_string(file).expect("the program has written it");
    let noted = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [number, trace, span] = words[..] else { panic!("{line}") };
        ((trace.to_owned(), span.to_owned()), number.parse().expect(line))
    };
    // The last line may still be written.
    let whole = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    whole.lines().map(noted).collect()
}

/// Waits until the program has begun requests.
fn until_it_serves(file: &Path) {
    let started = Instant::now();
    while !fs::read_to_string(file).is_ok_and(|text| text.lines().count() > 100) {
        assert!(started.elapsed() < Duration::from_mins(2), "no request has begun");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn folder() -> PathBuf {
    const FOLDER: &str = "JVMPROF_TEST_DATADOG_AGENT";
    let folder = std::env::var_os(FOLDER);
    folder.unwrap_or_else(|| panic!("{FOLDER} names the jars: `cargo xtask test --datadog-agent`")).into()
}

#[test]
fn samples_of_java_code_have_the_trace_and_span_that_datadogs_agent_has_given_their_request() {
    let folder = folder();
    let jar = |name: &str| folder.join(name).display().to_string();
    let api = [jar("opentelemetry-api.jar"), jar("opentelemetry-context.jar")].join(":");
    let dir = scratch();
    let classes = compile_java_with(21, dir.path(), "Desk", DESK, &api);
    let (noted, output) = (dir.path().join("oracle"), dir.path().join("desk.pb.gz"));
    let (feature, home) = jdks().into_iter().rfind(|(feature, _)| *feature >= 21).expect("a JDK 25");
    let (agent, class_path) =
        (format!("-javaagent:{}", jar("dd-java-agent.jar")), format!("{}:{api}", classes.display()));
    let [noted_path, output_path] = [&noted, &output].map(|path| path.to_str().expect("a path in UTF-8"));
    let program = ["-cp", &class_path, "Desk", noted_path];
    let arguments = [&[agent.as_str()][..], &SETTINGS, &METHODS, &program].concat();
    let jvm = Workload::start(&home.join("bin/java"), &arguments);
    until_it_serves(&noted);
    until_published(jvm.pid());
    let pid = jvm.pid().to_string();
    let summary = record_json(&["--thread-context", "-F", "499", "-d", "10s", "-p", &pid, "-o", output_path]);
    let samples = samples_of_pprof(&fs::read(&output).expect("written"));
    let oracle = oracle(&noted);
    let (mut requests, mut without) = (BTreeSet::new(), 0);
    for (number, labels) in &samples.of_requests {
        let (labels, kind) = without_kind(labels);
        if labels.is_empty() {
            without += 1;
            continue;
        }
        let id = |name: &str| labels.get(name).cloned().unwrap_or_default();
        let noted = oracle.get(&(id("trace_id"), id("span_id")));
        assert_eq!(noted, Some(number), "JDK {feature}: {labels:?}");
        requests.insert((kind, *number));
    }
    let (all, between) = (samples.of_requests.len(), samples.between.len());
    println!("JDK {feature}: of {all} samples of requests {without} have no trace; {between} between two");
    let kinds = ["java", "virtual"].map(|kind| Some(kind.to_owned()));
    let expected = kinds.iter().flat_map(|kind| (0..4).map(move |number| (kind.clone(), number)));
    assert!(requests.is_superset(&expected.collect()), "JDK {feature}: {requests:?}, {without}: {summary}");
    for labels in &samples.between {
        assert!(without_kind(labels).0.is_empty(), "JDK {feature}, between two requests: {labels:?}");
    }
    assert!(between > 0, "JDK {feature}: {summary}");
}
