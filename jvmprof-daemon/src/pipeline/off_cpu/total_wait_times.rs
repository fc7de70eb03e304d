//! How long each thread has waited, whether its waits are kept or not.

use std::collections::HashMap;

use jvmprof_common::off_cpu::FollowedThread;

use super::OffCpuProfiler;
use crate::clock::monotonic_ns;

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
}

impl OffCpuProfiler {
    /// Returns the times of all threads whose switches are seen, by their ids.
    pub(in crate::pipeline) fn total_wait_times(&self) -> HashMap<u32, TotalWaitTime> {
        self.maps.threads().map(|(tid, thread)| (tid, TotalWaitTime::new(&thread, monotonic_ns()))).collect()
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
}
