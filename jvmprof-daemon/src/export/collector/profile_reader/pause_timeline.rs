//! The pauses of JVMs in a time range, for the lane below the timeline.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::selection::{Query, Selection, StackGrouping};
use super::{ProfileReader, ReadError};
use crate::event_type::EventType;
use crate::export::store::{NAME_LABEL, SeriesInfo, Store, TimeRange, UnixNanos};
use crate::profile::model::{LabelSet, label_names};
use crate::profile::pprof::jvm_pauses::{PauseSample, PauseTime, samples};
use crate::profile::recording_page::{PauseLane, PauseMark};

/// Pauses that an answer has one by one: the longest. The sums are of all.
const MAX_MARKS: usize = 5_000;
/// JVMs that an answer has: those that were stopped for longest.
const MAX_JVMS: usize = 100;
/// Profiles before the range that are looked at, since one may reach into it.
const LONGEST_PROFILE: Duration = Duration::from_secs(3_600);
/// The time after its end within which a pause may be read: it is in the next profile, then.
const LATEST_READ: Duration = Duration::from_secs(5);
/// Labels by which series of CPU time differ within one JVM.
const LABELS_OF_THREADS: [&str; 4] = [NAME_LABEL, label_names::THREAD_NAME, label_names::THREAD_ID, "cpu"];

/// The pauses of the JVMs of a selection. Times are since the range's start.
#[derive(Debug, Default, Serialize)]
pub(in crate::export::collector) struct PauseTimeline {
    /// Those that were stopped for longest first.
    pub(in crate::export::collector) jvms: Vec<PauseLane>,
    /// JVMs beyond them.
    pub(in crate::export::collector) more_jvms: usize,
    /// Profiles that couldn't be read: the answer lacks their pauses.
    pub(in crate::export::collector) unreadable: usize,
}

/// The known parts of a pause: its two times may be in different profiles.
#[derive(Debug, Default)]
struct PauseParts {
    stopped_ns: u64,
    to_safepoint_ns: u64,
    what: String,
}

/// One JVM.
#[derive(Debug, Default)]
struct PauseLaneBuilder {
    name: String,
    /// By their begins.
    apart: BTreeMap<i64, PauseParts>,
    /// Sums of pauses whose begins aren't known: their number, and nanoseconds.
    others: u64,
    others_stopped_ns: u64,
    others_to_safepoint_ns: u64,
}

impl PauseLaneBuilder {
    fn add(&mut self, sample: &PauseSample<'_>, is_in_range: bool) {
        let Some(begin_ns) = sample.begin_ns else {
            if is_in_range {
                self.others = self.others.saturating_add(sample.pauses);
                add_time(&mut self.others_stopped_ns, &mut self.others_to_safepoint_ns, sample);
            }
            return;
        };
        let pause = self.apart.entry(begin_ns).or_default();
        add_time(&mut pause.stopped_ns, &mut pause.to_safepoint_ns, sample);
        if pause.what.is_empty() {
            let cause = sample.cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
            pause.what = format!("{}{cause}", sample.operation);
        }
    }

