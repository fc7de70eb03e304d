//! Samples whose stacks wait for unwind rows that are being read, or that a runtime has still to tell.

use std::collections::VecDeque;

use crate::process::ProcessKey;
use crate::sampler::Sample;
use crate::symbolize::CacheSize;

/// The samples, in the order in which they were taken.
#[derive(Debug)]
pub(super) struct Waiting {
    max_bytes: usize,
    samples: VecDeque<(ProcessKey, Sample)>,
    bytes: usize,
}

impl Waiting {
    /// `max_bytes`: memory for them.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, samples: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    pub(super) fn size(&self) -> CacheSize {
        CacheSize::new("waiting_samples", self.bytes, self.max_bytes)
    }

    /// Adds a sample. Returns those for which there is no room any more: their time is over.
    #[must_use]
    pub(super) fn push(&mut self, key: ProcessKey, sample: Sample) -> Vec<Sample> {
        self.bytes += bytes(&sample);
        self.samples.push_back((key, sample));
        let mut over = Vec::new();
        while self.bytes > self.max_bytes
            && let Some((_, sample)) = self.samples.pop_front()
        {
            self.bytes -= bytes(&sample);
            over.push(sample);
        }
        over
    }

    /// The processes of all samples, as often as they have some.
    pub(super) fn keys(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.samples.iter().map(|(key, _)| *key)
    }

    /// Takes out those of the samples that are ready.
    #[must_use]
    pub(super) fn take(&mut self, mut is_ready: impl FnMut(ProcessKey, &Sample) -> bool) -> Vec<Sample> {
        let mut ready = Vec::new();
        for (key, sample) in std::mem::take(&mut self.samples) {
            if is_ready(key, &sample) {
                self.bytes -= bytes(&sample);
                ready.push(sample);
            } else {
                self.samples.push_back((key, sample));
            }
        }
        ready
    }
}

fn bytes(sample: &Sample) -> usize {
    size_of::<Sample>() + sample.words() * 8
}
