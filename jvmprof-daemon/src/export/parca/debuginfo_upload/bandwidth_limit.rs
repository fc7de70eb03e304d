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
        assert_eq!(bandwidth.delay(500), Duration::ZERO);
        let second = bandwidth.delay(1000);
        assert!(second > Duration::from_millis(400) && second <= Duration::from_millis(500), "{second:?}");
        let third = bandwidth.delay(0);
        assert!(third > Duration::from_millis(1400) && third <= Duration::from_millis(1500), "{third:?}");
    }
}