    /// Returns what lies in the range; `None` if nothing does. `followed`: when it has profiles
    /// there, in nanoseconds since the range's start; a lane `has_spans` if it says each.
    fn lane(&self, range: TimeRange, followed: &[(u64, u64)], has_spans: bool) -> Option<PauseLane> {
        let has_spans = has_spans && followed.len() > 1;
        let spans = followed.iter().filter(|_| has_spans);
        let mut lane = PauseLane {
            jvm: self.name.clone(),
            followed_from_ms: millis(followed.first().map_or(0, |(begin, _)| *begin)),
            followed_ms: millis(followed.iter().map(|(begin, end)| end - begin).sum()),
            followed_spans_ms: spans.map(|(begin, end)| [millis(*begin), millis(*end)]).collect(),
            pauses: self.others,
            stopped_ms: millis(self.others_stopped_ns),
            to_safepoint_ms: millis(self.others_to_safepoint_ns),
            marks: Vec::new(),
        };
        let within = |from: i64, nanoseconds: u64| {
            let until = from.saturating_add_unsigned(nanoseconds).min(range.end.0);
            u64::try_from(until.saturating_sub(from.max(range.start.0))).unwrap_or(0)
        };
        for (&begin, pause) in &self.apart {
            let reached = begin.saturating_add_unsigned(pause.to_safepoint_ns);
            if begin >= range.end.0 || reached.saturating_add_unsigned(pause.stopped_ns) <= range.start.0 {
                continue;
            }
            lane.pauses += 1;
            lane.stopped_ms += millis(within(reached, pause.stopped_ns));
            lane.to_safepoint_ms += millis(within(begin, pause.to_safepoint_ns));
            lane.marks.push(PauseMark {
                begin_ms: begin.saturating_sub(range.start.0) as f64 / 1e6,
                to_safepoint_ms: millis(pause.to_safepoint_ns),
                stopped_ms: millis(pause.stopped_ns),
                what: pause.what.clone(),
            });
        }
        (lane.pauses > 0).then_some(lane)
    }
}

fn millis(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

fn add_time(stopped_ns: &mut u64, to_safepoint_ns: &mut u64, sample: &PauseSample<'_>) {
    let sum = match sample.time {
        PauseTime::Stopped => stopped_ns,
        PauseTime::ToSafepoint => to_safepoint_ns,
    };
    *sum = sum.saturating_add(sample.nanoseconds);
}

impl PauseTimeline {
    /// Returns true if there are profiles of pauses to be read for an answer.
    pub(in crate::export::collector) fn is_known(query: &Query, store: &Store) -> bool {
        let selection = &query.selection;
        !selection.of_event(EventType::Pause, wider(selection.range)).series(store).is_empty()
    }
}

impl ProfileReader {
    /// The pauses of the selected JVMs, whatever kind of profiles is selected.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(in crate::export::collector) fn pauses(&self, query: &Query) -> Result<PauseTimeline, ReadError> {
        let range = query.selection.range;
        let selection = query.selection.of_event(EventType::Pause, wider(range));
        let series = selection.series(&self.store);
        let names = StackGrouping::Program.names(&series);
        let mut jvms: BTreeMap<&LabelSet, PauseLaneBuilder> = BTreeMap::new();
        let by_fingerprint: HashMap<&str, &SeriesInfo> =
            series.iter().map(|info| (info.fingerprint.as_str(), info)).collect();
        let mut profiles = selection.profiles(&self.store);
        profiles.retain(|profile| profile.start.plus(profile.duration) > range.start);
        let (_, unreadable) = self.each(&profiles, Instant::now(), |reference, profile| {
            let Some(info) = by_fingerprint.get(&*reference.fingerprint) else { return Ok(()) };
            let jvm = jvms.entry(&info.labels).or_default();
            if jvm.name.is_empty() {
                let program = names.get(&*reference.fingerprint).map_or("", String::as_str);
                jvm.name = match info.labels.get("pid").filter(|pid| !pid.is_empty()) {
                    Some(pid) => format!("{program} ({pid})"),
                    None => program.to_owned(),
                };
            }
            let is_in_range = range.start <= reference.start && reference.start < range.end;
            let samples = samples(&profile).map_err(|error| error.to_string())?;
            samples.iter().for_each(|sample| jvm.add(sample, is_in_range));
            Ok::<(), String>(())
        })?;
        let followed = FollowedSpans::new(&query.selection, &self.store);
        // A page chooses parts only of what has the times of samples.
        let lane = |(labels, jvm): (&&LabelSet, &PauseLaneBuilder)| {
            jvm.lane(range, &followed.spans_of(labels), query.by_times)
        };
        let mut lanes: Vec<PauseLane> = jvms.iter().filter_map(lane).collect();
        lanes.sort_by(|one, two| two.stopped_ms.total_cmp(&one.stopped_ms));
        let more_jvms = lanes.len().saturating_sub(MAX_JVMS);
        lanes.truncate(MAX_JVMS);
        keep_longest(&mut lanes, MAX_MARKS);
        Ok(PauseTimeline { jvms: lanes, more_jvms, unreadable })
    }
}

