//! When the daemon's event loop turns, and what is due then.

use std::time::{Duration, Instant};

use rand::RngExt;

/// How often samples are taken in while there are any.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A window is this much longer or shorter by chance, so that a fleet doesn't push in step.
const JITTER: f64 = 0.2;
/// How often it is noted down how many samples were taken, if the sinks have a place for that.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// A window whose frequency has changed ends so much later, when what was sampled before has
/// arrived.
const ARRIVAL: Duration = Duration::from_millis(500);

/// Knows what is due.
#[derive(Debug)]
pub(super) struct Schedule {
    window: Duration,
    window_ends: Instant,
    has_work: bool,
    /// Something has happened since samples were counted last.
    is_noteworthy: bool,
    next_note: Instant,
}

impl Schedule {
    /// `window`: the length of windows, but for chance.
    pub(super) fn new(window: Duration) -> Self {
        let now = Instant::now();
        Self {
            window,
            window_ends: now + jittered(window),
            has_work: true,
            is_noteworthy: false,
            next_note: now + NOTE_INTERVAL,
        }
    }

    /// How long the loop may sleep if nothing wakes it: for `beat` at most, and until `due`. A host
    /// on which nothing happens is left alone.
    pub(super) fn pause(&self, beat: Duration, due: Option<Instant>) -> Duration {
        let now = Instant::now();
        let until = |end: Instant| end.saturating_duration_since(now);
        if self.has_work {
            return due.map_or(POLL_INTERVAL, |due| until(due).min(POLL_INTERVAL));
        }
        let note = self.is_noteworthy.then_some(self.next_note);
        [Some(self.window_ends), due, note].into_iter().flatten().map(until).fold(beat, Duration::min)
    }

    /// True if the loop's next turn comes soon anyway.
    pub(super) fn has_work(&self) -> bool {
        self.has_work
    }

    /// A turn has found work, or not.
    pub(super) fn worked(&mut self, has_work: bool) {
        self.has_work = has_work;
        self.is_noteworthy |= has_work;
    }

    /// The window ends with this turn.
    pub(super) fn end_window(&mut self) {
        self.window_ends = Instant::now();
    }

    /// The window ends once what is under way has arrived.
    pub(super) fn end_window_soon(&mut self) {
        self.window_ends = Instant::now() + ARRIVAL;
    }

    pub(super) fn window_is_over(&self) -> bool {
        Instant::now() >= self.window_ends
    }

    /// From the next window on they are so long.
    pub(super) fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    pub(super) fn begin_window(&mut self) {
        self.window_ends = Instant::now() + jittered(self.window);
    }

    /// True if samples should be counted now.
    pub(super) fn note_is_due(&self) -> bool {
        self.is_noteworthy && Instant::now() >= self.next_note
    }

    /// They have been.
    pub(super) fn noted(&mut self) {
        self.is_noteworthy = false;
        self.next_note = Instant::now() + NOTE_INTERVAL;
    }
}

fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(1.0 + rand::rng().random_range(-JITTER..JITTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_idle_host_is_left_alone_until_something_is_due() {
        let mut schedule = Schedule::new(HOUR);
        assert_eq!(schedule.pause(HOUR, None), POLL_INTERVAL, "at first there is work");
        schedule.worked(true);
        schedule.worked(false);
        assert!(schedule.pause(HOUR, None) <= NOTE_INTERVAL, "what was taken is still to be noted");
        schedule.noted();
        let beat = HOUR / 2;
        assert_eq!(schedule.pause(beat, None), beat, "a window of an hour lasts for 48 minutes at least");
        assert!(schedule.pause(beat, Some(Instant::now() + beat / 2)) <= beat / 2);
        schedule.worked(false);
        assert!(!schedule.note_is_due());
        schedule.end_window();
        assert_eq!(schedule.pause(beat, None), Duration::ZERO);
        assert!(schedule.window_is_over());
        schedule.begin_window();
        assert!(!schedule.window_is_over());
    }

    #[test]
    fn windows_differ_by_a_fifth_at_most() {
        for _ in 0..1000 {
            let window = jittered(HOUR);
            assert!((HOUR.mul_f64(0.8)..=HOUR.mul_f64(1.2)).contains(&window), "{window:?}");
        }
    }
}
