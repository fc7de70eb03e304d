//! A batch as requests.

use std::io;

use prost::Message as _;

use crate::export::store::NAME_LABEL;
use crate::profile::model::{Batch, Series};
use crate::profile::pprof;
use crate::proto::profilestore::{Label, LabelSet, RawProfileSeries, RawSample, WriteRawRequest};

/// A request and what it holds.
#[derive(Clone, Debug)]
pub struct Request {
    pub series: usize,
    /// Number of samples.
    pub samples: u64,
    pub(super) message: WriteRawRequest,
}

impl Request {
    /// Encoded size.
    pub fn bytes(&self) -> usize {
        self.message.encoded_len()
    }
}

/// Encodes a batch, in requests of at most `max_bytes` each as far as single series are not larger. Series without samples
/// are left out.
///
/// # Errors
/// None that writing to memory could have.
pub fn requests(batch: &Batch, max_bytes: usize) -> io::Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    let mut room = 0;
    for series in batch.series.iter().filter(|series| !series.samples.is_empty()) {
        let encoded = encode(batch, series)?;
        // Tag and length of the series in the request: at most 6 bytes below 2 GiB.
        let bytes = encoded.encoded_len() + 6;
        let samples = series.samples.iter().map(|sample| sample.count).sum::<u64>();
        match requests.last_mut() {
            Some(request) if bytes <= room => {
                request.message.series.push(encoded);
                request.series += 1;
                request.samples += samples;
                room -= bytes;
            }
            _ => {
                let message = WriteRawRequest { series: vec![encoded], ..WriteRawRequest::default() };
                requests.push(Request { series: 1, samples, message });
                room = max_bytes.saturating_sub(bytes);
            }
        }
    }
    Ok(requests)
}

fn encode(batch: &Batch, series: &Series) -> io::Result<RawProfileSeries> {
    let name = Label { name: NAME_LABEL.to_owned(), value: pprof::PROFILE_NAME.to_owned() };
    let labels = series.labels.iter().filter(|(name, _)| *name != NAME_LABEL);
    let labels = labels.map(|(name, value)| Label { name: name.clone(), value: value.clone() });
    let raw_profile = pprof::to_bytes(&pprof::for_push(batch, series))?.into();
    Ok(RawProfileSeries {
        labels: Some(LabelSet { labels: std::iter::once(name).chain(labels).collect() }),
        samples: vec![RawSample { raw_profile, executable_info: Vec::new() }],
    })
}
