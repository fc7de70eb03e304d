//! The tables through which the kernel program knows a process's code: regions, and unwind rows
//! packed into four bytes.
//!
//! All tables are parts of large arrays that the daemon allots. A process's regions are sorted by
//! address. A table of rows covers the code of one file (or the stubs of one JVM) in pages of 4
//! KiB; a row is the low 16 bits of the address from which on it holds, and a 16-bit number of a
//! rule that all tables share. A row holds up to the next one in its page; each page begins with
//! one.

use crate::rows::{CfaRule, RaRule, RbpRule, Register, Row, RowRules};
use crate::thread_local::ThreadLocalVariable;

/// Bytes of code in a page of rows, as a power of two.
pub const PAGE_SHIFT: u32 = 12;
/// Rows in one element of the row array.
pub const CHUNK_ROWS: usize = 256;
/// Rules, at most: their number has 16 bits.
pub const MAX_RULES: u32 = 1 << 14;
/// Steps that find one of a process's regions: it has fewer than 2^12.
pub const REGION_STEPS: u32 = 12;
pub const MAX_REGIONS: u32 = 1 << REGION_STEPS;
/// Steps that find a row in its page, which has at most one for each address.
pub const ROW_STEPS: u32 = PAGE_SHIFT;
/// The rule of code without a row.
pub const NO_RULE: u16 = 0;

/// Nanoseconds in a tick of `/proc/PID/stat`: `USER_HZ` is 100 on x86-64 whatever the kernel's own
/// rate.
pub const NS_PER_TICK: u64 = 10_000_000;

/// A process that the daemon has published to the kernel. Element of a hash map by thread group id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessEntry {
    /// [`crate::abi::SampleHeader::start_ns`] / [`NS_PER_TICK`]: an entry of an earlier process
    /// with the pid isn't used.
    pub start_ticks: u64,
    /// Index of its first region.
    pub first_region: u32,
    /// Number of its regions, below [`MAX_REGIONS`].
    pub regions: u32,
    /// Index of its [`crate::jvm::Jvm`].
    pub jvm: u32,
    /// Incremented on every publish of a process; invalidates what the CPUs have cached under an
    /// older one.
    pub epoch: u32,
    /// `offset`, `module` and `dtv` of the variable of its threads' contexts: with the entry, since
    /// looking it up by itself for each sample takes longer than one of the reads that follow. The
    /// first two are 0 where there is none.
    pub context_offset: u64,
    pub context_module: u32,
    pub context_dtv: u32,
}

impl ProcessEntry {
    /// Returns where its threads have the variable of their contexts.
    #[inline(always)]
    pub const fn context_variable(&self) -> Option<ThreadLocalVariable> {
        let Self { start_ticks, context_offset: offset, context_module: module, context_dtv: dtv, .. } =
            *self;
        // The thread pointer itself is no place of a variable.
        if offset == 0 && module == 0 {
            return None;
        }
        Some(ThreadLocalVariable { start_ticks, offset, module, dtv })
    }

    /// Sets it; `None`: there is none.
    pub fn set_context_variable(&mut self, variable: Option<ThreadLocalVariable>) {
        let ThreadLocalVariable { offset, module, dtv, .. } = variable.unwrap_or_default();
        (self.context_offset, self.context_module, self.context_dtv) = (offset, module, dtv);
    }
}

/// A stretch of executable memory. Element of an array.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The distance of a pc from the address that its table has for it.
    pub bias: u64,
    /// Index of its [`RowTable`], for [`Region::ROWS`].
    pub table: u32,
    pub kind: u32,
}

impl Region {
    /// Unwind rows.
    pub const ROWS: u32 = 1;
    /// The code cache of the process's JVM.
    pub const HOTSPOT: u32 = 2;
    /// No rows: code that keeps frame pointers, for all that is known.
    pub const FRAME_POINTER: u32 = 3;
    /// Rows exist, but aren't in the kernel's tables.
    pub const ROWS_MISSING: u32 = 4;
    /// As [`Self::FRAME_POINTER`], but no thread begins there: generated code of which nothing is
    /// known yet.
    pub const GENERATED: u32 = 5;
}

