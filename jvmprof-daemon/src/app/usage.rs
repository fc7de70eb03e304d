//! What this process itself costs.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// CPU time and memory since this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SelfUsage {
    /// User and system time of all threads.
    pub cpu: Duration,
    pub peak_rss_bytes: u64,
}

impl SelfUsage {
    pub(super) fn now() -> Self {
        getrusage(UsageWho::RUSAGE_SELF).map_or_else(
            |_| Self::default(),
            |usage| {
                let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
                Self {
                    cpu: Duration::from_micros(u64::try_from(micros).unwrap_or(0)),
                    // The kernel tells KiB.
                    peak_rss_bytes: u64::try_from(usage.max_rss()).unwrap_or(0) * 1024,
                }
            },
        )
    }
}
