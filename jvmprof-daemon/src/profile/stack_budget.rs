//! Memory for the stacks of one window.

use std::sync::Arc;

use super::model::{Frame, FrameKind, Line};

/// Bytes: about 100,000 different stacks of 60 frames. The names of their frames belong to the
/// symbolizer's caches; what is encoded of them is smaller than the stacks.
pub const MAX_STACK_BYTES: usize = 64 << 20;

/// What stands for a stack that found no room.
pub(super) const NO_ROOM: &str = "[truncated: window is full]";

/// What is left of it.
#[derive(Debug)]
pub(super) struct Room {
    max_bytes: usize,
    bytes: usize,
    marker: Arc<Frame>,
    /// Samples since the beginning whose stacks found no room.
    pub(super) refused: u64,
}

impl Room {
    pub(super) fn new(max_bytes: usize) -> Self {
        let line = Line::named(NO_ROOM);
        let marker =
            Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines: vec![line] });
        Self { max_bytes, bytes: 0, marker, refused: 0 }
    }

    /// Whether a new stack of so many frames, with so many bytes around it, may be kept; from then
    /// on it is.
    pub(super) fn take(&mut self, frames: usize, around: usize) -> bool {
        let bytes = around + frames * size_of::<Arc<Frame>>();
        if self.bytes + bytes > self.max_bytes {
            self.refused += 1;
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// What is taken of it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The only frame of what stands for the others.
    pub(super) fn marker(&self) -> Arc<Frame> {
        Arc::clone(&self.marker)
    }

    /// For the next window.
    pub(super) fn clear(&mut self) {
        self.bytes = 0;
    }
}
