//! How far an interrupted nmethod's frame is built, by the instructions around the pc.
//!
//! Prologues are in [`super::prologue`]; epilogues are one of (x86_64.ad `MachEpilogNode`, c1_LIRAssembler_x86.cpp `return_op`)
//!
//! ```text
//! [add rsp, SIZE - 16]  pop rbp  [safepoint poll]  ret
//! leave  [safepoint poll]  [check for an exception]  ret
//! mov rbp, [rsp + SIZE - 16]  add rsp, SIZE - 8  [safepoint poll]  [vzeroupper]  ret
//! ```
//!
//! the last one being Graal's (openjdk jdk-11 src/jdk.internal.vm.compiler, `AMD64HotSpotReturnOp`).
//!
//! SIZE being the frame's size in bytes with the return address. The size is known, so that an immediate that equals it
//! tells these instructions from others.

use super::prologue::{prologue, second_prologue, state_before};
use super::{CODE_BEFORE, CODE_WORDS};

/// Code around a pc, which stands at byte [`CODE_BEFORE`].
pub(super) type Code = [u64; CODE_WORDS];

/// Where the caller's rbp is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedRbp {
    InRegister,
    /// Bytes above the stack pointer.
    AtSp(u64),
}

/// An interrupted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Where the return address is, in bytes above the stack pointer.
    pub return_address: u64,
    pub rbp: SavedRbp,
}

impl Leaf {
    /// Nothing is pushed yet, or everything is popped already.
    pub const AT_ENTRY: Self = Self { return_address: 0, rbp: SavedRbp::InRegister };
    /// Only rbp is pushed.
    pub(super) const RBP_PUSHED: Self = Self { return_address: 8, rbp: SavedRbp::AtSp(0) };

    /// The whole frame is there.
    #[inline(always)]
    pub const fn built(bytes: u64) -> Self {
        Self { return_address: bytes - 8, rbp: SavedRbp::AtSp(bytes - 16) }
    }

    /// Those of [`Self::to_bits`] that are 0 if rbp is in the register.
    pub(super) const RBP_BITS: u64 = FOUR_BYTES;

    /// As one word: offsets fit 31 bits.
    #[inline(always)]
    pub const fn to_bits(self) -> u64 {
        let rbp = match self.rbp {
            SavedRbp::InRegister => 0,
            SavedRbp::AtSp(offset) => offset | 1,
        };
        self.return_address << 32 | rbp
    }

    /// The reverse of [`Self::to_bits`]; offsets are multiples of 8.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        let rbp = bits & Self::RBP_BITS;
        let rbp = if rbp == 0 { SavedRbp::InRegister } else { SavedRbp::AtSp(rbp & !1) };
        Self { return_address: bits >> 32, rbp }
    }
}

/// Whether there is a `pcmpestri` around the pc: 66 0f 3a 61, or c4 x3 79 61.
#[inline(always)]
pub fn searches_string(code: &Code) -> bool {
    let legacy = bytes(code, 0xff, 0x0f) & bytes(code, 0xff, 0x3a) >> 1;
    let vex = bytes(code, 0x1f, 0x03) & bytes(code, 0xff, 0x79) >> 1;
    (legacy | vex) & bytes(code, 0xff, 0x61) >> 2 != 0
}

