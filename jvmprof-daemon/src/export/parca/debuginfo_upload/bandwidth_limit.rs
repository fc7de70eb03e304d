//! Bytes a second, shared by all uploads.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct BandwidthLimit {
    bytes_per_second: u64,
    /// The time at which the bytes so far are over at this rate.
    free_at: Mutex<Instant>,
}

impl BandwidthLimit {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(Instant::now()) }
    }

    /// Returns the time to wait before these bytes are sent.
    pub(super) fn delay(&self, bytes: u64) -> Duration {
        let now = Instant::now();
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (*free_at).max(now);
        *free_at = start + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        start - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_those_before_them() {
        let bandwidth = BandwidthLimit::new(1000);
        let began = Instant::now();
        assert_eq!(bandwidth.delay(500), Duration::ZERO);
        // Less by what has passed since the first were sent, which no other clock knows better.
        let assert_delay = |bytes, whole: Duration| {
            let delay = bandwidth.delay(bytes);
            let passed = began.elapsed();
            assert!((whole.saturating_sub(passed)..=whole).contains(&delay), "{delay:?} after {passed:?}");
        };
        assert_delay(1000, Duration::from_millis(500));
        assert_delay(0, Duration::from_millis(1500));
    }
}
