//! Pauses of several JVMs, beside a map of the kernel programs that changes as it would.

use super::*;
use crate::hotspot::{Image, OperationNames};
use crate::pipeline::jvm_totals::PauseTotals;
use crate::pipeline::probed_files::ProbedFile;
use crate::profile::model::{Line, SampleLabels};
use crate::types::Avma;

const PID: u32 = 7;
const START: u64 = 1;

#[derive(Debug, Default)]
struct Jvms(HashMap<u32, JvmPauseState>);

impl PausedJvms for Jvms {
    fn insert(&mut self, pid: u32, jvm: JvmPauseState) -> Result<(), SamplerError> {
        self.0.insert(pid, jvm);
        Ok(())
    }

    fn get(&self, pid: u32) -> Option<JvmPauseState> {
        self.0.get(&pid).copied()
    }

    fn remove(&mut self, pid: u32) {
        self.0.remove(&pid);
    }
}

fn recording() -> PauseTracker<Jvms> {
    let mut tracker = PauseTracker::new(Jvms::default(), None);
    tracker.keep_pauses();
    tracker
}

fn key(number: u64) -> ProcessKey {
    ProcessKey::numbered(number)
}

fn follow(tracker: &mut PauseTracker<Jvms>, number: u64, pid: u32) {
    let names = Arc::new(OperationNames::for_tests(&[]));
    let mut jvm = PausingJvm::new(pid, START, ProbedFile::for_tests(), names, Image(Avma(0)));
    jvm.since_ns = Some(0);
    let target = JvmPauseState { start_ns: START, ..JvmPauseState::default() };
    tracker.map.insert(pid, target).expect("there is room");
    tracker.jvms.insert(key(number), jvm);
}

/// A pause of a process, as the kernel programs see it.
fn pause(tracker: &mut PauseTracker<Jvms>, pid: u32, times: [u64; 3]) -> PauseRecord {
    if let Some(jvm) = tracker.map.0.get_mut(&pid) {
        jvm.taken += 1;
    }
    let [began_ns, reached_ns, time_ns] = times;
    PauseRecord { pid, start_ns: START, is_over: 1, began_ns, reached_ns, time_ns, ..Default::default() }
}

fn pauses(jvm: &JvmPauses) -> (u64, u64, usize) {
    (jvm.totals.pauses, jvm.lost, jvm.events.len())
}

#[test]
fn a_jvm_that_begins_another_one_by_exec_has_the_pauses_before_it() {
    let mut tracker = recording();
    follow(&mut tracker, 1, PID);
    let before = pause(&mut tracker, PID, [10, 11, 12]);
    // The kernel program counts it for the one before, since its map entry isn't replaced yet.
    let between = pause(&mut tracker, PID, [30, 31, 32]);
    tracker.record(&before);
    tracker.exec(PID, 20);
    tracker.record(&between);
    follow(&mut tracker, 2, PID);
    for begin in [40, 50] {
        let after = pause(&mut tracker, PID, [begin, begin + 1, begin + 2]);
        tracker.record(&after);
    }
    tracker.begin_window(|wanted| wanted == key(2));
    assert!(tracker.map.get(PID).is_some(), "the one after is still followed");
    let mut jvms = tracker.take();
    jvms.sort_by_key(|jvm| jvm.totals.pauses);
    assert_eq!(jvms.iter().map(pauses).collect::<Vec<_>>(), [(1, 0, 1), (2, 0, 2)]);
    assert_eq!(jvms[0].until_ns, 20);
    assert_eq!(tracker.counts().lost, 0);
}

#[test]
fn a_record_of_the_time_before_an_exec_is_of_the_program_before_it() {
    let mut tracker = recording();
    follow(&mut tracker, 1, PID);
    let late = pause(&mut tracker, PID, [10, 11, 12]);
    tracker.exec(PID, 20);
    follow(&mut tracker, 2, PID);
    tracker.record(&late);
    assert_eq!(tracker.jvms[&key(1)].totals.pauses, 1);
    assert_eq!(tracker.jvms[&key(2)].totals, PauseTotals::default());
}

