//! Idle waits: of threads that have nothing to do. What they are, rules say: those of
//! `idle_rules.toml` and those of users, in the same form. The former don't hold where application
//! code waits, or for locks.

use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::Error as _;

use super::cause::Cause;
use super::holder_stacks::is_of_jdk;
use crate::profile::model::{Frame, FrameKind, Line};

const DEFAULTS: &str = include_str!("idle_rules.toml");

/// A rule by which a wait is idle.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleRule {
    /// The stack has all of these, in any order: a name, whose begin or end a `*` may stand for.
    frames: Vec<String>,
    /// It has none of these.
    #[serde(default)]
    without: Vec<String>,
    /// The causes for which it holds; none: for all in which the thread waits for others.
    #[serde(default, deserialize_with = "causes")]
    wait: Vec<Cause>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    idle: Vec<IdleRule>,
}

fn causes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Cause>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let cause = |name: &String| {
        Cause::named(name).ok_or_else(|| D::Error::custom(format!("{name:?} is no cause of a wait")))
    };
    names.iter().map(cause).collect()
}

/// Reads a rule as it stands in a configuration file: a TOML table.
impl FromStr for IdleRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = toml::de::ValueDeserializer::parse(text.trim()).and_then(Self::deserialize);
        let rule = read.map_err(|error| error.message().to_owned())?;
        if rule.frames.iter().all(|name| name.trim_matches('*').is_empty()) {
            return Err("frames must name a function".to_owned());
        }
        Ok(rule)
    }
}

impl IdleRule {
    fn matches(&self, cause: Cause, frames: &[Arc<Frame>]) -> bool {
        let is_meant =
            if self.wait.is_empty() { waits_for_others(cause) } else { self.wait.contains(&cause) };
        let has = |pattern: &String| {
            let mut lines = frames.iter().flat_map(|frame| &frame.lines);
            lines.any(|line| is_like(&line.name, pattern))
        };
        is_meant && self.frames.iter().all(has) && !self.without.iter().any(has)
    }

    /// Returns true if what the youngest frame of the rule has called is none of the application's.
    fn is_own_wait(&self, frames: &[Arc<Frame>]) -> bool {
        let of_rule = |line: &Line| self.frames.iter().any(|pattern| is_like(&line.name, pattern));
        let lines = frames.iter().flat_map(|frame| frame.lines.iter().map(move |line| (frame.kind, line)));
        let mut callees = lines.take_while(|(_, line)| !of_rule(line));
        !callees.any(|(kind, line)| kind == FrameKind::Java && !is_of_jdk(&line.name))
    }
}

const fn waits_for_others(cause: Cause) -> bool {
    !matches!(
        cause,
        Cause::Runnable
            | Cause::CpuQuota
            | Cause::PageFault
            | Cause::Io
            | Cause::Safepoint
            | Cause::Gc
            | Cause::Monitor
    )
}

fn is_like(name: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(begin)) => name.starts_with(begin),
        (None, None) => name == pattern,
    }
}

/// All rules in force.
#[derive(Debug)]
pub(super) struct IdleRules {
    /// Those of this program.
    own: Vec<IdleRule>,
    users: Vec<IdleRule>,
}

impl IdleRules {
    /// Returns the rules of this program, and then these.
    pub(super) fn with(users: &[IdleRule]) -> Self {
        // A test reads the file, too.
        let own = toml::from_str::<RuleFile>(DEFAULTS).map(|file| file.idle).unwrap_or_default();
        Self { own, users: users.to_vec() }
    }

