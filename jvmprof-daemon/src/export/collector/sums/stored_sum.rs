//! The bytes of a stored sum: what an answer takes from its profiles, and from each of them.
//!
//! Two gzip files, before which stands the length of the first in four bytes, least significant
//! first. The first has the length of the header, in the same way, the header and the heaviest
//! nodes of the call tree ([`TreeCounts`]); the second, where these aren't all nodes, the summed
//! stacks as pprof, unless both would take too much room or the sum is longer than an hour. An
//! answer of many sums reads the trees alone.

use std::io::{self, Read};

use prost::Message;

use crate::export::store::{ProfileRef, SUM_MAKER, digest_of};
use crate::profile::call_tree::{ActivitySamples, TreeCounts};
use crate::profile::gzip;
use crate::profile::jvm_activity::JVM_ACTIVITIES;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::proto::pprof::Profile;

/// Limits of a sum: an answer decodes several at the same time. An hour of a JVM with 10,000 stacks
/// takes some 2 MB.
const LIMITS: DecodeLimits = DecodeLimits { max_bytes: 8 << 20, max_entries: 300_000 };

/// Data of a profile of a sum beside its [`ProfileRef`].
#[derive(Clone, Debug)]
pub struct SummedPart {
    /// Nanoseconds that a sample stands for.
    pub period: i64,
    /// Nothing of what isn't CPU time.
    pub activities: ActivitySamples,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    made_by: String,
    /// Says which profiles these are: see [`digest_of`].
    #[prost(fixed64, tag = "2")]
    digest: u64,
    /// Events of the summed sample type.
    #[prost(uint64, tag = "3")]
    events: u64,
    /// By profile.
    #[prost(int64, repeated, tag = "4")]
    periods: Vec<i64>,
    /// [`JVM_ACTIVITIES`] of each profile.
    #[prost(uint64, repeated, tag = "5")]
    activities: Vec<u64>,
}

/// A sum that was read and found to be one of the wanted profiles.
#[derive(Debug)]
pub struct StoredSum {
    pub parts: Vec<SummedPart>,
    pub events: u64,
    pub content: SumContent,
}

/// The part of a sum that an answer counts.
#[derive(Debug)]
pub enum SumContent {
    /// The heaviest nodes, or all if there are no more.
    Tree(Box<TreeCounts>),
    /// All stacks.
    Stacks(Box<Profile>),
}

/// The detail that is wanted of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumDetail {
    /// The heaviest nodes, at most so many.
    Tree(usize),
    /// All stacks or all nodes.
    All,
}

/// A sum that isn't believed.
#[derive(Debug, thiserror::Error)]
pub enum StoredSumError {
    #[error("reading a sum: {0}")]
    Unreadable(String),
    #[error("the sum has the heaviest nodes alone, and all stacks are wanted")]
    NoStacks,
    #[error("the sum is one of other profiles")]
    OtherProfiles,
}

/// A sum that can't be written.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("the sum is too large to be read with others: {0}")]
    TooLarge(String),
    #[error("encoding a sum: {0}")]
    Encode(String),
}

/// Encodes a sum of these profiles, with its stacks if there are any.
///
/// # Errors
/// It is too large.
pub(super) fn encode(
    profiles: &[&ProfileRef],
    parts: &[SummedPart],
    events: u64,
    tree: &TreeCounts,
    stacks: Option<&Profile>,
) -> Result<Vec<u8>, EncodeError> {
    let header = Header {
        made_by: SUM_MAKER.to_owned(),
        digest: digest_of(profiles),
        events,
        periods: parts.iter().map(|part| part.period).collect(),
        activities: parts.iter().flat_map(|part| part.activities).collect(),
    };
    let header = header.encode_to_vec();
    let first = pack(&[&length(&header)?[..], &header, &tree.to_bytes()].concat())?;
    let mut bytes = [&length(&first)?[..], &first].concat();
    if let Some(stacks) = stacks {
        let stacks = stacks.encode_to_vec();
        decode(&stacks, LIMITS).map_err(|error| EncodeError::TooLarge(error.to_string()))?;
        bytes.extend(pack(&stacks)?);
    }
    Ok(bytes)
}

