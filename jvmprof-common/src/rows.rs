//! Unwind rows: the rules that find the caller's frame from one program counter of native code.
//!
//! A row says in terms of the stepped frame's own registers what DWARF's call frame information
//! (DWARF 5, 6.4; System V ABI AMD64 supplement, 3.7 for the register numbers) says for one range
//! of program counters, restricted to what an unwinder needs that only knows `rip`, `rsp` and
//! `rbp`. The caller's `rsp` is the CFA.
//!
//! All offsets are in bytes.

/// A general-purpose register by its number in instruction encodings: rax 0, rcx 1, rdx 2, rbx 3,
/// rsp 4, rbp 5, rsi 6, rdi 7, r8 to r15 (Intel SDM volume 2, table 2-2 with REX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(pub u8);

impl Register {
    pub const RAX: Self = Self(0);
    pub const RCX: Self = Self(1);
    pub const RBX: Self = Self(3);
    pub const RSP: Self = Self(4);
    pub const RBP: Self = Self(5);
    pub const R9: Self = Self(9);
    pub const R13: Self = Self(13);
    pub const R15: Self = Self(15);
}

/// The canonical frame address: the value of `rsp` before the call instruction pushed the
/// return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule {
    /// `rsp + offset`.
    Rsp(i32),
    /// `rbp + offset`.
    Rbp(i32),
    /// The rule that binutils writes for PLT sections: `rsp + 8`, and 8 more once the entry has
    /// pushed its index: `rsp + 8 + (((rip & 15) >= index_pushed) << 3)`. `index_pushed` (0 to 15)
    /// depends on the kind of entry (binutils `bfd/elf64-x86-64.c`): 11 in ordinary ones, 9 in
    /// those that start with `endbr64`, 10 or 5 with `bnd` prefixes.
    Plt { index_pushed: u8 },
    /// `*(rsp + at) + add`, the eight bytes at `rsp + at`: signal frames, hand-written assembly.
    RspIndirect { at: i32, add: i32 },
    /// `*(rbp + at) + add`: functions that realign their stack.
    RbpIndirect { at: i32, add: i32 },
    /// `*(rsp + 8 * index + at) + add`: assembly that keeps its caller's stack pointer after an
    /// array. The register is known of the interrupted frame only.
    RspIndexed { index: Register, at: i32, add: i32 },
    /// In a register: generated code that keeps its caller's stack pointer. Known of the
    /// interrupted frame only.
    Register(Register),
    /// A register and something: assembly, and functions that realign their stack. Known of the
    /// interrupted frame only.
    RegisterPlus { register: Register, add: i32 },
    /// `rbp + offset`, on another stack than `rsp`, which may lie above or below: code that
    /// switches stacks and keeps its frame pointer on the one that it came from.
    OtherStack(i32),
    /// The `gobuf` in which Go's runtime keeps a goroutine's registers while this thread runs on
    /// its system stack (go src/runtime/runtime2.go): `m.curg.sched`, where `m` is that of the `g`
    /// at `fs + tls`, and `curg` at `m + current`. It isn't the caller's `rsp`, but begins with it.
    /// No goroutine: the root.
    Goroutine { tls: i32, current: i16 },
    /// Something that these rules can't express.
    Unsupported,
}

/// Offset of `m` in Go's `g`; `sched` stands after it (go src/runtime/runtime2.go).
pub const GO_G_M: u64 = 0x30;
/// Offset of `sched` in Go's `g`.
pub const GO_G_SCHED: u64 = GO_G_M + 8;

/// Location of the caller's `rbp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbpRule {
    /// Still in `rbp`.
    Same,
    /// The eight bytes at `CFA + offset`.
    AtCfa(i32),
    /// The eight bytes at `rsp + offset`, with the stepped frame's own `rsp`: signal frames.
    AtRsp(i32),
    /// The eight bytes at `rbp + offset`, with the stepped frame's own `rbp`: functions that
    /// realign their stack.
    AtRbp(i32),
    /// Lost: the caller's value can't be had, and needn't be unless a row of the caller asks for
    /// it.
    Undefined,
    /// Something that these rules can't express.
    Unsupported,
}

/// Location of the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaRule {
    /// The eight bytes at `CFA + offset`; the offset is -8 in all ordinary code.
    AtCfa(i32),
    /// The eight bytes at `rsp + offset`, with the stepped frame's own `rsp`: signal frames,
    /// generated code. Negative where it was taken off the stack, and nothing has been written to
    /// its place since.
    AtRsp(i32),
    /// The eight bytes at `rbp + offset`, with the stepped frame's own `rbp`: generated code whose
    /// frame pointer is set up while its caller's stack pointer is elsewhere.
    AtRbp(i32),
    /// In a register: generated code that took it off the stack. Known of the interrupted frame
    /// only.
    Register(Register),
    /// Behind the system call that makes a thread: the eight bytes at `CFA - 8`; but where `rax` is
    /// zero, this is the new thread, which has none. Known of the interrupted frame only.
    AfterClone,
    /// There is none: this frame is the root of its thread's stack (`_start`, `clone3`).
    Undefined,
    /// Something that these rules can't express.
    Unsupported,
}

impl RaRule {
    /// Returns true where the return address isn't on the stack any more.
    #[inline(always)]
    pub const fn is_left_behind(&self) -> bool {
        matches!(self, Self::Register(_) | Self::AtRsp(i32::MIN..0))
    }
}

/// The rules that step one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub cfa: CfaRule,
    pub rbp: RbpRule,
    pub ra: RaRule,
    /// A signal frame (`S` in the CIE's augmentation): its caller was interrupted rather than left
    /// by a call, so that the address found is the caller's very program counter, to be looked up
    /// as it is instead of at address - 1.
    pub signal: bool,
}

/// A row's rules, each read when it is needed: what the verifier sees of one is forgotten before
/// the next.
pub trait RowRules {
    fn cfa(&self) -> CfaRule;
    fn rbp(&self) -> RbpRule;
    fn ra(&self) -> RaRule;
    fn is_signal(&self) -> bool;
}

impl RowRules for Row {
    #[inline(always)]
    fn cfa(&self) -> CfaRule {
        self.cfa
    }

    #[inline(always)]
    fn rbp(&self) -> RbpRule {
        self.rbp
    }

    #[inline(always)]
    fn ra(&self) -> RaRule {
        self.ra
    }

    #[inline(always)]
    fn is_signal(&self) -> bool {
        self.signal
    }
}

impl Row {
    /// The state of a function at its first instruction: only the return address has been pushed.
    pub const AT_CALL: Self =
        Self { cfa: CfaRule::Rsp(8), rbp: RbpRule::Same, ra: RaRule::AtCfa(-8), signal: false };

    /// Returns true if this frame is the root of its thread's stack.
    pub const fn is_root(&self) -> bool {
        matches!(self.ra, RaRule::Undefined)
    }
}

const _: () = assert!(size_of::<Row>() <= 32, "a row is copied for every frame");
