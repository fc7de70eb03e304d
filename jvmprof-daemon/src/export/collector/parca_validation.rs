//! What Parca refuses, refused with the same codes.
//!
//! Rules of parca-dev/parca 3b5647cd9: `pkg/normalizer/normalizer.go` (`NormalizeWriteRawRequest`),
//! `pkg/normalizer/validate.go`, `pkg/profilestore/profilecolumnstore.go` (`writeSeries`). Where
//! Parca would crash on a request (no label set, negative indices, an empty string table), it is
//! refused as invalid here. Where Parca takes what a bounded program can't (a profile that unpacks
//! without end), it is refused as exhausting.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tonic::{Code, Status};

use crate::export::store::{NAME_LABEL, NewProfile, UnixNanos};
use crate::profile::gzip::{self, GzipError};
use crate::profile::model::LabelSet;
use crate::profile::pprof;
use crate::profile::pprof::decode::{DecodeError, DecodeLimits, decode};
use crate::proto::pprof::{Profile, ValueType};
use crate::proto::profilestore::{RawProfileSeries, RawSample, WriteRawRequest};

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("series without a label set")]
    NoLabelSet,
    #[error("missing label {NAME_LABEL}")]
    NoName,
    #[error("invalid label name: {0:?}")]
    LabelName(String),
    #[error("duplicate label name: {0:?}")]
    DuplicateLabel(String),
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    #[error("invalid profile: {0}")]
    Profile(#[from] Invalid),
    #[error("invalid profile type {0:?}: not a selector")]
    ProfileType(String),
    #[error("compressing a profile: {0}")]
    Compress(std::io::Error),
}

