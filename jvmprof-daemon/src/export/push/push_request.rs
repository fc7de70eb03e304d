//! A batch as requests.

use std::io;
use std::time::SystemTime;

use prost::Message as _;

use crate::event_type::{EventType, SamplesByEvent};
use crate::export::store::NAME_LABEL;
use crate::profile::gzip::GzipCompressor;
use crate::profile::model::{Batch, Series};
use crate::profile::pprof::PushEncoder;
use crate::proto::pprof::Profile;
use crate::proto::profilestore::{Label, LabelSet, RawProfileSeries, RawSample, WriteRawRequest};

/// The requests of a batch.
#[derive(Debug)]
pub struct EncodedBatch {
    pub requests: Vec<PushRequest>,
    /// Labels of series that were cut or left out, since the backend takes no longer or no more
    /// ones.
    pub limited_labels: u64,
}

impl From<Vec<PushRequest>> for EncodedBatch {
    fn from(requests: Vec<PushRequest>) -> Self {
        Self { requests, limited_labels: 0 }
    }
}

/// A request and what it holds.
#[derive(Clone, Debug)]
pub struct PushRequest {
    /// The time of its last sample, about.
    pub created: SystemTime,
    /// The event that its samples were taken of.
    pub event: EventType,
    /// Number of samples.
    pub samples: u64,
    /// Number of times that it wasn't taken while others were: from 1 on it is by itself, rather
    /// than the server's state, that it fails.
    pub tries: u32,
    /// The samples of each series.
    counts: Vec<u64>,
    pub(in crate::export) message: WriteRawRequest,
}

impl PushRequest {
    /// A request of a single series.
    pub fn of_one(created: SystemTime, event: EventType, samples: u64, series: RawProfileSeries) -> Self {
        let message = WriteRawRequest { series: vec![series], ..WriteRawRequest::default() };
        Self { created, event, samples, tries: 0, counts: vec![samples], message }
    }

    /// Takes in the series of another request of the same batch.
    pub fn append(&mut self, mut other: Self) {
        self.samples += other.samples;
        self.counts.append(&mut other.counts);
        self.message.series.append(&mut other.message.series);
    }

    /// The series in it.
    pub fn all_series(&self) -> &[RawProfileSeries] {
        &self.message.series
    }

    /// Its samples, as those of its event.
    pub fn samples_by_event(&self) -> SamplesByEvent {
        SamplesByEvent::of(self.event, self.samples)
    }

    /// Number of series.
    pub fn series(&self) -> usize {
        self.message.series.len()
    }

    /// Encoded size.
    pub fn bytes(&self) -> usize {
        self.message.encoded_len()
    }

    /// Two requests with a half of the series each, both of which have still to be judged; `None`
    /// if there is but one.
    pub fn split_series(mut self) -> Option<[Self; 2]> {
        let middle = self.series() / 2;
        if middle == 0 {
            return None;
        }
        let second = self.split_off(middle);
        Some([self, second])
    }

    /// Splits off the series from this index on, as another request. Neither of the two was sent
    /// before as it is now.
    pub(in crate::export) fn split_off(&mut self, first: usize) -> Self {
        let (counts, series) = (self.counts.split_off(first), self.message.series.split_off(first));
        let samples = counts.iter().sum();
        let message = WriteRawRequest { series, ..WriteRawRequest::default() };
        self.samples -= samples;
        self.tries = self.tries.min(1);
        Self { created: self.created, event: self.event, samples, tries: self.tries, counts, message }
    }

