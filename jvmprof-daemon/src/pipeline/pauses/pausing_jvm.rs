//! One JVM whose pauses are followed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jvmprof_common::pause::{CAUSE_BYTES, JvmPauseState, NO_OPERATION, PauseRecord};

use crate::hotspot::{Image, OperationNames};
use crate::pipeline::jvm_totals::{PauseTotals, SeriesName};
use crate::pipeline::probed_files::ProbedFile;

/// Past pauses by which samples are labelled: few samples come later than the next one.
const MAX_PAST: usize = 1024;
/// The name of an operation that isn't known, and where there is none.
pub(super) const UNKNOWN: &str = "unknown";
const NONE: &str = "none";
/// Operations in which a JVM stops its threads for good, since it ends: `VM_Exit` where it is told
/// to, `VM_Halt` where its last thread has ended. For the latter JDK 8 to 12 have none, and JDK 13
/// to 17 a `VM_None` (src/hotspot/share/runtime/vmThread.cpp, `halt_op`).
const LAST_OPERATIONS: [&str; 4] = ["Exit", "Halt", "None", NONE];

/// One pause. Times are of `CLOCK_MONOTONIC`, ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When the JVM began to stop its threads.
    pub began_ns: u64,
    /// When all of them had stopped.
    pub reached_ns: u64,
    /// When they could go on, or until when this is known.
    pub ended_ns: u64,
    pub is_over: bool,
    /// What the JVM stopped for, as in its own log; `None` if that isn't known.
    pub operation: Option<Arc<str>>,
    /// Why it collected garbage, if it did.
    pub cause: Option<Arc<str>>,
}

impl Pause {
    pub const fn to_safepoint_ns(&self) -> u64 {
        self.reached_ns.saturating_sub(self.began_ns)
    }

    pub const fn stopped_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.reached_ns)
    }
}

impl From<&Pause> for PauseTotals {
    fn from(pause: &Pause) -> Self {
        Self { pauses: 1, to_safepoint_ns: pause.to_safepoint_ns(), stopped_ns: pause.stopped_ns() }
    }
}

/// The pauses of one JVM while it was followed.
#[derive(Clone, Debug)]
pub struct JvmPauses {
    pub pid: u32,
    /// From when until when it was followed: `CLOCK_MONOTONIC`, ns.
    pub since_ns: u64,
    pub until_ns: u64,
    pub totals: PauseTotals,
    pub by_operation: BTreeMap<Arc<str>, PauseTotals>,
    /// In the order of time, as far as they are kept.
    pub events: Vec<Pause>,
    /// Pauses that aren't in the totals, since their records were lost.
    pub lost: u64,
}

#[derive(Debug)]
pub(super) struct PausingJvm {
    pub(super) pid: u32,
    /// `task_struct.start_boottime`, ns.
    pub(super) start_ns: u64,
    /// The file that its uprobes are in.
    pub(super) file: ProbedFile,
    operations: Arc<OperationNames>,
    image: Image,
    /// Since when its pauses are seen; `None`: not yet.
    pub(super) since_ns: Option<u64>,
    /// When it ended.
    pub(super) until_ns: Option<u64>,
    /// True if another program took its place by an exec, which keeps the process id and the start
    /// time.
    is_replaced: bool,
    /// When the kernel programs ceased to follow it.
    events_ended_ns: Option<u64>,
    /// What they knew of it then.
    last: Option<JvmPauseState>,
    pub(super) name: SeriesName,
    pub(super) totals: PauseTotals,
    by_operation: BTreeMap<Arc<str>, PauseTotals>,
    /// Of a recording: its pauses, as far as they are kept.
    pub(super) events: Vec<Pause>,
    /// Pauses that were seen after its end: those of the program that took its place.
    later_pauses: u64,
    reported: PauseTotals,
    /// The last pauses.
    past: VecDeque<StoppedSpan>,
    /// The one that is under way.
    open: Option<PauseRecord>,
}

/// A time in which all threads are stopped.
#[derive(Debug)]
struct StoppedSpan {
    from_ns: u64,
    /// `u64::MAX`: it goes on.
    until_ns: u64,
    operation: Arc<str>,
}