/// What is wrong with a pprof profile.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Invalid {
    #[error("the string table doesn't begin with an empty string")]
    FirstString,
    #[error("{table} {position} has id {id}: ids must be 1..N in table order")]
    Id { table: &'static str, position: usize, id: u64 },
    #[error("{what} of {table} {position} isn't in the string table: {index}")]
    String { table: &'static str, position: usize, what: &'static str, index: i64 },
    #[error("{count} executable infos for {mappings} mappings")]
    ExecutableInfo { count: usize, mappings: usize },
    #[error("location {position} refers to {what} {id}, which isn't in its table")]
    Reference { position: usize, what: &'static str, id: u64 },
    #[error("samples without a sample type")]
    NoSampleType,
    #[error("sample {position} has {values} values for {types} sample types")]
    Values { position: usize, values: usize, types: usize },
    #[error("sample {position} refers to location {id}, which isn't in its table")]
    Location { position: usize, id: u64 },
    #[error("sample {position} has a label without a key")]
    LabelKey { position: usize },
}

impl Refusal {
    /// The code that Parca answers with; for bad gzip and bad profile types that is none in
    /// particular.
    pub fn code(&self) -> Code {
        match self {
            Self::Undecodable(
                DecodeError::Gzip(GzipError::TooLarge { .. }) | DecodeError::TooManyEntries { .. },
            ) => Code::ResourceExhausted,
            Self::Undecodable(DecodeError::Gzip(GzipError::Broken(_))) | Self::ProfileType(_) => {
                Code::Unknown
            }
            Self::Compress(_) => Code::Internal,
            Self::NoLabelSet
            | Self::NoName
            | Self::LabelName(_)
            | Self::DuplicateLabel(_)
            | Self::Undecodable(DecodeError::Protobuf(_))
            | Self::Profile(_) => Code::InvalidArgument,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}

/// The profiles of a request, all valid. Profiles without samples are left out, as Parca stores
/// nothing of them.
///
/// # Errors
/// The first reason to refuse the request as a whole.
pub fn profiles(request: WriteRawRequest, limits: DecodeLimits) -> Result<Vec<NewProfile>, Refusal> {
    let mut profiles = Vec::new();
    for RawProfileSeries { labels, samples } in request.series {
        let labels = label_set(labels.ok_or(Refusal::NoLabelSet)?)?;
        for sample in samples {
            profiles.extend(profile(&labels, sample, limits)?);
        }
    }
    Ok(profiles)
}

fn label_set(labels: crate::proto::profilestore::LabelSet) -> Result<LabelSet, Refusal> {
    let (mut name, mut set) = (String::new(), BTreeMap::new());
    for label in labels.labels {
        if label.name == NAME_LABEL {
            name = label.value;
            continue;
        }
        if !is_label_name(&label.name) {
            return Err(Refusal::LabelName(label.name));
        }
        if set.contains_key(&label.name) {
            return Err(Refusal::DuplicateLabel(label.name));
        }
        set.insert(label.name, label.value);
    }
    if name.is_empty() {
        return Err(Refusal::NoName);
    }
    set.insert(NAME_LABEL.to_owned(), name);
    Ok(set)
}

/// `[a-zA-Z_][a-zA-Z0-9_]*`
fn is_label_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn profile(
    labels: &LabelSet,
    sample: RawSample,
    limits: DecodeLimits,
) -> Result<Option<NewProfile>, Refusal> {
    let profile = decode(&sample.raw_profile, limits)?;
    check(&profile, sample.executable_info.len())?;
    if profile.sample.iter().all(|sample| sample.value.iter().all(|value| *value == 0)) {
        return Ok(None);
    }
    check_types(labels.get(NAME_LABEL).map_or("", String::as_str), &profile)?;
    let bytes = sample.raw_profile;
    let pprof = if gzip::is_gzip(&bytes) {
        bytes
    } else {
        Bytes::from(gzip::compress(&bytes).map_err(Refusal::Compress)?)
    };
    Ok(Some(NewProfile {
        labels: labels.clone(),
        start: UnixNanos(profile.time_nanos),
        duration: Duration::from_nanos(u64::try_from(profile.duration_nanos).unwrap_or(0)),
        samples: pprof::total(&profile),
        pprof,
    }))
}

/// Parca's rules for a profile on its own.
///
/// # Errors
/// The first rule that is broken.
pub fn check(profile: &Profile, executable_infos: usize) -> Result<(), Invalid> {
    if profile.string_table.first().is_some_and(|first| !first.is_empty()) {
        return Err(Invalid::FirstString);
    }
    let checker = Checker { profile };
    checker.mappings()?;
    let mappings = profile.mapping.len();
    if executable_infos != 0 && executable_infos != mappings {
        return Err(Invalid::ExecutableInfo { count: executable_infos, mappings });
    }
    checker.functions()?;
    checker.locations()?;
    checker.types()?;
    checker.samples()
}

struct Checker<'a> {
    profile: &'a Profile,
}

impl Checker<'_> {
    fn id(table: &'static str, position: usize, id: u64) -> Result<(), Invalid> {
        if id == position as u64 + 1 { Ok(()) } else { Err(Invalid::Id { table, position, id }) }
    }

    fn string(
        &self,
        table: &'static str,
        position: usize,
        what: &'static str,
        index: i64,
    ) -> Result<(), Invalid> {
        let is_there = usize::try_from(index).is_ok_and(|at| at == 0 || at < self.profile.string_table.len());
        if is_there { Ok(()) } else { Err(Invalid::String { table, position, what, index }) }
    }

    fn mappings(&self) -> Result<(), Invalid> {
        for (position, mapping) in self.profile.mapping.iter().enumerate() {
            Self::id("mapping", position, mapping.id)?;
            self.string("mapping", position, "file name", mapping.filename)?;
            self.string("mapping", position, "build id", mapping.build_id)?;
        }
        Ok(())
    }

    fn functions(&self) -> Result<(), Invalid> {
        for (position, function) in self.profile.function.iter().enumerate() {
            Self::id("function", position, function.id)?;
            self.string("function", position, "name", function.name)?;
            self.string("function", position, "system name", function.system_name)?;
            self.string("function", position, "file name", function.filename)?;
        }
        Ok(())
    }

    fn locations(&self) -> Result<(), Invalid> {
        let mappings = self.profile.mapping.len() as u64;
        let functions = self.profile.function.len() as u64;
        for (position, location) in self.profile.location.iter().enumerate() {
            Self::id("location", position, location.id)?;
            if location.mapping_id > mappings {
                return Err(Invalid::Reference { position, what: "mapping", id: location.mapping_id });
            }
            if let Some(line) = location.line.iter().find(|line| line.function_id > functions) {
                return Err(Invalid::Reference { position, what: "function", id: line.function_id });
            }
        }
        Ok(())
    }

    fn types(&self) -> Result<(), Invalid> {
        let Profile { sample_type, period_type, sample, string_table, .. } = self.profile;
        if sample_type.is_empty() && !sample.is_empty() {
            return Err(Invalid::NoSampleType);
        }
        for (position, value) in sample_type.iter().chain(period_type).enumerate() {
            self.string("type", position, "name", value.r#type)?;
            self.string("type", position, "unit", value.unit)?;
            // Parca looks the types up even if their index is 0.
            if string_table.is_empty() {
                return Err(Invalid::FirstString);
            }
        }
        Ok(())
    }

    fn samples(&self) -> Result<(), Invalid> {
        let types = self.profile.sample_type.len();
        let locations = self.profile.location.len() as u64;
        for (position, sample) in self.profile.sample.iter().enumerate() {
            let values = sample.value.len();
            if values != types {
                return Err(Invalid::Values { position, values, types });
            }
            if let Some(&id) = sample.location_id.iter().find(|id| **id == 0 || **id > locations) {
                return Err(Invalid::Location { position, id });
            }
            for label in &sample.label {
                if label.key == 0 {
                    return Err(Invalid::LabelKey { position });
                }
                self.string("sample", position, "label key", label.key)?;
                self.string("sample", position, "label value", label.str)?;
            }
        }
        Ok(())
    }
}

/// Each type, `name:sample_type:sample_unit:period_type:period_unit`, must parse as a metric's name
/// in a selector: `[a-zA-Z_:][a-zA-Z0-9_:]*`.
fn check_types(name: &str, profile: &Profile) -> Result<(), Refusal> {
    let text = |index: i64| {
        usize::try_from(index).ok().and_then(|at| profile.string_table.get(at)).map_or("", String::as_str)
    };
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
            return Err(Refusal::ProfileType(full));
        }
    }
    Ok(())
}
