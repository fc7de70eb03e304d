//! Ends of compiled methods: which instruction of one a pc is at.
//!
//! Epilogues are one of (x86_64.ad `MachEpilogNode`, c1_LIRAssembler_x86.cpp `return_op`)
//!
//! ```text
//! [add rsp, SIZE - 16]  pop rbp  [safepoint poll]  ret
//! leave  [safepoint poll]  [check for an exception]  ret
//! mov rbp, [rsp + SIZE - 16]  add rsp, SIZE - 8  [safepoint poll]  [vzeroupper]  ret
//! ```
//!
//! the last one being Graal's (openjdk jdk-11 src/jdk.internal.vm.compiler,
//! `AMD64HotSpotReturnOp`). SIZE is the frame's size in bytes with the return address; it is known,
//! so that an immediate that equals it distinguishes these instructions from others.

use super::instructions::{
    CODE_BEFORE, FOUR_BYTES, JMP, LoadedCode, POP_RBP, PUSH_RBP, RET, STORE_R10, VZEROUPPER, begins_with,
    word,
};

/// Returns where the code goes on after the first instruction of a poll, if one is at the pc.
///
/// The return address is on top of the stack where the pc's `ret` is next but for a poll and
/// `vzeroupper`, none of which moves the stack pointer, however far after the `pop rbp` is
/// ([`returns_at`]). Between them may be a check of the reserved zone of the stack
/// (`MacroAssembler::reserved_stack_check`, in methods with `@ReservedStackAccess` such as those of
/// `ReentrantLock`).
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
pub fn first_poll_end(code: &LoadedCode) -> usize {
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

/// Returns true if there is a `ret` here, or after the second instruction of a poll and
/// `vzeroupper`.
#[inline(always)]
pub fn returns_at(code: &LoadedCode, at: usize) -> bool {
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
/// `test [reg], eax`: two bytes, or three of the registers from r8 on, but for the register. The
/// first four of them only: with others the instruction may be longer.
const TEST: u64 = 0x0085;
const TEST_MASK: u64 = 0xfcff;
const TEST_LONG: u64 = 0x00_8541;
const TEST_LONG_MASK: u64 = 0xfc_ffff;
/// `leave` with the begin of `cmp qword [r15 + disp8], imm32`, of the same with `imm8`, and of
/// `test [r15 + disp8], 1`.
const LEAVE_CMP_LONG: u64 = 0x7f81_49c9;
const LEAVE_CMP: u64 = 0x7f83_49c9;
const LEAVE_TEST: u64 = 0x47f6_41c9;
/// `je` over the call of a poll, with the begin of the call's `mov r10, imm64`.
const SKIP_POLL: u64 = 0xba49_1674;
/// `cmp qword [r15 + disp8], imm8`: three bytes.
const CMP_R15: u64 = 0x7f_8349;

/// Returns true at the end of a native wrapper, after its `leave` (openjdk
/// src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `generate_native_wrapper`): `cmp [r15 +
/// pending_exception], 0`, `jne`, `ret`, `jmp blob`; on late JDKs after a poll: `test [r15 +
/// poll], 1`, `je`, `mov r10, pc`, `mov [r15 + saved_exception_pc], r10`, `jmp blob`.
#[inline(always)]
pub(super) fn is_after_leave(code: &LoadedCode) -> bool {
    let pc = CODE_BEFORE;
    let four = |distance: usize| word(code, pc - distance) & FOUR_BYTES;
    let checked = |distance: usize| {
        begins_with(word(code, pc - distance), CMP_R15)
            && word(code, pc - distance - 5) & 0xff == JMP
            && begins_with(word(code, pc - distance - 12), STORE_R10)
    };
    [1, 9, 15, 16].into_iter().any(|distance| four(distance) == LEAVE_CMP_LONG)
        || [1, 6, 12, 13].into_iter().any(|distance| four(distance) == LEAVE_CMP)
        || [1, 6, 8, 18].into_iter().any(|distance| four(distance) == LEAVE_TEST)
        || (four(19) == SKIP_POLL && word(code, pc) & 0xff == JMP)
        || [0, 5, 11, 12].into_iter().any(checked)
}

/// `lea r10, [rip + disp32]`: three bytes.
const LEA_R10: u64 = 0x15_8d4c;

/// Returns true in the out-of-line part of a poll at a return, after the epilogue (openjdk
/// src/hotspot/cpu/x86/c2_CodeStubs_x86.cpp `C2SafepointPollStub`): `lea r10, [rip + pc]`, `mov
/// [r15 + saved_exception_pc], r10`, `jmp blob`. C1's begins with `mov r10, imm64`
/// (c1_CodeStubs_x86.cpp, `C1SafepointPollStub`), as does what native wrappers note before their
/// call, which goes on otherwise.
#[inline(always)]
pub(super) fn is_poll_stub(code: &LoadedCode) -> bool {
    let pc = CODE_BEFORE;
    (begins_with(word(code, pc), LEA_R10) && begins_with(word(code, pc + 7), STORE_R10))
        || (begins_with(word(code, pc - 7), LEA_R10) && begins_with(word(code, pc), STORE_R10))
        || (begins_with(word(code, pc - 14), LEA_R10)
            && begins_with(word(code, pc - 7), STORE_R10)
            && word(code, pc) & 0xff == JMP)
        || (word(code, pc) & 0xffff == POLL_IMMEDIATE
            && begins_with(word(code, pc + 10), STORE_R10)
            && word(code, pc + 17) & 0xff == JMP)
        || (word(code, pc - 10) & 0xffff == POLL_IMMEDIATE
            && begins_with(word(code, pc), STORE_R10)
            && word(code, pc + 7) & 0xff == JMP)
        || (word(code, pc - 17) & 0xffff == POLL_IMMEDIATE
            && begins_with(word(code, pc - 7), STORE_R10)
            && word(code, pc) & 0xff == JMP)
}

/// Returns false if the frame is built at a pc after the prologue, for want of any instruction
/// that [`super::layout_at_pc`] knows: a byte of each is at one of few positions. That is so
/// for nearly all pcs, and quicker to find out than which instruction it is.
#[inline(always)]
pub fn may_be_unbuilt(code: &LoadedCode) -> bool {
    // The pc is the first byte of the fourth word. `push rbp` and `pop rbp` differ in one bit.
    let [before3, before2, before, here, after, after2, ..] = *code;
    let push_or_pop = |word: u64, places| has(word & !splat(PUSH_RBP ^ POP_RBP), PUSH_RBP & POP_RBP, places);
    let leave = |word, places| has(word, LEAVE_CMP & 0xff, places);
    let store_r10 = |word, places| has(word, STORE_R10 >> 16, places);
    let found = push_or_pop(before, at([4, 7]))
        | push_or_pop(here, at([0, 7]))
        | push_or_pop(after, at([6]))
        | push_or_pop(after2, at([5]))
        | leave(before3, at([6]))
        | leave(before2, at([0, 1, 3, 4, 7]))
        | leave(before, at([0, 2, 7]))
        | has(before3, SKIP_POLL & 0xff, at([5]))
        | store_r10(before3, at([2, 3]))
        | store_r10(before2, at([1, 6]))
        | store_r10(before, at([3]))
        | store_r10(here, at([2]))
        | store_r10(after, at([1, 4]))
        | has(here, RET, at([0, 2, 3, 4, 5, 6, 7]))
        | has(after, RET, at([1, 2, 4, 5, 7]))
        | has(after2, RET, at([0, 3]));
    found != 0
}

/// Returns the mask of some bytes of a word, for [`has`].
const fn at<const N: usize>(places: [u32; N]) -> u64 {
    let mut mask = 0;
    let mut index = 0;
    while index < N {
        mask |= 0x80 << (places[index] * 8);
        index += 1;
    }
    mask
}

/// Returns 0 unless a word has this byte at one of these positions, or at a lower one.
#[inline(always)]
fn has(word: u64, byte: u64, places: u64) -> u64 {
    let zeros = word ^ splat(byte);
    zeros.wrapping_sub(splat(1)) & !zeros & places
}

/// A byte, eight times.
const fn splat(byte: u64) -> u64 {
    byte * 0x0101_0101_0101_0101
}