impl PausingJvm {
    pub(super) fn new(
        pid: u32,
        start_ns: u64,
        file: ProbedFile,
        operations: Arc<OperationNames>,
        image: Image,
    ) -> Self {
        Self {
            pid,
            start_ns,
            file,
            operations,
            image,
            since_ns: None,
            until_ns: None,
            is_replaced: false,
            events_ended_ns: None,
            last: None,
            name: SeriesName::default(),
            totals: PauseTotals::default(),
            by_operation: BTreeMap::new(),
            events: Vec::new(),
            later_pauses: 0,
            reported: PauseTotals::default(),
            past: VecDeque::new(),
            open: None,
        }
    }

    /// Notes that its process has ended.
    pub(super) fn exited(&mut self, time_ns: u64) {
        self.until_ns.get_or_insert(time_ns);
    }

    /// Notes that another program has taken its place.
    pub(super) fn replaced(&mut self, time_ns: u64) {
        self.exited(time_ns);
        self.is_replaced = true;
    }

    /// Returns true if a record may be of this JVM, by its process and by its time.
    pub(super) fn has(&self, record: &PauseRecord) -> bool {
        self.is_process_of(record) && !self.is_later(record)
    }

    /// Returns true if a record is of a program that took its place.
    pub(super) fn precedes(&self, record: &PauseRecord) -> bool {
        self.is_process_of(record) && self.is_later(record)
    }

    fn is_later(&self, record: &PauseRecord) -> bool {
        self.is_replaced && self.until_ns.is_some_and(|until_ns| record.time_ns > until_ns)
    }

    fn is_process_of(&self, record: &PauseRecord) -> bool {
        self.pid == record.pid && self.start_ns == record.start_ns
    }

    /// Takes a record of the program that took its place: the kernel programs counted its pauses as
    /// this one's until the exec was processed.
    pub(super) fn record_later(&mut self, record: &PauseRecord) {
        self.later_pauses += u64::from(record.is_over);
    }

    /// The kernel programs follow it no longer. `last`: what they knew of it.
    pub(super) fn end_events(&mut self, last: Option<JvmPauseState>, now_ns: u64) {
        self.events_ended_ns = Some(now_ns);
        self.last = last;
    }

    /// Returns true while the kernel programs follow it.
    pub(super) const fn has_events(&self) -> bool {
        self.events_ended_ns.is_none()
    }

    /// Returns what the kernel programs knew of it when they ceased to follow it.
    pub(super) const fn last(&self) -> Option<&JvmPauseState> {
        self.last.as_ref()
    }

    /// Returns how many pauses were seen ending whose records were lost.
    pub(super) fn lost(&self) -> u64 {
        let taken = self.last.map_or(0, |last| last.taken);
        taken.saturating_sub(self.later_pauses).saturating_sub(self.totals.pauses)
    }

    /// Returns true if it is stopped, as far as its records say.
    pub(super) const fn is_stopped(&self) -> bool {
        self.open.is_some()
    }

    /// Ends the stop that is under way if the kernel programs, which know `now` of it, have seen
    /// its end: the record of that may be lost. If it only hasn't been read yet, it corrects the
    /// time.
    pub(super) fn check_stop(&mut self, now: Option<&JvmPauseState>, now_ns: u64) {
        let Some(open) = self.open else { return };
        if is_under_way(&open, now) {
            return;
        }
        self.open = None;
        if let Some(span) = self.past.back_mut().filter(|span| span.until_ns == u64::MAX) {
            span.until_ns = now_ns;
        }
    }

    fn operation(&self, record: &PauseRecord) -> Option<Arc<str>> {
        match record.operation {
            0 => None,
            NO_OPERATION => Some(NONE.into()),
            word => self.operations.name(word, self.image).cloned(),
        }
    }

    /// Takes what the kernel programs say of a pause; returns it when it is over.
    pub(super) fn record(&mut self, record: &PauseRecord) -> Option<Pause> {
        let operation = self.operation(record);
        let label = || operation.clone().unwrap_or_else(|| UNKNOWN.into());
        if record.is_over == 0 {
            // The end of one before it was lost: nobody knows when that was.
            self.past.retain(|span| span.until_ns != u64::MAX);
            if self.past.len() >= MAX_PAST {
                self.past.pop_front();
            }
            let from_ns = record.reached_ns;
            self.past.push_back(StoppedSpan { from_ns, until_ns: u64::MAX, operation: label() });
            self.open = Some(*record);
            return None;
        }
        self.open = None;
        if let Some(span) = self.past.back_mut().filter(|span| span.from_ns == record.reached_ns) {
            span.until_ns = record.time_ns;
        }
        let pause = Pause {
            began_ns: record.began_ns,
            reached_ns: record.reached_ns,
            ended_ns: record.time_ns,
            is_over: true,
            operation: operation.clone(),
            cause: cause(record),
        };
        self.add(label(), &pause);
        Some(pause)
    }

