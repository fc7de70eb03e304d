//! The budget of memory for the stacks of one window.

use std::sync::Arc;

use super::model::{Frame, FrameKind, Line};

/// Bytes: about 100,000 different stacks of 60 frames. The names of their frames belong to the
/// symbolizer's caches; what is encoded of them is smaller than the stacks.
pub const MAX_STACK_BYTES: usize = 64 << 20;

/// The frame that stands for a stack beyond the budget.
pub(super) const OVER_BUDGET: &str = "[truncated: window is full]";

/// The times of events may take one of so many parts of the budget: they aren't worth stacks.
const TIMES_PART: usize = 4;

/// The bytes that the window's stacks take, and their limit.
#[derive(Debug)]
pub(super) struct StackBudget {
    max_bytes: usize,
    bytes: usize,
    /// Those of them that times of events take.
    times_bytes: usize,
    marker: Arc<Frame>,
    /// Samples since the beginning whose stacks were beyond the budget; who counts them adds to it.
    pub(super) refused: u64,
}

impl StackBudget {
    pub(super) fn new(max_bytes: usize) -> Self {
        let line = Line::named(OVER_BUDGET);
        let marker =
            Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines: vec![line] });
        Self { max_bytes, bytes: 0, times_bytes: 0, marker, refused: 0 }
    }

    /// Allocates a new stack of `frames` frames and `around` further bytes. Returns false if it is
    /// beyond the budget.
    pub(super) fn allocate(&mut self, frames: usize, around: usize) -> bool {
        let bytes = around + frames * size_of::<Arc<Frame>>();
        if self.bytes + bytes > self.max_bytes {
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// Allocates room for the times of so many events. Returns false if it is beyond what they may
    /// take.
    pub(super) fn allocate_times(&mut self, times: usize) -> bool {
        let bytes = times * size_of::<i32>();
        let is_within = self.times_bytes + bytes <= self.max_bytes / TIMES_PART;
        if !is_within || self.bytes + bytes > self.max_bytes {
            return false;
        }
        self.bytes += bytes;
        self.times_bytes += bytes;
        true
    }

    /// Returns the bytes that are allocated.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The only frame of what stands for the others.
    pub(super) fn marker(&self) -> Arc<Frame> {
        Arc::clone(&self.marker)
    }

    /// Empties it for the next window.
    pub(super) fn clear(&mut self) {
        (self.bytes, self.times_bytes) = (0, 0);
    }
}
