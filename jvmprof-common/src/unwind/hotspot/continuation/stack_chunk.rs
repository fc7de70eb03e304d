//! `StackChunk` objects: where each says that its frames are, and the continuation that they belong
//! to.

use super::super::HotspotTarget;
use super::load_barriers::{self, UNRESOLVED};
use crate::address::{Avma, StackAddress};
use crate::jvm::Jvm;
use crate::verifier::Scalar;

/// Alignment of a `ContinuationEntry`.
pub(super) const ENTRY_ALIGNMENT: u64 = 16;
/// `ContinuationEntry::_cont` (openjdk src/hotspot/share/runtime/continuationEntry.hpp): its second
/// field, the third since JDK 25. Which of them it is shows in what it leads to, a continuation
/// with a chunk.
const ENTRY_CONT: [u64; 2] = [8, 16];
/// Words of a chunk, at most.
const MAX_WORDS: u32 = 1 << 27;
/// Bytes of a callee's return address and saved frame pointer.
pub(super) const METADATA_BYTES: u64 = 16;

/// The state of a walk through a thread's chunks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrozenWalk {
    /// The carrier's `ContinuationEntry`; 0 while frames on a stack are walked.
    pub entry: StackAddress,
    /// The chunk that is walked.
    pub chunk: Avma,
    /// The end of its frames.
    pub end: StackAddress,
    /// 1 until a frozen frame has been found: the last frame of the sample is the return barrier
    /// still.
    pub at_barrier: u64,
    /// Words of stack that are allocated while the JVM thaws frames to there; else 0.
    pub thaw_words: u64,
    /// The begin of its frames by what the chunk says, while those before it are walked, which have
    /// been thawed; else 0. They are compiled, and end there.
    pub thawed_until: StackAddress,
    /// Where in the sample the frame stands whose copy in the chunk is walked next, while the JVM
    /// has frozen frames that are on the stack still; else 0.
    pub copied: u64,
}

/// Returns the youngest chunk of the continuation whose `ContinuationEntry` may be here; 0 if it
/// isn't, or has none; [`UNRESOLVED`] if the collector may be moving what leads to it.
#[inline(always)]
pub fn youngest_chunk(target: &mut impl HotspotTarget, jvm: &Jvm, entry: StackAddress) -> Avma {
    let chunk = tail(target, jvm, entry + ENTRY_CONT[0]);
    if chunk == Avma(0) { tail(target, jvm, entry + ENTRY_CONT[1]) } else { chunk }
}

/// Returns the chunk in `Continuation::tail`, the youngest, of the continuation that a slot refers
/// to; 0 if it refers to none; [`UNRESOLVED`] if the collector may be moving one of the two.
#[inline(always)]
fn tail(target: &mut impl HotspotTarget, jvm: &Jvm, slot: StackAddress) -> Avma {
    let continuation = target.load_reference(jvm, slot.avma(), true);
    // Entries refer to a chunk, too: that is none. UNRESOLVED, bit 0, stays; objects are aligned.
    if continuation == Avma(0) || continuation == UNRESOLVED || is_chunk(target, jvm, continuation) {
        return Avma(continuation.0 & UNRESOLVED.0);
    }
    let field = continuation.wrapping_add(u64::from(jvm.chunks.cont_tail));
    let chunk = target.load_reference(jvm, field, false);
    if chunk == UNRESOLVED || load_barriers::may_have_moved(target, jvm, continuation) {
        return UNRESOLVED;
    }
    if is_chunk(target, jvm, chunk) { chunk } else { Avma(0) }
}

/// Returns the next older chunk; 0 if there is none; [`UNRESOLVED`] if it may be moving.
#[inline(always)]
pub fn parent(target: &mut impl HotspotTarget, jvm: &Jvm, chunk: Avma) -> Avma {
    target.load_reference(jvm, chunk.wrapping_add(u64::from(jvm.chunks.parent)), false)
}

/// Begin and end of a chunk's frames, in words from its first one: 32 bits each, the begin
/// in the upper ones.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkBounds(u64);

impl ChunkBounds {
    /// Those of an object that is no chunk.
    pub const NONE: Self = Self(u64::MAX);

    #[inline(always)]
    pub const fn begin(self) -> u64 {
        self.0 >> 32
    }

    #[inline(always)]
    pub const fn end(self) -> u64 {
        self.0 & 0xffff_ffff
    }
}

impl Scalar for ChunkBounds {
    #[inline(always)]
    fn to_scalar(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn from_scalar(scalar: u64) -> Self {
        Self(scalar)
    }
}

/// Returns where the frames of this chunk begin and end.
#[inline(always)]
pub fn chunk_bounds(target: &mut impl HotspotTarget, jvm: &Jvm, chunk: Avma) -> ChunkBounds {
    let chunks = &jvm.chunks;
    if !is_chunk(target, jvm, chunk) {
        return ChunkBounds::NONE;
    }
    let (sp, size) = (int(target, chunk, chunks.sp), int(target, chunk, chunks.size));
    let bottom = int(target, chunk, chunks.bottom);
    let bottom = if chunks.bottom_is_argsize == 0 { bottom } else { size.wrapping_sub(bottom) };
    if size > MAX_WORDS || bottom > size || sp > bottom {
        return ChunkBounds::NONE;
    }
    ChunkBounds(u64::from(sp) << 32 | u64::from(bottom))
}

/// [`words_to_thaw`] of a JVM that doesn't say where it counts them.
pub const NOT_COUNTED: u64 = u64::MAX;

/// Returns the words of stack that it would take to thaw all frames of this chunk; [`NOT_COUNTED`].
#[inline(always)]
pub fn words_to_thaw(target: &mut impl HotspotTarget, jvm: &Jvm, chunk: Avma) -> u64 {
    match jvm.chunks.max_thawing {
        0 => NOT_COUNTED,
        field => u64::from(int(target, chunk, field)),
    }
}

/// Returns the first word of a chunk's stack.
#[inline(always)]
pub(super) fn first_word(jvm: &Jvm, chunk: Avma) -> StackAddress {
    StackAddress(chunk.0 + u64::from(jvm.chunks.stack))
}

#[inline(always)]
fn is_chunk(target: &mut impl HotspotTarget, jvm: &Jvm, object: Avma) -> bool {
    let chunks = &jvm.chunks;
    let word = target.read_object(object.wrapping_add(u64::from(chunks.klass_at))).unwrap_or(0);
    object != Avma(0) && object.is_multiple_of(8) && word & chunks.klass_mask == chunks.klass
}

#[inline(always)]
fn int(target: &mut impl HotspotTarget, object: Avma, field: u16) -> u32 {
    target.read_object(object + u64::from(field)).map_or(u32::MAX, |value| value as u32)
}
