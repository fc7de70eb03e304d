//! The kind of a JVM's thread, by the functions in which such threads begin.
//!
//! Functions: openjdk src/hotspot/share (runtime/javaThread.cpp, runtime/vmThread.cpp,
//! compiler/compileBroker.cpp, gc/shared/workerThread.cpp, gc/shared/concurrentGCThread.cpp).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::profile::jvm_activity::{JVM_LABEL, THREAD_KIND_LABEL};
use crate::profile::model::{Batch, Frame, FrameKind, SampleLabel, SampleLabels};
use crate::types::FastHasher;

/// Values of the label, each with names that only stacks of such threads have; the first one that
/// is found decides. A name may have parameters after it.
const KINDS: &[(&str, &[&str])] = &[
    ("virtual", &["jdk.internal.vm.Continuation.enter"]),
    (
        "gc",
        &[
            "WorkerThread::run",
            "GangWorker::run",
            "GangWorker::loop",
            "AbstractGangWorker::run",
            "ConcurrentGCThread::run",
            "GCTaskThread::run",
        ],
    ),
    ("compiler", &["CompileBroker::compiler_thread_loop", "CompilerThread::~CompilerThread"]),
    (
        "vm",
        &[
            "VMThread::run",
            "WatcherThread::run",
            "ServiceThread::service_thread_entry",
            "MonitorDeflationThread::monitor_deflation_thread_entry",
            "NotificationThread::notification_thread_entry",
            "signal_thread_entry",
            "attach_listener_thread_entry",
        ],
    ),
    // A Java thread that ends has left its own function for that.
    (
        JAVA,
        &[
            "JavaThread::run",
            "JavaThread::thread_main_inner",
            "JavaThread::~JavaThread",
            "JavaMain",
            "ThreadJavaMain",
        ],
    ),
    // A thread of the JVM's that hasn't come to its own function yet, or has left it.
    (UNKNOWN, &["Thread::call_run", "thread_native_entry", "java_start"]),
];

/// Frames from a thread's begin on in which those functions are: a virtual thread's first one is
/// some twenty frames from its carrier's.
const FIRST_FRAMES: usize = 32;

/// The kinds of threads that aren't a JVM's own.
const JAVA: &str = "java";
const NATIVE: &str = "native";
/// A thread that is a JVM's, nothing else is known.
const UNKNOWN: &str = "";

/// Labels samples with the kinds of their threads, once their frames have names.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct ThreadKinds {
    /// By the frame's address: the kind's position in [`KINDS`], if the frame is one of its
    /// functions. Of one batch only, which keeps the frames where they are.
    of_frames: HashMap<usize, Option<usize>, FastHasher>,
    /// By the address of the labels that a sample had: these, and what it has instead.
    labels: HashMap<(usize, &'static str), [SampleLabels; 2]>,
}

impl ThreadKinds {
    /// Labels the samples of a batch's JVMs.
    pub(in crate::pipeline) fn label(&mut self, batch: &mut Batch) {
        self.of_frames.clear();
        self.labels.clear();
        for series in &mut batch.series {
            let kinds: Vec<Option<&str>> =
                series.samples.iter().map(|sample| self.kind_of(&sample.frames)).collect();
            let is_jvm = kinds.iter().flatten().any(|kind| *kind != NATIVE);
            if !is_jvm && !series.labels.contains_key(JVM_LABEL) {
                continue;
            }
            for (sample, kind) in series.samples.iter_mut().zip(kinds) {
                let Some(kind) = kind else { continue };
                let own = &sample.labels;
                let [_, labelled] = self.labels.entry((own.address(), kind)).or_insert_with(|| {
                    let label = SampleLabel { name: THREAD_KIND_LABEL.into(), value: kind.into() };
                    let labelled = own.iter().cloned().chain([label]).collect::<Vec<_>>();
                    // Its own are kept, so that no others get their address.
                    [own.clone(), SampleLabels::new(labelled)]
                });
                sample.labels = labelled.clone();
            }
        }
    }

