//! C2's `String.indexOf`, which moves the stack pointer while it searches (openjdk
//! src/hotspot/cpu/x86/c2_MacroAssembler_x86.cpp, `string_indexof`).

use super::super::{Cursor, HotspotTarget};
use super::instructions::{CODE_BEFORE, LoadedCode, matching_bytes};
use crate::address::{Avma, StackAddress};
use crate::jvm::Jvm;
use crate::rows::Register;

/// Bytes that the search puts on the stack, at most: copies of short strings, and four registers.
const MAX_BYTES: u64 = 32 + 4 * 8;

/// Moves the cursor of an interrupted frame back to where its stack pointer was before a search.
///
/// The search keeps the stack pointer in rcx, puts copies of strings and some registers on the
/// stack, rcx the last of them, and begins. Where either leads to a return address, it says where
/// the frame begins; unless it is there by chance: then the frame itself has a return address, too,
/// and the search's instruction isn't around.
#[inline(always)]
pub(super) fn undo_stack_adjustment(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    return_address: u64,
) {
    let pushed = target.read_u64(cursor.sp).unwrap_or(0);
    let kept = target.register(Register::RCX).unwrap_or(0);
    let begin = cursor.sp;
    let is_below = |saved: StackAddress| {
        saved.is_multiple_of(16) && saved.offset_from(begin).wrapping_sub(1) < MAX_BYTES
    };
    // Before rcx is on top, copies' addresses are.
    for saved in [StackAddress(kept), StackAddress(pushed)] {
        if is_below(saved)
            && target.in_string_indexof(jvm, cursor.sp + return_address, saved + return_address, cursor.pc)
        {
            cursor.sp = saved;
            return;
        }
    }
}

/// Distances from the loaded code at which the search's own instruction may be: the set-up
/// of a search takes some 150 bytes, and windows overlap by the bytes that the instruction has.
const WINDOWS: [i64; 4] = [61, 122, 183, -61];

/// Returns true if the frame's return address is in the second of two slots, `usual` and `saved`:
/// only there is one, or there is one in both while a string is searched. The code around `pc` is
/// loaded, and is so afterwards.
#[inline(always)]
pub fn in_string_indexof(
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    usual: StackAddress,
    saved: StackAddress,
    pc: Avma,
) -> bool {
    if !target.returns_to_java(jvm, saved) {
        return false;
    }
    if !target.returns_to_java(jvm, usual) || target.has_pcmpestri() {
        return true;
    }
    let begin = pc - CODE_BEFORE as u64;
    let mut is_search = false;
    let mut window = 0;
    while window < WINDOWS.len() && !is_search {
        let at = begin.wrapping_add_signed(WINDOWS[window]);
        is_search = target.load_code(at) && target.has_pcmpestri();
        window += 1;
    }
    target.load_code(begin) && is_search
}

/// Returns true if there is a `pcmpestri` in the loaded code: 66 0f 3a 61, or c4 x3 79 61.
#[inline(always)]
pub fn has_pcmpestri(code: &LoadedCode) -> bool {
    let legacy = matching_bytes(code, 0xff, 0x0f) & matching_bytes(code, 0xff, 0x3a) >> 1;
    let vex = matching_bytes(code, 0x1f, 0x03) & matching_bytes(code, 0xff, 0x79) >> 1;
    (legacy | vex) & matching_bytes(code, 0xff, 0x61) >> 2 != 0
}
