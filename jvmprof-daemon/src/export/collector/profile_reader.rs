//! ProfileReader many stored profiles for one answer, within limits of bytes and time, and no
//! further than anybody waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prost::Message as _;
use serde::Serialize;

use super::selection::Query;
use crate::event_type::ShownUnit;
use crate::export::store::{ProfileRef, SeriesInfo, Store};
use crate::profile::call_tree::{CallTree, PAGE_NODES, TreeBuilder};
use crate::profile::gzip;
use crate::profile::pprof::add_cpu_time;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::merge::{MergeLimits, Merger};
use crate::proto::pprof::Profile;

/// Limits of what one request may cost.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of stored (gzipped) profiles.
    pub bytes: u64,
    pub profiles: usize,
    pub time: Duration,
    /// Nodes of an answer's tree.
    pub nodes: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { bytes: 256 << 20, profiles: 50_000, time: Duration::from_secs(30), nodes: PAGE_NODES }
    }
}

/// The reason why an answer couldn't be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(
        "{profiles} profiles with {mib} MiB are in this range, which is more than one request may read \
         ({max_profiles} profiles, {max_mib} MiB): choose a shorter range or fewer series"
    )]
    TooMuch { profiles: usize, mib: u64, max_profiles: usize, max_mib: u64 },
    #[error(
        "reading {profiles} profiles takes longer than {seconds} s: choose a shorter range or fewer series"
    )]
    TooSlow { profiles: usize, seconds: u64 },
    #[error("the client has closed the request")]
    Cancelled,
    #[error("compressing the merged profile: {0}")]
    Compress(#[from] std::io::Error),
}

/// A flame graph and what it was made of.
#[derive(Debug, Serialize)]
pub(super) struct FlameGraph {
    pub(super) tree: CallTree,
    /// Nanoseconds that a sample stands for, on average.
    pub(super) period_ns: u64,
    /// What is counted.
    pub(super) unit: ShownUnit,
    pub(super) profiles: usize,
    /// Profiles that couldn't be read: the answer lacks their samples.
    pub(super) unreadable: usize,
    pub(super) series: usize,
}

/// A merged profile, gzipped.
#[derive(Debug)]
pub(super) struct MergedPprof {
    pub(super) bytes: Vec<u8>,
    pub(super) unreadable: usize,
}

/// One request's reading. Blocking: for `spawn_blocking`.
#[derive(Debug)]
pub(super) struct ProfileReader {
    pub(super) store: Arc<Store>,
    pub(super) limits: ReadLimits,
    /// Set when nobody waits any more.
    pub(super) is_cancelled: Arc<AtomicBool>,
}

impl ProfileReader {
    /// # Errors
    /// See [`ReadError`].
    pub(super) fn flame_graph(&self, query: &Query) -> Result<FlameGraph, ReadError> {
        let series = query.selection.series(&self.store);
        let profiles = query.selection.profiles(&self.store);
        let groups = query.group.as_deref().map(|label| groups(&series, label));
        let mut builder = TreeBuilder::under(query.under.clone());
        let mut cpu_time = CpuTime::default();
        let (read, unreadable) = self.each(&profiles, |reference, bytes| {
            let profile = decoded(bytes)?;
            let group = groups.as_ref().and_then(|groups| groups.get(&*reference.fingerprint));
            builder
                .add_pprof(&profile, group.map(|group| &**group), query.sample_type.as_deref())
                .map_err(|error| error.to_string())?;
            cpu_time.add(reference.samples, profile.period);
            Ok(())
        })?;
        let tree = builder.finish(self.limits.nodes);
        let series = series.len();
        let unit = ShownUnit::of_sample_type(query.sample_type.as_deref());
        // Its numbers are nanoseconds already.
        let period_ns = if unit == ShownUnit::Nanoseconds { 1 } else { cpu_time.period_ns() };
        Ok(FlameGraph { tree, period_ns, unit, profiles: read, unreadable, series })
    }