/// The range with that of profiles that may have pauses of it.
fn wider(range: TimeRange) -> TimeRange {
    let before = i64::try_from(LONGEST_PROFILE.as_nanos()).unwrap_or(0);
    TimeRange { start: UnixNanos(range.start.0.saturating_sub(before)), end: range.end.plus(LATEST_READ) }
}

/// Keeps the longest marks of all lanes together.
fn keep_longest(lanes: &mut [PauseLane], max: usize) {
    let length = |mark: &PauseMark| mark.to_safepoint_ms + mark.stopped_ms;
    let mut lengths: Vec<f64> = lanes.iter().flat_map(|lane| &lane.marks).map(length).collect();
    if lengths.len() <= max {
        return;
    }
    lengths.sort_by(|one, two| two.total_cmp(one));
    let (shortest, mut equal) = (lengths[max], max - lengths.partition_point(|it| *it > lengths[max]));
    for lane in lanes {
        lane.marks.retain(|mark| {
            let is_kept = length(mark) > shortest || (length(mark) == shortest && equal > 0);
            equal -= usize::from(is_kept && length(mark) == shortest);
            is_kept
        });
    }
}

/// The times in which JVMs have profiles, of CPU time or of pauses, within a range: in one without
/// any, nobody knows whether it was stopped.
#[derive(Debug)]
struct FollowedSpans {
    range: TimeRange,
    /// Begins and ends, by the labels of a JVM.
    spans: HashMap<LabelSet, Vec<(i64, i64)>>,
}

impl FollowedSpans {
    fn new(selection: &Selection, store: &Store) -> Self {
        let range = selection.range;
        let mut spans: HashMap<LabelSet, Vec<(i64, i64)>> = HashMap::new();
        for event in [EventType::Cpu, EventType::Pause] {
            let of_event = selection.of_event(event, wider(range));
            let series = of_event.series(store);
            let keys: HashMap<&str, LabelSet> =
                series.iter().map(|info| (info.fingerprint.as_str(), key(&info.labels))).collect();
            for profile in of_event.profiles(store) {
                let Some(key) = keys.get(&*profile.fingerprint) else { continue };
                let begin = profile.start.0.max(range.start.0);
                let end = profile.start.plus(profile.duration).0.min(range.end.0);
                if begin < end {
                    spans.entry(key.clone()).or_default().push((begin, end));
                }
            }
        }
        spans.values_mut().for_each(|spans| spans.sort_unstable());
        Self { range, spans }
    }

    /// Returns when a JVM has profiles, oldest first and with gaps between, in nanoseconds since
    /// the range's start.
    fn spans_of(&self, labels: &LabelSet) -> Vec<(u64, u64)> {
        let mut apart: Vec<(u64, u64)> = Vec::new();
        for &(begin, end) in self.spans.get(&key(labels)).into_iter().flatten() {
            // They begin and end within the range.
            let [begin, end] = [begin, end].map(|at| at.abs_diff(self.range.start.0));
            match apart.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => apart.push((begin, end)),
            }
        }
        apart
    }
}

