//! Total time that each thread has waited, whether its waits are kept or not, and the times of
//! those that have ended.

use std::collections::HashMap;

use jvmprof_common::off_cpu::{EndedThread, FollowedThread};

use super::OffCpuProfiler;
use crate::clock::monotonic_ns;

/// Threads that have ended whose times are kept, at most: 16 MiB.
const MAX_ENDED: usize = 1 << 18;

/// The time that a thread has waited since its switches are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalWaitTime {
    /// When the thread was started, by `CLOCK_BOOTTIME` in ns.
    pub start_ns: u64,
    /// Since when its switches are seen, and until when the time is of, `CLOCK_MONOTONIC` in ns.
    pub since_ns: u64,
    pub until_ns: u64,
    /// Nanoseconds.
    pub waited_ns: u64,
}

impl TotalWaitTime {
    fn new(thread: &FollowedThread, until_ns: u64) -> Self {
        let goes_on = if thread.since_ns == 0 { 0 } else { until_ns.saturating_sub(thread.since_ns) };
        Self {
            start_ns: thread.start_ns,
            since_ns: thread.followed_ns,
            until_ns,
            waited_ns: thread.waited_ns + goes_on,
        }
    }

    /// Returns the time of a thread that has ended; `None` if its switches weren't seen.
    pub fn of_ended(thread: &EndedThread) -> Option<Self> {
        (thread.followed_ns != 0).then_some(Self {
            start_ns: thread.start_ns,
            since_ns: thread.followed_ns,
            until_ns: thread.ended_ns,
            waited_ns: thread.waited_ns,
        })
    }
}

impl OffCpuProfiler {
    /// Returns the times of all threads whose switches are seen, by their ids.
    pub(in crate::pipeline) fn total_wait_times(&self) -> HashMap<u32, TotalWaitTime> {
        self.maps.threads().map(|(tid, thread)| (tid, TotalWaitTime::new(&thread, monotonic_ns()))).collect()
    }

    /// Reads which threads have ended, before the kernel has no room for more.
    pub(super) fn read_ended_threads(&mut self) {
        let room = MAX_ENDED.saturating_sub(self.ended_threads.len());
        self.ended_threads.extend(self.maps.ended_threads().take(room));
        if room > 0 && self.ended_threads.len() >= MAX_ENDED {
            tracing::warn!(MAX_ENDED, "too many threads have ended: times of further ones are those sampled");
        }
    }

    /// Takes the times of the threads that have ended.
    pub(in crate::pipeline) fn take_ended_threads(&mut self) -> Vec<EndedThread> {
        self.read_ended_threads();
        std::mem::take(&mut self.ended_threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_goes_on_counts_up_to_now() {
        let thread = FollowedThread { waited_ns: 30, followed_ns: 100, ..FollowedThread::default() };
        assert_eq!(TotalWaitTime::new(&thread, 200).waited_ns, 30);
        let waits = FollowedThread { since_ns: 180, ..thread };
        assert_eq!(TotalWaitTime::new(&waits, 200).waited_ns, 50);
    }

    #[test]
    fn a_thread_that_has_ended_has_waited_until_then() {
        let ended = EndedThread { ended_ns: 200, waited_ns: 30, ..EndedThread::default() };
        assert_eq!(TotalWaitTime::of_ended(&ended), None, "it was never switched away before");
        let followed = EndedThread { followed_ns: 100, ..ended };
        let time = TotalWaitTime { start_ns: 0, since_ns: 100, until_ns: 200, waited_ns: 30 };
        assert_eq!(TotalWaitTime::of_ended(&followed), Some(time));
    }
}
