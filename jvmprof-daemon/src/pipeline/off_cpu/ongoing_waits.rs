//! Threads that still wait when a window ends. The part of their waits up to now is reported then,
//! and when they go on, the kernel program reports the rest.
//!
//! The thread isn't the current one anywhere: its registers are those that the kernel saved, its
//! stack is read from outside, and believed only if the same wait goes on afterwards.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jvmprof_common::abi::{MAX_TAIL_WORDS, RED_ZONE_WORDS};
use jvmprof_common::off_cpu::{FollowedThread, LATER_PART, ReportedPart, WaitRecord, WaitingThread};
use nix::time::{ClockId, clock_gettime};

use super::blockers::Blockers;
use super::cause_classifier::{DescriptorKind, call_on_descriptor};
use crate::clock::monotonic_ns;
use crate::hotspot::{LiveMemory, ProcessMemory};
use crate::sampler::{OffCpuMaps, StackSample};
use crate::types::Avma;

const PAGE: u64 = 4096;
/// Indices of [`WaitingThread::registers`].
const RDI: usize = 14;
const ORIG_RAX: usize = 15;
const RSP: usize = 19;
/// Shorter waits are reported when they end: the kernel program searches for a part only from here
/// on.
const LEAST_NS: u64 = 100_000_000;
/// Time by which the rest of a wait seems to begin before the end of the part before it, at most:
/// switches have another clock.
const CLOCK_DIFFERENCE_NS: u64 = 10_000_000;

/// The time when switches were seen first, by two clocks: the second is that of threads' starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstSwitch {
    monotonic_ns: u64,
    boot_ns: u64,
}

impl FirstSwitch {
    pub(super) fn now() -> Self {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
        Self { monotonic_ns: monotonic_ns(), boot_ns: boot.as_nanos() as u64 }
    }

    /// Returns true for some seconds.
    pub(super) fn is_recent(self) -> bool {
        Duration::from_nanos(monotonic_ns().saturating_sub(self.monotonic_ns)) < FINDING
    }
}

/// Time after the begin in which threads that wait are searched for often: what a thread waited
/// before it was found isn't known once it goes on.
const FINDING: Duration = Duration::from_secs(5);

/// The parts that were reported of waits that go on.
#[derive(Debug, Default)]
pub(super) struct OngoingWaits {
    reported: HashMap<u32, ReportedPart>,
    /// Those of waits that had ended at the last inspection: their ends may still be on their way.
    ended: HashMap<u32, ReportedPart>,
    /// Processes all of whose threads are followed.
    adopted: HashSet<u32>,
    /// Parts of waits that go on and could not be reported.
    unreported: u64,
    /// Threads that are to be inspected.
    uninspected: Vec<OngoingPart>,
}

/// The part of a wait that is reported before the wait has ended.
#[derive(Clone, Copy, Debug)]
struct OngoingPart {
    tid: u32,
    thread: FollowedThread,
    part_ns: u64,
    /// The mean distance of the parts that are kept, in nanoseconds of waiting.
    interval: u64,
    until_ns: u64,
    /// No part of the wait was reported before.
    is_first: bool,
}

