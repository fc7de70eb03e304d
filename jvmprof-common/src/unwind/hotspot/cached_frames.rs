//! Frames that the kernel program keeps from one sample to the next, and whether they are still
//! what they were.
//!
//! What code a pc belongs to, and how far its frame is built there, takes reads all over the JVM's
//! memory to find out, most of which miss every cache of the CPU. But it holds for as long as the
//! code is there, and two reads show whether it is: its block of the code heap is in use, and
//! begins with an nmethod of this compile id, which no other nmethod of this JVM gets, or with a
//! stub of this name. A block that was freed keeps its contents until another one is allocated
//! there, and other blocks may come to lie in its end before that (openjdk
//! src/hotspot/share/memory/heap.cpp, `search_freelist`).

use super::frame_layout::{FrameLayout, SavedRbp};
use super::{Cursor, EncodedFrame, HotspotTarget};
use crate::address::{Avma, StackAddress};
use crate::frame::FrameWord;
use crate::jvm::Jvm;
use crate::unwind::is_code_address;

/// A frame at one pc, as it is for as long as its code is there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedFrame {
    /// One of the following.
    pub kind: u64,
    pub blob: Avma,
    /// Second word of the frame: [`crate::frame::compiled_word`], or the address of the name.
    pub word: u64,
    /// The layout of an nmethod's frame.
    pub layout: FrameLayout,
}

impl CachedFrame {
    /// Nothing is to be cached.
    pub const NOTHING: u64 = 0;
    pub const COMPILED: u64 = 1;
    /// A stub, which is left by a row.
    pub const STUB: u64 = 2;

    /// Returns true if the code is still there.
    #[inline(always)]
    pub fn is_valid(&self, target: &mut impl HotspotTarget, jvm: &Jvm) -> bool {
        let is_compiled = self.kind == Self::COMPILED;
        if !is_compiled && self.blob.0 == jvm.call_stub {
            return true;
        }
        let field = if is_compiled { jvm.layout.nmethod_compile_id } else { jvm.layout.blob_name };
        match read_used(target, jvm, self.blob, field) {
            Some(id) if is_compiled => id as u32 == self.word as u32,
            Some(name) => name == self.word,
            None => false,
        }
    }
}

/// Steps over a compiled frame that is cached and whose code is still there. Returns false, with
/// the cursor where it was, if anything is as it shouldn't be.
#[inline(always)]
pub fn step(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    cached: &CachedFrame,
    frame: &mut EncodedFrame,
) -> bool {
    let layout = cached.layout;
    let fp = match layout.saved_rbp() {
        SavedRbp::InRegister => cursor.fp,
        SavedRbp::AtSp(offset) => match target.read_u64(cursor.sp + offset) {
            Some(fp) => StackAddress(fp),
            None => return false,
        },
    };
    let Some(pc) = target.read_u64(cursor.sp + layout.return_address()) else { return false };
    let pc = Avma(pc);
    // An intrinsic may have pushed something above an interrupted frame's return address.
    if !is_code_address(pc) || (cursor.exact && !jvm.in_code_cache(pc)) {
        return false;
    }
    frame.set(FrameWord::compiled(cursor.pc.0, cursor.exact), cached.word, 0, 2);
    *cursor = Cursor { pc, sp: cursor.sp + layout.return_address() + 8, fp, exact: false };
    true
}

/// An nmethod, as far as the layout of its frames depends on it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nmethod {
    /// Address of its header; 0 if it is none.
    pub blob: Avma,
    /// Begin of its code.
    pub code: Avma,
    /// The verified entry point.
    pub entry: Avma,
    /// End of the prologue.
    pub built: Avma,
    /// Size of its frame with the return address; 0 if it has none.
    pub frame_bytes: u64,
    pub compile_id: u32,
    /// 1 for an on-stack replacement.
    pub is_osr: u16,
    /// Bits, as [`Self::C1`].
    pub flags: u16,
}

impl Nmethod {
    /// Code of C1.
    pub const C1: u16 = 1;
    /// Its frame doesn't save the caller's rbp.
    pub const SAVES_NO_RBP: u16 = 2;
    /// It has no frame.
    pub(super) const NO_FRAME: u16 = 4;
    /// Its code shows where its frame is built.
    pub(super) const HAS_BUILT: u16 = 8;

    /// Returns true if it is still there.
    #[inline(always)]
    pub fn is_valid(&self, target: &mut impl HotspotTarget, jvm: &Jvm) -> bool {
        let id = read_used(target, jvm, self.blob, jvm.layout.nmethod_compile_id);
        id.is_some_and(|id| id as u32 == self.compile_id)
    }
}

/// Reads a field of a blob's header, aligned to 4; `None` if its block isn't in use. Of a field
/// that isn't aligned to 8 the upper half is anything.
#[inline(always)]
fn read_used(target: &mut impl HotspotTarget, jvm: &Jvm, blob: Avma, field: u16) -> Option<u64> {
    let layout = &jvm.layout;
    let block = blob.wrapping_sub(u64::from(layout.heap_block_bytes));
    let used = block.wrapping_add(u64::from(layout.block_used));
    let (is_used, word) = target.read_pair(used, blob.wrapping_add(u64::from(field)))?;
    (is_used == 1).then_some(word)
}
