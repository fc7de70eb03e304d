//! The deadlines of the daemon's event loop: the window's end, the next poll, the next record.

use std::time::{Duration, Instant};

use crate::window_length::{first_window_length, window_length};

/// Interval of polls for samples while there are any.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the number of samples taken is recorded, if the sinks have a ledger.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after which a window whose frequency has changed ends: samples taken before have arrived.
const ARRIVAL: Duration = Duration::from_millis(500);

/// The deadlines of the event loop.
#[derive(Debug)]
pub(super) struct WindowSchedule {
    window: Duration,
    window_ends: Instant,
    has_work: bool,
    /// Samples were processed since the last record.
    has_unrecorded: bool,
    next_record: Instant,
}

impl WindowSchedule {
    /// Begins a first window, which is shorter by chance. `window`: the length of windows, but for
    /// the jitter.
    pub(super) fn new(window: Duration) -> Self {
        let now = Instant::now();
        Self {
            window,
            window_ends: now + first_window_length(window),
            has_work: true,
            has_unrecorded: false,
            next_record: now + RECORD_INTERVAL,
        }
    }

    /// Returns how long the loop may sleep if nothing wakes it: for `max` at most, and until `due`.
    /// An idle host is left alone.
    pub(super) fn loop_sleep(&self, max: Duration, due: Option<Instant>) -> Duration {
        let now = Instant::now();
        let until = |end: Instant| end.saturating_duration_since(now);
        if self.has_work {
            return due.map_or(POLL_INTERVAL, |due| until(due).min(POLL_INTERVAL));
        }
        let record = self.has_unrecorded.then_some(self.next_record);
        [Some(self.window_ends), due, record].into_iter().flatten().map(until).fold(max, Duration::min)
    }

    /// Returns true if the loop's next turn comes soon anyway.
    pub(super) fn has_work(&self) -> bool {
        self.has_work
    }

    /// Sets whether the last turn had samples to process.
    pub(super) fn set_has_work(&mut self, has_work: bool) {
        self.has_work = has_work;
        self.has_unrecorded |= has_work;
    }

    /// Ends the window with this turn.
    pub(super) fn end_window(&mut self) {
        self.window_ends = Instant::now();
    }

    /// Ends the window once the samples that were taken have arrived.
    pub(super) fn end_window_soon(&mut self) {
        self.window_ends = Instant::now() + ARRIVAL;
    }

    pub(super) fn window_is_over(&self) -> bool {
        Instant::now() >= self.window_ends
    }

    /// Sets the length of windows from the next one on.
    pub(super) fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    pub(super) fn begin_window(&mut self) {
        self.window_ends = Instant::now() + window_length(self.window);
    }

    /// Begins the window after one that new settings have ended, perhaps in the whole fleet at
    /// once: it is as short as a first one.
    pub(super) fn begin_first_window(&mut self) {
        self.window_ends = Instant::now() + first_window_length(self.window);
    }

    /// Returns true if the number of samples should be recorded now.
    pub(super) fn record_is_due(&self) -> bool {
        self.has_unrecorded && Instant::now() >= self.next_record
    }

    /// Sets the next record, after one.
    pub(super) fn set_recorded(&mut self) {
        self.has_unrecorded = false;
        self.next_record = Instant::now() + RECORD_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_idle_host_is_left_alone_until_something_is_due() {
        let mut schedule = WindowSchedule::new(HOUR);
        schedule.begin_window();
        assert_eq!(schedule.loop_sleep(HOUR, None), POLL_INTERVAL, "at first there is work");
        schedule.set_has_work(true);
        schedule.set_has_work(false);
        assert!(schedule.loop_sleep(HOUR, None) <= RECORD_INTERVAL, "what was taken is still to be noted");
        schedule.set_recorded();
        let beat = HOUR / 2;
        assert_eq!(
            schedule.loop_sleep(beat, None),
            beat,
            "a window of an hour lasts for 48 minutes at least"
        );
        assert!(schedule.loop_sleep(beat, Some(Instant::now() + beat / 2)) <= beat / 2);
        schedule.set_has_work(false);
        assert!(!schedule.record_is_due());
        schedule.end_window();
        assert_eq!(schedule.loop_sleep(beat, None), Duration::ZERO);
        assert!(schedule.window_is_over());
        schedule.begin_window();
        assert!(!schedule.window_is_over());
    }
}
