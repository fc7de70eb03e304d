//! Profiles of OTLP as the pprof profiles that a [`Store`](crate::export::store::Store) keeps.
//!
//! Everything in a message is somebody else's: indices may lead nowhere, and a small message may
//! refer to one long stack so often that it becomes a huge profile. So each reference is checked,
//! and the size of what is made is bounded.

mod tables;

use std::borrow::Cow;
use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{Profile, ProfilesDictionary, ResourceProfiles};
use prost::Message as _;

use self::tables::PprofTables;
use super::attributes::label_of_resource;
use super::message::COMMENT;
use crate::event_type::EventType;
use crate::export::store::NAME_LABEL;
use crate::proto::pprof;
use crate::proto::profilestore::{Label, LabelSet, RawProfileSeries, RawSample, WriteRawRequest};

/// A message that isn't one of profiles as OTLP defines it, or would become too large.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessage {
    #[error("index {index} is not in the {table} table, which has {entries} entries")]
    Index { table: &'static str, index: i32, entries: usize },
    #[error("profiles without a dictionary")]
    NoDictionary,
    #[error("a profile without a sample type")]
    NoSampleType,
    #[error("a sample has {values} values and {timestamps} timestamps")]
    Values { values: usize, timestamps: usize },
    #[error("the values of a sample come to more than 63 bits")]
    Overflow,
    #[error("the profiles of a message come to more than {limit} bytes of pprof")]
    TooLarge { limit: usize },
}

/// Returns the series and profiles of a message, which come to at most about `limit` bytes.
///
/// Sample types of one scope whose samples have the same stacks and labels are one profile, as they
/// are in pprof.
///
/// # Errors
/// The first thing that is wrong with the message.
pub fn series(
    message: &ExportProfilesServiceRequest,
    limit: usize,
) -> Result<WriteRawRequest, InvalidMessage> {
    let empty = ProfilesDictionary::default();
    let dictionary = message.dictionary.as_ref().unwrap_or(&empty);
    let mut size = SizeLimit { limit, left: limit };
    let mut series = Vec::new();
    for resource in &message.resource_profiles {
        let labels = labels_of(resource, &dictionary.string_table, &mut size)?;
        for scope in &resource.scope_profiles {
            let mut profiles = &scope.profiles[..];
            while let Some(first) = profiles.first() {
                if message.dictionary.is_none() {
                    return Err(InvalidMessage::NoDictionary);
                }
                let together = profiles.iter().take_while(|profile| has_same_samples(first, profile)).count();
                let (types, others) = profiles.split_at(together);
                profiles = others;
                let (name, profile) = profile_of(types, dictionary, &mut size)?;
                series.push(series_of(&labels, name, &profile, &mut size)?);
            }
        }
    }
    Ok(WriteRawRequest { series, ..WriteRawRequest::default() })
}

/// Bytes that a series takes in memory beside its labels and its profile, from above.
const SERIES_BYTES: usize = 512;
/// Bytes that a label takes in memory beside its texts, from above.
const LABEL_BYTES: usize = 128;

/// The bytes that may still be made of a message.
#[derive(Debug)]
struct SizeLimit {
    limit: usize,
    left: usize,
}

impl SizeLimit {
    fn take(&mut self, bytes: usize) -> Result<(), InvalidMessage> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(InvalidMessage::TooLarge { limit: self.limit })?;
        Ok(())
    }
}

/// The labels of a resource: its attributes with the names that labels of this project have. Those
/// whose values are lists, maps or bytes are left out.
fn labels_of(
    resource: &ResourceProfiles,
    strings: &[String],
    size: &mut SizeLimit,
) -> Result<BTreeMap<String, String>, InvalidMessage> {
    let mut labels = BTreeMap::new();
    for attribute in resource.resource.iter().flat_map(|resource| &resource.attributes) {
        // A receiver that passes messages on keeps keys in the dictionary.
        let key = if attribute.key.is_empty() {
            string_at(strings, attribute.key_strindex)
        } else {
            &attribute.key
        };
        let value = text_of(attribute.value.as_ref(), strings).filter(|value| !value.is_empty());
        let Some(value) = value.filter(|_| !key.is_empty()) else { continue };
        // Before the copy is made: many attributes may refer to one long text.
        size.take(label_bytes(key, &value))?;
        labels.entry(label_of_resource(key)).or_insert_with(|| value.into_owned());
    }
    Ok(labels)
}

fn label_bytes(name: &str, value: &str) -> usize {
    LABEL_BYTES + name.len() + value.len()
}

/// The text of a table; the empty one for an index that leads nowhere.
fn string_at(strings: &[String], index: i32) -> &str {
    usize::try_from(index).ok().and_then(|at| strings.get(at)).map_or("", String::as_str)
}

/// The text of a value; none for lists, maps and bytes.
fn text_of<'a>(value: Option<&'a AnyValue>, strings: &'a [String]) -> Option<Cow<'a, str>> {
    Some(match value?.value.as_ref()? {
        Value::StringValue(text) => text.into(),
        Value::StringValueStrindex(at) => string_at(strings, *at).into(),
        Value::BoolValue(value) => value.to_string().into(),
        Value::IntValue(value) => value.to_string().into(),
        Value::DoubleValue(value) => value.to_string().into(),
        _ => return None,
    })
}

