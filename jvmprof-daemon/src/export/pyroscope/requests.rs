//! A batch as requests that Pyroscope takes: within its limits, with the labels that it lives by.
//!
//! A request has one series and one profile. Some of its versions store the series of a request one
//! by one and answer with an error if one of them was refused: of a single one that is no question.

use std::cell::Cell;
use std::io;

use crate::event_type::EventType;
use crate::export::push::EncodedBatch;
use crate::export::split_to_limits::{self, ProfileLimits, SERVICE_LABEL, service_name};
use crate::export::store::NAME_LABEL;
use crate::profile::model::label_names::SPAN_ID;
use crate::profile::model::{Batch, LabelSet as ModelLabels, Sample, Series};
use crate::profile::pprof::PushEncoder;

/// The name that Pyroscope itself gives a series without one.
const UNKNOWN_SERVICE: &str = "unknown_service";

/// Says that values are of one window. Without it the storage of Pyroscope 1 takes allocation for
/// sums since the start of its process and stores differences (`pkg/phlaredb/delta.go`). It counts
/// as a label and isn't stored.
const DELTA_LABEL: (&str, &str) = ("__delta__", "false");

/// Limits of Pyroscope, by default (`pkg/validation/limits.go`): `max_label_names_per_series`,
/// `max_label_name_length`, `max_label_value_length`, and `max_profile_stacktrace_samples`. Beyond
/// `ingestion_burst_size_mb` (2), labels included, a profile is throttled however often it is sent,
/// so that `max_profile_size_bytes` (4 MiB) is never reached.
const MAX_LABELS: usize = 30;
const MAX_NAME_BYTES: usize = 1024;
const MAX_VALUE_BYTES: usize = 2048;
const LIMITS: ProfileLimits = ProfileLimits { bytes: (2 << 20) - (128 << 10), samples: 16_000 };

/// Encodes a batch, each series in a request of its own; in several if Pyroscope would refuse it.
///
/// # Errors
/// None that writing to memory could have.
pub fn requests(batch: &Batch) -> io::Result<EncodedBatch> {
    let (profiles, limited) = (PushEncoder::with_all_types(batch), Cell::new(0));
    let labels = |of: &Series| {
        let room = MAX_LABELS.saturating_sub(most_sample_labels(of)).max(OWN_LABELS);
        let (labels, of_series) = labels(batch.event, &of.labels, room);
        limited.set(limited.get() + of_series);
        labels
    };
    let requests = split_to_limits::requests(batch, profiles, LIMITS, labels)?;
    let requests = requests.into_iter().map(|of_series| of_series.request).collect();
    Ok(EncodedBatch { requests, limited_labels: limited.get() })
}

/// Labels that each series has: its event, its service, and that of allocation.
const OWN_LABELS: usize = 3;

/// The most labels that a sample of a series adds to the series's own. Pyroscope makes a series of
/// each set of them, and counts them for its limit (`pkg/model/pprofsplit`), but for spans, and
/// from version 2 on for traces.
fn most_sample_labels(series: &Series) -> usize {
    let added = |sample: &Sample| {
        let names = sample.labels.iter().map(|label| &*label.name);
        names.filter(|name| *name != SPAN_ID && !series.labels.contains_key(*name)).count()
    };
    series.samples.iter().map(added).max().unwrap_or_default()
}