/// The pages of a table of rows. Element of an array; element 0 is no table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowTable {
    /// Number of the first page: an address >> [`PAGE_SHIFT`].
    pub first_page: u64,
    /// Number of pages.
    pub pages: u32,
    /// Index of the first [`RowPage`].
    pub index: u32,
}

/// A page of rows. Element of an array.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowPage {
    /// Index of its first row.
    pub first: u32,
    /// Number of its rows, 1 to 4,096.
    pub rows: u32,
}

/// Rows lie in the array in chunks, so that many are written with one system call.
pub type RowChunk = [u32; CHUNK_ROWS];

/// A row: the low bits of its address, and its rule.
#[inline(always)]
pub const fn pack_row(address: u64, rule: u16) -> u32 {
    ((address & 0xffff) << 16) as u32 | rule as u32
}

/// The rule of the last row that begins at or before `address`, of the `rows` (1 or more) sorted
/// rows from index `first` on, by halving; `row` reads one by its index, and `None` ends the
/// search.
///
/// `row` must not add the index to a pointer: the verifier would then follow each path of the
/// search ([`crate::verifier::BarrierVar`] helps).
#[inline(always)]
pub fn find_rule(
    address: u64,
    first: u32,
    rows: u32,
    mut row: impl FnMut(u32) -> Option<u32>,
) -> Option<u16> {
    let low = (address & 0xffff) as u32;
    let end = first.wrapping_add(rows);
    let mut at = first;
    let mut step = 1u32 << (ROW_STEPS - 1);
    let mut turn = 0;
    while turn < ROW_STEPS {
        let next = at.wrapping_add(step);
        if next < end && row(next)? >> 16 <= low {
            at = next;
        }
        step >>= 1;
        turn += 1;
    }
    let found = row(at)?;
    if found >> 16 > low { None } else { Some(found as u16) }
}

/// A row's rules in 16 bytes. Element of an array; element [`NO_RULE`] is no rule.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PackedRule {
    /// Kinds of the CFA, rbp and return address rules, four bits each; then the signal bit; the
    /// upper half is what a CFA read from memory has added, as `i16`, or another offset that a CFA
    /// needs.
    kinds: u32,
    cfa: i32,
    rbp: i32,
    ra: i32,
}

const CFA_RSP: u32 = 1;
const CFA_RBP: u32 = 2;
const CFA_PLT: u32 = 3;
const CFA_RSP_INDIRECT: u32 = 4;
const CFA_RBP_INDIRECT: u32 = 5;
const CFA_REGISTER: u32 = 6;
const CFA_OTHER_STACK: u32 = 7;
const CFA_GOROUTINE: u32 = 8;
const CFA_REGISTER_PLUS: u32 = 9;
/// The register in the low byte, the offset above it.
const CFA_RSP_INDEXED: u32 = 10;
const RBP_SAME: u32 = 1;
const RBP_AT_CFA: u32 = 2;
const RBP_AT_RSP: u32 = 3;
const RBP_AT_RBP: u32 = 4;
const RBP_UNDEFINED: u32 = 5;
const RA_AT_CFA: u32 = 1;
const RA_AT_RSP: u32 = 2;
const RA_AT_RBP: u32 = 3;
const RA_REGISTER: u32 = 4;
const RA_UNDEFINED: u32 = 5;
const RA_AFTER_CLONE: u32 = 6;
const SIGNAL: u32 = 1 << 12;

impl PackedRule {
    /// Returns the entry as two words, to lie where other things may lie.
    #[inline(always)]
    pub const fn to_words(self) -> [u64; 2] {
        [
            self.kinds as u64 | (self.cfa as u32 as u64) << 32,
            self.rbp as u32 as u64 | (self.ra as u32 as u64) << 32,
        ]
    }

    /// The reverse of [`Self::to_words`].
    #[inline(always)]
    pub const fn from_words(words: [u64; 2]) -> Self {
        let [first, second] = words;
        Self { kinds: first as u32, cfa: (first >> 32) as i32, rbp: second as i32, ra: (second >> 32) as i32 }
    }