    fn add(&mut self, operation: Arc<str>, pause: &Pause) {
        self.totals.add(pause.into());
        self.by_operation.entry(operation).or_default().add(pause.into());
    }

    /// Returns what all threads were stopped for at this time.
    pub(super) fn stopped_for(&self, time_ns: u64) -> Option<&Arc<str>> {
        let span = self.past.iter().rev().find(|span| span.from_ns <= time_ns)?;
        (time_ns < span.until_ns).then_some(&span.operation)
    }

    /// Returns what came since the last call.
    pub(super) fn take_unreported(&mut self) -> PauseTotals {
        self.totals.since(std::mem::replace(&mut self.reported, self.totals))
    }

    /// Returns its pauses; `None` if it wasn't followed.
    pub(super) fn close(&mut self, now_ns: u64) -> Option<JvmPauses> {
        let ends = [self.until_ns, self.events_ended_ns];
        let until_ns = ends.into_iter().flatten().min().unwrap_or(now_ns);
        let lost = self.lost();
        // It comes after all others: without one of them it isn't kept either.
        let all_are_kept = self.events.len() as u64 == self.totals.pauses;
        let last = self.take_open(until_ns).filter(|_| all_are_kept);
        self.events.extend(last);
        Some(JvmPauses {
            pid: self.pid,
            since_ns: self.since_ns?,
            until_ns,
            totals: self.totals,
            by_operation: std::mem::take(&mut self.by_operation),
            events: std::mem::take(&mut self.events),
            lost,
        })
    }

    /// Returns the pause that was under way when the kernel programs ceased to follow it, unless it
    /// had stopped its threads to end.
    pub(super) fn take_last(&mut self) -> Option<Pause> {
        let ends = [self.until_ns, self.events_ended_ns];
        self.events_ended_ns?;
        let until_ns = ends.into_iter().flatten().min()?;
        self.take_open(until_ns)
    }

    /// Adds a pause that is under way, unless the JVM has stopped its threads to end, and returns
    /// it.
    fn take_open(&mut self, until_ns: u64) -> Option<Pause> {
        let open = self.open.take().filter(|open| is_under_way(open, self.last.as_ref()))?;
        let operation = self.operation(&open);
        let is_last = operation.as_ref().is_none_or(|name| LAST_OPERATIONS.contains(&&**name));
        if is_last && self.until_ns.is_some() {
            return None;
        }
        let pause = Pause {
            began_ns: open.began_ns,
            reached_ns: open.reached_ns,
            ended_ns: until_ns,
            is_over: false,
            operation: operation.clone(),
            cause: None,
        };
        self.add(operation.unwrap_or_else(|| UNKNOWN.into()), &pause);
        Some(pause)
    }
}

/// Returns true if a stop goes on, as the kernel programs know the JVM: its end may be lost.
fn is_under_way(open: &PauseRecord, jvm: Option<&JvmPauseState>) -> bool {
    jvm.is_some_and(|jvm| jvm.reached_ns == open.reached_ns)
}

