//! Stacks that were named before: most samples find a process where an earlier one did, and need no look at any frame.
//!
//! A stack is kept by all that the kernel program said of it, and only if that alone tells its names for as long as the process
//! maps the same code: it reached its root there, and each of its frames has a name that stays.

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::abi::Stop;

use super::{Outcome, Resolved};
use crate::process::Process;
use crate::profile::model::Frame;
use crate::sampler::Sample;
use crate::types::FastHasher;

/// Longer ones seldom come twice, and would push out many others.
const MAX_WORDS: usize = 768;
/// What a kept stack takes beside its words and frames: its slot in the map, and the heads of both allocations.
const STACK_BYTES: usize = 96;

/// The stacks of one process.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// Of the process's mappings.
    version: u64,
    by_words: HashMap<Box<[u64]>, Kept, FastHasher>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    /// What the words alone don't tell: where the user's begin, and what they end at.
    kernel_frames: u16,
    stop: Stop,
    frames: Arc<[Arc<Frame>]>,
}

/// Whether the kernel program walked a stack to its end, by itself.
fn is_walked(sample: &Sample) -> bool {
    matches!(sample.stop, Stop::Root | Stop::KernelThread | Stop::NoMemory) && sample.tail().is_empty()
}

impl Stacks {
    /// The frames of a stack like this.
    pub(super) fn find(&self, process: &Process, sample: &Sample) -> Option<Resolved> {
        if !is_walked(sample) || self.version != process.version {
            return None;
        }
        let kept = self.by_words.get(sample.all_words())?;
        let is_it = kept.kernel_frames == sample.header.kernel_frames && kept.stop == sample.stop;
        is_it.then(|| Resolved { frames: Arc::clone(&kept.frames), outcome: Outcome::Whole, pending: false })
    }

    /// Keeps a stack whose names stay. Returns how many bytes more are kept than before, which may be fewer.
    pub(super) fn keep(&mut self, process: &Process, sample: &Sample, frames: &Arc<[Arc<Frame>]>) -> isize {
        let before = self.bytes;
        if self.version != process.version {
            *self = Self { version: process.version, ..Self::default() };
        }
        if is_walked(sample) && sample.words() <= MAX_WORDS {
            self.bytes += STACK_BYTES + 8 * (sample.words() + frames.len());
            let (kernel_frames, stop) = (sample.header.kernel_frames, sample.stop);
            let kept = Kept { kernel_frames, stop, frames: Arc::clone(frames) };
            // In place of one that only differs in what the words don't tell.
            if self.by_words.insert(sample.all_words().into(), kept).is_some() {
                self.bytes -= STACK_BYTES + 8 * (sample.words() + frames.len());
            }
        }
        self.bytes as isize - before as isize
    }

    /// Forgets them. Returns how many bytes they took.
    pub(super) fn forget(&mut self) -> usize {
        std::mem::take(self).bytes
    }
}
