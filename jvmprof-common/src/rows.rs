//! Unwind rows: how to find the caller's frame from one program counter of native code.
//!
//! A row says in terms of the stepped frame's own registers what DWARF's call frame information (DWARF 5, 6.4;
//! System V ABI AMD64 supplement, 3.7 for the register numbers) says for one range of program counters, restricted to
//! what an unwinder needs that only knows `rip`, `rsp` and `rbp`. The caller's `rsp` is the CFA.
//!
//! All offsets are in bytes.

/// Where the canonical frame address is: the value of `rsp` before the call instruction pushed the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule {
    /// `rsp + offset`.
    Rsp(i32),
    /// `rbp + offset`.
    Rbp(i32),
    /// What binutils writes for PLT sections: `rsp + 8`, and 8 more once the entry has pushed its index:
    /// `rsp + 8 + (((rip & 15) >= index_pushed) << 3)`. `index_pushed` (0 to 15) depends on the kind of entry (binutils
    /// `bfd/elf64-x86-64.c`): 11 in ordinary ones, 9 in those that start with `endbr64`, 10 or 5 with `bnd` prefixes.
    Plt { index_pushed: u8 },
    /// `*(rsp + at) + add`, the eight bytes at `rsp + at`: signal frames, hand-written assembly.
    RspIndirect { at: i32, add: i32 },
    /// `*(rbp + at) + add`: functions that realign their stack.
    RbpIndirect { at: i32, add: i32 },
    /// Something that these rules can't express.
    Unsupported,
}

/// Where the caller's `rbp` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbpRule {
    /// Still in `rbp`.
    Same,
    /// The eight bytes at `CFA + offset`.
    AtCfa(i32),
    /// The eight bytes at `rsp + offset`, with the stepped frame's own `rsp`: signal frames.
    AtRsp(i32),
    /// The eight bytes at `rbp + offset`, with the stepped frame's own `rbp`: functions that realign their stack.
    AtRbp(i32),
    /// Lost: the caller's value can't be had, and needn't be unless a row of the caller asks for it.
    Undefined,
    /// Something that these rules can't express.
    Unsupported,
}

/// Where the return address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaRule {
    /// The eight bytes at `CFA + offset`; the offset is -8 in all ordinary code.
    AtCfa(i32),
    /// The eight bytes at `rsp + offset`, with the stepped frame's own `rsp`: signal frames.
    AtRsp(i32),
    /// There is none: this frame is the root of its thread's stack (`_start`, `clone3`).
    Undefined,
    /// Something that these rules can't express.
    Unsupported,
}

/// How to step one frame of native code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub cfa: CfaRule,
    pub rbp: RbpRule,
    pub ra: RaRule,
    /// A signal frame (`S` in the CIE's augmentation): its caller was interrupted rather than left by a call, so that
    /// the address found is the caller's very program counter, to be looked up as it is instead of at address - 1.
    pub signal: bool,
}

impl Row {
    /// The state of a function at its first instruction: only the return address has been pushed.
    pub const AT_CALL: Self =
        Self { cfa: CfaRule::Rsp(8), rbp: RbpRule::Same, ra: RaRule::AtCfa(-8), signal: false };

    /// Whether this frame is the root of its thread's stack.
    pub const fn is_root(&self) -> bool {
        matches!(self.ra, RaRule::Undefined)
    }

    /// Whether an unwinder can follow every rule of this row (a root is followed by stopping there).
    pub const fn is_supported(&self) -> bool {
        self.is_root()
            || !(matches!(self.cfa, CfaRule::Unsupported)
                || matches!(self.rbp, RbpRule::Unsupported)
                || matches!(self.ra, RaRule::Unsupported))
    }
}

const _: () = assert!(size_of::<Row>() <= 32, "a row is copied for every frame");
