//! A stack with its labels as a key.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::profile::model::{Frame, SampleLabels};

/// 2^64 by the golden ratio, made odd, spreads what is multiplied with it; nobody chooses the
/// addresses of frames.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stack as a key: equal to another one if it is made of the very same frames and labels, and of
/// the same stratum.
#[derive(Debug)]
pub(super) struct StackKey {
    pub(super) frames: Arc<[Arc<Frame>]>,
    pub(super) labels: SampleLabels,
    stratum: u32,
    /// Hash of the addresses of its frames: a table that grows reads none of them.
    hash: u64,
}

impl StackKey {
    pub(super) fn new(frames: Arc<[Arc<Frame>]>, labels: SampleLabels, stratum: u32) -> Self {
        let add = |hash: u64, frame: &Arc<Frame>| mix(hash, Arc::as_ptr(frame).addr() as u64);
        let hash = frames.iter().fold(u64::from(stratum) ^ labels.address() as u64, add);
        Self { frames, labels, stratum, hash }
    }

    /// The key of a stack that was made for this key alone, as one of a process, if there is one:
    /// stacks of the same frames that are of different processes aren't equal.
    pub(super) fn of_process(self, process: Option<u64>) -> Self {
        // For keys that are equal but for this, hashes are equal only if processes are.
        let hash = process.map_or(self.hash, |process| mix(self.hash, process));
        Self { hash, ..self }
    }
}

/// Adds a value to a hash: one to one for each hash so far, since a product with an odd number is.
fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(SPREAD)
}

impl PartialEq for StackKey {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&self.frames, &other.frames);
        let are_equal =
            || own.len() == others.len() && own.iter().zip(&**others).all(|(a, b)| Arc::ptr_eq(a, b));
        self.stratum == other.stratum
            && self.labels.address() == other.labels.address()
            && (Arc::ptr_eq(own, others) || self.hash == other.hash && are_equal())
    }
}

impl Eq for StackKey {}

impl Hash for StackKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}
