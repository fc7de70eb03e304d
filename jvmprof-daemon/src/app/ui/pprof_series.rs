//! The series of a pprof file of any tool: by what its numbers count, and by the labels of its
//! samples.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::event_type::{EventType, SampleNumber};
use crate::export::store::{NAME_LABEL, NewProfile, UnixNanos};
use crate::profile::model::LabelSet;
use crate::profile::pprof::merge::{MAX_BYTES, MergeError, Merger};
use crate::profile::pprof::{self, CheckedTables, InvalidProfile, text_at};
use crate::proto::pprof::{Profile, Sample, ValueType};

/// Events whose numbers have names of their own.
const NAMED_EVENTS: [EventType; 6] = [
    EventType::Allocation,
    EventType::OffCpu,
    EventType::Lock,
    EventType::LockHolder,
    EventType::Pause,
    EventType::Wall,
];

/// Label sets that become series of their own; with more of them the file is one series.
const MAX_SERIES: usize = 200;

/// A file that can't be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    #[error("importing a profile: its parts don't fit together: {0}")]
    Invalid(#[from] InvalidProfile),
    #[error("importing a profile: it has no samples")]
    Empty,
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error("importing a profile: packing a series: {0}")]
    Encode(#[from] std::io::Error),
}

/// A file's profiles.
#[derive(Debug)]
pub(super) struct ImportedProfile {
    pub(super) profiles: Vec<NewProfile>,
    /// The page's `type` for them, unless it is CPU time.
    pub(super) sample_type: Option<String>,
    /// Names of numbers that the page doesn't show.
    pub(super) left_out: Vec<String>,
}

/// Numbers of samples that are shown together, as one kind of series.
struct View {
    /// `None`: what the page doesn't know.
    event: Option<EventType>,
    name: String,
    /// Positions of sample types, the counted one first.
    types: Vec<usize>,
    /// What one of the first number stands for, in nanoseconds.
    period: i64,
    /// What the first number is divided by.
    divisor: i64,
}

/// Returns the profiles of a file.
///
/// # Errors
/// See [`ImportError`].
pub(super) fn import(mut profile: Profile) -> Result<ImportedProfile, ImportError> {
    CheckedTables::new(&profile)?;
    let (views, left_out) = views(&profile);
    let labels_are_series = sets(&profile, &profile.sample).len() <= MAX_SERIES;
    let (start, duration) = time(&profile);
    let samples = std::mem::take(&mut profile.sample);
    let types = std::mem::take(&mut profile.sample_type);
    profile.default_sample_type = 0;
    let mut profiles = Vec::new();
    for view in &views {
        profile.sample_type = view.types.iter().filter_map(|at| types.get(*at).copied()).collect();
        profile.period = view.period;
        let shown: Vec<Sample> = samples.iter().filter_map(|sample| view.of(sample)).collect();
        let series = match labels_are_series {
            true => sets(&profile, &shown),
            false => BTreeMap::from([(LabelSet::new(), shown.iter().collect())]),
        };
        for (mut labels, samples) in series {
            profile.sample = samples.iter().map(|sample| view.without_series_labels(sample)).collect();
            // Leaves out what only other series refer to.
            let mut merger = Merger::new(MAX_BYTES);
            merger.add(&profile)?;
            let own = merger.finish();
            labels.insert(NAME_LABEL.to_owned(), view.name.clone());
            let samples = pprof::total(&own);
            profiles.push(NewProfile {
                labels: labels.into(),
                start,
                duration,
                samples,
                pprof: pprof::to_bytes(&own)?.into(),
            });
        }
    }
    if profiles.is_empty() {
        return Err(ImportError::Empty);
    }
    let has_samples =
        |view: &&View| profiles.iter().any(|profile| profile.labels.get(NAME_LABEL) == Some(&view.name));
    let first = views.iter().find(has_samples);
    let sample_type = first.and_then(|view| page_type(view.event?));
    Ok(ImportedProfile { profiles, sample_type, left_out })
}