/// Returns the cause of a record, whose bytes another process may have written as it liked.
fn cause(record: &PauseRecord) -> Option<Arc<str>> {
    let bytes: [u8; CAUSE_BYTES] = std::array::from_fn(|at| record.cause[at / 8].to_le_bytes()[at % 8]);
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(is_over: u32, times: [u64; 3], cause: &str) -> PauseRecord {
        let [began_ns, reached_ns, time_ns] = times;
        let mut record =
            PauseRecord { is_over, began_ns, reached_ns, time_ns, operation: 1, ..Default::default() };
        for (at, byte) in cause.bytes().enumerate() {
            record.cause[at / 8] |= u64::from(byte) << (at % 8 * 8);
        }
        record
    }

    fn jvm() -> PausingJvm {
        let names =
            Arc::new(OperationNames::for_tests(&[(0x10, "Exit"), (0x20, "ThreadDump"), (0x30, "None")]));
        PausingJvm::new(7, 1, ProbedFile::for_tests(), names, Image(crate::types::Avma(0x1000)))
    }

    /// Returns what the kernel programs know of a JVM that has been stopped since then.
    fn stopped_since(reached_ns: u64) -> Option<JvmPauseState> {
        Some(JvmPauseState { reached_ns, ..JvmPauseState::default() })
    }

    #[test]
    fn a_pause_is_summed_when_it_is_over_and_labels_what_falls_in_it() {
        let mut jvm = jvm();
        jvm.since_ns = Some(5);
        assert_eq!(jvm.record(&record(0, [10, 12, 12], "")), None);
        let at = |jvm: &PausingJvm, time| jvm.stopped_for(time).map(ToString::to_string);
        assert_eq!((at(&jvm, 11), at(&jvm, 12), at(&jvm, 99)), (None, Some(NONE.into()), Some(NONE.into())));
        let pause = jvm.record(&record(1, [10, 12, 20], "System.gc()")).expect("it is over");
        jvm.events.push(pause.clone());
        assert_eq!((pause.to_safepoint_ns(), pause.stopped_ns()), (2, 8));
        assert_eq!(pause.cause.as_deref(), Some("System.gc()"));
        assert_eq!((at(&jvm, 19), at(&jvm, 20)), (Some(NONE.into()), None));
        let totals = PauseTotals { pauses: 1, to_safepoint_ns: 2, stopped_ns: 8 };
        assert_eq!((jvm.take_unreported(), jvm.take_unreported()), (totals, PauseTotals::default()));
        jvm.record(&record(0, [30, 31, 31], ""));
        jvm.end_events(stopped_since(31), 41);
        let closed = jvm.close(99).expect("it was followed");
        assert_eq!(closed.totals, PauseTotals { pauses: 2, to_safepoint_ns: 3, stopped_ns: 18 });
        assert_eq!(closed.until_ns, 41, "nothing was seen after that");
        assert!(!closed.events[1].is_over, "it goes on");
    }

    #[test]
    fn a_pause_whose_end_was_lost_has_none() {
        let mut jvm = jvm();
        jvm.since_ns = Some(5);
        jvm.record(&record(0, [10, 12, 12], ""));
        jvm.end_events(stopped_since(0), 41);
        assert_eq!(jvm.close(41).expect("it was followed").totals, PauseTotals::default());
    }

    #[test]
    fn samples_fall_in_no_pause_that_the_kernel_program_saw_ending() {
        let mut jvm = jvm();
        jvm.record(&record(0, [10, 12, 12], ""));
        jvm.check_stop(stopped_since(12).as_ref(), 20);
        assert!(jvm.is_stopped() && jvm.stopped_for(30).is_some());
        jvm.check_stop(stopped_since(25).as_ref(), 30);
        assert!(!jvm.is_stopped() && jvm.stopped_for(29).is_some());
        assert_eq!(jvm.stopped_for(30), None);
        // Its record comes after all.
        jvm.record(&record(1, [10, 12, 20], ""));
        assert_eq!((jvm.stopped_for(20), jvm.stopped_for(19).is_some()), (None, true));
    }

    #[test]
    fn the_stop_in_which_a_jvm_ends_is_no_pause_and_one_in_which_it_is_killed_is() {
        let closed = |operation| {
            let mut jvm = jvm();
            jvm.since_ns = Some(5);
            jvm.record(&PauseRecord { operation, ..record(0, [30, 31, 31], "") });
            jvm.exited(33);
            jvm.end_events(stopped_since(31), 40);
            jvm.close(50).expect("it was followed")
        };
        let ends = [("none", NO_OPERATION), ("Exit", 0x1020), ("None", 0x1040), ("unknown", 0)];
        for (what, operation) in ends {
            let closed = closed(operation);
            assert_eq!((closed.totals, closed.until_ns), (PauseTotals::default(), 33), "{what}");
        }
        let killed = closed(0x1030);
        assert_eq!(killed.totals, PauseTotals { pauses: 1, to_safepoint_ns: 1, stopped_ns: 2 });
        assert_eq!((killed.events[0].ended_ns, killed.events[0].is_over), (33, false));
    }

    #[test]
    fn a_cause_is_a_text_that_ends() {
        assert_eq!(cause(&record(1, [1, 2, 3], "")), None);
        assert_eq!(cause(&record(1, [1, 2, 3], "a\u{7}")), None);
        assert_eq!(cause(&record(1, [1, 2, 3], &"x".repeat(CAUSE_BYTES))), None);
        assert_eq!(
            cause(&record(1, [1, 2, 3], "G1 Evacuation Pause")).as_deref(),
            Some("G1 Evacuation Pause")
        );
    }
}
