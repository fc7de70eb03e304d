//! The layout of an interrupted nmethod's frame at its pc: how far it is built, by the instructions
//! around the pc.
//!
//! Compilers say where a frame is complete, not where it is taken down, and some say it too early.
//! [`super::prologue`] and [`super::epilogue`] know the instructions by which HotSpot's compilers
//! build a frame and take it down.

use super::super::HotspotTarget;
use super::super::frame_layout::FrameLayout;
use super::epilogue::{first_poll_end, is_after_leave, is_poll_stub};
use super::instructions::{AdjustRsp, CODE_BEFORE, JMP, LoadedCode, POP_RBP, word};
use super::prologue::{layout_in_prologue, layout_in_second_prologue};
use crate::address::Avma;

/// Returns the layout at the pc whose code is loaded, in a frame of `bytes` (16 or more). `left`:
/// bytes to the end of the prologue, 0 after it.
#[inline(always)]
pub fn layout_at_pc(target: &mut impl HotspotTarget, left: u64, bytes: u64) -> FrameLayout {
    match left {
        0 => target.layout_after_prologue(bytes),
        _ => layout_in_prologue(target, left, bytes),
    }
}

/// Returns the layout as [`layout_at_pc`] does, after the prologue.
#[inline(always)]
pub fn layout_after_prologue(target: &mut impl HotspotTarget, bytes: u64) -> FrameLayout {
    let at = first_poll_end(target.code());
    if target.returns_at(at) { FrameLayout::AT_ENTRY } else { layout_before_end(target.code(), bytes) }
}

/// Loads the code around `pc`, after the prologue, where a signal has interrupted a frame of
/// `bytes`, and returns its layout.
#[inline(always)]
pub fn layout_at_signal(target: &mut impl HotspotTarget, pc: Avma, bytes: u64) -> FrameLayout {
    match target.load_code(pc - CODE_BEFORE as u64) {
        true => target.layout_after_prologue(bytes),
        false => FrameLayout::built(bytes),
    }
}

/// Returns the layout at a pc after the prologue whose `ret` isn't the next instruction but for a
/// poll.
#[inline(always)]
fn layout_before_end(code: &LoadedCode, bytes: u64) -> FrameLayout {
    let pc = CODE_BEFORE;
    if is_poll_stub(code) || is_after_leave(code) {
        return FrameLayout::AT_ENTRY;
    }
    if bytes == 16 {
        return FrameLayout::built(bytes);
    }
    if let Some(layout) = layout_in_second_prologue(code, bytes) {
        return layout;
    }
    let add = AdjustRsp::add(bytes - 16);
    let before = word(code, pc - 8);
    if word(code, pc) & 0xff == POP_RBP && add.ends_word(before) {
        return FrameLayout::RBP_PUSHED;
    }
    if add.ends_word_with_pop(before) { FrameLayout::AT_ENTRY } else { FrameLayout::built(bytes) }
}

/// `mov rbx, imm64`: two of ten bytes.
const MOV_RBX: u64 = 0xbb48;
const MOV_RBX_BYTES: usize = 10;

/// Returns how far the pc is from the begin of what may be a static call's stub: `mov rbx, method`,
/// `jmp adapter` (openjdk src/hotspot/cpu/x86/compiledIC_x86.cpp, `emit_to_interp_stub`).
#[inline(always)]
pub(super) fn in_static_call_stub(code: &LoadedCode) -> Option<u64> {
    let pc = CODE_BEFORE;
    if word(code, pc) & 0xffff == MOV_RBX && word(code, pc + MOV_RBX_BYTES) & 0xff == JMP {
        return Some(0);
    }
    let is_at_jump = word(code, pc) & 0xff == JMP && word(code, pc - MOV_RBX_BYTES) & 0xffff == MOV_RBX;
    is_at_jump.then_some(MOV_RBX_BYTES as u64)
}
