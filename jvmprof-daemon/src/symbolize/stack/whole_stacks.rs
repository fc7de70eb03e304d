//! Stacks that were named before. Most samples find a process where an earlier one did, and no
//! frame has to be resolved.
//!
//! A stack is cached by all words of the kernel program's sample, and only if they alone determine
//! its names for as long as the process maps the same code: it reached its root there, and each of
//! its frames has a name that stays.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use jvmprof_common::abi::Stop;

use crate::memory_budget::{MemoryBudget, MemoryReservation};
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{Frame, SampleLabels};
use crate::sampler::StackSample;
use crate::symbolize::{StackOutcome, SymbolizedStack};
use crate::types::FastHasher;

/// Maximum number of words. Longer stacks seldom come twice, and would push out many others.
const MAX_WORDS: usize = 768;
/// Bytes of a cached stack beside its words and frames: its slot in the map, and the heads of both
/// allocations.
const STACK_BYTES: usize = 96;

/// Cached stacks of one process.
#[derive(Debug)]
pub(in crate::symbolize) struct WholeStackCache {
    /// Version of the process's mappings.
    version: u64,
    /// Stacks by the hash of their words: of those with the same hash, the last one. A growing
    /// table hashes no words again.
    by_hash: HashMap<u64, CachedStack, FastHasher>,
    hasher: FastHasher,
    memory: MemoryReservation,
}

#[derive(Debug)]
struct CachedStack {
    words: Box<[u64]>,
    /// Facts beside the words: where the user's begin, and what they end at.
    head_words: u16,
    stop: Stop,
    frames: Arc<[Arc<Frame>]>,
}

/// Returns whether the kernel program walked a stack to its end, by itself.
fn is_walked(sample: &StackSample) -> bool {
    matches!(sample.stop, Stop::Root | Stop::KernelThread | Stop::NoMemory) && sample.tail().is_empty()
}

impl WholeStackCache {
    /// Makes an empty cache, whose stacks take their memory from a budget.
    pub(in crate::symbolize) fn new(budget: MemoryBudget) -> Self {
        let memory = MemoryReservation::new(budget);
        Self { version: 0, by_hash: HashMap::default(), hasher: FastHasher::default(), memory }
    }

    /// Returns the frames of an equal stack.
    pub(in crate::symbolize) fn find(&self, version: u64, sample: &StackSample) -> Option<SymbolizedStack> {
        if !is_walked(sample) || self.version != version {
            return None;
        }
        let words = sample.all_words();
        let kept = self.by_hash.get(&self.hasher.hash_one(words))?;
        let is_it =
            kept.head_words == sample.header.head_words && kept.stop == sample.stop && *kept.words == *words;
        is_it.then(|| SymbolizedStack {
            stack: NamedStack {
                frames: Arc::clone(&kept.frames),
                labels: SampleLabels::default(),
                pending: false,
            },
            outcome: StackOutcome::Whole,
        })
    }

    /// Inserts a stack whose names stay.
    pub(in crate::symbolize) fn insert(
        &mut self,
        version: u64,
        sample: &StackSample,
        frames: &Arc<[Arc<Frame>]>,
    ) {
        if self.version != version {
            self.clear();
            self.version = version;
        }
        if is_walked(sample) && sample.words() <= MAX_WORDS {
            let mut bytes = self.memory.bytes() + STACK_BYTES + 8 * (sample.words() + frames.len());
            let (head_words, stop) = (sample.header.head_words, sample.stop);
            let words = sample.all_words();
            let kept = CachedStack { words: words.into(), head_words, stop, frames: Arc::clone(frames) };
            // Mostly in place of one that only differs in the facts beside the words.
            if let Some(old) = self.by_hash.insert(self.hasher.hash_one(words), kept) {
                bytes -= STACK_BYTES + 8 * (old.words.len() + old.frames.len());
            }
            self.memory.set(bytes);
        }
    }

