//! The number of events that a profile's numbers were made of.

use super::strings::text_at;
use crate::event_type::EventType;
use crate::proto::pprof::Profile;

/// Sum of the first value of all samples; for our own profiles the number of samples.
pub fn total(profile: &Profile) -> u64 {
    let first = profile.sample.iter().filter_map(|sample| sample.value.first());
    first.fold(0, |sum, value| sum.saturating_add(u64::try_from(*value).unwrap_or(0)))
}

/// The comment of a profile whose values don't show how many events were sampled.
pub(super) fn events_comment(event: EventType, events: u64) -> String {
    format!("{} events: {events}", event.as_str())
}

/// Returns how many events were sampled for the numbers of a type: what the profile's comment says,
/// or the sum of the numbers, of times divided by the period.
pub fn sampled_events(profile: &Profile, sample_type: &str) -> u64 {
    let text = |index: i64| text_at(profile, index);
    let counts = |event: &EventType| {
        event.is_estimated() && event.descriptor().sample_types.iter().any(|of| of.name == sample_type)
    };
    if let Some(event) = EventType::ALL.into_iter().chain([EventType::Wall]).find(counts) {
        let prefix = events_comment(event, 0);
        let prefix = prefix.trim_end_matches('0');
        let said = profile.comment.iter().filter_map(|comment| text(*comment).strip_prefix(prefix));
        let said: Vec<u64> = said.filter_map(|events| events.parse().ok()).collect();
        if !said.is_empty() {
            return said.into_iter().fold(0, u64::saturating_add);
        }
    }
    let Some(at) = profile.sample_type.iter().position(|of| text(of.r#type) == sample_type) else {
        return total(profile);
    };
    let values = profile.sample.iter().filter_map(|sample| sample.value.get(at));
    let sum = values.fold(0_u64, |sum, value| sum.saturating_add(u64::try_from(*value).unwrap_or(0)));
    let is_time = text(profile.sample_type[at].unit) == "nanoseconds";
    let period = u64::try_from(profile.period).unwrap_or(0);
    if is_time && period > 0 { sum / period } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pprof::{Sample, ValueType};

    fn profile(types: [(&str, &str); 2], values: &[[i64; 2]]) -> Profile {
        let mut string_table = vec![String::new()];
        let mut string = |text: &str| {
            string_table.push(text.to_owned());
            string_table.len() as i64 - 1
        };
        let sample_type =
            types.map(|(name, unit)| ValueType { r#type: string(name), unit: string(unit) }).into();
        let sample = values.iter().map(|value| Sample { value: value.to_vec(), ..Sample::default() });
        Profile { sample_type, sample: sample.collect(), string_table, period: 10, ..Profile::default() }
    }

    #[test]
    fn samples_are_counted_and_times_divided() {
        let profile = profile([("samples", "count"), ("cpu", "nanoseconds")], &[[3, 30], [4, 40]]);
        assert_eq!((sampled_events(&profile, "samples"), sampled_events(&profile, "cpu")), (7, 7));
    }

    #[test]
    fn estimates_have_their_events_in_a_comment() {
        let mut profile = profile([("alloc_objects", "count"), ("alloc_space", "bytes")], &[[1_000, 16_000]]);
        profile.string_table.push(events_comment(EventType::Allocation, 12));
        profile.comment.push(profile.string_table.len() as i64 - 1);
        assert_eq!(sampled_events(&profile, "alloc_space"), 12);
        assert_eq!(sampled_events(&profile, "alloc_objects"), 12);
    }
}
