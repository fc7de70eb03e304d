//! Samples over a time range, for the bars above the flame graph.

use serde::Serialize;

use super::selection::{Selection, millis};
use crate::export::store::{Store, TimeRange};

/// Bars of one answer.
const BARS: usize = 240;

#[derive(Debug, Serialize)]
pub(super) struct SampleTimeline {
    start_ms: i64,
    step_ms: f64,
    /// Samples in each step.
    samples: Vec<f64>,
    /// The end of the newest selected profile of any time, so that an empty range can say where to
    /// look.
    newest_ms: Option<i64>,
}

impl SampleTimeline {
    pub(super) fn of(selection: &Selection, store: &Store) -> Self {
        let range = selection.range;
        let mut bars = Bars::new(range);
        for profile in selection.profiles(store) {
            let start = profile.start.0.saturating_sub(range.start.0) as f64;
            bars.add(start, profile.duration.as_nanos() as f64, profile.samples as f64);
        }
        Self {
            start_ms: millis(range.start),
            step_ms: bars.step / 1e6,
            samples: bars.samples,
            newest_ms: selection.newest(store).map(millis),
        }
    }
}

struct Bars {
    /// Nanoseconds.
    step: f64,
    samples: Vec<f64>,
}

impl Bars {
    fn new(range: TimeRange) -> Self {
        let length = range.end.0.saturating_sub(range.start.0).max(1) as f64;
        Self { step: length / BARS as f64, samples: vec![0.0; BARS] }
    }

    /// Spreads samples evenly over the time of their profile: bars that count whole profiles would
    /// go up and down by how many of them happen to begin in each. What lies behind the range's end
    /// isn't shown.
    fn add(&mut self, start: f64, duration: f64, samples: f64) {
        let (from, to) = (start / self.step, (start + duration) / self.step);
        let first = (from.max(0.0) as usize).min(BARS - 1);
        if to - from < 1e-9 {
            self.samples[first] += samples;
            return;
        }
        let per_bar = samples / (to - from);
        for (bar, sum) in self.samples.iter_mut().enumerate().skip(first) {
            let overlap = to.min(bar as f64 + 1.0) - from.max(bar as f64);
            if overlap <= 0.0 {
                break;
            }
            *sum += per_bar * overlap;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::store::UnixNanos;

    fn bars() -> Bars {
        Bars::new(TimeRange { start: UnixNanos(0), end: UnixNanos(2_400) })
    }

    fn close(bars: &Bars, expected: &[(usize, f64)]) {
        for (bar, samples) in bars.samples.iter().enumerate() {
            let wanted = expected.iter().find(|(at, _)| *at == bar).map_or(0.0, |(_, samples)| *samples);
            assert!((samples - wanted).abs() < 1e-6, "bar {bar} has {samples}, not {wanted}");
        }
    }

    #[test]
    fn a_profile_spreads_over_the_bars_of_its_time() {
        let mut bars = bars();
        bars.add(25.0, 20.0, 40.0);
        close(&bars, &[(2, 10.0), (3, 20.0), (4, 10.0)]);
    }

    #[test]
    fn a_profile_that_outlasts_the_range_raises_no_bar() {
        let mut bars = bars();
        bars.add(2_380.0, 100.0, 10.0);
        bars.add(0.0, 0.0, 7.0);
        bars.add(2_402.0, 20.0, 40.0);
        close(&bars, &[(0, 7.0), (238, 1.0), (239, 1.0)]);
    }
}
