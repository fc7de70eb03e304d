//! Stacks of threads that had a monitor for which another one waited: the stacks of samples that
//! say so, for the waits that end after them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use jvmprof_common::off_cpu::WaitRecord;

use super::cause_classifier::without_scheduler;
use crate::process::ProcessKey;
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{ExecutionMode, Frame, SampleLabels};
use crate::sampler::{SampledEvent, StackSample};

/// Stacks of one monitor that are kept, at most: a wait is mostly for one of the last.
const STACKS_PER_MONITOR: usize = 64;
/// Monitors whose stacks are kept in a window, at most.
const MAX_MONITORS: usize = 4096;

/// Methods of the JDK, in which a thread does what its caller wants.
const JDK: [&str; 5] = ["java.", "javax.", "jdk.", "sun.", "com.sun."];

/// A time, as ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeSpan {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

impl TimeSpan {
    /// Returns the time of a wait that was reported at this time.
    pub(super) const fn of_wait(record: &WaitRecord, to_ns: u64) -> Self {
        Self { from_ns: to_ns.saturating_sub(record.waited_ns), to_ns }
    }

    /// Returns the time in which the thread of a sample was where its stack says.
    fn of_sample(sample: &StackSample) -> Self {
        let to_ns = sample.header.time_ns;
        match &sample.event {
            SampledEvent::OffCpu(record) => Self::of_wait(record, to_ns),
            SampledEvent::Cpu | SampledEvent::Allocation(_) => Self { from_ns: to_ns, to_ns },
        }
    }

    const fn overlaps(self, other: Self) -> bool {
        self.from_ns <= other.to_ns && other.from_ns <= self.to_ns
    }
}

/// The stack of a thread that had a monitor.
#[derive(Debug)]
struct HolderStack {
    span: TimeSpan,
    /// The thread's id in the initial pid namespace.
    tid: u32,
    stack: NamedStack,
}

/// The stacks of a window and of the one before, by the monitors that their threads had.
#[derive(Debug, Default)]
pub(super) struct HolderStacks {
    by_monitor: HashMap<(ProcessKey, u64), VecDeque<HolderStack>>,
    /// Before this time nothing is kept at the next window's begin.
    window_began_ns: u64,
}

impl HolderStacks {
    /// Keeps the whole stack of a sample whose thread has a monitor.
    pub(super) fn keep(&mut self, key: ProcessKey, sample: &StackSample, stack: &NamedStack) {
        let key = (key, sample.header.held_monitor);
        if self.by_monitor.len() >= MAX_MONITORS && !self.by_monitor.contains_key(&key) {
            return;
        }
        let stacks = self.by_monitor.entry(key).or_default();
        if stacks.len() == STACKS_PER_MONITOR {
            stacks.pop_front();
        }
        let (span, tid) = (TimeSpan::of_sample(sample), sample.header.tid);
        let frames: Arc<[Arc<Frame>]> = match sample.event {
            SampledEvent::OffCpu(_) => Arc::from(without_scheduler(&stack.frames)),
            SampledEvent::Cpu | SampledEvent::Allocation(_) => Arc::clone(&stack.frames),
        };
        let stack = NamedStack { frames, labels: SampleLabels::default(), pending: stack.pending };
        stacks.push_back(HolderStack { span, tid, stack });
    }

    /// Returns where the thread with this id, which was there all of this time, was when it had the
    /// monitor first in it.
    pub(super) fn find(
        &self,
        key: ProcessKey,
        monitor: u64,
        tid: u32,
        span: TimeSpan,
    ) -> Option<&NamedStack> {
        let stacks = self.by_monitor.get(&(key, monitor))?;
        let is_it = |stack: &&HolderStack| stack.tid == tid && stack.span.overlaps(span);
        stacks.iter().filter(is_it).min_by_key(|stack| stack.span.from_ns).map(|stack| &stack.stack)
    }

    /// Forgets what is older than the window that ends now.
    pub(super) fn begin_window(&mut self, now_ns: u64) {
        let oldest = std::mem::replace(&mut self.window_began_ns, now_ns);
        self.by_monitor.retain(|_, stacks| {
            stacks.retain(|stack| stack.span.to_ns >= oldest);
            !stacks.is_empty()
        });
    }
}

/// Returns true if a Java method of this name is the JDK's.
pub(super) fn is_of_jdk(name: &str) -> bool {
    JDK.iter().any(|package| name.starts_with(package))
}

