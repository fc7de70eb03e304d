//! The kind of a JVM's thread, by the functions in which such threads begin.
//!
//! Functions: openjdk src/hotspot/share (runtime/javaThread.cpp, runtime/vmThread.cpp,
//! compiler/compileBroker.cpp, gc/shared/workerThread.cpp, gc/shared/concurrentGCThread.cpp).

use std::sync::Arc;

use crate::profile::model::{Frame, FrameKind};

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
    ("compiler", &["CompileBroker::compiler_thread_loop"]),
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
    ("java", &["JavaThread::run", "JavaThread::thread_main_inner", "JavaMain", "ThreadJavaMain"]),
];

/// Returns the kind of the thread of a stack; `None` if its begin isn't there.
pub(super) fn kind_of(frames: &[Arc<Frame>]) -> Option<&'static str> {
    let names = || frames.iter().flat_map(|frame| &frame.lines).map(|line| &*line.name);
    let has = |known: &&str| names().any(|name| name.split('(').next() == Some(*known));
    if let Some((kind, _)) = KINDS.iter().find(|(_, functions)| functions.iter().any(has)) {
        return Some(kind);
    }
    let is_java = |frame: &Arc<Frame>| frame.lines.iter().any(|line| line.mode.is_some());
    if frames.iter().any(is_java) {
        return Some("java");
    }
    let is_whole = frames.last().is_some_and(|frame| frame.kind != FrameKind::Marker);
    is_whole.then_some("native")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{ExecutionMode, Line};

    fn kind(names: &[&str], kind: FrameKind) -> Option<&'static str> {
        let mode = (kind == FrameKind::Java).then_some(ExecutionMode::C2);
        let frame = |name: &&str| Frame {
            kind,
            address: None,
            mapping: None,
            lines: vec![Line { mode, ..Line::named(*name) }],
        };
        kind_of(&names.iter().map(frame).map(Arc::new).collect::<Vec<_>>())
    }

    #[test]
    fn the_functions_in_which_a_thread_begins_tell_its_kind() {
        let begin = ["Thread::call_run()", "thread_native_entry(Thread*)", "start_thread"];
        for (name, expected) in [
            ("WorkerThread::run()", "gc"),
            ("ConcurrentGCThread::run()", "gc"),
            ("VMThread::run()", "vm"),
            ("JavaThread::thread_main_inner()", "java"),
            ("zlib_worker", "native"),
        ] {
            let names = ["leaf", name].into_iter().chain(begin).collect::<Vec<_>>();
            assert_eq!(kind(&names, FrameKind::Native), Some(expected), "{name}");
        }
        let compiler =
            ["C2Compiler::compile_method", "CompileBroker::compiler_thread_loop()", "JavaThread::run()"];
        assert_eq!(kind(&compiler, FrameKind::Native), Some("compiler"));
        let mounted = ["A.run", "jdk.internal.vm.Continuation.enter", "java.lang.Thread.run"];
        assert_eq!(kind(&mounted, FrameKind::Java), Some("virtual"));
        assert_eq!(kind(&["A.run"], FrameKind::Java), Some("java"));
        assert_eq!(kind(&["[truncated: x]"], FrameKind::Marker), None);
    }
}
