//! Bytes of machine code: a piece of it that was loaded, and the instructions that several analyses
//! know.

/// Bytes of code that are loaded at a time. A power of two.
pub const CODE_BYTES: usize = 64;
pub const CODE_WORDS: usize = CODE_BYTES / 8;
/// Bytes before the pc, where they are loaded for a frame's layout.
pub const CODE_BEFORE: usize = 24;

/// A piece of code that was loaded; the first byte is the lowest of the first word.
pub type LoadedCode = [u64; CODE_WORDS];

pub(super) const PUSH_RBP: u64 = 0x55;
pub(super) const POP_RBP: u64 = 0x5d;
pub(super) const RET: u64 = 0xc3;
/// `jmp rel32`.
pub(super) const JMP: u64 = 0xe9;
/// `vzeroupper`: three bytes.
pub(super) const VZEROUPPER: u64 = 0x77_f8c5;
/// `mov [r15 + disp32], r10`: three bytes.
pub(super) const STORE_R10: u64 = 0x97_894d;

pub(super) const FOUR_BYTES: u64 = (1 << 32) - 1;
pub(super) const FIVE_BYTES: u64 = (1 << 40) - 1;
/// As many bytes of a word as the longer `add` and `sub` have.
const SEVEN_BYTES: u64 = (1 << 56) - 1;
/// No instruction: the pattern of one that can't be.
const NEVER: u64 = u64::MAX;

/// Returns the eight bytes at `at`, the first one lowest.
#[inline(always)]
pub(super) fn word(code: &LoadedCode, at: usize) -> u64 {
    let (index, shift) = (at >> 3, (at & 7) << 3);
    let low = code[index & (CODE_WORDS - 1)] >> shift;
    if shift == 0 { low } else { low | code[(index + 1) & (CODE_WORDS - 1)] << (64 - shift) }
}

/// Returns true if a word begins with an instruction of which three bytes are known.
#[inline(always)]
pub(super) fn begins_with(word: u64, three_bytes: u64) -> bool {
    word & 0xff_ffff == three_bytes
}

/// Returns a bit for each byte that is `value` under `mask`. A function of its own, since all masks
/// at once don't fit the kernel's stack.
#[inline(never)]
pub(super) fn matching_bytes(code: &LoadedCode, mask: u64, value: u64) -> u64 {
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

/// `add rsp, size` or `sub rsp, size`, with the shorter and with the longer immediate.
pub(super) struct AdjustRsp {
    /// Four bytes.
    pub(super) short: u64,
    /// Seven bytes.
    long: u64,
}

impl AdjustRsp {
    /// ModRM bytes of `add rsp, imm` and `sub rsp, imm` (83 /0, 83 /5; 81 /0, 81 /5).
    const ADD: u64 = 0xc4;
    const SUB: u64 = 0xec;

    #[inline(always)]
    pub(super) fn add(size: u64) -> Self {
        Self::new(Self::ADD, size)
    }

    #[inline(always)]
    pub(super) fn sub(size: u64) -> Self {
        Self::new(Self::SUB, size)
    }

    #[inline(always)]
    fn new(modrm: u64, size: u64) -> Self {
        let short = if size < 0x80 { 0x8348 | modrm << 16 | size << 24 } else { NEVER };
        Self { short, long: 0x8148 | modrm << 16 | size << 24 }
    }

    /// Returns true if a word begins with it.
    #[inline(always)]
    pub(super) fn is_at(&self, word: u64) -> bool {
        word & 0xffff_ffff == self.short || word & SEVEN_BYTES == self.long
    }

    /// Returns true if a word ends with it.
    #[inline(always)]
    pub(super) fn ends_word(&self, word: u64) -> bool {
        word >> 32 == self.short || word >> 8 == self.long
    }

    /// Returns true if a word ends with it and `pop rbp`.
    #[inline(always)]
    pub(super) fn ends_word_with_pop(&self, word: u64) -> bool {
        word >> 24 == self.short | POP_RBP << 32 || word == self.long | POP_RBP << 56
    }
}
