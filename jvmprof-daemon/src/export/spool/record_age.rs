//! The age of a record, also if the host's clock is set.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// The host's clocks at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    /// Since 1970, by the clock that may be set.
    pub(super) wall_ms: u64,
    /// Since the boot, sleep included: by the clock that may not.
    pub(super) boot_ms: u64,
}

impl ClockReading {
    pub(super) fn now() -> Self {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
        Self { wall_ms: millis(SystemTime::now()), boot_ms: saturating_millis(boot) }
    }

    /// Returns the age of a record that was created then by the wall clock. `appended`: the clocks
    /// when this daemon appended it, which are believed for the time before and not for what the
    /// wall clock says since. A clock that was set back makes nothing old.
    pub(super) fn age_ms(&self, created_ms: u64, appended: Option<Self>) -> u64 {
        match appended {
            Some(then) => then.wall_ms.saturating_sub(created_ms) + self.boot_ms.saturating_sub(then.boot_ms),
            None => self.wall_ms.saturating_sub(created_ms),
        }
    }
}

pub(super) fn millis(time: SystemTime) -> u64 {
    saturating_millis(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn saturating_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
