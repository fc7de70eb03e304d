//! Finding the blob of HotSpot's code cache that an address lies in, by the JVM's own segment map,
//! and the fields of its header.

use super::HotspotTarget;
use crate::abi::Stop;
use crate::address::Avma;
use crate::jvm::{Jvm, JvmLayout, NO_FIELD};
use crate::verifier::Scalar;

/// Bytes of a `CodeBlob` and nmethod header that hold every field of a [`JvmLayout`]. A power of
/// two.
pub const HEADER_BYTES: usize = 512;
pub const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// Bytes that are read where that much isn't readable: enough for every blob that is no nmethod.
pub const SHORT_HEADER_BYTES: usize = 128;
/// Hops through a segment map. One hop crosses up to 253 segments of 128 bytes or more: 32 hops
/// cross one megabyte.
const MAX_HOPS: u32 = 32;
/// Mark of a free segment (openjdk src/hotspot/share/memory/heap.hpp).
const FREE_SEGMENT: u8 = 0xff;
/// Largest compiled frame, bytes.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// The code that an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeBlob {
    Interpreter,
    /// An nmethod at this address.
    Nmethod(Avma),
    /// Another blob, at this address.
    Stub(Avma),
}

impl CodeBlob {
    const INTERPRETER: u64 = 1;
    const NMETHOD: u64 = 2;
    const STUB: u64 = 3;
    const UNREADABLE: u64 = 4;
}

/// The kind in the lowest bits, blobs being aligned.
impl Scalar for Result<CodeBlob, Stop> {
    #[inline(always)]
    fn to_scalar(self) -> u64 {
        match self {
            Ok(CodeBlob::Interpreter) => CodeBlob::INTERPRETER,
            Ok(CodeBlob::Nmethod(blob)) => blob.0 | CodeBlob::NMETHOD,
            Ok(CodeBlob::Stub(blob)) => blob.0 | CodeBlob::STUB,
            Err(Stop::UnknownCode) => 0,
            Err(_) => CodeBlob::UNREADABLE,
        }
    }

    #[inline(always)]
    fn from_scalar(scalar: u64) -> Self {
        let blob = Avma(scalar & !7);
        match scalar & 7 {
            CodeBlob::INTERPRETER => Ok(CodeBlob::Interpreter),
            CodeBlob::NMETHOD => Ok(CodeBlob::Nmethod(blob)),
            CodeBlob::STUB => Ok(CodeBlob::Stub(blob)),
            0 => Err(Stop::UnknownCode),
            _ => Err(Stop::CodeUnreadable),
        }
    }
}

/// Finds the blob that an address lies in, and loads its header.
///
/// # Errors
/// [`Stop::UnknownCode`] where there is none, [`Stop::CodeUnreadable`].
#[inline(always)]
pub fn find_code_blob(target: &mut impl HotspotTarget, jvm: &Jvm, at: Avma) -> Result<CodeBlob, Stop> {
    let is_interpreter = at.0 >= jvm.interpreter_start && at.0 < jvm.interpreter_end;
    if is_interpreter {
        return Ok(CodeBlob::Interpreter);
    }
    let heap = jvm.code_heap(at).ok_or(Stop::UnknownCode)?;
    let shift = heap.log2_segment & 31;
    let mut segment = (at.0 - heap.start) >> shift;
    let mut hop = 0;
    loop {
        let back = target.read_u8(Avma(heap.segment_map + segment)).ok_or(Stop::CodeUnreadable)?;
        if back == FREE_SEGMENT {
            return Err(Stop::UnknownCode);
        }
        if back == 0 {
            break;
        }
        segment = segment.checked_sub(u64::from(back)).ok_or(Stop::CodeUnreadable)?;
        hop += 1;
        if hop == MAX_HOPS {
            return Err(Stop::CodeUnreadable);
        }
    }
    let blob = Avma(heap.start + (segment << shift) + u64::from(jvm.layout.heap_block_bytes));
    if !target.load_header(blob) {
        return Err(Stop::CodeUnreadable);
    }
    Ok(if is_nmethod(target, jvm) { CodeBlob::Nmethod(blob) } else { CodeBlob::Stub(blob) })
}

/// "nmethod" and the begin of "native nmethod", as the bytes of a word.
const NMETHOD: u64 = u64::from_le_bytes(*b"nmethod\0");
const NATIVE_NMETHOD: u64 = u64::from_le_bytes(*b"native n");

/// Returns true if the loaded header is an nmethod's.
#[inline(always)]
fn is_nmethod(target: &mut impl HotspotTarget, jvm: &Jvm) -> bool {
    let layout = &jvm.layout;
    if layout.blob_kind != NO_FIELD {
        return byte(target, layout.blob_kind) == layout.nmethod_kind;
    }
    let name = pointer(target, layout.blob_name);
    if name == jvm.nmethod_name || name == jvm.native_nmethod_name {
        return name != 0;
    }
    if jvm.nmethod_name != 0 && jvm.native_nmethod_name != 0 {
        return false;
    }
    // Early in a JVM's life: the daemon has seen no nmethod yet.
    let text = target.read_object(Avma(name)).unwrap_or(0);
    text == NMETHOD || text == NATIVE_NMETHOD
}

/// Returns the size of the loaded header's frame in bytes; 0 if it has none of its own.
#[inline(always)]
pub(super) fn frame_bytes(target: &impl HotspotTarget, layout: &JvmLayout) -> u64 {
    let words = int(target, layout.blob_frame_size);
    let bytes = u64::from(words) * 8;
    if words < 2 || bytes > MAX_FRAME_BYTES { 0 } else { bytes }
}

/// Returns a pointer of the loaded header. All fields are aligned to their size.
#[inline(always)]
pub(super) fn pointer(target: &impl HotspotTarget, offset: u16) -> u64 {
    target.header_word(usize::from(offset) >> 3)
}

/// Returns an `int` of the loaded header.
#[inline(always)]
pub(super) fn int(target: &impl HotspotTarget, offset: u16) -> u32 {
    (pointer(target, offset) >> ((offset & 4) << 3)) as u32
}

/// Returns a `u2` of the loaded header.
#[inline(always)]
pub(super) fn short(target: &impl HotspotTarget, offset: u16) -> u16 {
    (pointer(target, offset) >> ((offset & 6) << 3)) as u16
}

/// Returns a byte of the loaded header.
#[inline(always)]
pub(super) fn byte(target: &impl HotspotTarget, offset: u16) -> u16 {
    (pointer(target, offset) >> ((offset & 7) << 3)) as u16 & 0xff
}

/// Returns a code address of the loaded header, whose field is an address, or an `int` offset from
/// `base`.
#[inline(always)]
pub(super) fn code_address(target: &impl HotspotTarget, field: u16, is_offset: bool, base: Avma) -> Avma {
    if field == NO_FIELD {
        return Avma(0);
    }
    if !is_offset {
        return Avma(pointer(target, field));
    }
    let offset = int(target, field);
    // -1: the nmethod has none.
    if offset as i32 <= 0 { Avma(0) } else { base + u64::from(offset) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_code_survive_a_register() {
        let blob = Avma(0x7f00_0000_1000);
        for found in [
            Ok(CodeBlob::Interpreter),
            Ok(CodeBlob::Nmethod(blob)),
            Ok(CodeBlob::Stub(blob)),
            Err(Stop::UnknownCode),
            Err(Stop::CodeUnreadable),
        ] {
            assert_eq!(Result::from_scalar(found.to_scalar()), found);
        }
    }
}