impl OngoingWaits {
    /// Chooses among the threads that wait now those whose stacks [`Self::next_sample`] takes.
    /// `interval` is the mean distance of the parts that are kept, in nanoseconds of waiting; of
    /// more than `max_inspections` threads it grows so that about so many stacks are taken.
    /// `is_chosen` decides by chance if a part of a wait is kept, by its nanoseconds and that
    /// distance. `first_switch`: since when switches are seen.
    pub(super) fn begin_inspection(
        &mut self,
        maps: &mut OffCpuMaps,
        [interval, max_inspections]: [u64; 2],
        first_switch: FirstSwitch,
        now_ns: u64,
        is_chosen: impl Fn(u64, u64) -> bool,
    ) {
        self.adopt(maps, first_switch);
        let waits = |(_, thread): &(u32, FollowedThread)| {
            thread.since_ns != 0 && now_ns.saturating_sub(thread.since_ns) >= LEAST_NS
        };
        let waiting: HashMap<u32, FollowedThread> = maps.threads().filter(waits).collect();
        let has_ended = |tid: &u32, reported: &mut ReportedPart| {
            waiting.get(tid).is_none_or(|thread| thread.since_ns != reported.since_ns)
        };
        self.ended = self.reported.extract_if(has_ended).collect();
        self.ended.keys().for_each(|tid| maps.remove_reported(*tid));
        let part = |tid: &u32, thread: &FollowedThread| {
            let until = self.reported.get(tid).map_or(thread.since_ns, |reported| reported.until_ns);
            now_ns.saturating_sub(until)
        };
        let all_ns: u64 = waiting.iter().map(|(tid, thread)| part(tid, thread)).sum();
        let interval = part_interval(interval, max_inspections, waiting.len() as u64, all_ns);
        let part = |(tid, thread): (&u32, &FollowedThread)| OngoingPart {
            tid: *tid,
            thread: *thread,
            part_ns: part(tid, thread),
            interval,
            until_ns: now_ns,
            is_first: !self.reported.contains_key(tid),
        };
        let parts: Vec<OngoingPart> = waiting.iter().map(part).collect();
        let (chosen, others): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| is_chosen(part.part_ns, interval));
        for part in others {
            self.report(maps, &part);
        }
        // The last one is taken first: a wait that has begun lately ends sooner. Those that wait
        // for a monitor come after the stacks of those that have it.
        self.uninspected = chosen;
        self.uninspected.sort_unstable_by_key(|part| (part.thread.monitor_owner == 0, part.thread.since_ns));
    }

    /// Returns the next sample of a thread that waits, and keeps until when the wait was reported.
    /// The names of its frames have to be read before the next one's stack is: classes may be
    /// unloaded meanwhile. `read_context` reads what is published of its request.
    pub(super) fn next_sample(
        &mut self,
        maps: &mut OffCpuMaps,
        blockers: &mut Blockers,
        read_context: impl Fn(&WaitingThread) -> Vec<u64>,
    ) -> Option<StackSample> {
        while let Some(part) = self.uninspected.pop() {
            match take_sample(maps, blockers, &part, &read_context) {
                // It has gone on, and its end reports all, or it can't be inspected.
                None => self.unreported += u64::from(goes_on(maps, &part)),
                sample if self.report(maps, &part) => return sample,
                Some(_) => {}
            }
        }
        None
    }

    /// Has the end of a wait leave out this part. Returns false if it doesn't: it has come already,
    /// or can't be told.
    fn report(&mut self, maps: &mut OffCpuMaps, part: &OngoingPart) -> bool {
        let reported = ReportedPart { since_ns: part.thread.since_ns, until_ns: part.until_ns };
        if !maps.set_reported(part.tid, reported) {
            self.unreported += 1;
            return false;
        }
        self.reported.insert(part.tid, reported);
        is_still_reported(maps.thread(part.tid), reported)
    }

    /// Returns when a wait of a thread began of which a record says `from_ns`: earlier if that is
    /// the rest of one that was reported in part. The owner of its monitor is that of the begin.
    pub(super) fn began_ns(&self, tid: u32, record: &WaitRecord, from_ns: u64) -> u64 {
        if record.is_first_part() {
            return from_ns;
        }
        let parts = [&self.reported, &self.ended].into_iter().filter_map(|parts| parts.get(&tid));
        // What `from_ns` is computed from, the time of the sample, may be any time after the wait.
        let before = parts.filter(|part| part.until_ns <= from_ns.saturating_add(CLOCK_DIFFERENCE_NS));
        let last = before.max_by_key(|part| part.until_ns);
        last.map_or(from_ns, |part| part.since_ns.min(from_ns))
    }

    /// Returns how many parts of waits could not be reported.
    pub(super) const fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Begins to follow the threads that haven't been switched since the begin, of processes of
    /// which another one has.
    pub(super) fn adopt(&mut self, maps: &mut OffCpuMaps, first_switch: FirstSwitch) {
        let by_pid: HashMap<u32, u32> = maps.threads().map(|(tid, thread)| (thread.pid, tid)).collect();
        self.adopted.retain(|pid| by_pid.contains_key(pid));
        for (pid, tid) in by_pid {
            if self.adopted.insert(pid) {
                maps.adopt(tid, first_switch.monotonic_ns, first_switch.boot_ns);
            }
        }
    }
}

/// Returns the mean distance of the parts that are kept of `waits` that go on, of `all_ns`
/// together: the one that is wanted, unless more stacks than these would be taken.
fn part_interval(wanted: u64, max_inspections: u64, waits: u64, all_ns: u64) -> u64 {
    if waits <= max_inspections { wanted } else { wanted.max(all_ns / max_inspections.max(1)) }
}

/// Returns true if the same wait goes on.
fn goes_on(maps: &OffCpuMaps, part: &OngoingPart) -> bool {
    maps.thread(part.tid).is_some_and(|now| now.since_ns == part.thread.since_ns)
}

/// Returns true if the end of the wait leaves out what was reported: it hasn't come, or knew of it.
fn is_still_reported(thread: Option<FollowedThread>, reported: ReportedPart) -> bool {
    thread.is_some_and(|thread| {
        thread.since_ns == reported.since_ns
            || thread.last_since_ns == reported.since_ns && thread.last_began_ns == reported.until_ns
    })
}