    /// A row, packed. What doesn't fit becomes an unsupported rule.
    pub fn pack(row: &Row) -> Self {
        let (cfa_kind, cfa, add) = match row.cfa {
            CfaRule::Rsp(offset) => (CFA_RSP, offset, 0),
            CfaRule::Rbp(offset) => (CFA_RBP, offset, 0),
            CfaRule::Plt { index_pushed } => (CFA_PLT, i32::from(index_pushed), 0),
            CfaRule::RspIndirect { at, add } => (CFA_RSP_INDIRECT, at, add),
            CfaRule::RbpIndirect { at, add } => (CFA_RBP_INDIRECT, at, add),
            CfaRule::RspIndexed { index, at, add } if at << 8 >> 8 == at => {
                (CFA_RSP_INDEXED, i32::from(index.0) | at << 8, add)
            }
            CfaRule::Register(register) => (CFA_REGISTER, i32::from(register.0), 0),
            CfaRule::RegisterPlus { register, add } => (CFA_REGISTER_PLUS, i32::from(register.0), add),
            CfaRule::OtherStack(offset) => (CFA_OTHER_STACK, offset, 0),
            CfaRule::Goroutine { tls, current } => (CFA_GOROUTINE, tls, i32::from(current)),
            CfaRule::RspIndexed { .. } | CfaRule::Unsupported => (0, 0, 0),
        };
        let (cfa_kind, add) = match i16::try_from(add) {
            Ok(add) => (cfa_kind, add),
            Err(_) => (0, 0),
        };
        let (rbp_kind, rbp) = match row.rbp {
            RbpRule::Same => (RBP_SAME, 0),
            RbpRule::AtCfa(offset) => (RBP_AT_CFA, offset),
            RbpRule::AtRsp(offset) => (RBP_AT_RSP, offset),
            RbpRule::AtRbp(offset) => (RBP_AT_RBP, offset),
            RbpRule::Undefined => (RBP_UNDEFINED, 0),
            RbpRule::Unsupported => (0, 0),
        };
        let (ra_kind, ra) = match row.ra {
            RaRule::AtCfa(offset) => (RA_AT_CFA, offset),
            RaRule::AtRsp(offset) => (RA_AT_RSP, offset),
            RaRule::AtRbp(offset) => (RA_AT_RBP, offset),
            RaRule::Register(register) => (RA_REGISTER, i32::from(register.0)),
            RaRule::AfterClone => (RA_AFTER_CLONE, 0),
            RaRule::Undefined => (RA_UNDEFINED, 0),
            RaRule::Unsupported => (0, 0),
        };
        let signal = if row.signal { SIGNAL } else { 0 };
        let kinds = cfa_kind | rbp_kind << 4 | ra_kind << 8 | signal | u32::from(add as u16) << 16;
        Self { kinds, cfa, rbp, ra }
    }

    /// The row.
    pub fn unpack(&self) -> Row {
        Row { cfa: self.cfa(), rbp: self.rbp(), ra: self.ra(), signal: self.is_signal() }
    }
}

impl RowRules for PackedRule {
    #[inline(always)]
    fn cfa(&self) -> CfaRule {
        let add = i32::from((self.kinds >> 16) as u16 as i16);
        match self.kinds & 15 {
            CFA_RSP => CfaRule::Rsp(self.cfa),
            CFA_RBP => CfaRule::Rbp(self.cfa),
            CFA_PLT => CfaRule::Plt { index_pushed: self.cfa as u8 },
            CFA_RSP_INDIRECT => CfaRule::RspIndirect { at: self.cfa, add },
            CFA_RBP_INDIRECT => CfaRule::RbpIndirect { at: self.cfa, add },
            CFA_RSP_INDEXED => {
                CfaRule::RspIndexed { index: Register(self.cfa as u8), at: self.cfa >> 8, add }
            }
            CFA_REGISTER => CfaRule::Register(Register(self.cfa as u8)),
            CFA_REGISTER_PLUS => CfaRule::RegisterPlus { register: Register(self.cfa as u8), add },
            CFA_OTHER_STACK => CfaRule::OtherStack(self.cfa),
            CFA_GOROUTINE => CfaRule::Goroutine { tls: self.cfa, current: add as i16 },
            _ => CfaRule::Unsupported,
        }
    }

