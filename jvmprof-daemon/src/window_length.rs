//! Lengths of windows, random so that the daemons of a fleet don't push in step.

use std::time::Duration;

use rand::{Rng, RngExt as _};

/// Share by which a window is longer or shorter.
const JITTER: f64 = 0.2;

/// Returns the length of a window: the interval, longer or shorter by up to a fifth.
pub(crate) fn window_length(interval: Duration) -> Duration {
    window_length_by(&mut rand::rng(), interval)
}

/// As [`window_length`], by these random numbers.
pub(crate) fn window_length_by<R: Rng>(rng: &mut R, interval: Duration) -> Duration {
    interval.mul_f64(1.0 + rng.random_range(-JITTER..JITTER))
}

/// Returns the length of the first window of a daemon, the interval at most: what is left of a
/// window that began at some moment before the daemon.
///
/// Daemons that begin together are thus spread from their first push on, as evenly as those that
/// have run for long.
pub(crate) fn first_window_length(interval: Duration) -> Duration {
    first_window_length_by(&mut rand::rng(), interval)
}

/// As [`first_window_length`], by these random numbers.
pub(crate) fn first_window_length_by<R: Rng>(rng: &mut R, interval: Duration) -> Duration {
    let window = window_length_by(rng, interval);
    let mut part = |of: Duration| of.mul_f64(rng.random_range(0.0..1.0));
    let rest = part(window);
    if rest <= interval { rest } else { part(interval) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn windows_differ_by_a_fifth_at_most() {
        for _ in 0..1000 {
            let window = window_length(HOUR);
            assert!((HOUR.mul_f64(0.8)..=HOUR.mul_f64(1.2)).contains(&window), "{window:?}");
        }
    }

    #[test]
    fn first_windows_are_all_lengths_up_to_the_interval() {
        let mut by_tenth = [0; 10];
        for _ in 0..10_000 {
            let window = first_window_length(HOUR);
            assert!(window <= HOUR, "{window:?}");
            by_tenth[((window.as_secs_f64() / 360.0) as usize).min(9)] += 1;
        }
        // Some 1,060 in each of the first eight, less in the last two, which shorter windows
        // don't reach: bounds of nine standard deviations.
        assert!(by_tenth.iter().all(|count| (300..1350).contains(count)), "{by_tenth:?}");
    }
}