fn take_sample(
    maps: &mut OffCpuMaps,
    blockers: &mut Blockers,
    part: &OngoingPart,
    read_context: impl Fn(&WaitingThread) -> Vec<u64>,
) -> Option<StackSample> {
    let is_same = |waiting: &WaitingThread| waiting.since_ns == part.thread.since_ns;
    let waiting = maps.inspect(part.tid).filter(is_same)?;
    let stack = read_stack(&waiting);
    let (blocker, monitor_owner) = blockers.inspect(waiting.pid, waiting.thread_pointer, monotonic_ns());
    let held_monitor = blockers.held_by(maps, waiting.pid, waiting.thread_pointer, waiting.registers[RSP]);
    let context = read_context(&waiting);
    let [descriptor, system_call] = [RDI, ORIG_RAX].map(|register| waiting.registers[register]);
    let kind = DescriptorKind::of_call(waiting.pid, system_call, descriptor);
    // It may have gone on while its stack was read. What goes on after this time had this stack
    // then.
    let taken_ns = monotonic_ns();
    goes_on(maps, part).then_some(())?;
    let record = WaitRecord {
        waited_ns: part.part_ns,
        queued_ns: 0,
        interval: part.interval,
        state: u64::from(waiting.state) | if part.is_first { 0 } else { LATER_PART },
        system_call: kind.map_or(system_call, call_on_descriptor),
        blocker,
        monitor_owner,
        throttled_ns: 0,
    };
    let mut sample = StackSample::of_waiting(&waiting, record, taken_ns, &stack, &context);
    sample.header.held_monitor = held_monitor;
    Some(sample)
}

/// Reads the stack from a little below its pointer on, as far as it goes.
fn read_stack(waiting: &WaitingThread) -> Vec<u64> {
    let start = waiting.registers[RSP].saturating_sub((RED_ZONE_WORDS * 8) as u64);
    if !start.is_multiple_of(8) {
        return Vec::new();
    }
    let mut end = start.saturating_add((MAX_TAIL_WORDS * 8) as u64);
    // Thread-local data lie at the end of a thread's stack.
    if waiting.thread_pointer > start {
        end = end.min(waiting.thread_pointer & !7);
    }
    let mut pages = Vec::new();
    let mut at = start;
    while at < end {
        let next = ((at / PAGE + 1) * PAGE).min(end);
        pages.push((Avma(at), (next - at) as usize));
        at = next;
    }
    let read = LiveMemory::new(waiting.pid).read_ranges(&pages);
    let bytes: Vec<u8> = read.into_iter().map_while(|page| page).flatten().collect();
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_wait_has_begun_with_its_first_part() {
        const SECOND: u64 = 1_000_000_000;
        let mut waits = OngoingWaits::default();
        let [first, later] = [0, LATER_PART].map(|state| WaitRecord { state, ..WaitRecord::default() });
        waits.reported.insert(7, ReportedPart { since_ns: SECOND, until_ns: 10 * SECOND });
        assert_eq!(waits.began_ns(7, &later, 10 * SECOND + 3000), SECOND, "what is left of it");
        assert_eq!(waits.began_ns(7, &later, 10 * SECOND - 3000), SECOND, "by another clock");
        assert_eq!(waits.began_ns(7, &later, 11 * SECOND), SECOND, "its sample was taken late");
        assert_eq!(waits.began_ns(7, &first, 10 * SECOND + 3000), 10 * SECOND + 3000, "another wait");
        assert_eq!(waits.began_ns(7, &later, 5 * SECOND), 5 * SECOND, "the part itself");
        assert_eq!(waits.began_ns(8, &later, 10 * SECOND), 10 * SECOND, "another thread's");
        // It has ended, its end is on its way, and another one was reported in part.
        waits.ended.extend(waits.reported.drain());
        waits.reported.insert(7, ReportedPart { since_ns: 13 * SECOND, until_ns: 20 * SECOND });
        assert_eq!(waits.began_ns(7, &later, 10 * SECOND + 3000), SECOND, "of the earlier one");
        assert_eq!(waits.began_ns(7, &later, 20 * SECOND + 3000), 13 * SECOND, "of the later one");
    }

    #[test]
    fn parts_of_waits_are_thinned_only_where_too_many_stacks_would_be_taken() {
        const MS: u64 = 1_000_000;
        // A JVM's idle threads, and one that has waited for a second: with a distance of what all
        // have waited by the limit it would be left out of two recordings in five.
        assert_eq!(part_interval(10 * MS, 200, 30, 400_000 * MS), 10 * MS);
        assert_eq!(part_interval(10 * MS, 200, 200, 400_000 * MS), 10 * MS);
        assert_eq!(part_interval(10 * MS, 200, 3000, 18_000_000 * MS), 90_000 * MS);
        assert_eq!(part_interval(10 * MS, 200, 3000, 400 * MS), 10 * MS);
        assert_eq!(part_interval(10 * MS, 0, 1, 400 * MS), 400 * MS);
    }

    #[test]
    fn a_part_is_reported_once_whether_the_wait_has_ended_or_not() {
        let reported = ReportedPart { since_ns: 5, until_ns: 9 };
        let thread = |since_ns, last_since_ns, last_began_ns| {
            Some(FollowedThread { since_ns, last_since_ns, last_began_ns, ..FollowedThread::default() })
        };
        assert!(is_still_reported(thread(5, 0, 0), reported), "it goes on");
        assert!(is_still_reported(thread(0, 5, 9), reported), "its end knew of the part");
        assert!(!is_still_reported(thread(0, 5, 5), reported), "its end reported the whole");
        assert!(!is_still_reported(thread(20, 12, 12), reported), "who knows");
        assert!(!is_still_reported(None, reported));
    }
}