    /// Returns the kind of the thread of a stack; `None` if its begin isn't there.
    fn kind_of(&mut self, frames: &[Arc<Frame>]) -> Option<&'static str> {
        let first = &frames[frames.len().saturating_sub(FIRST_FRAMES)..];
        let kind = |frame: &Arc<Frame>| {
            let address = Arc::as_ptr(frame).addr();
            *self.of_frames.entry(address).or_insert_with(|| kind_of_frame(frame))
        };
        let found = first.iter().filter_map(kind).min().map(|kind| KINDS[kind].0);
        if let Some(kind) = found.filter(|kind| *kind != UNKNOWN) {
            return Some(kind);
        }
        let is_java = |frame: &Arc<Frame>| frame.lines.iter().any(|line| line.mode.is_some());
        if frames.iter().any(is_java) {
            return Some(JAVA);
        }
        let is_whole = frames.last().is_some_and(|frame| frame.kind != FrameKind::Marker);
        (is_whole && found.is_none()).then_some(NATIVE)
    }
}

/// The functions of [`KINDS`], each with its kind's position.
static FUNCTIONS: LazyLock<HashMap<&str, usize, FastHasher>> = LazyLock::new(|| {
    let functions = KINDS.iter().enumerate();
    functions.flat_map(|(kind, (_, names))| names.iter().map(move |name| (*name, kind))).collect()
});

