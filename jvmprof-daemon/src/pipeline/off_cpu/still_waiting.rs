//! Threads that still wait when a window ends. The part of their waits up to now is reported then,
//! and when they go on, the kernel program reports the rest.
//!
//! The thread isn't the current one anywhere: its registers are those that the kernel saved, its
//! stack is read from outside, and believed only if the same wait goes on afterwards.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jvmprof_common::abi::{MAX_TAIL_WORDS, RED_ZONE_WORDS};
use jvmprof_common::off_cpu::{FollowedThread, ReportedPart, WaitRecord, WaitingThread};
use nix::time::{ClockId, clock_gettime};

use crate::clock::monotonic_ns;
use crate::hotspot::{LiveMemory, ProcessMemory};
use crate::sampler::{OffCpuMaps, StackSample};
use crate::types::Avma;

/// Shorter waits are reported when they end: the kernel program searches for a part only from here
/// on.
const LEAST_NS: u64 = 100_000_000;
/// Stacks that are taken at the end of a window, on average at most.
const MAX_INSPECTIONS: u64 = 200;
const PAGE: u64 = 4096;

/// The time when switches were seen first, by two clocks: the second is that of threads' starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    monotonic_ns: u64,
    boot_ns: u64,
}

impl Began {
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
pub(super) struct StillWaiting {
    reported: HashMap<u32, ReportedPart>,
    /// Processes all of whose threads are followed.
    adopted: HashSet<u32>,
    /// Parts of waits that go on and could not be reported.
    unreported: u64,
}

impl StillWaiting {
    /// Returns samples of threads that wait, and keeps until when each was reported. `is_chosen`
    /// decides by chance if a part of a wait is kept, by its nanoseconds and the mean distance.
    /// `began`: since when switches are seen.
    pub(super) fn inspect(
        &mut self,
        maps: &mut OffCpuMaps,
        interval: u64,
        began: Began,
        now_ns: u64,
        is_chosen: impl Fn(u64, u64) -> bool,
    ) -> Vec<StackSample> {
        self.adopt(maps, began);
        let waits = |(_, thread): &(u32, FollowedThread)| {
            thread.since_ns != 0 && now_ns.saturating_sub(thread.since_ns) >= LEAST_NS
        };
        let waiting: HashMap<u32, FollowedThread> = maps.threads().filter(waits).collect();
        self.reported.retain(|tid, reported| {
            let goes_on = waiting.get(tid).is_some_and(|thread| thread.since_ns == reported.since_ns);
            if !goes_on {
                maps.remove_reported(*tid);
            }
            goes_on
        });
        let part = |tid: &u32, thread: &FollowedThread| {
            let until = self.reported.get(tid).map_or(thread.since_ns, |reported| reported.until_ns);
            now_ns.saturating_sub(until)
        };
        let all: u64 = waiting.iter().map(|(tid, thread)| part(tid, thread)).sum();
        let interval = interval.max(all / MAX_INSPECTIONS);
        let parts: Vec<_> = waiting.iter().map(|(tid, thread)| (*tid, *thread, part(tid, thread))).collect();
        let mut samples = Vec::new();
        for (tid, thread, part_ns) in parts {
            let is_chosen = is_chosen(part_ns, interval);
            let sample =
                if is_chosen { take_sample(maps, tid, &thread, part_ns, interval, now_ns) } else { None };
            if is_chosen && sample.is_none() {
                // It has gone on, and its end reports all, or it can't be inspected.
                self.unreported += u64::from(goes_on(maps, tid, &thread));
                continue;
            }
            let reported = ReportedPart { since_ns: thread.since_ns, until_ns: now_ns };
            if !maps.set_reported(tid, reported) {
                self.unreported += 1;
                continue;
            }
            self.reported.insert(tid, reported);
            if is_still_reported(maps.thread(tid), reported) {
                samples.extend(sample);
            }
        }
        samples
    }

    /// Returns how many parts of waits could not be reported.
    pub(super) const fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Begins to follow the threads that haven't been switched since the begin, of processes of
    /// which another one has.
    pub(super) fn adopt(&mut self, maps: &mut OffCpuMaps, began: Began) {
        let by_pid: HashMap<u32, u32> = maps.threads().map(|(tid, thread)| (thread.pid, tid)).collect();
        self.adopted.retain(|pid| by_pid.contains_key(pid));
        for (pid, tid) in by_pid {
            if self.adopted.insert(pid) {
                maps.adopt(tid, began.monotonic_ns, began.boot_ns);
            }
        }
    }
}

/// Returns true if the same wait goes on.
fn goes_on(maps: &OffCpuMaps, tid: u32, thread: &FollowedThread) -> bool {
    maps.thread(tid).is_some_and(|now| now.since_ns == thread.since_ns)
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
    tid: u32,
    thread: &FollowedThread,
    part_ns: u64,
    interval: u64,
    now_ns: u64,
) -> Option<StackSample> {
    let is_same = |waiting: &WaitingThread| waiting.since_ns == thread.since_ns;
    let waiting = maps.inspect(tid).filter(is_same)?;
    let stack = read_stack(&waiting);
    // It may have gone on while its stack was read.
    goes_on(maps, tid, thread).then_some(())?;
    const ORIG_RAX: usize = 15;
    let record = WaitRecord {
        waited_ns: part_ns,
        queued_ns: 0,
        interval,
        state: u64::from(waiting.state),
        system_call: waiting.registers[ORIG_RAX],
    };
    Some(StackSample::of_waiting(&waiting, record, now_ns, &stack))
}

/// Reads the stack from a little below its pointer on, as far as it goes.
fn read_stack(waiting: &WaitingThread) -> Vec<u64> {
    const RSP: usize = 19;
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
    let read = LiveMemory::new(waiting.pid).read_stretches(&pages);
    let bytes: Vec<u8> = read.into_iter().map_while(|page| page).flatten().collect();
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