/// The labels of a series: its event, its service, and as many others as there is room for, by
/// name; values are cut. With the number of those that were left out or cut.
fn labels(event: EventType, of: &ModelLabels, room: usize) -> (Vec<(String, String)>, u64) {
    let own = [
        (NAME_LABEL, event.descriptor().series),
        (SERVICE_LABEL, service_name(of).unwrap_or(UNKNOWN_SERVICE)),
    ];
    let delta = (event == EventType::Allocation).then_some(DELTA_LABEL);
    let is_own = |name: &str| [NAME_LABEL, SERVICE_LABEL, DELTA_LABEL.0].contains(&name);
    let others = of.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let others = others.filter(|(name, value)| !value.is_empty() && !is_own(name));
    let (mut labels, mut limited) = (Vec::new(), 0);
    for (name, value) in own.into_iter().chain(delta).chain(others) {
        let is_taken = labels.len() < room && name.len() <= MAX_NAME_BYTES;
        limited += u64::from(!is_taken || value.len() > MAX_VALUE_BYTES);
        if is_taken {
            let value = &value[..value.floor_char_boundary(MAX_VALUE_BYTES)];
            labels.push((name.to_owned(), value.to_owned()));
        }
    }
    (labels, limited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::push::PushRequest;
    use crate::profile::model::{FrameKind, SampleLabel, SampleLabels};
    use crate::profile::pprof::decode::{DecodeLimits, decode};
    use crate::profile::testing::{batch, frame, series};
    use crate::proto::pprof::Profile;

    fn label_of(event: EventType, of: &[(&str, &str)], name: &str) -> Option<String> {
        let (labels, _) = labels(event, &crate::profile::testing::labels(of), MAX_LABELS);
        labels.into_iter().find(|(it, _)| it == name).map(|(_, value)| value)
    }

    fn profile_of(request: &PushRequest) -> Profile {
        let raw = &request.all_series()[0].samples[0].raw_profile;
        decode(raw, DecodeLimits::default()).expect("pprof")
    }

    #[test]
    fn a_service_is_what_the_rules_say_else_the_best_name_that_is_known() {
        let all = [
            ("service_name", "shop"),
            ("jvm_main_class", "a.Main"),
            ("container", "cart"),
            ("systemd_unit", "u"),
            ("comm", "c"),
        ];
        for (first, (_, expected)) in all.iter().enumerate() {
            let name = label_of(EventType::Cpu, &all[first..], "service_name");
            assert_eq!(name.as_deref(), Some(*expected));
        }
        // Names of no service: the one is another for each replica, the other for each process.
        let others = [("pod", "cart-7d4b9-x2x8q"), ("pid", "7")];
        let name = label_of(EventType::Cpu, &others, "service_name");
        assert_eq!(name.as_deref(), Some("unknown_service"));
        assert_eq!(label_of(EventType::Cpu, &all, "comm").as_deref(), Some("c"));
    }

    #[test]
    fn allocation_is_said_to_be_of_one_window() {
        let of = |event| label_of(event, &[("comm", "c"), ("__delta__", "true")], "__delta__");
        assert_eq!(of(EventType::Allocation).as_deref(), Some("false"));
        assert_eq!((of(EventType::Cpu), of(EventType::OffCpu)), (None, None));
    }

    #[test]
    fn series_that_too_many_labels_told_apart_stay_two_profiles() {
        let names: Vec<_> = (0..40).map(|number| format!("label_{number:02}")).collect();
        let with = |last: &str| {
            let mut labels: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
            labels.push(("z", last));
            series(&labels, vec![(vec![frame(FrameKind::Native, "main")], 2)])
        };
        let encoded = requests(&batch(vec![with("1"), with("2")])).expect("encodable");
        let [first, second] = &encoded.requests[..] else { panic!("{encoded:?}") };
        // Of 41 labels and the two of its own, in each series.
        assert_eq!(encoded.limited_labels, 2 * (41 + 2 - 30));
        let labels = first.all_series()[0].labels.as_ref().expect("labels");
        assert_eq!(labels.labels.len(), MAX_LABELS);
        assert_eq!(first.all_series()[0].labels, second.all_series()[0].labels);
        assert_eq!(profile_of(second).time_nanos - profile_of(first).time_nanos, 1_000_000);
    }

    #[test]
    fn labels_of_samples_take_places_of_labels_of_their_series() {
        let names: Vec<_> = (0..40).map(|number| format!("label_{number:02}")).collect();
        let labels: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
        let stack = || (vec![frame(FrameKind::Native, "main")], 2);
        let mut series = series(&labels, vec![stack(), stack()]);
        let label = |name: &str| SampleLabel { name: name.into(), value: "x".into() };
        // The span stays with its sample, and the series has the last one already.
        let of_sample = ["thread_name", "wait", "span_id", "label_00"].map(label);
        series.samples[0].labels = SampleLabels::new(of_sample);
        let encoded = requests(&batch(vec![series])).expect("encodable");
        let [request] = &encoded.requests[..] else { panic!("{encoded:?}") };
        let labels = request.all_series()[0].labels.as_ref().expect("labels");
        assert_eq!((labels.labels.len(), encoded.limited_labels), (MAX_LABELS - 2, 40 + 2 - 28));
    }

    #[test]
    fn labels_that_are_too_long_are_cut_between_characters_or_left_out_and_counted() {
        let (long, name) = ("\u{e4}".repeat(1025), "n".repeat(1025));
        let exact = "x".repeat(2048);
        let of = [("comm", &*long), ("executable", &*exact), (&*name, "x")];
        let (labels, limited) = labels(EventType::Cpu, &crate::profile::testing::labels(&of), MAX_LABELS);
        let labels: Vec<_> = labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let cut = &long[..2048];
        let expected = [
            ("__name__", "process_cpu"),
            // It is the value of `comm`.
            ("service_name", cut),
            ("comm", cut),
            ("executable", &*exact),
        ];
        assert_eq!((&labels[..], limited), (&expected[..], 3));
    }

    #[test]
    fn series_that_differ_where_a_value_is_cut_stay_two_profiles() {
        let start = "x".repeat(2048);
        let with = |end: &str| {
            let samples = vec![(vec![frame(FrameKind::Native, "main")], 2)];
            series(&[("comm", "c"), ("executable", &format!("{start}{end}"))], samples)
        };
        let encoded = requests(&batch(vec![with("1"), with("2")])).expect("encodable");
        let [first, second] = &encoded.requests[..] else { panic!("{encoded:?}") };
        assert_eq!(first.all_series()[0].labels, second.all_series()[0].labels);
        assert_eq!(profile_of(second).time_nanos - profile_of(first).time_nanos, 1_000_000);
    }

    #[test]
    fn profiles_beyond_a_limit_are_divided_and_nothing_is_missing() {
        let named = |name: String, count| (vec![frame(FrameKind::Native, &name)], count);
        let many = (0..40_000).map(|number| named(format!("f{number}"), 2)).collect();
        let long = (0..9).map(|number| named(format!("{number}").repeat(1 << 20), 3)).collect();
        for (samples, expected) in [(many, 80_000), (long, 27)] {
            let encoded = requests(&batch(vec![series(&[("comm", "x")], samples)])).expect("encodable");
            let requests = encoded.requests;
            assert!(requests.len() > 2);
            assert_eq!(requests.iter().map(|request| request.samples).sum::<u64>(), expected);
            let profiles: Vec<_> = requests.iter().map(profile_of).collect();
            assert!(profiles.iter().all(|profile| LIMITS.allow(profile)));
            let first_value = |profile: &Profile| profile.sample.iter().map(|it| it.value[0]).sum::<i64>();
            assert_eq!(profiles.iter().map(first_value).sum::<i64>(), expected as i64);
            let mut times: Vec<_> = profiles.iter().map(|profile| profile.time_nanos).collect();
            times.dedup();
            assert_eq!(times.len(), profiles.len(), "each has a time of its own");
        }
    }

    #[test]
    fn profiles_have_the_types_that_the_page_knows() {
        let samples = vec![(vec![frame(FrameKind::Native, "main")], 3)];
        let mut batch = batch(vec![series(&[("comm", "x")], samples)]);
        // Of each event: the name of its series, and its two types with their units.
        let expected: [[&str; 5]; EventType::ALL.len()] = [
            ["process_cpu", "samples", "count", "cpu", "nanoseconds"],
            ["memory", "alloc_objects", "count", "alloc_space", "bytes"],
            ["off_cpu", "waits", "count", "off_cpu", "nanoseconds"],
            ["mutex", "contentions", "count", "delay", "nanoseconds"],
            ["jvm_pauses", "pauses", "count", "pause", "nanoseconds"],
            ["mutex_holders", "caused_contentions", "count", "caused_delay", "nanoseconds"],
        ];
        for (event, [series, types @ ..]) in EventType::ALL.into_iter().zip(expected) {
            batch.event = event;
            let requests = requests(&batch).expect("encodable").requests;
            let labels = requests[0].all_series()[0].labels.as_ref().expect("labels");
            assert_eq!((&*labels.labels[0].name, &*labels.labels[0].value), ("__name__", series));
            let profile = profile_of(&requests[0]);
            let text = |index: i64| profile.string_table[index as usize].as_str();
            let found: Vec<_> =
                profile.sample_type.iter().flat_map(|it| [text(it.r#type), text(it.unit)]).collect();
            assert_eq!(found, types, "{event:?}");
        }
    }
}