/// A bit for each byte that is `value` under `mask`. A function of its own, since all masks at once don't fit the kernel's stack.
#[inline(never)]
pub(super) fn bytes(code: &Code, mask: u64, value: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const LOW: u64 = 0x7f * ONES;
    let mut found = 0;
    let mut index = 0;
    while index < CODE_WORDS {
        let other = code[index] & (mask * ONES) ^ (value * ONES);
        let zeros = !(((other & LOW) + LOW) | other | LOW);
        found |= ((zeros >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (index * 8);
        index += 1;
    }
    found
}

/// The state at the pc whose surroundings are loaded, in a frame of `bytes` (16 or more). `left`: bytes to the end of the
/// prologue, 0 behind it.
#[inline(always)]
pub fn judge(code: &Code, left: u64, bytes: u64) -> Leaf {
    match left {
        0 => judge_body(code, bytes),
        _ => prologue(left, bytes, |ahead| state_before(code, ahead, bytes)),
    }
}

/// As [`judge`], behind the prologue.
#[inline(always)]
pub fn judge_body(code: &Code, bytes: u64) -> Leaf {
    if returns(code) { Leaf::AT_ENTRY } else { body(code, bytes) }
}

pub(super) const FOUR_BYTES: u64 = (1 << 32) - 1;
/// As many bytes of a word as the longer `add` and `sub` have.
const SEVEN_BYTES: u64 = (1 << 56) - 1;
/// No instruction: what a pattern is that can't be.
const NEVER: u64 = u64::MAX;

/// `mov rbx, imm64`: two of ten bytes.
const MOV_RBX: u64 = 0xbb48;
const MOV_RBX_BYTES: usize = 10;

/// How far behind its begin the pc is in what may be a static call's stub: `mov rbx, method`, `jmp adapter` (openjdk
/// src/hotspot/cpu/x86/compiledIC_x86.cpp, `emit_to_interp_stub`).
#[inline(always)]
pub(super) fn in_static_call_stub(code: &Code) -> Option<u64> {
    let pc = CODE_BEFORE;
    if word(code, pc) & 0xffff == MOV_RBX && word(code, pc + MOV_RBX_BYTES) & 0xff == JMP {
        return Some(0);
    }
    let is_at_jump = word(code, pc) & 0xff == JMP && word(code, pc - MOV_RBX_BYTES) & 0xffff == MOV_RBX;
    is_at_jump.then_some(MOV_RBX_BYTES as u64)
}

/// False if the frame is built at a pc behind the prologue for want of any instruction that [`judge`] looks for there: a byte of
/// each is at one of few places. That is so for nearly all pcs, and quicker to tell than which instruction it is.
#[inline(always)]
pub fn may_be_unbuilt(code: &Code) -> bool {
    // The pc is the first byte of the fourth word. `push rbp` and `pop rbp` differ in one bit.
    let [before3, before2, before, here, behind, behind2, ..] = *code;
    let push_or_pop = |word: u64, places| has(word & !splat(PUSH_RBP ^ POP_RBP), PUSH_RBP & POP_RBP, places);
    let leave = |word, places| has(word, LEAVE_CMP & 0xff, places);
    let store_r10 = |word, places| has(word, STORE_R10 >> 16, places);
    let found = push_or_pop(before, at([4, 7]))
        | push_or_pop(here, at([0, 7]))
        | push_or_pop(behind, at([6]))
        | push_or_pop(behind2, at([5]))
        | leave(before3, at([6]))
        | leave(before2, at([0, 1, 3, 4, 7]))
        | leave(before, at([0, 2, 7]))
        | has(before3, SKIP_POLL & 0xff, at([5]))
        | store_r10(before3, at([2, 3]))
        | store_r10(before2, at([1, 6]))
        | store_r10(before, at([3]))
        | store_r10(here, at([2]))
        | store_r10(behind, at([1, 4]))
        | has(here, RET, at([0, 2, 3, 4, 5, 6, 7]))
        | has(behind, RET, at([1, 2, 4, 5, 7]))
        | has(behind2, RET, at([0, 3]));
    found != 0
}

/// Bytes of a word, for [`has`].
const fn at<const N: usize>(places: [u32; N]) -> u64 {
    let mut mask = 0;
    let mut index = 0;
    while index < N {
        mask |= 0x80 << (places[index] * 8);
        index += 1;
    }
    mask
}

/// Not 0 if a word has this byte at one of these places; it may have it before one of them only.
#[inline(always)]
fn has(word: u64, byte: u64, places: u64) -> u64 {
    let zeros = word ^ splat(byte);
    zeros.wrapping_sub(splat(1)) & !zeros & places
}

/// A byte, eight times.
const fn splat(byte: u64) -> u64 {
    byte * 0x0101_0101_0101_0101
}

/// The state at a pc behind the prologue that isn't one of those that [`returns`] tells.
#[inline(always)]
pub fn body(code: &Code, bytes: u64) -> Leaf {
    let pc = CODE_BEFORE;
    if is_poll_stub(code) || is_behind_leave(code) {
        return Leaf::AT_ENTRY;
    }
    if bytes == 16 {
        return Leaf::built(bytes);
    }
    if let Some(state) = second_prologue(code, bytes) {
        return state;
    }
    let add = Adjust::rsp(ADD, bytes - 16);
    let before = word(code, pc - 8);
    if word(code, pc) & 0xff == POP_RBP && add.is_before(before) {
        return Leaf::RBP_PUSHED;
    }
    if add.is_before_pop(before) { Leaf::AT_ENTRY } else { Leaf::built(bytes) }
}

/// Whether the pc's `ret` is next but for a poll and `vzeroupper`, none of which moves the stack pointer: then the return address is on
/// top, however far behind the `pop rbp` is. Between them may be a check of the reserved zone of the stack
/// (`MacroAssembler::reserved_stack_check`, in methods with `@ReservedStackAccess` such as those of `ReentrantLock`).
///
/// The polls, with the lengths of their instructions:
///
/// ```text
/// 17+  cmp rsp, [r15 + disp8 / disp32]  ja stub              4 or 7, 6
/// 11+  mov reg, [r15 + disp32]          test [reg], eax      7, 2 or 3
/// 8    test [rip + disp32], eax                              6
/// 8    mov r10, imm64                   test [r10], eax      10, 3
/// ```
#[inline(always)]
pub fn returns(code: &Code) -> bool {
    ends(code, behind_first(code))
}

/// Where the code goes on behind the first instruction of a poll, if one is at the pc.
#[inline(always)]
pub fn behind_first(code: &Code) -> usize {
    let first = word(code, CODE_BEFORE) & 0xff_ffff;
    let bytes = match first {
        POLL_SHORT => 4,
        POLL_LONG => 7,
        _ if first & LOAD_MASK == POLL_LOAD => 7,
        _ if first & 0xffff == POLL_IMMEDIATE => 10,
        _ => 0,
    };
    CODE_BEFORE + bytes
}

/// Whether there is a `ret` here, or behind the second instruction of a poll and `vzeroupper`.
#[inline(always)]
pub fn ends(code: &Code, at: usize) -> bool {
    let second = word(code, at) & 0xff_ffff;
    let bytes = if matches!(second & 0xffff, JA | POLL_RIP) {
        6
    } else if second & TEST_LONG_MASK == TEST_LONG {
        3
    } else if second & TEST_MASK == TEST {
        2
    } else {
        0
    };
    let at = at + bytes;
    let at = if word(code, at) & 0xff_ffff == VZEROUPPER { at + 3 } else { at };
    word(code, at) & 0xff == RET
}

const PUSH_RBP: u64 = 0x55;
const POP_RBP: u64 = 0x5d;
const RET: u64 = 0xc3;
/// ModRM bytes of `add rsp, imm` and `sub rsp, imm` (83 /0, 83 /5; 81 /0, 81 /5).
const ADD: u64 = 0xc4;
pub(super) const SUB: u64 = 0xec;
/// `cmp rsp, [r15 + disp8]`, `cmp rsp, [r15 + disp32]`: three bytes.
const POLL_SHORT: u64 = 0x67_3b49;
const POLL_LONG: u64 = 0xa7_3b49;
/// `mov reg, [r15 + disp32]`: three bytes, but for the register.
const POLL_LOAD: u64 = 0x87_8b49;
const LOAD_MASK: u64 = 0xc7_fffb;
/// `test [rip + disp32], eax`, `mov r10, imm64`: two bytes.
const POLL_RIP: u64 = 0x0585;
const POLL_IMMEDIATE: u64 = 0xba49;
/// `ja rel32`: two bytes.
const JA: u64 = 0x870f;
/// `test [reg], eax`: two bytes, or three of the registers from r8 on, but for the register. The first four of them only: with others
/// the instruction may be longer.
const TEST: u64 = 0x0085;
const TEST_MASK: u64 = 0xfcff;
const TEST_LONG: u64 = 0x00_8541;
const TEST_LONG_MASK: u64 = 0xfc_ffff;
/// Three bytes.
const VZEROUPPER: u64 = 0x77_f8c5;

#[inline(always)]
pub(super) fn is_poll(word: u64, poll: u64) -> bool {
    word & 0xff_ffff == poll
}

/// `leave` with the begin of `cmp qword [r15 + disp8], imm32`, of the same with `imm8`, and of `test [r15 + disp8], 1`.
const LEAVE_CMP_LONG: u64 = 0x7f81_49c9;
const LEAVE_CMP: u64 = 0x7f83_49c9;
const LEAVE_TEST: u64 = 0x47f6_41c9;
/// `je` over the call of a poll, with the begin of the call's `mov r10, imm64`.
const SKIP_POLL: u64 = 0xba49_1674;
/// `cmp qword [r15 + disp8], imm8`: three bytes.
const CMP_R15: u64 = 0x7f_8349;

/// The end of a native wrapper, behind its `leave` (openjdk src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp,
/// `generate_native_wrapper`): `cmp [r15 + pending_exception], 0`, `jne`, `ret`, `jmp blob`; on late JDKs behind a poll:
/// `test [r15 + poll], 1`, `je`, `mov r10, pc`, `mov [r15 + saved_exception_pc], r10`, `jmp blob`.
#[inline(always)]
fn is_behind_leave(code: &Code) -> bool {
    let pc = CODE_BEFORE;
    let four = |distance: usize| word(code, pc - distance) & FOUR_BYTES;
    let checked = |distance: usize| {
        is_poll(word(code, pc - distance), CMP_R15)
            && word(code, pc - distance - 5) & 0xff == JMP
            && is_poll(word(code, pc - distance - 12), STORE_R10)
    };
    [1, 9, 15, 16].into_iter().any(|distance| four(distance) == LEAVE_CMP_LONG)
        || [1, 6, 12, 13].into_iter().any(|distance| four(distance) == LEAVE_CMP)
        || [1, 6, 8, 18].into_iter().any(|distance| four(distance) == LEAVE_TEST)
        || (four(19) == SKIP_POLL && word(code, pc) & 0xff == JMP)
        || [0, 5, 11, 12].into_iter().any(checked)
}

/// `lea r10, [rip + disp32]`, `mov [r15 + disp32], r10`: three bytes of each.
const LEA_R10: u64 = 0x15_8d4c;
const STORE_R10: u64 = 0x97_894d;
const JMP: u64 = 0xe9;

/// The out-of-line part of a poll at a return, behind the epilogue (openjdk src/hotspot/cpu/x86/c2_CodeStubs_x86.cpp
/// `C2SafepointPollStub`): `lea r10, [rip + pc]`, `mov [r15 + saved_exception_pc], r10`, `jmp blob`. C1's begins with
/// `mov r10, imm64` (c1_CodeStubs_x86.cpp, `C1SafepointPollStub`), as does what native
/// wrappers note before their call, which goes on otherwise.
#[inline(always)]
fn is_poll_stub(code: &Code) -> bool {
    let pc = CODE_BEFORE;
    (is_poll(word(code, pc), LEA_R10) && is_poll(word(code, pc + 7), STORE_R10))
        || (is_poll(word(code, pc - 7), LEA_R10) && is_poll(word(code, pc), STORE_R10))
        || (is_poll(word(code, pc - 14), LEA_R10)
            && is_poll(word(code, pc - 7), STORE_R10)
            && word(code, pc) & 0xff == JMP)
        || (word(code, pc) & 0xffff == POLL_IMMEDIATE
            && is_poll(word(code, pc + 10), STORE_R10)
            && word(code, pc + 17) & 0xff == JMP)
        || (word(code, pc - 10) & 0xffff == POLL_IMMEDIATE
            && is_poll(word(code, pc), STORE_R10)
            && word(code, pc + 7) & 0xff == JMP)
        || (word(code, pc - 17) & 0xffff == POLL_IMMEDIATE
            && is_poll(word(code, pc - 7), STORE_R10)
            && word(code, pc) & 0xff == JMP)
}

/// `add rsp, size` or `sub rsp, size`, with the shorter and with the longer immediate.
pub(super) struct Adjust {
    /// Four bytes.
    pub(super) short: u64,
    /// Seven bytes.
    long: u64,
}

impl Adjust {
    #[inline(always)]
    pub(super) fn rsp(modrm: u64, size: u64) -> Self {
        let short = if size < 0x80 { 0x8348 | modrm << 16 | size << 24 } else { NEVER };
        Self { short, long: 0x8148 | modrm << 16 | size << 24 }
    }

    /// Whether a word begins with it.
    #[inline(always)]
    pub(super) fn is_at(&self, word: u64) -> bool {
        word & 0xffff_ffff == self.short || word & SEVEN_BYTES == self.long
    }

    /// Whether a word ends with it.
    #[inline(always)]
    fn is_before(&self, word: u64) -> bool {
        word >> 32 == self.short || word >> 8 == self.long
    }

    /// Whether a word ends with it and `pop rbp`.
    #[inline(always)]
    fn is_before_pop(&self, word: u64) -> bool {
        word >> 24 == self.short | POP_RBP << 32 || word == self.long | POP_RBP << 56
    }
}

/// The eight bytes at `at`, the first one lowest.
#[inline(always)]
pub(super) fn word(code: &Code, at: usize) -> u64 {
    let (index, shift) = (at >> 3, (at & 7) << 3);
    let low = code[index & (CODE_WORDS - 1)] >> shift;
    if shift == 0 { low } else { low | code[(index + 1) & (CODE_WORDS - 1)] << (64 - shift) }
}