    /// # Errors
    /// See [`ReadError`].
    pub(super) fn pprof(&self, query: &Query) -> Result<MergedPprof, ReadError> {
        let profiles = query.selection.profiles(&self.store);
        let limits = MergeLimits::default();
        let mut merger = Merger::new(limits);
        let mut full = false;
        let (_, unreadable) = self.each(&profiles, |_, bytes| {
            let mut profile = decoded(bytes)?;
            add_cpu_time(&mut profile);
            merger.add(&profile).map_err(|error| {
                full |= error.is_limit_of_the_whole();
                error.to_string()
            })
        })?;
        if full {
            let mib = |bytes: u64| bytes >> 20;
            return Err(ReadError::TooMuch {
                profiles: profiles.len(),
                mib: mib(bytes_of(&profiles)),
                max_profiles: self.limits.profiles,
                max_mib: mib(limits.max_bytes as u64),
            });
        }
        Ok(MergedPprof { bytes: gzip::compress(&merger.finish().encode_to_vec())?, unreadable })
    }

    /// Hands every profile to `take`, and says how many it took and how many it or the store
    /// refused.
    fn each(
        &self,
        profiles: &[ProfileRef],
        mut take: impl FnMut(&ProfileRef, &[u8]) -> Result<(), String>,
    ) -> Result<(usize, usize), ReadError> {
        self.check_size(profiles)?;
        let start = Instant::now();
        let (mut read, mut unreadable) = (0, 0);
        for reference in profiles {
            if self.is_cancelled.load(Ordering::Relaxed) {
                return Err(ReadError::Cancelled);
            }
            if start.elapsed() > self.limits.time {
                let seconds = self.limits.time.as_secs();
                return Err(ReadError::TooSlow { profiles: profiles.len(), seconds });
            }
            let bytes = self.store.read(reference).map_err(|error| error.to_string());
            match bytes.and_then(|bytes| take(reference, &bytes)) {
                Ok(()) => read += 1,
                Err(error) => {
                    unreadable += 1;
                    tracing::warn!(
                        series = reference.fingerprint,
                        error,
                        "stored profile left out of an answer"
                    );
                }
            }
        }
        Ok((read, unreadable))
    }

    fn check_size(&self, profiles: &[ProfileRef]) -> Result<(), ReadError> {
        let bytes = bytes_of(profiles);
        if bytes <= self.limits.bytes && profiles.len() <= self.limits.profiles {
            return Ok(());
        }
        Err(ReadError::TooMuch {
            profiles: profiles.len(),
            mib: bytes.div_ceil(1 << 20),
            max_profiles: self.limits.profiles,
            max_mib: self.limits.bytes >> 20,
        })
    }
}

fn bytes_of(profiles: &[ProfileRef]) -> u64 {
    profiles.iter().map(|profile| profile.bytes).sum()
}

fn decoded(bytes: &[u8]) -> Result<Profile, String> {
    decode(bytes, DecodeLimits::default()).map_err(|error| error.to_string())
}

/// Returns the label's value of each series by its fingerprint, or a text that says that there is
/// none.
fn groups<'a>(series: &'a [SeriesInfo], label: &str) -> HashMap<&'a str, String> {
    let group = |series: &'a SeriesInfo| {
        let value = series.labels.get(label).filter(|value| !value.is_empty());
        (series.fingerprint.as_str(), value.cloned().unwrap_or_else(|| format!("(no {label})")))
    };
    series.iter().map(group).collect()
}

/// Time that samples stand for, over profiles with different periods.
#[derive(Debug, Default)]
struct CpuTime {
    samples: u64,
    nanos: u128,
}

impl CpuTime {
    fn add(&mut self, samples: u64, period: i64) {
        self.samples = self.samples.saturating_add(samples);
        self.nanos += u128::from(samples) * u128::try_from(period).unwrap_or(0);
    }

    fn period_ns(&self) -> u64 {
        let period = self.nanos.checked_div(u128::from(self.samples)).unwrap_or(0);
        u64::try_from(period).unwrap_or(u64::MAX)
    }
}
