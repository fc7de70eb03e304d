//! Prologues of compiled methods: how far one has come, and the frame that it builds.
//!
//! They are one of (openjdk src/hotspot/cpu/x86/macroAssembler_x86.cpp `verified_entry`,
//! c1_MacroAssembler_x86.cpp `build_frame`, sharedRuntime_x86_64.cpp `generate_native_wrapper`)
//!
//! ```text
//! [bang the stack]  push rbp  [mov rbp, rsp]  [sub rsp, SIZE - 16]  [entry barrier]
//! [bang the stack]  sub rsp, SIZE - 8  [entry barrier]  mov [rsp + SIZE - 16], rbp
//! ```
//!
//! the second one being C2's and Graal's (openjdk jdk-11 src/jdk.internal.vm.compiler,
//! `AMD64HotSpotBackend.HotSpotFrameContext`), which leaves out the `mov` in code that neither
//! calls anything nor stops at a safepoint, and often all of it. SIZE is the frame's in bytes with
//! the return address.

use super::super::HotspotTarget;
use super::super::frame_layout::{FrameLayout, SavedRbp};
use super::instructions::{
    AdjustRsp, CODE_BEFORE, FIVE_BYTES, FOUR_BYTES, LoadedCode, PUSH_RBP, begins_with, word,
};

/// Bytes that a prologue is searched for the instructions that build the frame.
const PROLOGUE_BYTES: usize = 32;

/// Returns the layout at the pc whose code is loaded, which lies `left` bytes before the end of the
/// prologue.
#[inline(always)]
pub fn layout_in_prologue(target: &impl HotspotTarget, left: u64, bytes: u64) -> FrameLayout {
    let mut ahead = 0;
    while ahead < PROLOGUE_BYTES {
        if ahead as u64 >= left {
            break;
        }
        if let Some(layout) = target.layout_before(ahead, bytes) {
            return layout;
        }
        ahead += 1;
    }
    // Class initialization checks and the identity hash's fast path stand before the frame; after
    // it there is no more than the entry barrier.
    if left > PROLOGUE_BYTES as u64 { FrameLayout::AT_ENTRY } else { FrameLayout::built(bytes) }
}

/// Returns the layout at the pc, if the instruction `ahead` bytes from there builds the frame and
/// is the next one that does; `None` if it doesn't.
#[inline(always)]
pub fn layout_before(code: &LoadedCode, ahead: usize, bytes: u64) -> Option<FrameLayout> {
    let at = CODE_BEFORE + ahead;
    let word = word(code, at);
    let pushes = bytes == 16 && word & 0xff == PUSH_RBP;
    if pushes || AdjustRsp::sub(bytes - 8).is_at(word) {
        return Some(FrameLayout::AT_ENTRY);
    }
    if StoreRbp::above(bytes - 16).is_at(word) {
        return Some(FrameLayout::new(bytes - 8, SavedRbp::InRegister));
    }
    if bytes > 16 && AdjustRsp::sub(bytes - 16).is_at(word) {
        let is_pushed = ahead < push_before(code, at);
        return Some(if is_pushed { FrameLayout::RBP_PUSHED } else { FrameLayout::AT_ENTRY });
    }
    None
}

/// Returns how many bytes before the `sub` the `push rbp` is: it may be followed by `mov rbp, rsp`.
#[inline(always)]
fn push_before(code: &LoadedCode, at: usize) -> usize {
    if word(code, at - 1) & 0xff == PUSH_RBP { 1 } else { 4 }
}

/// Stretches of the stack that a prologue touches, at most, as far as they are recognised.
const MAX_BANGS: usize = 3;
/// `mov [rsp + disp32], eax`: three of seven bytes.
const BANG: u64 = 0x24_8489;
const BANG_BYTES: usize = 7;
/// `mov rbp, rsp`, as HotSpot and as others emit it.
const MOV_RBP_RSP: [u64; 2] = [0xec_8b48, 0xe5_8948];