/// The labels that all series of a JVM have.
fn key(labels: &LabelSet) -> LabelSet {
    let of_jvm = labels.iter().filter(|(name, _)| !LABELS_OF_THREADS.contains(&name.as_str()));
    of_jvm.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn range(from: i64, to: i64) -> TimeRange {
        TimeRange { start: UnixNanos(from * SECOND), end: UnixNanos(to * SECOND) }
    }

    fn sample(begin_ns: Option<i64>, time: PauseTime, nanoseconds: u64) -> PauseSample<'static> {
        let pauses = u64::from(time == PauseTime::Stopped);
        PauseSample { begin_ns, time, operation: "ThreadDump", cause: None, pauses, nanoseconds }
    }

    #[test]
    fn a_pause_counts_for_as_long_as_it_lies_in_the_range() {
        let mut jvm = PauseLaneBuilder::default();
        // From 9 s to 12 s, all threads stopped from 10 s on.
        jvm.add(&sample(Some(9 * SECOND), PauseTime::Stopped, 2_000_000_000), false);
        jvm.add(&sample(Some(9 * SECOND), PauseTime::ToSafepoint, 1_000_000_000), false);
        let sums = |jvm: &PauseLaneBuilder, from, to| {
            let lane = jvm.lane(range(from, to), &[], true)?;
            Some((lane.pauses, lane.to_safepoint_ms, lane.stopped_ms, lane.marks[0].begin_ms))
        };
        assert_eq!(sums(&jvm, 0, 20), Some((1, 1_000.0, 2_000.0, 9_000.0)));
        assert_eq!(sums(&jvm, 11, 20), Some((1, 0.0, 1_000.0, -2_000.0)));
        assert_eq!(sums(&jvm, 0, 10), Some((1, 1_000.0, 0.0, 9_000.0)));
        assert_eq!((sums(&jvm, 12, 20), sums(&jvm, 0, 9)), (None, None));
    }

    #[test]
    fn sums_of_several_pauses_count_with_the_profile_that_has_them() {
        let mut jvm = PauseLaneBuilder::default();
        for (is_in_range, pauses) in [(true, 7), (false, 100)] {
            jvm.add(&PauseSample { pauses, ..sample(None, PauseTime::Stopped, 3_000_000) }, is_in_range);
        }
        let lane = jvm.lane(range(0, 10), &[], true).expect("it has pauses");
        assert_eq!((lane.pauses, lane.stopped_ms, lane.marks.len()), (7, 3.0, 0));
    }

    #[test]
    fn the_time_without_profiles_is_known_where_it_is_asked_for() {
        let mut jvm = PauseLaneBuilder::default();
        jvm.add(&sample(Some(SECOND), PauseTime::Stopped, 1), true);
        let followed = |spans: &[(u64, u64)], has_spans| {
            let lane = jvm.lane(range(0, 10), spans, has_spans).expect("it has a pause");
            (lane.followed_from_ms, lane.followed_ms, lane.followed_spans_ms)
        };
        let spans = [(1_000_000_000, 2_000_000_000), (5_000_000_000, 7_000_000_000)];
        assert_eq!(followed(&spans, true), (1_000.0, 3_000.0, vec![[1_000.0, 2_000.0], [5_000.0, 7_000.0]]));
        assert_eq!(followed(&spans, false), (1_000.0, 3_000.0, vec![]));
        assert_eq!(followed(&spans[..1], true), (1_000.0, 1_000.0, vec![]), "there is no gap");
        assert_eq!(followed(&[], true), (0.0, 0.0, vec![]));
    }

    #[test]
    fn of_too_many_marks_the_longest_are_kept() {
        let mut jvm = PauseLaneBuilder::default();
        for number in 0..10 {
            let length = if number < 4 { 9_000_000 } else { number };
            jvm.add(&sample(Some(number as i64 * SECOND), PauseTime::Stopped, length), true);
        }
        for max in [2, 4, 7] {
            let mut lanes = vec![jvm.lane(range(0, 10), &[], true).expect("it has pauses")];
            keep_longest(&mut lanes, max);
            let lengths: Vec<f64> = lanes[0].marks.iter().map(|mark| mark.stopped_ms).collect();
            assert_eq!((lengths.len(), lanes[0].pauses), (max, 10));
            assert_eq!(lengths.iter().filter(|length| **length == 9.0).count(), max.min(4));
        }
    }
}