fn kind_of_frame(frame: &Frame) -> Option<usize> {
    // Without symbols of libjvm its collector's threads look like any other.
    let is_libjvm = || frame.mapping.as_ref().is_some_and(|mapping| mapping.is_libjvm());
    if frame.kind == FrameKind::Native && frame.lines.is_empty() && is_libjvm() {
        return KINDS.iter().position(|(kind, _)| *kind == UNKNOWN);
    }
    let kind = |name: &str| FUNCTIONS.get(name.split_once('(').map_or(name, |(name, _)| name)).copied();
    frame.lines.iter().filter_map(|line| kind(&line.name)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{ExecutionMode, Line, Mapping};
    use crate::types::{Avma, FileOffset};

    fn kind(names: &[&str], kind: FrameKind) -> Option<&'static str> {
        let mode = (kind == FrameKind::Java).then_some(ExecutionMode::C2);
        let frame = |name: &&str| Frame {
            kind,
            address: None,
            mapping: None,
            lines: vec![Line { mode, ..Line::named(*name) }],
        };
        ThreadKinds::default().kind_of(&names.iter().map(frame).map(Arc::new).collect::<Vec<_>>())
    }

    #[test]
    fn a_threads_kind_is_known_by_the_functions_in_which_it_begins() {
        let begin = ["Thread::call_run()", "thread_native_entry(Thread*)", "start_thread"];
        for (name, expected) in [
            ("WorkerThread::run()", "gc"),
            ("ConcurrentGCThread::run()", "gc"),
            ("VMThread::run()", "vm"),
            ("JavaThread::thread_main_inner()", "java"),
        ] {
            let names = ["leaf", name].into_iter().chain(begin).collect::<Vec<_>>();
            assert_eq!(kind(&names, FrameKind::Native), Some(expected), "{name}");
        }
        assert_eq!(kind(&["zlib_worker", "start_thread"], FrameKind::Native), Some("native"));
        let compiler =
            ["C2Compiler::compile_method", "CompileBroker::compiler_thread_loop()", "JavaThread::run()"];
        assert_eq!(kind(&compiler, FrameKind::Native), Some("compiler"));
        let ends = |destructors: &[&'static str]| {
            let end = ["ThreadsSMRSupport::smr_delete(JavaThread*)", "thread_native_entry(Thread*)"];
            let names = ["futex"].into_iter().chain(destructors.iter().copied()).chain(end);
            kind(&names.collect::<Vec<_>>(), FrameKind::Native)
        };
        let destructors = ["JavaThread::~JavaThread()", "CompilerThread::~CompilerThread()"];
        assert_eq!(ends(&destructors[..1]), Some("java"), "a thread that ends");
        assert_eq!(ends(&destructors), Some("compiler"));
        assert_eq!(ends(&[]), None, "any thread that is in the JVM's list");
        let mounted = ["A.run", "jdk.internal.vm.Continuation.enter", "java.lang.Thread.run"];
        assert_eq!(kind(&mounted, FrameKind::Java), Some("virtual"));
        assert_eq!(kind(&["A.run"], FrameKind::Java), Some("java"));
        let before = ["NonJavaThread::pre_run()"].into_iter().chain(begin).collect::<Vec<_>>();
        assert_eq!(kind(&before, FrameKind::Native), None, "which one isn't known yet");
        assert_eq!(kind(&["[truncated: x]"], FrameKind::Marker), None);
    }

    #[test]
    fn a_thread_that_begins_in_a_libjvm_without_symbols_may_be_of_any_kind() {
        let frame = |kind, path: &str, lines: &[&str]| {
            let mapping = Mapping {
                start: Avma(0x1000),
                limit: Avma(0x2000),
                offset: FileOffset(0),
                path: path.into(),
                build_id: None,
            };
            let mode = (kind == FrameKind::Java).then_some(ExecutionMode::C2);
            let lines = lines.iter().map(|name| Line { mode, ..Line::named(*name) }).collect();
            Arc::new(Frame { kind, address: None, mapping: Some(Arc::new(mapping)), lines })
        };
        let leaf = frame(FrameKind::Native, "/lib/libc.so.6", &["memcpy"]);
        let begin = frame(FrameKind::Native, "/jre/lib/amd64/server/libjvm.so", &[]);
        let root = frame(FrameKind::Native, "/lib/libc.so.6", &[]);
        let kind_of = |frames: &[&Arc<Frame>]| {
            ThreadKinds::default().kind_of(&frames.iter().map(|it| Arc::clone(it)).collect::<Vec<_>>())
        };
        assert_eq!(kind_of(&[&leaf, &begin, &root]), None);
        assert_eq!(kind_of(&[&leaf, &root]), Some("native"));
        let java = frame(FrameKind::Java, "jvm", &["A.run"]);
        assert_eq!(kind_of(&[&java, &begin, &root]), Some("java"));
        let named = frame(FrameKind::Native, "/jre/lib/amd64/server/libjvm.so", &["GangWorker::loop()"]);
        assert_eq!(kind_of(&[&leaf, &begin, &named, &root]), Some("gc"));
    }

    #[test]
    fn samples_of_jvms_are_labelled_beside_what_they_have() {
        use crate::profile::testing::{batch, frame, labels, series};
        let named = |name: &str| frame(FrameKind::Native, name);
        let stacks = || {
            vec![
                (vec![named("mark"), named("WorkerThread::run()"), named("start_thread")], 1),
                (vec![named("poll"), named("start_thread")], 1),
                (vec![frame(FrameKind::Marker, "[truncated: x]")], 1),
            ]
        };
        let plain = || vec![(vec![named("poll"), named("start_thread")], 1)];
        let mut batch = batch(vec![
            series(&[("comm", "java")], stacks()),
            series(&[("comm", "cat")], plain()),
            series(&[("jvm_version", "17")], plain()),
        ]);
        let wait = SampleLabel { name: "wait".into(), value: "poll".into() };
        batch.series[0].samples[1].labels = SampleLabels::new([wait]);
        ThreadKinds::default().label(&mut batch);
        let of = |series: usize, sample: usize| {
            let labels = batch.series[series].samples[sample].labels.iter();
            labels.map(|label| format!("{}={}", label.name, label.value)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            (of(0, 0), of(0, 1), of(0, 2)),
            ("thread_kind=gc".to_owned(), "wait=poll thread_kind=native".to_owned(), String::new())
        );
        assert_eq!((of(1, 0), of(2, 0)), (String::new(), "thread_kind=native".to_owned()));
        assert_eq!(batch.series[0].labels, labels(&[("comm", "java")]), "labels of samples only");
    }
}