/// Returns an encoded sum without its stacks: for answers that count the heaviest nodes alone.
pub fn without_stacks(sum: &[u8]) -> &[u8] {
    let stacks = split(sum).map_or(0, |(_, stacks)| stacks.len());
    &sum[..sum.len() - stacks]
}

fn length(bytes: &[u8]) -> Result<[u8; 4], EncodeError> {
    let length = u32::try_from(bytes.len()).map_err(|error| EncodeError::Encode(error.to_string()))?;
    Ok(length.to_le_bytes())
}

fn pack(bytes: &[u8]) -> Result<Vec<u8>, EncodeError> {
    if bytes.len() > LIMITS.max_bytes {
        return Err(EncodeError::TooLarge(format!("{} bytes", bytes.len())));
    }
    gzip::compress(bytes).map_err(|error| EncodeError::Encode(error.to_string()))
}

/// Reads a sum, which is to be one of exactly these profiles.
///
/// # Errors
/// It can't be read, or is one of others.
pub fn parse(
    mut file: impl Read,
    profiles: &[&ProfileRef],
    detail: SumDetail,
) -> Result<StoredSum, StoredSumError> {
    let unreadable = |error: &dyn std::fmt::Display| StoredSumError::Unreadable(error.to_string());
    let first = read_first(&mut file).map_err(|error| unreadable(&error))?;
    let first = gzip::decompress(&first, LIMITS.max_bytes).map_err(|error| unreadable(&error))?;
    // Most of the file, which an answer of many sums doesn't need.
    let mut stacks = Vec::new();
    if detail == SumDetail::All {
        file.read_to_end(&mut stacks).map_err(|error| unreadable(&error))?;
    }
    let (header, tree) = split(&first)?;
    let header = Header::decode(header).map_err(|error| unreadable(&error))?;
    if header.made_by != SUM_MAKER || header.digest != digest_of(profiles) {
        return Err(StoredSumError::OtherProfiles);
    }
    let parts = header.parts(profiles.len())?;
    let content = if stacks.is_empty() {
        let nodes = if let SumDetail::Tree(nodes) = detail { nodes } else { usize::MAX };
        let tree = TreeCounts::from_bytes(tree, nodes).map_err(|error| unreadable(&error))?;
        if detail == SumDetail::All && !tree.is_whole() {
            return Err(StoredSumError::NoStacks);
        }
        SumContent::Tree(Box::new(tree))
    } else {
        SumContent::Stacks(Box::new(decode(&stacks, LIMITS).map_err(|error| unreadable(&error))?))
    };
    Ok(StoredSum { parts, events: header.events, content })
}

impl Header {
    fn parts(&self, profiles: usize) -> Result<Vec<SummedPart>, StoredSumError> {
        let (activities, rest) = self.activities.as_chunks::<JVM_ACTIVITIES>();
        if self.periods.len() != profiles || activities.len() != profiles || !rest.is_empty() {
            return Err(StoredSumError::Unreadable("it doesn't say enough of its profiles".to_owned()));
        }
        let parts = self.periods.iter().zip(activities);
        Ok(parts.map(|(&period, &activities)| SummedPart { period, activities }).collect())
    }
}

/// Reads the bytes whose length stands before them.
fn read_first(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    file.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    let mut first = Vec::new();
    if file.take(length.into()).read_to_end(&mut first)? < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(first)
}

/// Splits bytes behind those whose length stands before them.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), StoredSumError> {
    let cut_short = || StoredSumError::Unreadable("it is cut short".to_owned());
    let (length, rest) = bytes.split_first_chunk().ok_or_else(cut_short)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    rest.split_at_checked(length).ok_or_else(cut_short)
}
