//! The bytes of a stored sum: what an answer takes from its profiles, and from each of them.
//!
//! Gzipped: the length of the header, four bytes, least significant first; the header as JSON; the
//! summed profile as pprof.

use std::collections::BTreeMap;

use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::event_type::EventType;
use crate::export::store::{MissingSum, NAME_LABEL, ProfileRef, Store};
use crate::profile::call_tree::{ActivitySamples, PprofSeries, TreeBuilder};
use crate::profile::gzip;
use crate::profile::jvm_activity::is_jvm;
use crate::profile::model::LabelSet;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::sampled_events;
use crate::profile::pprof::stack_sum::{StackSum, SumError};
use crate::proto::pprof::Profile;

/// What a sum was computed by: another version may classify stacks differently.
const MADE_BY: &str = concat!("1 ", env!("CARGO_PKG_VERSION"));

const MAX_BYTES: usize = 64 << 20;

/// A profile of a sum.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::export::collector) struct SummedPart {
    /// Start, duration, samples, bytes of [`ProfileRef`], and its number in the store.
    reference: (i64, u64, u64, u64, u64),
    pub(in crate::export::collector) samples: u64,
    pub(in crate::export::collector) period: i64,
    pub(in crate::export::collector) activities: ActivitySamples,
}

fn identity(profile: &ProfileRef) -> (i64, u64, u64, u64, u64) {
    let duration_ns = u64::try_from(profile.duration.as_nanos()).unwrap_or(u64::MAX);
    (profile.start.0, duration_ns, profile.samples, profile.bytes, profile.number())
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    made_by: String,
    parts: Vec<SummedPart>,
    /// Events by sample type.
    events: BTreeMap<String, u64>,
}

/// A sum that was read and found to be one of the wanted profiles.
#[derive(Debug)]
pub(in crate::export::collector) struct StoredSum {
    pub(in crate::export::collector) parts: Vec<SummedPart>,
    pub(in crate::export::collector) events: BTreeMap<String, u64>,
    pub(in crate::export::collector) profile: Profile,
}

/// A sum that can't be made or isn't believed.
#[derive(Debug, thiserror::Error)]
pub(in crate::export::collector) enum StoredSumError {
    #[error(transparent)]
    Sum(#[from] SumError),
    #[error("reading a profile that is to be summed: {0}")]
    Part(String),
    #[error("encoding a sum: {0}")]
    Encode(String),
    #[error("reading a sum: {0}")]
    Unreadable(String),
    #[error("the sum is one of other profiles, or of another version")]
    OtherProfiles,
}

/// Adds up profiles of a series with these labels.
///
/// # Errors
/// One of them can't be read, or there is no exact sum.
pub(in crate::export::collector) fn encode(
    store: &Store,
    sum: &MissingSum,
    labels: &LabelSet,
) -> Result<Vec<u8>, StoredSumError> {
    let part_error = |error: &dyn std::fmt::Display| StoredSumError::Part(error.to_string());
    let cpu = EventType::Cpu.descriptor().series;
    let mut activities = TreeBuilder::default();
    if labels.get(NAME_LABEL).is_some_and(|name| name == cpu) {
        activities.count_activities();
    }
    let series = PprofSeries { labels: Some(labels), ..PprofSeries::default() };
    let mut stacks = StackSum::of_series(is_jvm(labels));
    let (mut parts, mut events) = (Vec::new(), BTreeMap::<String, u64>::new());
    for reference in &sum.parts {
        let bytes = store.read(reference).map_err(|error| part_error(&error))?;
        let profile = decode(&bytes, DecodeLimits::default()).map_err(|error| part_error(&error))?;
        stacks.add(&profile)?;
        activities.add_pprof(&profile, &series).map_err(|error| part_error(&error))?;
        let text = |index: i64| usize::try_from(index).ok().and_then(|at| profile.string_table.get(at));
        let types = profile.sample_type.iter().filter_map(|of| text(of.r#type)).map(String::as_str);
        let types: std::collections::BTreeSet<&str> = types.chain(["samples"]).collect();
        for name in types {
            let sum = events.entry(name.to_owned()).or_default();
            *sum = sum.saturating_add(sampled_events(&profile, name));
        }
        parts.push(SummedPart {
            reference: identity(reference),
            samples: reference.samples,
            period: profile.period,
            activities: activities.take_activity_totals(),
        });
    }
    let header = Header { made_by: MADE_BY.to_owned(), parts, events };
    let header = serde_json::to_vec(&header).map_err(|error| StoredSumError::Encode(error.to_string()))?;
    let length = u32::try_from(header.len()).map_err(|error| StoredSumError::Encode(error.to_string()))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(header);
    stacks.finish().encode(&mut bytes).map_err(|error| StoredSumError::Encode(error.to_string()))?;
    gzip::compress(&bytes).map_err(|error| StoredSumError::Encode(error.to_string()))
}

/// Reads a sum, which is to be one of exactly these profiles.
///
/// # Errors
/// It can't be read, or is one of others.
pub(in crate::export::collector) fn parse(
    bytes: &[u8],
    profiles: &[&ProfileRef],
) -> Result<StoredSum, StoredSumError> {
    let unreadable = |error: &dyn std::fmt::Display| StoredSumError::Unreadable(error.to_string());
    let bytes = gzip::decompress(bytes, MAX_BYTES).map_err(|error| unreadable(&error))?;
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| unreadable(&"it is cut short"))?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (header, profile) = rest.split_at_checked(length).ok_or_else(|| unreadable(&"it is cut short"))?;
    let Header { made_by, parts, events } =
        serde_json::from_slice(header).map_err(|error| unreadable(&error))?;
    let of_parts = parts.iter().map(|part| part.reference);
    if made_by != MADE_BY || !of_parts.eq(profiles.iter().map(|profile| identity(profile))) {
        return Err(StoredSumError::OtherProfiles);
    }
    let profile = decode(profile, DecodeLimits::default()).map_err(|error| unreadable(&error))?;
    Ok(StoredSum { parts, events, profile })
}
