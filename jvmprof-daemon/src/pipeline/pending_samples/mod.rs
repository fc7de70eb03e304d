//! Samples whose stacks need unwind rows that are being read, or that a runtime hasn't written yet.

mod row_waits;

use std::collections::VecDeque;

use crate::process::ProcessKey;
use crate::sampler::StackSample;
use crate::symbolize::CacheUsage;

/// The samples, in the order in which they were taken.
#[derive(Debug)]
pub(super) struct PendingSamples {
    max_bytes: usize,
    samples: VecDeque<(ProcessKey, StackSample)>,
    bytes: usize,
    over_capacity: u64,
}

impl PendingSamples {
    /// Makes an empty queue. `max_bytes` is its memory limit.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, samples: VecDeque::new(), bytes: 0, over_capacity: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    pub(super) fn size(&self) -> CacheUsage {
        CacheUsage::new("waiting_samples", self.bytes, self.max_bytes)
    }

    /// Returns the number of samples that were pushed out, since there were too many.
    pub(super) fn over_capacity(&self) -> u64 {
        self.over_capacity
    }

    /// Adds a sample. Returns the oldest ones that exceed the limit now.
    #[must_use]
    pub(super) fn push(&mut self, key: ProcessKey, sample: StackSample) -> Vec<StackSample> {
        self.bytes += bytes(&sample);
        self.samples.push_back((key, sample));
        let mut over = Vec::new();
        while self.bytes > self.max_bytes
            && let Some((_, sample)) = self.samples.pop_front()
        {
            self.bytes -= bytes(&sample);
            self.over_capacity += 1;
            over.push(sample);
        }
        over
    }

    /// Returns the processes of all samples, each as often as it has some.
    pub(super) fn keys(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.samples.iter().map(|(key, _)| *key)
    }

    /// Takes the samples that are ready.
    #[must_use]
    pub(super) fn take(
        &mut self,
        mut is_ready: impl FnMut(ProcessKey, &StackSample) -> bool,
    ) -> Vec<StackSample> {
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

fn bytes(sample: &StackSample) -> usize {
    size_of::<StackSample>() + sample.words() * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_and_are_counted_above_the_limit() {
        let sample = |pid| {
            let mut sample = StackSample::empty();
            sample.header.pid = pid;
            sample
        };
        let key = ProcessKey::numbered(1);
        let mut waiting = PendingSamples::new(3 * bytes(&sample(0)));
        let over: Vec<u32> =
            (0..5).flat_map(|pid| waiting.push(key, sample(pid))).map(|over| over.header.pid).collect();
        assert_eq!((over, waiting.over_capacity(), waiting.len()), (vec![0, 1], 2, 3));
        assert_eq!(waiting.take(|_, _| true).len(), 3);
        assert!(waiting.push(key, sample(5)).is_empty(), "there is space again");
    }
}