/// Returns the layout in the second prologue of an on-stack replacement by C1, by which the
/// interpreter enters it: after the first one, amid code whose frame is built (openjdk
/// src/hotspot/cpu/x86/c1_LIRAssembler_x86.cpp, `osr_entry`).
#[inline(always)]
pub(super) fn layout_in_second_prologue(code: &LoadedCode, bytes: u64) -> Option<FrameLayout> {
    let pc = CODE_BEFORE;
    let sub = AdjustRsp::sub(bytes - 16);
    let pushes = |at: usize| word(code, at) & 0xff == PUSH_RBP;
    let moves = |at: usize| MOV_RBP_RSP.contains(&(word(code, at) & 0xff_ffff));
    if sub.is_at(word(code, pc)) && (pushes(pc - 1) || (pushes(pc - 4) && moves(pc - 3))) {
        return Some(FrameLayout::RBP_PUSHED);
    }
    if moves(pc) && pushes(pc - 1) && sub.is_at(word(code, pc + 3)) {
        return Some(FrameLayout::RBP_PUSHED);
    }
    let mut at = pc;
    while at < pc + MAX_BANGS * BANG_BYTES && begins_with(word(code, at), BANG) {
        at += BANG_BYTES;
    }
    let builds = sub.is_at(word(code, at + 1)) || (moves(at + 1) && sub.is_at(word(code, at + 4)));
    (pushes(at) && builds).then_some(FrameLayout::AT_ENTRY)
}

/// The frame that a prologue builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrologueShape {
    /// Nothing.
    Unknown,
    /// There is none, whatever its size is said to be: Graal's code that needs no stack begins with
    /// what can be patched by a jump.
    NoFrame,
    /// It is built `built` bytes after the entry point.
    Frame {
        built: u64,
        /// Code that neither calls anything nor stops at a safepoint needn't save rbp, and Graal
        /// doesn't.
        saves_rbp: bool,
    },
}

/// Distance from the `sub` in which the instruction that saves rbp is searched: between them is an
/// entry barrier.
const STORE_BYTES: usize = 24;
/// `nop` of five bytes. C1 and native wrappers have it too, where they don't touch the stack first;
/// `push rbp` follows.
const LONG_NOP: u64 = 0x44_1f0f;
const LONG_NOP_BYTES: usize = 5;

/// Reads the prologue that stores rbp later, at the verified entry point, whose code is loaded;
/// another one shows nothing. It is for code whose compiler doesn't say where the frame is
/// complete, as Graal of JDK 11 doesn't, or says it before rbp is stored.
#[inline(always)]
pub fn shape(target: &impl HotspotTarget, bytes: u64) -> PrologueShape {
    let code = target.code();
    let sub = AdjustRsp::sub(bytes - 8);
    let mut at = 0;
    while at < MAX_BANGS * BANG_BYTES && begins_with(word(code, at), BANG) {
        at += BANG_BYTES;
    }
    if begins_with(word(code, at), LONG_NOP) {
        at += LONG_NOP_BYTES;
        let next = word(code, at);
        if at == LONG_NOP_BYTES && next & 0xff != PUSH_RBP && !sub.is_at(next) {
            return PrologueShape::NoFrame;
        }
    }
    let first = word(code, at);
    if !sub.is_at(first) {
        return PrologueShape::Unknown;
    }
    at += if first & FOUR_BYTES == sub.short { 4 } else { 7 };
    match target.rbp_store_end(at, bytes) {
        0 => PrologueShape::Frame { built: at as u64, saves_rbp: false },
        built => PrologueShape::Frame { built, saves_rbp: true },
    }
}

/// Returns where the instruction ends that saves rbp, from `at` on; 0 if none does.
#[inline(always)]
pub fn rbp_store_end(code: &LoadedCode, at: usize, bytes: u64) -> u64 {
    let store = StoreRbp::above(bytes - 16);
    let mut ahead = 0;
    while ahead < STORE_BYTES {
        if store.is_at(word(code, at + ahead)) {
            return (at + ahead) as u64 + store.bytes();
        }
        ahead += 1;
    }
    0
}

/// `mov [rsp + offset], rbp`.
struct StoreRbp {
    mask: u64,
    bits: u64,
}

impl StoreRbp {
    #[inline(always)]
    fn above(offset: u64) -> Self {
        match offset {
            0 => Self { mask: FOUR_BYTES, bits: 0x242c_8948 },
            1..0x80 => Self { mask: FIVE_BYTES, bits: 0x246c_8948 | offset << 32 },
            _ => Self { mask: u64::MAX, bits: 0x24ac_8948 | offset << 32 },
        }
    }

    /// Returns true if a word begins with it.
    #[inline(always)]
    fn is_at(&self, word: u64) -> bool {
        word & self.mask == self.bits
    }

    #[inline(always)]
    fn bytes(&self) -> u64 {
        match self.mask {
            FOUR_BYTES => 4,
            FIVE_BYTES => 5,
            _ => 8,
        }
    }
}