#[test]
fn a_jvm_that_has_ended_leaves_its_place_to_another_one() {
    let mut tracker = recording();
    follow(&mut tracker, 1, PID);
    let (seen, _lost) = (pause(&mut tracker, PID, [10, 11, 12]), pause(&mut tracker, PID, [13, 14, 15]));
    tracker.exited(PID, 20);
    assert_eq!(tracker.map.0.len(), 0);
    // What the ring buffer still had.
    tracker.record(&seen);
    assert!(!tracker.wants(key(1)));
    let ended = tracker.take();
    assert_eq!((pauses(&ended[0]), ended[0].until_ns), ((1, 1, 1), 20));
    assert_eq!(tracker.counts().lost, 1);
}

#[test]
fn jvms_that_have_ended_are_kept_up_to_a_limit_and_the_others_counted() {
    let mut tracker = recording();
    let count = MAX_ENDED as u64 + 2;
    for number in 0..count {
        let pid = 100 + number as u32;
        follow(&mut tracker, number, pid);
        tracker.exited(pid, number * LATE_SAMPLES_NS);
    }
    assert!(tracker.jvms.len() < 4, "{} are still waited for", tracker.jvms.len());
    assert!(!tracker.wants(key(0)), "it isn't followed again");
    assert_eq!(tracker.take().len(), MAX_ENDED);
    assert_eq!(tracker.counts().unfollowed_jvms, BTreeMap::from([(TOO_MANY, 2)]));
}

#[test]
fn jvms_whose_uprobes_were_refused_are_each_counted_and_followed_otherwise() {
    let mut tracker = recording();
    follow(&mut tracker, 1, PID);
    follow(&mut tracker, 2, PID + 1);
    tracker.files.refuse_for_tests(2);
    for _ in 0..2 {
        tracker.remove_refused();
        assert_eq!(tracker.counts().unfollowed_jvms, BTreeMap::from([(REFUSED, 2)]));
    }
    assert!(tracker.map.0.is_empty() && !tracker.files.is_refused(ProbedFile::for_tests()));
    for number in [1, 2] {
        assert!(tracker.is_unfollowed(key(number)) && !tracker.wants(key(number)));
    }
}

#[test]
fn only_a_recording_keeps_jvms_that_have_ended() {
    let mut tracker = PauseTracker::new(Jvms::default(), None);
    follow(&mut tracker, 1, PID);
    let seen = pause(&mut tracker, PID, [10, 11, 12]);
    tracker.record(&seen);
    assert_eq!(tracker.jvms[&key(1)].totals.pauses, 1);
    tracker.exited(PID, 20);
    tracker.begin_window(|_| false);
    assert!(tracker.jvms.is_empty() && tracker.ended.is_empty());
}

/// Ends a window and returns what its profiles have: the JVM, the leaf, the count and the value of
/// each sample.
fn end_window(tracker: &mut PauseTracker<Jvms>, is_end: bool) -> Vec<(ProcessKey, String, u64, u64)> {
    let mut samples = Vec::new();
    tracker.end_window(is_end, |key, stack, weight| {
        samples.push((key, stack.frames[0].lines[0].name.to_string(), weight.count, weight.value));
    });
    samples
}

#[test]
fn a_window_has_the_pauses_that_ended_in_it_and_all_are_counted() {
    let mut tracker = PauseTracker::new(Jvms::default(), None);
    follow(&mut tracker, 1, PID);
    let first = pause(&mut tracker, PID, [10, 11, 13]);
    tracker.record(&first);
    let of = |leaf: &str, count, value| (key(1), leaf.to_owned(), count, value);
    let expected = [of("[stopped]", 1, 2), of("[time to safepoint]", 0, 1)];
    assert_eq!(end_window(&mut tracker, false), expected);
    assert_eq!(end_window(&mut tracker, false), []);
    assert_eq!(tracker.counts().taken, 1);
    assert_eq!(end_window(&mut recording(), true), [], "a recording has them elsewhere");
}