/// Returns the method that a holder is in, with its line where that is known: the innermost one
/// that isn't the JDK's, if there is one.
pub(super) fn method_of(frames: &[Arc<Frame>]) -> Option<String> {
    let methods = || frames.iter().flat_map(|frame| &frame.lines).filter(|line| line.mode.is_some());
    let line = methods().find(|line| !is_of_jdk(&line.name)).or_else(|| methods().next())?;
    let (name, _) = ExecutionMode::split_suffix(&line.name);
    Some(if line.line == 0 { name.to_owned() } else { format!("{name}:{}", line.line) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, Line};

    const MONITOR: u64 = 0x4000;

    fn java(name: &str, line: u32) -> Arc<Frame> {
        let line = Line { mode: Some(ExecutionMode::C2), line, ..Line::named(name) };
        Arc::new(Frame { kind: FrameKind::Java, address: None, mapping: None, lines: vec![line] })
    }

    fn stack(name: &str) -> NamedStack {
        NamedStack { frames: Arc::from([java(name, 1)]), labels: SampleLabels::default(), pending: false }
    }

    /// All of these threads have one name, as those of a pool whose names the kernel has cut.
    fn sample(time_ns: u64, waited_ns: Option<u64>, tid: u32) -> StackSample {
        let mut sample = StackSample::empty();
        sample.header.time_ns = time_ns;
        sample.header.held_monitor = MONITOR;
        sample.header.tid = tid;
        sample.header.comm = *b"http-nio-8080-e\0";
        if let Some(waited_ns) = waited_ns {
            let record = WaitRecord { waited_ns, ..WaitRecord::default() };
            sample.event = SampledEvent::OffCpu(Box::new(record));
        }
        sample
    }

    #[test]
    fn the_first_stack_of_the_very_thread_within_the_wait_is_the_holders() {
        let key = ProcessKey::numbered(7);
        let mut stacks = HolderStacks::default();
        for (sample, name) in [
            (sample(100, Some(50), 1), "sleeps"),
            (sample(130, None, 1), "runs"),
            (sample(131, None, 2), "other"),
        ] {
            stacks.keep(key, &sample, &stack(name));
        }
        let find = |monitor, tid, from_ns, to_ns| {
            let found = stacks.find(key, monitor, tid, TimeSpan { from_ns, to_ns });
            found.map(|stack| stack.frames[0].lines[0].name.to_string())
        };
        assert_eq!(find(MONITOR, 1, 70, 140).as_deref(), Some("sleeps"));
        assert_eq!(find(MONITOR, 1, 101, 140).as_deref(), Some("runs"));
        assert_eq!(find(MONITOR, 2, 70, 140).as_deref(), Some("other"));
        assert_eq!(find(MONITOR, 1, 131, 140), None, "it had it before the wait");
        assert_eq!(find(MONITOR, 1, 10, 49), None, "it had it after the wait");
        assert_eq!(find(MONITOR, 3, 70, 140), None, "of its namesakes there are stacks, of it there is none");
        assert_eq!(find(MONITOR + 8, 1, 70, 140), None);
    }

    #[test]
    fn the_stack_of_a_holder_that_waited_has_no_frames_by_which_it_left_its_cpu() {
        let key = ProcessKey::numbered(7);
        let kernel = |name: &str| {
            let lines = vec![Line::named(name)];
            Arc::new(Frame { kind: FrameKind::Kernel, address: None, mapping: None, lines })
        };
        let frames: Arc<[Arc<Frame>]> = Arc::from([
            kernel("bpf_prog_wait_end"),
            kernel("__schedule"),
            kernel("schedule"),
            kernel("do_nanosleep"),
            java("com.acme.Order.total", 57),
        ]);
        let whole = NamedStack { frames, labels: SampleLabels::default(), pending: false };
        for (waited_ns, expected) in
            [(Some(50), &["do_nanosleep", "com.acme.Order.total"][..]), (None, &["bpf_prog_wait_end"])]
        {
            let mut stacks = HolderStacks::default();
            stacks.keep(key, &sample(100, waited_ns, 1), &whole);
            let found = stacks.find(key, MONITOR, 1, TimeSpan { from_ns: 100, to_ns: 100 });
            let frames = &found.expect("it is kept").frames;
            let names: Vec<&str> = frames.iter().map(|frame| &*frame.lines[0].name).collect();
            assert_eq!(&names[..expected.len()], expected, "{waited_ns:?}");
            assert_eq!(names.last(), Some(&"com.acme.Order.total"));
        }
    }

    #[test]
    fn stacks_are_kept_for_two_windows_and_no_more_than_there_is_room_for() {
        let key = ProcessKey::numbered(7);
        let mut stacks = HolderStacks::default();
        for at in 0..STACKS_PER_MONITOR as u64 + 5 {
            stacks.keep(key, &sample(100 + at, None, 1), &stack("f"));
        }
        let has = |stacks: &HolderStacks, at| {
            stacks.find(key, MONITOR, 1, TimeSpan { from_ns: at, to_ns: at }).is_some()
        };
        assert_eq!((has(&stacks, 104), has(&stacks, 105)), (false, true));
        stacks.begin_window(200);
        assert!(has(&stacks, 105));
        stacks.begin_window(300);
        assert!(!has(&stacks, 105));
    }

    #[test]
    fn the_method_is_the_innermost_one_of_the_program() {
        let stack =
            [java("java.lang.Thread.sleep0", 0), java("com.acme.Order.total", 57), java("Main.main", 3)];
        assert_eq!(method_of(&stack).as_deref(), Some("com.acme.Order.total:57"));
        assert_eq!(method_of(&stack[..1]).as_deref(), Some("java.lang.Thread.sleep0"));
        assert_eq!(
            method_of(&[java("com.acme.Order.total_[j]", 0)]).as_deref(),
            Some("com.acme.Order.total")
        );
        assert_eq!(method_of(&[]), None);
    }
}