    /// Drops all stacks.
    pub(in crate::symbolize) fn clear(&mut self) {
        self.by_hash = HashMap::default();
        self.memory.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::FrameKind;

    fn frames(count: usize) -> Arc<[Arc<Frame>]> {
        let frame = Frame { kind: FrameKind::Native, address: None, mapping: None, lines: Vec::new() };
        let frame = Arc::new(frame);
        std::iter::repeat_n(frame, count).collect()
    }

    fn empty() -> WholeStackCache {
        WholeStackCache::new(MemoryBudget::new(1 << 20))
    }

    fn found(stacks: &WholeStackCache, version: u64, sample: &StackSample) -> Option<usize> {
        stacks.find(version, sample).map(|resolved| resolved.stack.frames.len())
    }

    #[test]
    fn a_stack_is_found_by_all_of_its_words_and_in_the_same_mappings_only() {
        let mut stacks = empty();
        let sample = StackSample::of_parts(&[1, 2], &[3, 4, 5], &[], Stop::Root);
        assert_eq!(found(&stacks, 7, &sample), None);
        stacks.insert(7, &sample, &frames(5));
        let bytes = stacks.memory.bytes();
        assert!(bytes > 80, "{bytes} bytes for five words and five frames");
        assert_eq!(found(&stacks, 7, &sample), Some(5));
        for other in [
            StackSample::of_parts(&[1, 2], &[3, 4, 6], &[], Stop::Root),
            StackSample::of_parts(&[1, 2], &[3, 4], &[], Stop::Root),
            StackSample::of_parts(&[1], &[2, 3, 4, 5], &[], Stop::Root),
            StackSample::of_parts(&[1, 2], &[3, 4, 5], &[], Stop::NoMemory),
            StackSample::of_parts(&[1, 2], &[3, 4, 5], &[], Stop::UnknownCode),
            StackSample::of_parts(&[1, 2], &[3, 4], &[5], Stop::Root),
        ] {
            assert_eq!(found(&stacks, 7, &other), None, "{other:?}");
        }
        assert_eq!(found(&stacks, 8, &sample), None);
        stacks.insert(8, &sample, &frames(4));
        assert_eq!(stacks.memory.bytes(), bytes - 8, "those of other mappings are gone");
        assert_eq!((found(&stacks, 8, &sample), found(&stacks, 7, &sample)), (Some(4), None));
        stacks.clear();
        assert_eq!((found(&stacks, 8, &sample), stacks.memory.bytes()), (None, 0));
    }

    #[test]
    fn what_the_daemon_walked_on_and_what_is_very_long_is_not_kept() {
        let mut stacks = empty();
        let long = vec![9; MAX_WORDS + 1];
        for sample in [
            StackSample::of_parts(&[], &[1, 2], &[3], Stop::Root),
            StackSample::of_parts(&[], &[1, 2], &[], Stop::UnknownStub),
            StackSample::of_parts(&[], &[1, 2], &[], Stop::DepthReached),
            StackSample::of_parts(&[], &long, &[], Stop::Root),
        ] {
            stacks.insert(1, &sample, &frames(2));
            assert_eq!((found(&stacks, 1, &sample), stacks.memory.bytes()), (None, 0), "{:?}", sample.stop);
        }
    }

    #[test]
    fn a_stack_that_differs_beside_its_words_takes_the_others_place() {
        let mut stacks = empty();
        let (first, second) = (
            StackSample::of_parts(&[1], &[2], &[], Stop::Root),
            StackSample::of_parts(&[1, 2], &[], &[], Stop::NoMemory),
        );
        stacks.insert(1, &first, &frames(2));
        let bytes = stacks.memory.bytes();
        stacks.insert(1, &second, &frames(2));
        assert_eq!(stacks.memory.bytes(), bytes);
        assert_eq!((found(&stacks, 1, &first), found(&stacks, 1, &second)), (None, Some(2)));
    }
}
