//! Bytes a second, shared by all uploads.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_second: u64,
    /// When what was let through so far is over.
    free_at: Mutex<Instant>,
}

impl Throttle {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(Instant::now()) }
    }

    /// How long to wait before so many bytes are sent.
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
        let throttle = Throttle::new(1000);
        assert_eq!(throttle.delay(500), Duration::ZERO);
        let second = throttle.delay(1000);
        assert!(second > Duration::from_millis(400) && second <= Duration::from_millis(500), "{second:?}");
        let third = throttle.delay(0);
        assert!(third > Duration::from_millis(1400) && third <= Duration::from_millis(1500), "{third:?}");
    }
}