    #[inline(always)]
    fn rbp(&self) -> RbpRule {
        match self.kinds >> 4 & 15 {
            RBP_SAME => RbpRule::Same,
            RBP_AT_CFA => RbpRule::AtCfa(self.rbp),
            RBP_AT_RSP => RbpRule::AtRsp(self.rbp),
            RBP_AT_RBP => RbpRule::AtRbp(self.rbp),
            RBP_UNDEFINED => RbpRule::Undefined,
            _ => RbpRule::Unsupported,
        }
    }

    #[inline(always)]
    fn ra(&self) -> RaRule {
        match self.kinds >> 8 & 15 {
            RA_AT_CFA => RaRule::AtCfa(self.ra),
            RA_AT_RSP => RaRule::AtRsp(self.ra),
            RA_AT_RBP => RaRule::AtRbp(self.ra),
            RA_REGISTER => RaRule::Register(Register(self.ra as u8)),
            RA_AFTER_CLONE => RaRule::AfterClone,
            RA_UNDEFINED => RaRule::Undefined,
            _ => RaRule::Unsupported,
        }
    }

    #[inline(always)]
    fn is_signal(&self) -> bool {
        self.kinds & SIGNAL != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_packing() {
        let cfas = [
            CfaRule::Rsp(8),
            CfaRule::Rbp(16),
            CfaRule::Plt { index_pushed: 11 },
            CfaRule::RspIndirect { at: -8, add: 8 },
            CfaRule::RbpIndirect { at: -8, add: -16 },
            CfaRule::RspIndexed { index: Register::R9, at: -8, add: 8 },
            CfaRule::Register(Register::R13),
            CfaRule::RegisterPlus { register: Register::RBX, add: 24 },
            CfaRule::OtherStack(16),
            CfaRule::Goroutine { tls: -8, current: 0xb8 },
            CfaRule::Unsupported,
        ];
        let rbps = [
            RbpRule::Same,
            RbpRule::AtCfa(-16),
            RbpRule::AtRsp(8),
            RbpRule::AtRbp(0),
            RbpRule::Undefined,
            RbpRule::Unsupported,
        ];
        let ras = [
            RaRule::AtCfa(-8),
            RaRule::AtRsp(i32::MAX),
            RaRule::AtRbp(i32::MIN),
            RaRule::Register(Register::RAX),
            RaRule::AfterClone,
            RaRule::Undefined,
            RaRule::Unsupported,
        ];
        for cfa in cfas {
            for rbp in rbps {
                for ra in ras {
                    for signal in [false, true] {
                        let row = Row { cfa, rbp, ra, signal };
                        let packed = PackedRule::pack(&row);
                        assert_eq!(packed.unpack(), row);
                        assert_eq!(PackedRule::from_words(packed.to_words()), packed);
                    }
                }
            }
        }
        for too_far in [
            CfaRule::RbpIndirect { at: 0, add: 1 << 20 },
            CfaRule::RspIndexed { index: Register::R9, at: 1 << 23, add: 0 },
        ] {
            let row = Row { cfa: too_far, ..Row::AT_CALL };
            assert_eq!(PackedRule::pack(&row).unpack().cfa, CfaRule::Unsupported);
        }
    }

    #[test]
    fn the_last_row_at_or_before_an_address_is_found() {
        for count in [1u32, 2, 3, 7, 8, 9, 1000, 4096] {
            let before = [u32::MAX; 3];
            let rows = (0..count).map(|at| pack_row(u64::from(at), at as u16));
            let rows: Vec<u32> = before.into_iter().chain(rows).collect();
            for address in [0u64, 1, 5, 6, 7, 8, 999, 1000, 4095] {
                let found = find_rule(address | 0x7_0000, 3, count, |at| {
                    Some(rows.get(at as usize).copied().unwrap_or(0))
                });
                assert_eq!(found, Some(address.min(u64::from(count - 1)) as u16), "{address} of {count}");
            }
        }
        assert_eq!(
            find_rule(3, 0, 1, |_| Some(pack_row(4, 1))),
            None,
            "a page that begins later has no row there"
        );
        assert_eq!(find_rule(3, 0, 1, |_| None), None);
    }
}