/// Returns true if two profiles say something of the same samples, by different types.
fn has_same_samples(one: &Profile, other: &Profile) -> bool {
    let head = |profile: &Profile| {
        (profile.time_unix_nano, profile.duration_nano, profile.period_type, profile.period)
    };
    let is_same = std::ptr::eq(one, other);
    is_same
        || (one.sample_type != other.sample_type
            && head(one) == head(other)
            && one.attribute_indices == other.attribute_indices
            && one.samples.len() == other.samples.len()
            && one.samples.iter().zip(&other.samples).all(|(one, other)| {
                one.stack_index == other.stack_index
                    && one.attribute_indices == other.attribute_indices
                    && one.link_index == other.link_index
            }))
}

fn series_of(
    labels: &BTreeMap<String, String>,
    name: String,
    profile: &pprof::Profile,
    size: &mut SizeLimit,
) -> Result<RawProfileSeries, InvalidMessage> {
    size.take(SERIES_BYTES + labels.iter().map(|(name, value)| label_bytes(name, value)).sum::<usize>())?;
    let label = |(name, value): (&String, &String)| Label { name: name.clone(), value: value.clone() };
    let others = labels.iter().filter(|(name, _)| *name != NAME_LABEL).map(label);
    let labels = std::iter::once(Label { name: NAME_LABEL.to_owned(), value: name }).chain(others).collect();
    let sample = RawSample { raw_profile: profile.encode_to_vec().into(), executable_info: Vec::new() };
    Ok(RawProfileSeries { labels: Some(LabelSet { labels }), samples: vec![sample] })
}

/// Makes one profile of several types of the same samples, and the name of its series.
fn profile_of(
    types: &[Profile],
    dictionary: &ProfilesDictionary,
    size: &mut SizeLimit,
) -> Result<(String, pprof::Profile), InvalidMessage> {
    let mut tables = PprofTables::new(dictionary, size);
    let mut profile = pprof::Profile::default();
    for of in types {
        let sample_type = of.sample_type.ok_or(InvalidMessage::NoSampleType)?;
        profile.sample_type.push(tables.value_type(sample_type)?);
    }
    let Some(first) = types.first() else { return Ok((String::new(), profile)) };
    let sample_type = first.sample_type.map(|of| of.type_strindex).unwrap_or_default();
    let name = series_name(tables.dictionary_text(sample_type)?);
    profile.period_type = first.period_type.map(|of| tables.value_type(of)).transpose()?;
    profile.period = first.period;
    profile.time_nanos = first.time_unix_nano.try_into().unwrap_or_default();
    profile.duration_nanos = first.duration_nano.try_into().unwrap_or_default();
    for at in &first.attribute_indices {
        profile.comment.extend(tables.text_of_key(*at, COMMENT)?);
    }
    for (position, sample) in first.samples.iter().enumerate() {
        let value = types.iter().map(|of| value_of(&of.samples[position])).collect::<Result<_, _>>()?;
        let location_id = tables.stack(sample.stack_index)?;
        let mut label = Vec::new();
        for at in &sample.attribute_indices {
            if let Some((key, str)) = tables.label(*at)? {
                label.push(pprof::Label { key, str, ..pprof::Label::default() });
            }
        }
        for (key, str) in tables.link_labels(sample.link_index)? {
            if label.iter().all(|known| known.key != key) {
                label.push(pprof::Label { key, str, ..pprof::Label::default() });
            }
        }
        tables.take_sample(types.len(), label.len())?;
        profile.sample.push(pprof::Sample { location_id, value, label });
    }
    tables.finish(&mut profile);
    Ok((name, profile))
}

/// The value of a sample: their sum, or the number of its timestamps if it has only these.
fn value_of(
    sample: &opentelemetry_proto::tonic::profiles::v1development::Sample,
) -> Result<i64, InvalidMessage> {
    let (values, timestamps) = (sample.values.len(), sample.timestamps_unix_nano.len());
    if values == 0 {
        return i64::try_from(timestamps).map_err(|_| InvalidMessage::Overflow);
    }
    if values > 1 && timestamps > 0 && values != timestamps {
        return Err(InvalidMessage::Values { values, timestamps });
    }
    let sum = sample.values.iter().try_fold(0_i64, |sum, value| sum.checked_add(*value));
    sum.ok_or(InvalidMessage::Overflow)
}

/// The name of a series by its first sample type: that of the event that has such a type, else the
/// type itself.
fn series_name(sample_type: &str) -> String {
    let has_type = |event: &EventType| {
        let of = event.descriptor();
        of.sample_types.iter().chain(of.pushed_types).any(|of| of.name == sample_type)
    };
    match EventType::ALL.into_iter().find(has_type) {
        Some(event) => event.descriptor().series.to_owned(),
        None if sample_type.is_empty() => "profile".to_owned(),
        None => sample_type.to_owned(),
    }
}
