//! The frames of a virtual thread that isn't mounted: all of them lie in its chunks, and are walked
//! there by the steppers of the kernel program.

use jvmprof_common::frame::UserFrame;
use jvmprof_common::jvm::Jvm;
use jvmprof_common::unwind::Cursor;
use jvmprof_common::unwind::hotspot::EncodedFrame;
use jvmprof_common::unwind::hotspot::continuation::frozen_frames::{enter_chunk, step};
use jvmprof_common::unwind::hotspot::continuation::stack_chunk::{
    ChunkBounds, FrozenWalk, chunk_bounds, parent,
};

use super::heap_reader::HeapReader;
use crate::hotspot::process_memory::ProcessMemory;
use crate::types::Avma;

/// Frames that are walked, at most: as many as the kernel program walks.
const MAX_FRAMES: usize = 1024;
/// Bytes of a chunk that are copied at once.
const MAX_COPY: u64 = 64 << 10;

/// The frames of a continuation.
#[derive(Debug)]
pub(super) struct FrozenStack {
    /// Leaf first.
    pub(super) frames: Vec<UserFrame>,
    /// They are all.
    pub(super) is_whole: bool,
    /// The youngest chunk, as it was when they were walked.
    chunk: (Avma, Vec<u8>),
}

impl FrozenStack {
    /// Walks the frames of the continuation whose youngest chunk this is; `None` if it has none.
    pub(super) fn walk<M: ProcessMemory>(heap: &HeapReader<'_, M>, youngest: Avma) -> Option<Self> {
        let bytes = copied_bytes(heap.jvm, chunk_bounds(&mut heap.target(), heap.jvm, youngest))?;
        let chunk = (youngest, heap.memory.read_bytes(youngest, bytes)?);
        let (frames, is_whole) = walk(heap, &chunk);
        (!frames.is_empty()).then_some(Self { frames, is_whole, chunk })
    }

    /// Returns true if the thread hasn't gone on since: whatever thaws or freezes frames writes to
    /// its youngest chunk.
    pub(super) fn is_unchanged<M: ProcessMemory>(&self, heap: &HeapReader<'_, M>) -> bool {
        let (start, bytes) = &self.chunk;
        heap.memory.read_bytes(*start, bytes.len()).as_ref() == Some(bytes)
    }
}

/// Returns how many bytes of a chunk are copied at once; `None` if it is none.
fn copied_bytes(jvm: &Jvm, bounds: ChunkBounds) -> Option<usize> {
    let bytes = u64::from(jvm.chunks.stack) + bounds.end() * 8;
    (bounds != ChunkBounds::NONE).then_some(bytes.min(MAX_COPY) as usize)
}

fn walk<M: ProcessMemory>(heap: &HeapReader<'_, M>, youngest: &(Avma, Vec<u8>)) -> (Vec<UserFrame>, bool) {
    let jvm = heap.jvm;
    let (mut target, mut frames) = (heap.target(), Vec::new());
    target.use_copy(youngest.clone());
    let (mut walk, mut cursor) = (FrozenWalk::default(), Cursor::default());
    let mut next = youngest.0;
    while next.0 != 0 {
        if next != youngest.0 {
            let bounds = chunk_bounds(&mut target, jvm, next);
            let Some(bytes) = copied_bytes(jvm, bounds) else { return (frames, false) };
            target.use_copy((next, heap.memory.read_bytes(next, bytes).unwrap_or_default()));
        }
        let entered =
            enter_chunk(&mut cursor, &mut target, jvm, &mut walk, next, &mut EncodedFrame::default());
        match entered {
            Ok(false) if !has_left(jvm, &cursor) => {}
            // It came to where the carrier's stack would go on.
            Ok(_) => return (frames, true),
            Err(_) => return (frames, false),
        }
        loop {
            let mut frame = EncodedFrame::default();
            let stepped = step(&mut cursor, &mut target, jvm, &mut walk, &mut frame);
            let Ok(is_last) = stepped else { return (frames, false) };
            frames.extend(UserFrame::take(&mut &frame.words[..frame.count as usize]));
            if frames.len() >= MAX_FRAMES {
                return (frames, false);
            }
            if is_last {
                break;
            }
        }
        next = parent(&mut target, jvm, walk.chunk);
    }
    (frames, true)
}

fn has_left(jvm: &Jvm, cursor: &Cursor) -> bool {
    jvm.cont_entry_return_pc != 0 && cursor.pc.0 == jvm.cont_entry_return_pc
}