/// Returns the page's `type` for an event, unless it is CPU time: the event's value.
fn page_type(event: EventType) -> Option<String> {
    let descriptor = event.descriptor();
    let value = descriptor.sample_types.iter().find(|of| of.number == SampleNumber::Value)?;
    (event != EventType::Cpu).then(|| format!("{}:{}", descriptor.series, value.name))
}

/// Returns when the profile began, and how long it took.
fn time(profile: &Profile) -> (UnixNanos, Duration) {
    let duration = Duration::from_nanos(u64::try_from(profile.duration_nanos).unwrap_or(0));
    let duration = duration.max(Duration::from_secs(1));
    let start = match profile.time_nanos {
        // Not every tool says when.
        ..=0 => UnixNanos::from(SystemTime::now() - duration),
        start => UnixNanos(start),
    };
    (start, duration)
}

/// Returns what is shown of a file's numbers, and the names of those that aren't.
fn views(profile: &Profile) -> (Vec<View>, Vec<String>) {
    let name_of = |of: &ValueType| text_at(profile, of.r#type);
    let position = |name: &str| profile.sample_type.iter().position(|of| name_of(of) == name);
    let is_time = |at: usize| {
        let of = profile.sample_type.get(at);
        of.is_some_and(|of| text_at(profile, of.unit) == "nanoseconds")
    };
    let name_at = |at: usize| profile.sample_type.get(at).map(name_of);
    let wall_time = position("wall");
    // Wall-clock time has samples, too: right before it.
    let cpu_samples = (0..profile.sample_type.len())
        .find(|at| name_at(*at) == Some("samples") && wall_time != Some(at + 1));
    let mut views = Vec::new();
    let cpu = EventType::Cpu.descriptor().series.to_owned();
    match (cpu_samples, position("cpu")) {
        (Some(samples), time) => views.push(View {
            event: Some(EventType::Cpu),
            name: cpu,
            types: [Some(samples), time].into_iter().flatten().collect(),
            period: profile.period.max(0),
            divisor: 1,
        }),
        (None, Some(time)) => {
            // Nanoseconds alone: samples again where the period is known.
            let period = if is_time(time) { profile.period.max(1) } else { 1 };
            let event = Some(EventType::Cpu);
            views.push(View { event, name: cpu, types: vec![time], period, divisor: period });
        }
        (None, None) => {}
    }
    for event in NAMED_EVENTS {
        let descriptor = event.descriptor();
        let [count, value] = descriptor.sample_types else { continue };
        let Some(value) = position(value.name) else { continue };
        let before = value.checked_sub(1).filter(|at| name_at(*at) == Some(count.name));
        let count = match event {
            EventType::Wall => before,
            _ => before.or_else(|| position(count.name)),
        };
        let Some(count) = count else { continue };
        let name = descriptor.series.to_owned();
        let types = vec![count, value];
        views.push(View { event: Some(event), name, types, period: profile.period.max(0), divisor: 1 });
    }
    if views.is_empty() && !profile.sample_type.is_empty() {
        // As `go tool pprof` chooses.
        let default = position(text_at(profile, profile.default_sample_type));
        let at = default.unwrap_or(profile.sample_type.len() - 1);
        let name = profile.sample_type.get(at).map(name_of).filter(|name| !name.is_empty());
        let period = i64::from(is_time(at));
        let name = name.unwrap_or("samples").to_owned();
        views.push(View { event: None, name, types: vec![at], period, divisor: 1 });
    }
    let is_shown = |at: usize| views.iter().any(|view| view.types.contains(&at));
    let names = profile.sample_type.iter().enumerate().filter(|(at, _)| !is_shown(*at));
    let left_out = names.map(|(_, of)| name_of(of).to_owned()).collect();
    (views, left_out)
}

impl View {
    /// The sample with this view's numbers; `None` if it counts nothing here.
    fn of(&self, sample: &Sample) -> Option<Sample> {
        let number = |at: &usize| sample.value.get(*at).copied().unwrap_or(0);
        let mut value: Vec<i64> = self.types.iter().map(number).collect();
        if value.iter().all(|number| *number <= 0) {
            return None;
        }
        if let Some(first) = value.first_mut().filter(|first| **first > 0) {
            // What took less than a period was seen once.
            *first = (*first / self.divisor.max(1)).max(1);
        }
        let (location_id, label) = (sample.location_id.clone(), sample.label.clone());
        Some(Sample { location_id, value, label })
    }

    /// The sample without what the series says: of its labels only the number that a pause has.
    fn without_series_labels(&self, sample: &Sample) -> Sample {
        let mut sample = sample.clone();
        sample.label.retain(|label| label.str == 0 && self.event == Some(EventType::Pause));
        sample
    }
}

/// Samples by the labels that they have; numbers such as thread ids aren't labels of series.
fn sets<'a>(profile: &Profile, samples: &'a [Sample]) -> BTreeMap<LabelSet, Vec<&'a Sample>> {
    let mut sets: BTreeMap<LabelSet, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let named =
            sample.label.iter().filter(|label| label.str != 0 && text_at(profile, label.key) != NAME_LABEL);
        let labels =
            named.map(|it| (text_at(profile, it.key).to_owned(), text_at(profile, it.str).to_owned()));
        sets.entry(labels.collect()).or_default().push(sample);
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{Batch, FrameKind};
    use crate::profile::testing::{batch as profile_of, frame, series as series_of};
    use crate::proto::pprof::Label;

    fn profile(types: &[(&str, &str)], samples: &[(&[i64], &str)]) -> Profile {
        let mut profile =
            Profile { string_table: vec![String::new(), "comm".to_owned()], ..Profile::default() };
        let mut index = |text: &str| {
            let at = profile.string_table.iter().position(|known| known == text);
            at.unwrap_or_else(|| {
                profile.string_table.push(text.to_owned());
                profile.string_table.len() - 1
            }) as i64
        };
        let sample_type =
            types.iter().map(|(name, unit)| ValueType { r#type: index(name), unit: index(unit) });
        let sample_type = sample_type.collect();
        let samples = samples.iter().map(|(value, comm)| Sample {
            value: value.to_vec(),
            label: vec![Label { key: 1, str: index(comm), ..Label::default() }],
            ..Sample::default()
        });
        let sample = samples.collect();
        Profile { sample_type, sample, time_nanos: 5_000_000_000, duration_nanos: 2_000_000_000, ..profile }
    }

    /// Name, `comm` and the first number of each series.
    fn series(imported: &ImportedProfile) -> Vec<(&str, &str, u64)> {
        let label =
            |profile: &'_ NewProfile, name: &str| profile.labels.get(name).cloned().unwrap_or_default();
        let series = imported.profiles.iter();
        series
            .map(|it| {
                let (name, comm) = (label(it, NAME_LABEL), label(it, "comm"));
                (&*Box::leak(name.into_boxed_str()), &*Box::leak(comm.into_boxed_str()), it.samples)
            })
            .collect()
    }

    #[test]
    fn a_recording_of_two_events_has_series_of_both_by_label() {
        let types = [
            ("samples", "count"),
            ("cpu", "nanoseconds"),
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
        ];
        let samples: [(&[i64], &str); 3] =
            [(&[3, 30, 0, 0], "java"), (&[2, 20, 0, 0], "go"), (&[0, 0, 7, 70], "java")];
        let imported = import(profile(&types, &samples)).unwrap();
        assert_eq!(
            series(&imported),
            [("process_cpu", "go", 2), ("process_cpu", "java", 3), ("memory", "java", 7)]
        );
        assert_eq!((imported.sample_type, imported.left_out.len()), (None, 0));
        let first = &imported.profiles[0];
        assert_eq!((first.start, first.duration), (UnixNanos(5_000_000_000), Duration::from_secs(2)));
    }

    #[test]
    fn nanoseconds_without_a_count_become_samples_of_a_period() {
        let mut only_time = profile(&[("cpu", "nanoseconds")], &[(&[25], "a"), (&[3], "a")]);
        only_time.period = 10;
        assert_eq!(series(&import(only_time).unwrap()), [("process_cpu", "a", 3)]);
    }

    #[test]
    fn each_event_is_a_series_and_nothing_of_it_is_left_out() {
        for event in EventType::ALL.into_iter().chain([EventType::Wall]) {
            let names = event.descriptor();
            let types: Vec<(&str, &str)> = names.sample_types.iter().map(|of| (of.name, of.unit)).collect();
            let imported = import(profile(&types, &[(&[3, 900], "a")])).unwrap();
            assert_eq!(series(&imported), [(names.series, "a", 3)]);
            assert_eq!(imported.left_out, [""; 0], "{event:?}");
            let of_page = imported.sample_type;
            assert_eq!(of_page.is_none(), event == EventType::Cpu, "{of_page:?}");
            assert!(
                of_page.is_none_or(|of| of == format!("{}:{}", names.series, names.sample_types[1].name))
            );
        }
    }

    #[test]
    fn the_collectors_page_knows_the_type_of_each_event() {
        let script = include_str!("../../../assets/collector/collector.js");
        for event in EventType::ALL.into_iter().chain([EventType::Wall]) {
            let known = page_type(event).is_none_or(|of| script.contains(&format!("\"{of}\",")));
            assert!(known, "{event:?}");
        }
    }

    #[test]
    fn a_file_of_several_events_has_a_series_of_each() {
        let batch = |event: EventType| Batch {
            event,
            ..profile_of(vec![series_of(&[], vec![(vec![frame(FrameKind::Native, "f")], 7)])])
        };
        let events = [EventType::Cpu, EventType::OffCpu, EventType::Lock, EventType::LockHolder];
        for (events, first) in [(&events[..], None), (&events[1..], Some("off_cpu:off_cpu"))] {
            let batches: Vec<Batch> = events.iter().copied().chain([EventType::Wall]).map(batch).collect();
            let imported = import(pprof::for_file_of_events(&batches)).unwrap();
            let expected: Vec<_> = batches.iter().map(|it| (it.event.descriptor().series, "", 7)).collect();
            assert_eq!(series(&imported), expected);
            assert_eq!((imported.sample_type.as_deref(), imported.left_out.len()), (first, 0));
        }
    }

    #[test]
    fn what_the_page_does_not_know_is_shown_by_its_default_and_the_rest_is_named() {
        let types = [("faults", "count"), ("fault_time", "nanoseconds")];
        let imported = import(profile(&types, &[(&[1, 900], "a")])).unwrap();
        assert_eq!(series(&imported), [("fault_time", "a", 900)]);
        assert_eq!(imported.left_out, ["faults"]);
        let heap = [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_space", "bytes")];
        let imported = import(profile(&heap, &[(&[1, 16, 16], "a")])).unwrap();
        assert_eq!(imported.sample_type.as_deref(), Some("memory:alloc_space"));
        assert_eq!(imported.left_out, ["inuse_space"]);
    }

    #[test]
    fn many_label_sets_are_one_series() {
        let names: Vec<String> = (0..300).map(|at| format!("n{at}")).collect();
        let samples: Vec<(&[i64], &str)> = names.iter().map(|name| (&[1_i64][..], &**name)).collect();
        assert_eq!(
            series(&import(profile(&[("samples", "count")], &samples)).unwrap()),
            [("process_cpu", "", 300)]
        );
    }

    #[test]
    fn bytes_without_samples_are_refused() {
        assert!(matches!(import(Profile::default()), Err(ImportError::Empty)));
        assert!(matches!(import(profile(&[("samples", "count")], &[])), Err(ImportError::Empty)));
    }
}
