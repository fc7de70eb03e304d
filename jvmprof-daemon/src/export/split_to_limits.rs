//! Requests with one series and one profile each, split until each is within its backend's limits:
//! what an answer says is said of that profile alone.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use prost::Message as _;

use crate::export::push::PushRequest;
use crate::profile::gzip::GzipCompressor;
use crate::profile::model::{Batch, LabelSet as ModelLabels, Sample, Series, label_names};
use crate::profile::pprof::PushEncoder;
use crate::proto::pprof::Profile;
use crate::proto::profilestore::{Label, LabelSet, RawProfileSeries, RawSample};

/// The label with the name of a service.
pub(super) const SERVICE_LABEL: &str = "service_name";
/// Labels that name a service if there is no [`SERVICE_LABEL`], the best first: `docs/context.md`.
/// A pod's name isn't among them, since it is another one for each replica.
const SERVICE_SOURCES: [&str; 4] = [label_names::MAIN_CLASS, "container", "systemd_unit", "comm"];

/// Profiles of one series with the same time may count once: the second is moved by as much.
const TIME_STEP: Duration = Duration::from_millis(1);

/// Limits of one profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProfileLimits {
    /// Bytes of pprof, not compressed.
    pub(super) bytes: usize,
    pub(super) samples: usize,
}

/// A request of one series.
#[derive(Debug)]
pub(super) struct SeriesRequest {
    pub(super) request: PushRequest,
    /// Bytes of its pprof, not compressed.
    pub(super) profile_bytes: usize,
}

impl ProfileLimits {
    pub(super) fn allow(self, profile: &Profile) -> bool {
        profile.sample.len() <= self.samples && profile.encoded_len() <= self.bytes
    }
}

/// Returns the name of a series's service, by the labels that it has.
pub(super) fn service_name(labels: &ModelLabels) -> Option<&str> {
    let value = |name: &str| labels.get(name).filter(|value| !value.is_empty()).map(String::as_str);
    std::iter::once(SERVICE_LABEL).chain(SERVICE_SOURCES).find_map(value)
}

/// Encodes a batch, each series in a request of its own, or in several if it exceeds the limits.
/// Series without samples are left out. `encoder` is that of the batch, `labels` makes the
/// labels that are sent.
///
/// # Errors
/// None that writing to memory could have.
pub(super) fn requests<'a>(
    batch: &'a Batch,
    mut encoder: PushEncoder<'a>,
    limits: ProfileLimits,
    labels: impl Fn(&Series) -> Vec<(String, String)>,
) -> io::Result<Vec<SeriesRequest>> {
    let (created, mut compressor) = (batch.start + batch.duration, GzipCompressor::default());
    // Series may have become the same one, where labels were left out.
    let mut profiles_of: HashMap<Vec<(String, String)>, i64> = HashMap::new();
    let mut requests = Vec::new();
    for series in batch.series.iter().filter(|series| !series.samples.is_empty()) {
        let labels = labels(series);
        let mut parts = Vec::new();
        let whole = encoder.encode(series);
        if limits.allow(&whole) {
            parts.push((whole, series.events()));
        } else {
            divide(&encoder, &series.samples, limits, &mut parts);
        }
        for (mut profile, samples) in parts {
            let steps = profiles_of.entry(labels.clone()).or_default();
            profile.time_nanos += *steps * i64::try_from(TIME_STEP.as_nanos()).unwrap_or_default();
            *steps += 1;
            let pprof = profile.encode_to_vec();
            let raw_profile = compressor.compress(&pprof)?.into();
            let label = |(name, value): &(String, String)| Label { name: name.clone(), value: value.clone() };
            let encoded = RawProfileSeries {
                labels: Some(LabelSet { labels: labels.iter().map(label).collect() }),
                samples: vec![RawSample { raw_profile, executable_info: Vec::new() }],
            };
            let request = PushRequest::of_one(created, batch.event, samples, encoded);
            requests.push(SeriesRequest { request, profile_bytes: pprof.len() });
        }
    }
    Ok(requests)
}

/// Halves samples until each part is a profile within the limits.
fn divide(
    encoder: &PushEncoder<'_>,
    samples: &[Sample],
    limits: ProfileLimits,
    parts: &mut Vec<(Profile, u64)>,
) {
    let (first, second) = samples.split_at(samples.len() / 2);
    for half in [first, second].into_iter().filter(|half| !half.is_empty()) {
        let series = Series { labels: ModelLabels::new(), samples: half.to_vec() };
        let profile = encoder.with_same_types().encode(&series);
        if half.len() == 1 || limits.allow(&profile) {
            parts.push((profile, series.events()));
        } else {
            divide(encoder, half, limits, parts);
        }
    }
}