    /// Takes out each series that isn't to stay with the others, as a request of its own. At least
    /// one series stays.
    pub(in crate::export) fn take_single_series(
        &mut self,
        stays: impl Fn(&RawProfileSeries) -> bool,
    ) -> Vec<Self> {
        let counts = std::mem::take(&mut self.counts);
        let all = std::mem::take(&mut self.message.series).into_iter().zip(counts);
        let (staying, single): (Vec<_>, Vec<_>) = all.partition(|(series, _)| stays(series));
        let mut single = single.into_iter();
        let first = if staying.is_empty() { single.next() } else { None };
        let (series, counts): (Vec<_>, Vec<_>) = staying.into_iter().chain(first).unzip();
        self.samples = counts.iter().sum();
        (self.message.series, self.counts) = (series, counts);
        if !single.as_slice().is_empty() {
            self.tries = self.tries.min(1);
        }
        let (created, event, tries) = (self.created, self.event, self.tries);
        let of_one = |(series, samples)| Self { tries, ..Self::of_one(created, event, samples, series) };
        single.map(of_one).collect()
    }

    /// Encodes the request for the spool: the samples of each series, then the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + 8 * self.counts.len() + self.bytes());
        bytes.extend(u32::try_from(self.counts.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        bytes.extend(self.message.encode_to_vec());
        bytes
    }

    /// Decodes what [`Self::to_bytes`] returned, not tried yet; `None` if these bytes aren't that.
    pub fn from_bytes(bytes: &[u8], created: SystemTime, event: EventType, samples: u64) -> Option<Self> {
        let (series, rest) = bytes.split_first_chunk()?;
        let (counts, rest) = rest.split_at_checked((u32::from_le_bytes(*series) as usize).checked_mul(8)?)?;
        let counts: Vec<u64> = counts.as_chunks().0.iter().map(|count| u64::from_le_bytes(*count)).collect();
        let message = WriteRawRequest::decode(rest).ok()?;
        let is_whole = message.series.len() == counts.len() && counts.iter().sum::<u64>() == samples;
        is_whole.then_some(Self { created, event, samples, tries: 0, counts, message })
    }

    /// The labels of the series, if it is the only one: for the log.
    pub fn only_labels(&self) -> Option<String> {
        let [RawProfileSeries { labels: Some(labels), .. }] = &self.message.series[..] else { return None };
        let text = |label: &Label| format!("{}={:?}", label.name, label.value);
        Some(labels.labels.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

/// Encodes a batch, in requests of at most `max_bytes` each as far as single series are not larger.
/// Series without samples are left out.
///
/// # Errors
/// None that writing to memory could have.
pub fn requests(batch: &Batch, max_bytes: usize) -> io::Result<Vec<PushRequest>> {
    requests_of(batch, PushEncoder::new(batch), max_bytes)
}

/// Encodes a batch as [`requests`] does, with this encoder of it.
pub(in crate::export) fn requests_of<'a>(
    batch: &'a Batch,
    mut encoder: PushEncoder<'a>,
    max_bytes: usize,
) -> io::Result<Vec<PushRequest>> {
    let mut requests: Vec<PushRequest> = Vec::new();
    let mut room = 0;
    let mut compressor = GzipCompressor::default();
    let created = batch.start + batch.duration;
    for series in batch.series.iter().filter(|series| !series.samples.is_empty()) {
        let encoded = encode(batch.event, series, &encoder.encode(series), &mut compressor)?;
        // Tag and length of the series in the request: at most 6 bytes below 2 GiB.
        let bytes = encoded.encoded_len() + 6;
        let samples = series.events();
        match requests.last_mut() {
            Some(request) if bytes <= room => {
                request.message.series.push(encoded);
                request.counts.push(samples);
                request.samples += samples;
                room -= bytes;
            }
            _ => {
                requests.push(PushRequest::of_one(created, batch.event, samples, encoded));
                room = max_bytes.saturating_sub(bytes);
            }
        }
    }
    Ok(requests)
}

fn encode(
    event: EventType,
    series: &Series,
    profile: &Profile,
    compressor: &mut GzipCompressor,
) -> io::Result<RawProfileSeries> {
    let name = Label { name: NAME_LABEL.to_owned(), value: event.descriptor().series.to_owned() };
    let labels = series.labels.iter().filter(|(name, _)| *name != NAME_LABEL);
    let labels = labels.map(|(name, value)| Label { name: name.clone(), value: value.clone() });
    let raw_profile = compressor.compress(&profile.encode_to_vec())?.into();
    Ok(RawProfileSeries {
        labels: Some(LabelSet { labels: std::iter::once(name).chain(labels).collect() }),
        samples: vec![RawSample { raw_profile, executable_info: Vec::new() }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::FrameKind;
    use crate::profile::testing::{batch, frame, series};

    fn request(series_count: u32) -> PushRequest {
        let stack = |count| vec![(vec![frame(FrameKind::Native, "main")], count)];
        let all = (1..=series_count).map(|pid| series(&[("pid", &pid.to_string())], stack(u64::from(pid))));
        requests(&batch(all.collect()), 1 << 20).expect("encodable").remove(0)
    }

    #[test]
    fn halves_hold_everything_once() {
        let mut parts = vec![request(5)];
        let mut single = Vec::new();
        while let Some(part) = parts.pop() {
            let samples = part.samples;
            match part.clone().split_series() {
                Some(halves) => {
                    assert_eq!(halves.iter().map(|half| half.samples).sum::<u64>(), samples);
                    parts.extend(halves);
                }
                None => single.push((part.only_labels().expect("one series"), samples)),
            }
        }
        single.sort();
        assert_eq!(single.len(), 5);
        assert_eq!(single[2], ("__name__=\"process_cpu\",pid=\"3\"".to_owned(), 3));
    }

    #[test]
    fn series_that_are_taken_out_have_a_request_each_and_one_stays_in_any_case() {
        let labels = |pid: &u64| format!("__name__=\"process_cpu\",pid=\"{pid}\"");
        let cases: [(&[u64], &[u64]); 3] =
            [(&[1, 2, 4], &[3, 5]), (&[1, 2, 3, 4, 5], &[]), (&[], &[2, 3, 4, 5])];
        for (staying, taken) in cases {
            let stays = |series: &RawProfileSeries| {
                let mut labels = series.labels.iter().flat_map(|set| &set.labels);
                let is_one = |label: &Label| staying.iter().any(|pid| label.value == pid.to_string());
                labels.any(|label| label.name == "pid" && is_one(label))
            };
            let mut rest = PushRequest { tries: 3, ..request(5) };
            let single = rest.take_single_series(stays);
            let expected: Vec<_> = taken.iter().map(|pid| (Some(labels(pid)), *pid)).collect();
            let found: Vec<_> = single.iter().map(|one| (one.only_labels(), one.samples)).collect();
            assert_eq!(found, expected);
            let left = 15 - taken.iter().sum::<u64>();
            assert_eq!((rest.samples, rest.series()), (left, 5 - taken.len()));
            let bytes = rest.to_bytes();
            let read = PushRequest::from_bytes(&bytes, rest.created, EventType::Cpu, left);
            assert!(read.is_some(), "the counts are those of the series");
            // What is as it was has been tried as often as before.
            assert_eq!(rest.tries, if taken.is_empty() { 3 } else { 1 });
            assert!(single.iter().all(|one| one.tries == 1));
        }
    }

    #[test]
    fn a_request_survives_the_spool_and_damage_is_seen() {
        let request = request(3);
        let bytes = request.to_bytes();
        let read = PushRequest::from_bytes(&bytes, request.created, EventType::Cpu, 6).expect("whole");
        assert_eq!((read.series(), read.samples, read.message), (3, 6, request.message.clone()));
        assert!(PushRequest::from_bytes(&bytes, request.created, EventType::Cpu, 7).is_none());
        for length in 0..30 {
            assert!(
                PushRequest::from_bytes(&bytes[..length], request.created, EventType::Cpu, 6).is_none(),
                "{length}"
            );
        }
    }
}
