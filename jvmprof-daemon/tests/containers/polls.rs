//! Looks at something that takes a while.

use std::time::{Duration, Instant};

/// Long enough for everything, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const INTERVAL: Duration = Duration::from_millis(50);

/// Polls of a condition, since the first one.
pub(crate) struct Polls(Instant);

impl Polls {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Waits for the next one; panics with what is known if there were enough.
    pub(crate) fn wait(&self, known: impl FnOnce() -> String) {
        assert!(self.0.elapsed() < PATIENCE, "{}", known());
        std::thread::sleep(INTERVAL);
    }
}