    /// `class`: of the monitor or blocker that the thread waits for.
    pub(super) fn is_idle(&self, cause: Cause, class: Option<&str>, frames: &[Arc<Frame>]) -> bool {
        let is_meant = |rule: &IdleRule| rule.matches(cause, frames) && rule.is_own_wait(frames);
        let by_own = !cause.is_contention(class) && self.own.iter().any(is_meant);
        by_own || self.users.iter().any(|rule| rule.matches(cause, frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> Vec<Arc<Frame>> {
        let kind = |name: &str| if name.contains('.') { FrameKind::Java } else { FrameKind::Native };
        let frame = |name: &&str| Frame {
            kind: kind(name),
            address: None,
            mapping: None,
            lines: vec![Line::named(*name)],
        };
        names.iter().map(frame).map(Arc::new).collect()
    }

    #[test]
    fn the_rules_of_this_program_can_be_read() {
        let file: RuleFile = toml::from_str(DEFAULTS).expect("valid rules");
        assert!(file.idle.len() > 40 && file.idle.iter().all(|rule| !rule.frames.is_empty()));
        assert_eq!(IdleRules::with(&[]).own.len(), file.idle.len());
    }

    #[test]
    fn a_worker_without_a_task_is_idle_and_one_at_work_is_not() {
        let rules = IdleRules::with(&[]);
        let pool = "java.util.concurrent.ThreadPoolExecutor.runWorker";
        let waiting = stack(&["f", "java.util.concurrent.ThreadPoolExecutor.getTask", pool]);
        assert!(rules.is_idle(Cause::Park, None, &waiting));
        assert!(!rules.is_idle(Cause::Runnable, None, &waiting), "it was woken");
        assert!(!rules.is_idle(Cause::Park, None, &stack(&["com.acme.Job.run", pool])));
        let worker = ["PosixSemaphore::wait()", "WorkerThread::run()"];
        assert!(rules.is_idle(Cause::Futex, None, &stack(&worker)));
        assert!(!rules.is_idle(Cause::Futex, None, &stack(&worker[1..])));
    }

    #[test]
    fn a_thread_of_the_library_that_waits_in_application_code_is_not_idle() {
        let rules = IdleRules::with(&[]);
        let monitor = ["__futex_wait", "java.lang.Object.wait0", "java.lang.Object.wait"];
        let parked = ["Unsafe_Park", "jdk.internal.misc.Unsafe.park"];
        for (cause, leaves, thread) in [
            (Cause::ObjectWait, &monitor[..], "java.lang.ref.Finalizer$FinalizerThread.run"),
            (Cause::Park, &parked[..], "java.lang.ref.Finalizer$FinalizerThread.run"),
            (Cause::Park, &parked[..], "jdk.internal.ref.CleanerImpl.run"),
            (Cause::ObjectWait, &monitor[..], "java.util.TimerThread.mainLoop"),
            (Cause::Park, &parked[..], "java.util.concurrent.ThreadPoolExecutor.getTask"),
        ] {
            let is_idle = |between: &[&str]| {
                let names = [leaves, between, &[thread][..], &["java.lang.Thread.run"][..]].concat();
                rules.is_idle(cause, None, &stack(&names))
            };
            assert!(is_idle(&["java.lang.ref.ReferenceQueue.remove"]), "{thread}");
            assert!(!is_idle(&["com.acme.Job.run", "java.lang.ref.ReferenceQueue.remove"]), "{thread}");
        }
        let callers = ["java.lang.Thread.join", "com.acme.Main.main", "JavaMain"];
        assert!(rules.is_idle(Cause::ObjectWait, None, &stack(&[&monitor[..], &callers[..]].concat())));
    }

    #[test]
    fn the_thread_that_waits_for_a_child_is_idle_and_who_waits_for_that_is_not() {
        let rules = IdleRules::with(&[]);
        let pool = "java.util.concurrent.ThreadPoolExecutor.runWorker";
        let reapers = [
            ["java.lang.ProcessHandleImpl.waitForProcessExit0", "java.lang.ProcessHandleImpl$1.run"],
            ["java.lang.UNIXProcess.waitForProcessExit", "java.lang.UNIXProcess.lambda$initStreams$3"],
        ];
        for reaper in reapers {
            let names = [&["kernel_wait4", "wait4"][..], &reaper[..], &[pool][..]].concat();
            assert!(rules.is_idle(Cause::Other, None, &stack(&names)), "{reaper:?}");
            assert!(!rules.is_idle(Cause::Runnable, None, &stack(&names)), "the child has ended");
            assert!(!rules.is_idle(Cause::Other, None, &stack(&["f", reaper[1], pool])), "at work");
        }
        let waiting = ["java.lang.Object.wait", "java.lang.ProcessImpl.waitFor", "com.acme.Main.run"];
        assert!(!rules.is_idle(Cause::ObjectWait, None, &stack(&waiting)));
    }

    #[test]
    fn a_wait_for_a_lock_is_idle_only_by_a_users_rule() {
        let lock = Some("java.util.concurrent.locks.ReentrantLock$NonfairSync");
        let queue = stack(&["java.util.concurrent.ThreadPoolExecutor.getTask"]);
        assert!(!IdleRules::with(&[]).is_idle(Cause::Park, lock, &queue));
        let rule = r#"{ frames = ["java.util.concurrent.ThreadPoolExecutor.getTask"] }"#;
        let rules = IdleRules::with(&[rule.parse().expect("valid")]);
        assert!(rules.is_idle(Cause::Park, lock, &queue));
    }

    #[test]
    fn frames_that_a_rule_does_not_allow_say_that_the_thread_works() {
        let rules = IdleRules::with(&[]);
        let worker = "java.util.concurrent.ForkJoinPool.runWorker";
        let park = "java.util.concurrent.locks.LockSupport.park";
        assert!(rules.is_idle(Cause::Park, None, &stack(&[park, worker])));
        let joins = [park, "java.util.concurrent.ForkJoinTask.doExec", worker];
        assert!(!rules.is_idle(Cause::Park, None, &stack(&joins)));
        let sweeper = "NMethodSweeper::sweeper_loop()";
        let wait = "Monitor::wait(long)";
        assert!(rules.is_idle(Cause::Futex, None, &stack(&[wait, sweeper])));
        let stops = [wait, "VMThread::execute(VM_Operation*)", sweeper];
        assert!(!rules.is_idle(Cause::Futex, None, &stack(&stops)));
    }

    #[test]
    fn threads_of_collectors_are_idle_in_their_own_loops_alone() {
        let rules = IdleRules::with(&[]);
        let is_idle = |names: &[&str]| rules.is_idle(Cause::Futex, None, &stack(names));
        let monitor = "Monitor::wait_without_safepoint_check(long)";
        let platform = "PlatformMonitor::wait(long)";
        let operation = "VMThread::execute(VM_Operation*)";
        for thread in [
            "G1YoungRemSetSamplingThread::run_service()",
            "ZDriver::run_service()",
            "XDriver::run_service()",
            "ShenandoahControlThread::run_service()",
            "ShenandoahGenerationalControlThread::run_service()",
            "ShenandoahUncommitThread::run_service()",
        ] {
            assert!(is_idle(&[platform, monitor, thread]), "{thread}");
            assert!(!is_idle(&[platform, monitor, operation, thread]), "{thread}");
            assert!(!is_idle(&[platform, monitor, "SuspendibleThreadSet::join()", thread]), "{thread}");
            assert!(!is_idle(&["PosixSemaphore::wait()", thread]), "{thread}");
        }
        for thread in ["ZDirector", "ZUnmapper", "ZUncommitter", "XUnmapper", "XUncommitter"] {
            let run = format!("{thread}::run_thread()");
            assert!(is_idle(&[platform, &run]) && !is_idle(&["pthread_mutex_lock", &run]), "{thread}");
        }
        assert!(is_idle(&[platform, "ZMetronome::wait_for_tick()", "ZStat::run_thread()"]));
        let sleep = "os::naked_short_sleep(long)";
        let regulator = "ShenandoahRegulatorThread::regulate_young_and_old_cycles()";
        assert!(is_idle(&[sleep, regulator]) && !is_idle(&[monitor, regulator]));
        assert!(is_idle(&[sleep, "ShenandoahControlThread::run_service()"]));
    }

    #[test]
    fn threads_of_the_jvms_services_are_idle_in_their_own_loops_alone() {
        let rules = IdleRules::with(&[]);
        let is_idle = |cause, names: &[&str]| rules.is_idle(cause, None, &stack(names));
        let platform = "PlatformMonitor::wait(unsigned long)";
        let monitor = "Monitor::wait_without_safepoint_check(unsigned long)";
        for queue in [
            "StringDedup::Processor::wait_for_requests() const",
            "G1StringDedupQueue::wait_impl()",
            "ShenandoahStrDedupQueue::wait_impl()",
        ] {
            assert!(is_idle(Cause::Futex, &[platform, monitor, queue]), "{queue}");
        }
        for (wait, thread) in [
            ("os::PlatformMonitor::wait(long)", "AsyncLogWriter::run()"),
            ("PosixSemaphore::wait()", "AsyncLogWriter::run()"),
            (monitor, "NativeHeapTrimmerThread::run()"),
            (monitor, "recorderthread_entry(JavaThread*, JavaThread*)"),
            ("PosixSemaphore::wait()", "JfrThreadSampler::run()"),
            ("PosixSemaphore::wait()", "JfrSamplerThread::run()"),
            ("PosixSemaphore::wait()", "JfrCPUSamplerThread::run()"),
        ] {
            assert!(is_idle(Cause::Futex, &[wait, thread]), "{wait} {thread}");
            assert!(!is_idle(Cause::Futex, &["pthread_mutex_lock", thread]), "{thread}");
        }
        let rotates = ["JfrRecorderService::rotate(int)", "recorderthread_entry(JavaThread*, JavaThread*)"];
        assert!(!is_idle(Cause::Futex, &[&[platform, monitor], &rotates[..]].concat()));
        assert!(is_idle(Cause::Sleep, &["os::naked_sleep(long)", "JfrThreadSampler::run()"]));
        let attach = "AttachListenerThread::thread_entry(JavaThread*, JavaThread*)";
        assert!(is_idle(Cause::Socket, &["accept", attach]));
        assert!(!is_idle(Cause::Futex, &[monitor, "VMThread::execute(VM_Operation*)", attach]));
        let naps = ["java.lang.Object.wait", "jdk.jfr.internal.PlatformRecorder.takeNap"];
        let periodic = ["jdk.jfr.internal.PlatformRecorder.periodicTask"];
        let of_user = ["java.lang.Object.wait", "com.acme.Events.emit", "jdk.jfr.internal.PeriodicEvents"];
        assert!(is_idle(Cause::ObjectWait, &[&naps[..], &periodic].concat()));
        assert!(!is_idle(Cause::ObjectWait, &[&of_user[..], &periodic].concat()));
    }

    #[test]
    fn the_timer_of_a_fork_join_pool_is_idle_but_not_what_it_runs() {
        let rules = IdleRules::with(&[]);
        let (park, timer) = ("jdk.internal.misc.Unsafe.park", "java.util.concurrent.DelayScheduler.loop");
        assert!(rules.is_idle(Cause::Park, None, &stack(&[park, timer])));
        let runs = stack(&[park, "java.util.concurrent.ForkJoinTask.doExec", timer]);
        assert!(!rules.is_idle(Cause::Park, None, &runs));
    }

    #[test]
    fn users_add_rules_of_the_same_form() {
        let rule: IdleRule =
            r#"{ frames = ["com.acme.Pool.take*"], wait = ["park", "sleep"] }"#.parse().expect("valid");
        let rules = IdleRules::with(&[rule]);
        let taking = stack(&["com.acme.Pool.takeNext"]);
        assert!(rules.is_idle(Cause::Sleep, None, &taking) && !rules.is_idle(Cause::Socket, None, &taking));
        for wrong in [
            r#"{ frames = [] }"#,
            r#"{ frames = ["*"] }"#,
            r#"{ frames = ["a"], wait = ["lunch"] }"#,
            r#"{ frames = ["a"], thread = "b" }"#,
            "a",
        ] {
            assert!(wrong.parse::<IdleRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_star_stands_for_any_begin_or_end() {
        for (pattern, name, is_meant) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.*", "a.b", true),
            ("*b", "a.b", true),
            ("*.*", "a.b", true),
            ("b*", "a.b", false),
        ] {
            assert_eq!(is_like(name, pattern), is_meant, "{pattern} {name}");
        }
    }
}