#[test]
fn the_pause_in_which_a_jvm_is_killed_is_in_the_window_of_its_end() {
    let mut tracker = PauseTracker::new(Jvms::default(), None);
    for (number, pid) in [(1, PID), (2, 8)] {
        follow(&mut tracker, number, pid);
        let names = Arc::new(OperationNames::for_tests(&[(0x20, "ThreadDump")]));
        let mut jvm = PausingJvm::new(pid, START, ProbedFile::for_tests(), names, Image(Avma(0)));
        jvm.since_ns = Some(0);
        tracker.jvms.insert(key(number), jvm);
        let begin = PauseRecord { is_over: 0, operation: 0x30, ..pause(&mut tracker, pid, [10, 11, 11]) };
        tracker.map.0.get_mut(&pid).expect("it is followed").reached_ns = 11;
        tracker.record(&begin);
    }
    tracker.exited(PID, 20);
    let stopped = |number, value| (key(number), "[stopped]".to_owned(), 1, value);
    let in_window = end_window(&mut tracker, false);
    assert_eq!(in_window[0], stopped(1, 9));
    assert!(in_window.iter().all(|(jvm, ..)| *jvm == key(1)), "the other's goes on");
    // The daemon ends: it counts until then.
    tracker.end_events();
    assert!(end_window(&mut tracker, true).iter().any(|(jvm, _, count, _)| (*jvm, *count) == (key(2), 1)));
    assert_eq!(tracker.counts().taken, 2);
}

#[test]
fn a_stop_is_under_way_while_the_kernel_programs_say_so() {
    let mut tracker = recording();
    follow(&mut tracker, 1, PID);
    let begin = PauseRecord { is_over: 0, time_ns: 11, ..pause(&mut tracker, PID, [10, 11, 12]) };
    tracker.map.0.get_mut(&PID).expect("it is followed").reached_ns = 11;
    tracker.record(&begin);
    tracker.check_stops();
    assert!(tracker.jvms[&key(1)].is_stopped());
    tracker.map.0.get_mut(&PID).expect("it is followed").reached_ns = 0;
    tracker.check_stops();
    assert!(!tracker.jvms[&key(1)].is_stopped());
    assert_eq!(tracker.jvms[&key(1)].stopped_for(monotonic_ns()), None);
    assert_eq!(pauses(&tracker.take()[0]), (0, 1, 0));
}

#[test]
fn a_sample_in_a_pause_is_labelled_unless_its_thread_runs_java_code() {
    let frame = |kind, mode| {
        let lines = vec![Line { mode, ..Line::named("it") }];
        Arc::new(Frame { kind, address: None, mapping: None, lines })
    };
    let native = || frame(FrameKind::Native, None);
    let java = |mode| frame(FrameKind::Java, Some(mode));
    let is_labelled = |frames: Vec<Arc<Frame>>| {
        let mut tracker = recording();
        follow(&mut tracker, 1, PID);
        let begin = PauseRecord { is_over: 0, ..pause(&mut tracker, PID, [10, 11, 11]) };
        tracker.record(&begin);
        let mut stack = NamedStack { frames: frames.into(), labels: SampleLabels::default(), pending: false };
        tracker.label(key(1), 10, &mut stack);
        assert_eq!(stack.labels.iter().count(), 0, "threads are about to be stopped");
        tracker.label(key(1), 12, &mut stack);
        stack.labels.iter().any(|label| &*label.name == STOPPED_LABEL)
    };
    assert!(is_labelled(vec![native(), native()]), "a thread of the collector's");
    assert!(is_labelled(vec![native(), java(ExecutionMode::Native), java(ExecutionMode::C2)]));
    assert!(!is_labelled(vec![java(ExecutionMode::C2)]));
    let called = vec![native(), java(ExecutionMode::Inlined), java(ExecutionMode::Native)];
    assert!(!is_labelled(called), "native code that Java code calls without a native method");
    let kernel = frame(FrameKind::Kernel, None);
    assert!(!is_labelled(vec![kernel, java(ExecutionMode::Interpreted)]));
}
