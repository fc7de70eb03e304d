//! Samples over a time range, for the bars above the flame graph.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::selection::{Query, StackGrouping, millis};
use crate::export::store::{ProfileRef, SeriesInfo, Store, TimeRange};
use crate::profile::call_tree::ActivitySamples;
use crate::profile::jvm_activity::JVM_ACTIVITIES;

/// Bars of one answer.
const BARS: usize = 240;

/// Groups with rows of their own: as many as there is room for.
const ROWS: usize = 12;

#[derive(Debug, Serialize)]
pub(super) struct SampleTimeline {
    start_ms: i64,
    step_ms: f64,
    /// Samples in each step.
    samples: Vec<f64>,
    /// The same by group of series, or by program without one: those with most samples, then all
    /// others.
    rows: Vec<TimelineRow>,
    /// The end of the newest selected profile of any time, so that an empty range can say where to
    /// look.
    newest_ms: Option<i64>,
}

impl SampleTimeline {
    pub(super) fn of(query: &Query, store: &Store) -> Self {
        let selection = &query.selection;
        let range = selection.range;
        let (series, profiles) = query.selected(store);
        let group = query.group.as_ref().and_then(StackGrouping::of_series);
        let names = group.unwrap_or(&StackGrouping::Program).names(&series);
        let mut rows = TimelineRows::new(&series, &names, range);
        let mut bars = TimelineBars::new(range);
        for profile in profiles {
            let start = profile.start.0.saturating_sub(range.start.0) as f64;
            for bars in [&mut bars, rows.of(names.get(&*profile.fingerprint))] {
                bars.add(start, profile.duration.as_nanos() as f64, profile.samples as f64);
            }
        }
        Self {
            start_ms: millis(range.start),
            step_ms: bars.step / 1e6,
            samples: bars.samples,
            rows: rows.finish(),
            newest_ms: selection.newest(store).map(millis),
        }
    }
}

/// The samples of the series of a group.
#[derive(Debug, Serialize)]
struct TimelineRow {
    /// `None`: of all other groups.
    name: Option<String>,
    samples: Vec<f64>,
}

/// The groups that have rows of their own, and the bars of each; the last ones are all others'.
struct TimelineRows<'a> {
    places: HashMap<&'a str, usize>,
    bars: Vec<TimelineBars>,
}

impl<'a> TimelineRows<'a> {
    fn new(series: &[SeriesInfo], names: &'a HashMap<&str, String>, range: TimeRange) -> Self {
        let mut samples: BTreeMap<&str, u64> = BTreeMap::new();
        for (info, name) in series.iter().filter_map(|info| Some((info, names.get(&*info.fingerprint)?))) {
            *samples.entry(name).or_default() += info.samples;
        }
        let mut heaviest: Vec<_> = samples.into_iter().collect();
        heaviest.sort_by_key(|(_, samples)| Reverse(*samples));
        heaviest.truncate(ROWS);
        let places: HashMap<_, _> = heaviest.into_iter().map(|(name, _)| name).zip(0..).collect();
        let bars = (0..=places.len()).map(|_| TimelineBars::new(range)).collect();
        Self { places, bars }
    }

    fn of(&mut self, name: Option<&String>) -> &mut TimelineBars {
        let place = name.and_then(|name| self.places.get(name.as_str())).copied();
        &mut self.bars[place.unwrap_or(self.places.len())]
    }

    fn finish(self) -> Vec<TimelineRow> {
        let names: BTreeMap<usize, &str> =
            self.places.into_iter().map(|(name, place)| (place, name)).collect();
        let rows = self.bars.into_iter().enumerate().map(|(place, bars)| TimelineRow {
            name: names.get(&place).map(|name| (*name).to_owned()),
            samples: bars.samples,
        });
        rows.filter(|row| row.name.is_some() || row.samples.iter().any(|samples| *samples > 0.0)).collect()
    }
}

/// The same by what JVMs' samples were taken in.
#[derive(Debug, Serialize)]
pub(super) struct ActivityTimeline {
    start_ms: i64,
    step_ms: f64,
    /// By activity: samples in each step.
    samples: Vec<Vec<f64>>,
    #[serde(skip)]
    range: TimeRange,
}

impl ActivityTimeline {
    pub(super) fn new(range: TimeRange) -> Self {
        let step_ms = TimelineBars::new(range).step / 1e6;
        let samples = vec![vec![0.0; BARS]; JVM_ACTIVITIES];
        Self { start_ms: millis(range.start), step_ms, samples, range }
    }

    pub(super) fn add(&mut self, profile: &ProfileRef, samples: ActivitySamples) {
        let start = profile.start.0.saturating_sub(self.range.start.0) as f64;
        for (row, count) in self.samples.iter_mut().zip(samples).filter(|(_, count)| *count > 0) {
            let mut bars = TimelineBars { samples: std::mem::take(row), step: self.step_ms * 1e6 };
            bars.add(start, profile.duration.as_nanos() as f64, count as f64);
            *row = bars.samples;
        }
    }
}

impl ActivityTimeline {
    /// Adds the samples of another one of the same range.
    pub(super) fn add_all(&mut self, other: &Self) {
        let others = other.samples.iter().flatten();
        self.samples.iter_mut().flatten().zip(others).for_each(|(sum, samples)| *sum += samples);
    }
}

/// Samples in each step of a range.
#[derive(Debug)]
pub(super) struct TimelineBars {
    /// Nanoseconds.
    step: f64,
    pub(super) samples: Vec<f64>,
}

impl TimelineBars {
    pub(super) fn new(range: TimeRange) -> Self {
        let length = range.end.0.saturating_sub(range.start.0).max(1) as f64;
        Self { step: length / BARS as f64, samples: vec![0.0; BARS] }
    }

    /// Spreads samples evenly over the time of their profile: bars that count whole profiles would
    /// go up and down by how many of them happen to begin in each. What lies behind the range's end
    /// isn't shown. `start` and `duration` are nanoseconds, the former since the range's start.
    pub(super) fn add(&mut self, start: f64, duration: f64, samples: f64) {
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

    fn bars() -> TimelineBars {
        TimelineBars::new(TimeRange { start: UnixNanos(0), end: UnixNanos(2_400) })
    }

    fn close(bars: &TimelineBars, expected: &[(usize, f64)]) {
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
