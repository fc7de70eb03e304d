//! The bytes of a stored sum: what an answer takes from its profiles, and from each of them.
//!
//! Gzipped: the length of the header, four bytes, least significant first; the header as JSON; the
//! summed profile as pprof.

use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::event_type::EventType;
use crate::export::store::{MissingSum, NAME_LABEL, ProfileRef, SUM_MAKER, Store, StoreError};
use crate::profile::call_tree::{ActivitySamples, PprofSeries, TreeBuilder};
use crate::profile::gzip;
use crate::profile::jvm_activity::is_jvm;
use crate::profile::model::LabelSet;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::sampled_events;
use crate::profile::pprof::stack_sum::{StackSum, SumError};
use crate::proto::pprof::Profile;

/// Limits of a sum: an answer decodes several at the same time. An hour of a JVM with 10,000 stacks
/// takes some 2 MB.
const LIMITS: DecodeLimits = DecodeLimits { max_bytes: 8 << 20, max_entries: 300_000 };

/// The sample type whose graphs are made of sums.
const SUMMED_TYPE: &str = "samples";

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
    /// Events of type [`SUMMED_TYPE`].
    events: u64,
}

/// A sum that was read and found to be one of the wanted profiles.
#[derive(Debug)]
pub(in crate::export::collector) struct StoredSum {
    pub(in crate::export::collector) parts: Vec<SummedPart>,
    pub(in crate::export::collector) events: u64,
    pub(in crate::export::collector) profile: Profile,
}

/// A sum that can't be made or isn't believed.
#[derive(Debug, thiserror::Error)]
pub(in crate::export::collector) enum StoredSumError {
    #[error(transparent)]
    Sum(#[from] SumError),
    #[error("reading a profile that is to be summed: {0}")]
    Unread(#[source] StoreError),
    #[error("decoding a profile that is to be summed: {0}")]
    Part(String),
    #[error("a profile has no sample type {SUMMED_TYPE}, the only one whose graphs are made of sums")]
    OtherTypes,
    #[error("the sum is too large to be read with others: {0}")]
    TooLarge(String),
    #[error("encoding a sum: {0}")]
    Encode(String),
    #[error("reading a sum: {0}")]
    Unreadable(String),
    #[error("the sum is one of other profiles")]
    OtherProfiles,
}

/// Adds up profiles.
///
/// # Errors
/// One of them can't be read, or there is no exact sum.
pub(in crate::export::collector) fn encode(
    store: &Store,
    sum: &MissingSum,
) -> Result<Vec<u8>, StoredSumError> {
    let is_cpu = sum.labels.get(NAME_LABEL).is_some_and(|name| name == EventType::Cpu.descriptor().series);
    let mut stacks = StackSum::of_series(is_jvm(&sum.labels));
    let (mut parts, mut events) = (Vec::new(), 0_u64);
    for reference in &sum.parts {
        let bytes = store.read(reference).map_err(StoredSumError::Unread)?;
        let profile = decode(&bytes, DecodeLimits::default())
            .map_err(|error| StoredSumError::Part(error.to_string()))?;
        let text = |index: i64| usize::try_from(index).ok().and_then(|at| profile.string_table.get(at));
        if !profile.sample_type.iter().any(|of| text(of.r#type).is_some_and(|name| name == SUMMED_TYPE)) {
            return Err(StoredSumError::OtherTypes);
        }
        stacks.add(&profile)?;
        events = events.saturating_add(sampled_events(&profile, SUMMED_TYPE));
        parts.push(SummedPart {
            reference: identity(reference),
            samples: reference.samples,
            period: profile.period,
            activities: if is_cpu { activities(&profile, &sum.labels)? } else { ActivitySamples::default() },
        });
    }
    let header = Header { made_by: SUM_MAKER.to_owned(), parts, events };
    let header = serde_json::to_vec(&header).map_err(|error| StoredSumError::Encode(error.to_string()))?;
    let length = u32::try_from(header.len()).map_err(|error| StoredSumError::Encode(error.to_string()))?;
    let profile = stacks.finish().encode_to_vec();
    decode(&profile, LIMITS).map_err(|error| StoredSumError::TooLarge(error.to_string()))?;
    let bytes = [&length.to_le_bytes()[..], &header, &profile].concat();
    if bytes.len() > LIMITS.max_bytes {
        return Err(StoredSumError::TooLarge(format!("{} bytes", bytes.len())));
    }
    gzip::compress(&bytes).map_err(|error| StoredSumError::Encode(error.to_string()))
}

/// Returns what the samples of a profile of CPU time were taken in.
fn activities(profile: &Profile, labels: &LabelSet) -> Result<ActivitySamples, StoredSumError> {
    // One for each profile: a builder keeps every function that it has seen.
    let mut builder = TreeBuilder::default();
    builder.count_activities();
    let series = PprofSeries { labels: Some(labels), ..PprofSeries::default() };
    builder.add_pprof(profile, &series).map_err(|error| StoredSumError::Part(error.to_string()))?;
    Ok(builder.take_activity_totals())
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
    let bytes = gzip::decompress(bytes, LIMITS.max_bytes).map_err(|error| unreadable(&error))?;
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| unreadable(&"it is cut short"))?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (header, profile) = rest.split_at_checked(length).ok_or_else(|| unreadable(&"it is cut short"))?;
    let Header { made_by, parts, events } =
        serde_json::from_slice(header).map_err(|error| unreadable(&error))?;
    let of_parts = parts.iter().map(|part| part.reference);
    if made_by != SUM_MAKER || !of_parts.eq(profiles.iter().map(|profile| identity(profile))) {
        return Err(StoredSumError::OtherProfiles);
    }
    let profile = decode(profile, LIMITS).map_err(|error| unreadable(&error))?;
    Ok(StoredSum { parts, events, profile })
}
