//! Pauses of JVMs as samples of a profile, and back.
//!
//! A pause's stack has its operation as the root, above that the cause of a collection, and as the
//! leaf which of its two times the sample is of. The label `begin` says when it began; samples
//! without it are sums of several pauses.

use std::sync::Arc;

use super::tables::{CheckedTables, InvalidProfile};
use crate::event_type::{EventType, PAUSE_BEGIN, SampleNumber};
use crate::profile::model::{Frame, FrameKind, Line};
use crate::proto::pprof::{Profile, Sample};

/// The leaf of the time in which all threads are stopped, and of that which it takes to stop them.
const STOPPED: &str = "[stopped]";
const TO_SAFEPOINT: &str = "[time to safepoint]";

/// The one of a pause's two times that a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseTime {
    /// Until all threads had stopped.
    ToSafepoint,
    /// From then until they could go on.
    Stopped,
}

/// A sample of a pause, or of several, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseSample<'a> {
    /// Nanoseconds since 1970; `None`: it is of several.
    pub begin_ns: Option<i64>,
    pub time: PauseTime,
    /// What the JVM stopped for.
    pub operation: &'a str,
    /// Why it collected garbage, if it did.
    pub cause: Option<&'a str>,
    /// Samples of the time to the safepoint have none, so that each pause counts once.
    pub pauses: u64,
    pub nanoseconds: u64,
}

/// Returns the stack of one of a pause's times, leaf first.
pub fn frames(operation: &Arc<str>, cause: Option<&Arc<str>>, time: PauseTime) -> Arc<[Arc<Frame>]> {
    let leaf: Arc<str> = match time {
        PauseTime::ToSafepoint => TO_SAFEPOINT.into(),
        PauseTime::Stopped => STOPPED.into(),
    };
    let names = [Some(leaf), cause.cloned(), Some(Arc::clone(operation))];
    let frame = |name: Arc<str>| {
        let lines = vec![Line::named(name)];
        Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines })
    };
    names.into_iter().flatten().map(frame).collect()
}

/// Returns what a profile of pauses says of each; what is no pause is left out.
///
/// # Errors
/// The profile's parts don't fit together.
pub fn samples(profile: &Profile) -> Result<Vec<PauseSample<'_>>, InvalidProfile> {
    let tables = CheckedTables::new(profile)?;
    let place = |number: SampleNumber| {
        let mut types = EventType::Pause.descriptor().sample_types.iter();
        let name = types.find(|of| of.number == number)?.name;
        profile.sample_type.iter().position(|of| tables.text(of.r#type) == name)
    };
    let (count, value) = (place(SampleNumber::Count), place(SampleNumber::Value));
    let of_sample = |sample| pause_sample(&tables, sample, count, value);
    Ok(profile.sample.iter().filter_map(of_sample).collect())
}

fn pause_sample<'a>(
    tables: &CheckedTables<'a>,
    sample: &'a Sample,
    count: Option<usize>,
    value: Option<usize>,
) -> Option<PauseSample<'a>> {
    let names: Option<Vec<&'a str>> = sample.location_id.iter().map(|id| name(tables, *id)).collect();
    let names = names?;
    let (leaf, operation, cause) = match names[..] {
        [leaf, operation] => (leaf, operation, None),
        [leaf, cause, operation] => (leaf, operation, Some(cause)),
        _ => return None,
    };
    let time = match leaf {
        STOPPED => PauseTime::Stopped,
        TO_SAFEPOINT => PauseTime::ToSafepoint,
        _ => return None,
    };
    let begin = sample.label.iter().find(|label| tables.text(label.key) == PAUSE_BEGIN.name);
    // On its way through other formats it may have become a text.
    let begin_ns = begin.and_then(|label| match label.str {
        0 => Some(label.num),
        at => tables.text(at).parse().ok(),
    });
    let number = |at: Option<usize>| {
        at.and_then(|at| sample.value.get(at)).map_or(0, |number| u64::try_from(*number).unwrap_or(0))
    };
    Some(PauseSample { begin_ns, time, operation, cause, pauses: number(count), nanoseconds: number(value) })
}

/// Returns the name of a location's function.
fn name<'a>(tables: &CheckedTables<'a>, location: u64) -> Option<&'a str> {
    let line = tables.location(location)?.line.first()?;
    Some(tables.text(tables.function(line.function_id)?.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{Batch, SampleLabel, SampleLabels, Series};
    use crate::profile::pprof::{for_file, for_push};
    use crate::profile::testing::{batch, series};

    /// A pause of the JVM with its two times, and the sum of five more.
    fn pauses() -> Batch {
        let operation: Arc<str> = "G1CollectForAllocation".into();
        let cause: Arc<str> = "G1 Evacuation Pause".into();
        let begin = SampleLabel { name: PAUSE_BEGIN.name.into(), value: "1732195501000000007".into() };
        let begin = SampleLabels::new([begin]);
        let sample = |cause, time, labels: &SampleLabels, count, value| crate::profile::model::Sample {
            labels: labels.clone(),
            count,
            value,
            ..crate::profile::model::Sample::of_events(frames(&operation, cause, time), count, value)
        };
        let samples = vec![
            sample(Some(&cause), PauseTime::Stopped, &begin, 1, 20_000_000),
            sample(Some(&cause), PauseTime::ToSafepoint, &begin, 0, 300_000),
            sample(None, PauseTime::Stopped, &SampleLabels::default(), 5, 500),
        ];
        let of_jvm = Series { samples, ..series(&[("pid", "7")], Vec::new()) };
        Batch { event: EventType::Pause, period: 1, ..batch(vec![of_jvm]) }
    }

    #[test]
    fn a_pause_is_read_as_it_was_written() {
        let batch = pauses();
        let operation = "G1CollectForAllocation";
        let stopped = PauseSample {
            begin_ns: Some(1_732_195_501_000_000_007),
            time: PauseTime::Stopped,
            operation,
            cause: Some("G1 Evacuation Pause"),
            pauses: 1,
            nanoseconds: 20_000_000,
        };
        let to_safepoint =
            PauseSample { time: PauseTime::ToSafepoint, pauses: 0, nanoseconds: 300_000, ..stopped };
        let rest = PauseSample { begin_ns: None, cause: None, pauses: 5, nanoseconds: 500, ..stopped };
        for profile in [for_push(&batch, &batch.series[0]), for_file(&batch)] {
            assert_eq!(samples(&profile), Ok(vec![stopped, to_safepoint, rest]));
        }
    }

    #[test]
    fn the_begin_of_a_pause_is_a_number_so_that_backends_make_no_series_of_it() {
        let batch = pauses();
        let profile = for_push(&batch, &batch.series[0]);
        let label = profile.sample[0].label[0];
        let text = |at: i64| &*profile.string_table[at as usize];
        assert_eq!((text(label.key), label.str, text(label.num_unit)), ("begin", 0, "nanoseconds"));
        assert_eq!(label.num, 1_732_195_501_000_000_007);
    }

    #[test]
    fn a_begin_that_became_a_text_is_read_and_other_stacks_are_no_pauses() {
        let batch = pauses();
        let mut profile = for_push(&batch, &batch.series[0]);
        let label = &mut profile.sample[0].label[0];
        profile.string_table.push(std::mem::take(&mut label.num).to_string());
        label.str = profile.string_table.len() as i64 - 1;
        profile.sample[1].location_id.truncate(1);
        profile.sample[2].location_id.reverse();
        let read = samples(&profile).expect("it is whole");
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].begin_ns, Some(1_732_195_501_000_000_007));
    }
}
