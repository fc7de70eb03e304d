//! Validation of requests: refuses what Parca refuses, with the same codes.
//!
//! Rules of parca-dev/parca 3b5647cd9: `pkg/normalizer/normalizer.go` (`NormalizeWriteRawRequest`),
//! `pkg/normalizer/validate.go`, `pkg/profilestore/profilecolumnstore.go` (`writeSeries`). Where
//! Parca would crash on a request (no label set, negative indices, an empty string table), it is
//! refused as invalid here, and so are references that lead nowhere wherever they stand, because
//! such a profile couldn't be shown. Where Parca takes what a bounded program can't (a profile that
//! unpacks without end, a request of very many profiles), it is refused as exhausting.

mod request_budget;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tonic::{Code, Status};

use crate::export::otlp::InvalidMessage;
use crate::export::store::{MAX_LABEL_SET_BYTES, NAME_LABEL, NewProfile, UnixNanos};
use crate::profile::gzip::{self, GzipError};
use crate::profile::model::LabelSet;
use crate::profile::pprof::decode::DecodeError;
use crate::profile::pprof::{self, CheckedTables, InvalidProfile};
use crate::proto::pprof::{Profile, ValueType};
use crate::proto::profilestore::{
    Label, LabelSet as PushedLabelSet, RawProfileSeries, RawSample, WriteRawRequest,
};

use request_budget::RequestBudget;
pub use request_budget::RequestLimits;

/// Characters of a name that a message shows.
const SHOWN_CHARACTERS: usize = 100;

/// The reason why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum WriteRefusal {
    // Clients know by grpc-go's text that the request's parts may be taken.
    #[error("received message larger than max ({profiles} profiles vs. {limit})")]
    TooManyProfiles { profiles: usize, limit: usize },
    #[error("received message larger than max (labels and unpacked profiles of more than {limit} bytes)")]
    TooLarge { limit: usize },
    #[error("checking a series: it has no label set")]
    NoLabelSet,
    #[error("checking a series: it has no label {NAME_LABEL}")]
    NoName,
    #[error("checking a series: invalid label name: {0:?}")]
    LabelName(String),
    #[error("checking a series: duplicate label name: {0:?}")]
    DuplicateLabel(String),
    #[error(
        "label set of {bytes} bytes: the limit is {MAX_LABEL_SET_BYTES} bytes (series {series:?}, its longest \
         label is {label:?})"
    )]
    LabelSetTooLarge { series: String, label: String, bytes: usize },
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    #[error("invalid profile: {0}")]
    Profile(#[from] RuleViolation),
    #[error("invalid profile type {0:?}: not a selector")]
    ProfileType(String),
    #[error("invalid OTLP message: {0}")]
    Otlp(#[from] InvalidMessage),
    #[error("compressing a profile: {0}")]
    Compress(std::io::Error),
}

/// A rule of Parca's that a pprof profile breaks.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RuleViolation {
    #[error("the string table doesn't begin with an empty string")]
    FirstString,
    #[error("{table} {position} has id {id}: ids must be 1..N in table order")]
    Id { table: &'static str, position: usize, id: u64 },
    #[error("{count} executable infos for {mappings} mappings")]
    ExecutableInfo { count: usize, mappings: usize },
    #[error("sample {position} has a label without a key")]
    LabelKey { position: usize },
    #[error(transparent)]
    Tables(#[from] InvalidProfile),
}

impl WriteRefusal {
    /// The code that Parca answers with; for bad gzip and bad profile types that is none in
    /// particular.
    pub fn code(&self) -> Code {
        match self {
            Self::Undecodable(
                DecodeError::Gzip(GzipError::TooLarge { .. }) | DecodeError::TooManyEntries { .. },
            )
            | Self::TooManyProfiles { .. }
            | Self::TooLarge { .. } => Code::ResourceExhausted,
            Self::Undecodable(DecodeError::Gzip(GzipError::Broken(_))) | Self::ProfileType(_) => {
                Code::Unknown
            }
            Self::Compress(_) => Code::Internal,
            Self::NoLabelSet
            | Self::NoName
            | Self::LabelName(_)
            | Self::DuplicateLabel(_)
            | Self::LabelSetTooLarge { .. }
            | Self::Undecodable(DecodeError::Protobuf(_))
            | Self::Profile(_)
            | Self::Otlp(_) => Code::InvalidArgument,
        }
    }
}

impl WriteRefusal {
    /// The status for clients of OTLP and Pyroscope, to whom any other code than that of a request
    /// as a whole that is too large would say less than that something is wrong with it.
    pub(super) fn into_plain_status(self) -> Status {
        match self {
            Self::TooManyProfiles { .. } | Self::TooLarge { .. } => self.into(),
            other => Status::invalid_argument(other.to_string()),
        }
    }
}

impl From<WriteRefusal> for Status {
    fn from(refusal: WriteRefusal) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}

/// The profiles of a request, all valid. Profiles without samples are left out, as Parca stores
/// nothing of them.
///
/// # Errors
/// The first reason to refuse the request as a whole.
pub fn profiles(request: WriteRawRequest, limits: RequestLimits) -> Result<Vec<NewProfile>, WriteRefusal> {
    let mut budget = RequestBudget::of(&request, limits)?;
    let arrived = SystemTime::now();
    let mut profiles = Vec::new();
    for RawProfileSeries { labels, samples } in request.series {
        let labels = labels.ok_or(WriteRefusal::NoLabelSet)?;
        budget.take(label_set_bytes(&labels)?)?;
        let labels = Arc::new(label_set(labels)?);
        for sample in samples {
            profiles.extend(profile(&labels, sample, arrived, &mut budget)?);
        }
    }
    Ok(profiles)
}

/// The bytes of the names and values of a label set that isn't too large.
fn label_set_bytes(labels: &PushedLabelSet) -> Result<usize, WriteRefusal> {
    let of = |label: &Label| label.name.len() + label.value.len();
    let bytes: usize = labels.labels.iter().map(of).sum();
    if bytes > MAX_LABEL_SET_BYTES {
        let name = labels.labels.iter().find(|label| label.name == NAME_LABEL);
        let longest = labels.labels.iter().max_by_key(|label| of(label));
        let shown = |text: &str| text.chars().take(SHOWN_CHARACTERS).collect::<String>();
        let series = name.map(|label| shown(&label.value)).unwrap_or_default();
        let label = longest.map(|label| shown(&label.name)).unwrap_or_default();
        return Err(WriteRefusal::LabelSetTooLarge { series, label, bytes });
    }
    Ok(bytes)
}

fn label_set(labels: PushedLabelSet) -> Result<LabelSet, WriteRefusal> {
    let (mut name, mut set) = (String::new(), BTreeMap::new());
    for label in labels.labels {
        if label.name == NAME_LABEL {
            name = label.value;
            continue;
        }
        if !is_label_name(&label.name) {
            return Err(WriteRefusal::LabelName(label.name));
        }
        if set.contains_key(&label.name) {
            return Err(WriteRefusal::DuplicateLabel(label.name));
        }
        set.insert(label.name, label.value);
    }
    if name.is_empty() {
        return Err(WriteRefusal::NoName);
    }
    set.insert(NAME_LABEL.to_owned(), name);
    Ok(set)
}

/// Returns true for a label's name: `[a-zA-Z_][a-zA-Z0-9_]*`.
fn is_label_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn profile(
    labels: &Arc<LabelSet>,
    sample: RawSample,
    arrived: SystemTime,
    budget: &mut RequestBudget,
) -> Result<Option<NewProfile>, WriteRefusal> {
    let profile = budget.decode(&sample.raw_profile)?;
    check(&profile, sample.executable_info.len())?;
    if profile.sample.iter().all(|sample| sample.value.iter().all(|value| *value == 0)) {
        return Ok(None);
    }
    check_types(labels.get(NAME_LABEL).map_or("", String::as_str), &profile)?;
    let bytes = sample.raw_profile;
    let pprof = if gzip::is_gzip(&bytes) {
        bytes
    } else {
        Bytes::from(gzip::compress(&bytes).map_err(WriteRefusal::Compress)?)
    };
    let duration = Duration::from_nanos(u64::try_from(profile.duration_nanos).unwrap_or(0));
    Ok(Some(NewProfile {
        labels: Arc::clone(labels),
        start: start(&profile, duration, arrived),
        duration,
        samples: pprof::total(&profile),
        pprof,
    }))
}

/// Returns when a profile began. Not every client says when: it ended when it arrived then, since
/// nobody would ever look for it in 1970.
fn start(profile: &Profile, duration: Duration, arrived: SystemTime) -> UnixNanos {
    if profile.time_nanos > 0 {
        return UnixNanos(profile.time_nanos);
    }
    let began = arrived.checked_sub(duration).filter(|began| *began > SystemTime::UNIX_EPOCH);
    began.unwrap_or(arrived).into()
}

/// Checks a profile on its own against Parca's rules.
///
/// # Errors
/// The first rule that is broken.
pub fn check(profile: &Profile, executable_infos: usize) -> Result<(), RuleViolation> {
    let Profile { string_table, mapping, function, location, sample, .. } = profile;
    let has_types = !profile.sample_type.is_empty() || profile.period_type.is_some();
    // Parca looks the types up even if their index is 0.
    if string_table.first().map_or(has_types, |first| !first.is_empty()) {
        return Err(RuleViolation::FirstString);
    }
    let mappings = mapping.len();
    check_ids("mapping", mapping.iter().map(|mapping| mapping.id))?;
    if executable_infos != 0 && executable_infos != mappings {
        return Err(RuleViolation::ExecutableInfo { count: executable_infos, mappings });
    }
    check_ids("function", function.iter().map(|function| function.id))?;
    check_ids("location", location.iter().map(|location| location.id))?;
    if let Some(position) = sample.iter().position(|it| it.label.iter().any(|label| label.key == 0)) {
        return Err(RuleViolation::LabelKey { position });
    }
    CheckedTables::new(profile)?;
    Ok(())
}

fn check_ids(table: &'static str, ids: impl Iterator<Item = u64>) -> Result<(), RuleViolation> {
    match ids.enumerate().find(|(position, id)| *id != *position as u64 + 1) {
        Some((position, id)) => Err(RuleViolation::Id { table, position, id }),
        None => Ok(()),
    }
}

/// Checks each type: `name:sample_type:sample_unit:period_type:period_unit` must parse as a
/// metric's name in a selector: `[a-zA-Z_:][a-zA-Z0-9_:]*`.
fn check_types(name: &str, profile: &Profile) -> Result<(), WriteRefusal> {
    let text = |index: i64| pprof::text_at(profile, index);
    let pair = |value: &ValueType| format!("{}:{}", text(value.r#type), text(value.unit));
    let period = profile.period_type.as_ref().map_or_else(|| ":".to_owned(), pair);
    for (position, sample_type) in profile.sample_type.iter().enumerate() {
        // A type of which every value is zero leaves no trace in Parca.
        let is_used =
            profile.sample.iter().any(|sample| sample.value.get(position).is_some_and(|value| *value != 0));
        let full = format!("{name}:{}:{period}", pair(sample_type));
        let is_selector = !full.starts_with(|first: char| first.is_ascii_digit())
            && full.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'));
        if is_used && !is_selector {
            return Err(WriteRefusal::ProfileType(full));
        }
    }
    Ok(())
}
