//! Rows for the ends of functions, where the compiler describes only their beginnings.
//!
//! GCC before 4.5 has rows for how a frame is built, and none for how it is taken down: from the
//! first `pop` to the `ret` the row is still that of the whole frame. Libraries in jars are built
//! by such compilers so that they load everywhere (that of sqlite-jdbc 3.54 by 4.1). What the code
//! takes off the stack before it leaves is counted, and believed only if it is the whole frame.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Row};
use memchr::memmem;

use super::cfi_pattern_search::FunctionRows;
use super::row_overrides::RowOverride;
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfFile, Section};
use crate::native::unwind_rows::cfi::CallFrames;
use crate::types::Svma;

/// Encodings of `DW_CFA_def_cfa_offset`, 8 and `DW_CFA_def_cfa`, `rsp`, 8 (DWARF 5, 7.24): the row
/// of a frame that was taken down. The latter is also how a CIE begins.
const TAKEN_DOWN: [&[u8]; 2] = [&[0x0e, 0x08], &[0x0c, 0x07, 0x08]];
/// Bytes of `.eh_frame` that are searched for them, and for each of them, at least, where
/// functions' ends aren't described. Other compilers write one for each 35 to 120.
const SAMPLE: usize = 1 << 20;
const BYTES_FOR_ONE: usize = 4 << 10;
/// Bytes of the longest function that is decoded, and of all of a file's. SQLite's longest has 25
/// KB, and all have 800.
const MAX_FUNCTION: u64 = 256 << 10;
const MAX_CODE: u64 = 8 << 20;
/// Most rows of a file. SQLite has some ten thousand.
const MAX_ROWS: usize = 64 << 10;
/// Instructions of an epilogue, at most, and bytes of a frame.
const MAX_EPILOGUE: usize = 32;
const MAX_FRAME: i32 = 1 << 20;

/// Returns true if nearly no function has a row for the time when its frame was taken down.
pub(crate) fn lacks_epilogues(frames: &CallFrames) -> bool {
    is_without_epilogues(&frames.bytes.get(0, SAMPLE))
}

fn is_without_epilogues(eh_frame: &[u8]) -> bool {
    let described: usize =
        TAKEN_DOWN.iter().map(|encoding| memmem::find_iter(eh_frame, *encoding).count()).sum();
    described <= 1 + eh_frame.len() / BYTES_FOR_ONE
}

/// Returns rows for the ends of a file's functions, if its compiler doesn't describe them.
pub(crate) fn rows<S: ByteSource>(frames: &CallFrames, file: &ElfFile<S>) -> Vec<RowOverride> {
    let mut found = Vec::new();
    if !lacks_epilogues(frames) {
        return found;
    }
    let sections = file.code();
    let mut factory = InstructionInfoFactory::new();
    let mut left = MAX_CODE;
    for ((start, end), entry) in frames.index.ranges().zip(frames.index.entries()) {
        let length = end.0.saturating_sub(start.0);
        if length > MAX_FUNCTION.min(left) {
            continue;
        }
        left -= length;
        let Some(bytes) = code(file, &sections, start, length) else { continue };
        let code: Vec<Instruction> =
            Decoder::with_ip(64, &bytes, start.0, DecoderOptions::NONE).into_iter().collect();
        let own = FunctionRows::of(frames, (start, end, entry));
        found.extend(epilogue_rows(&code, &mut factory, &|pc: u64| own.row(pc)));
        if found.len() > MAX_ROWS {
            found.truncate(MAX_ROWS);
            break;
        }
    }
    found
}

fn code<S: ByteSource>(file: &ElfFile<S>, sections: &[Section], start: Svma, length: u64) -> Option<Vec<u8>> {
    let holds = |section: &&Section| {
        start.0.checked_sub(section.address.0).is_some_and(|at| at.saturating_add(length) <= section.size)
    };
    let section = sections.iter().find(holds)?;
    file.read_piece(section, start.0 - section.address.0, length).ok()
}

/// Returns the rows for all ends of a function. `row_at`: the row by its frame information.
fn epilogue_rows(
    code: &[Instruction],
    factory: &mut InstructionInfoFactory,
    row_at: &impl Fn(u64) -> Option<Row>,
) -> Vec<RowOverride> {
    let (Some(first), Some(last)) = (code.first(), code.last()) else { return Vec::new() };
    let own = first.ip()..last.next_ip();
    let leaves = |it: &Instruction| match it.flow_control() {
        FlowControl::Return => it.mnemonic() == Mnemonic::Ret && it.op_count() == 0,
        FlowControl::UnconditionalBranch => !own.contains(&it.near_branch_target()),
        _ => false,
    };
    let mut found = Vec::new();
    for end in (0..code.len()).filter(|index| leaves(&code[*index])) {
        if row_at(code[end].ip()).is_some_and(|row| row.cfa != CfaRule::Rsp(8))
            && let Some((begin, row)) = begin_of_epilogue(&code[..end], factory, row_at)
        {
            push_rows(&code[begin..=end], row, &mut found);
        }
    }
    found
}

/// What an instruction of an epilogue does to the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Takes so many bytes off the stack.
    Takes(i32),
    /// Takes the caller's `rbp` off the stack.
    PopsRbp,
    /// `leave`: takes all but the return address off the stack.
    Leaves,
    None,
    /// Anything that no epilogue does.
    Other,
}

impl Effect {
    fn of(it: &Instruction) -> Self {
        let is_immediate = matches!(it.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
        match it.mnemonic() {
            Mnemonic::Leave => Self::Leaves,
            Mnemonic::Pop if it.op0_register() == Register::RBP => Self::PopsRbp,
            Mnemonic::Pop if it.op0_register() == Register::RSP => Self::Other,
            Mnemonic::Pop if it.op0_register().is_gpr64() => Self::Takes(8),
            Mnemonic::Add | Mnemonic::Sub if it.op0_register() == Register::RSP && is_immediate => {
                let bytes = i32::try_from(it.immediate(1).cast_signed()).unwrap_or(0);
                // `sub rsp, -128` is shorter than `add rsp, 128`.
                let bytes = if it.mnemonic() == Mnemonic::Sub { bytes.wrapping_neg() } else { bytes };
                if (8..MAX_FRAME).contains(&bytes) && bytes % 8 == 0 {
                    Self::Takes(bytes)
                } else {
                    Self::Other
                }
            }
            _ if it.flow_control() == FlowControl::Next => Self::None,
            _ => Self::Other,
        }
    }

    fn bytes(self) -> i32 {
        match self {
            Self::Takes(bytes) => bytes,
            Self::PopsRbp => 8,
            Self::Leaves | Self::None | Self::Other => 0,
        }
    }
}

/// Returns the index of the first instruction that takes something of the frame off the stack, and
/// the row that it has, for code that ends before the instruction that leaves the function; `None`
/// unless exactly the whole frame is taken.
fn begin_of_epilogue(
    code: &[Instruction],
    factory: &mut InstructionInfoFactory,
    row_at: &impl Fn(u64) -> Option<Row>,
) -> Option<(usize, Row)> {
    let mut bytes = 8;
    for (index, it) in code.iter().enumerate().rev().take(MAX_EPILOGUE) {
        let effect = Effect::of(it);
        match effect {
            Effect::Other => return None,
            Effect::None if changes_frame(it, factory) => return None,
            Effect::None => continue,
            Effect::Takes(_) | Effect::PopsRbp | Effect::Leaves => bytes += effect.bytes(),
        }
        let row = row_at(it.ip()).filter(|row| row.ra == RaRule::AtCfa(-8) && !row.signal)?;
        match (row.cfa, effect) {
            (CfaRule::Rsp(frame), Effect::Takes(_) | Effect::PopsRbp) if frame == bytes => {
                return Some((index, row));
            }
            (CfaRule::Rsp(frame), Effect::Takes(_) | Effect::PopsRbp) if frame > bytes => {}
            (CfaRule::Rbp(16), Effect::Leaves | Effect::PopsRbp) => return Some((index, row)),
            _ => return None,
        }
    }
    None
}

/// Returns true if an instruction writes `rsp` or `rbp`.
fn changes_frame(it: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    factory.info(it).used_registers().iter().any(|used| {
        let is_frame = matches!(used.register().full_register(), Register::RSP | Register::RBP);
        is_frame && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
    })
}

/// Adds the rows of an epilogue from its second instruction to its last. `row`: that of its first.
fn push_rows(epilogue: &[Instruction], row: Row, found: &mut Vec<RowOverride>) {
    let Some((first, rest)) = epilogue.split_first() else { return };
    let mut left = 8 + rest.iter().map(|it| Effect::of(it).bytes()).sum::<i32>();
    let mut restored = matches!(Effect::of(first), Effect::PopsRbp | Effect::Leaves);
    for it in rest {
        let rbp = if restored { RbpRule::Same } else { row.rbp };
        let row = Row { cfa: CfaRule::Rsp(left), rbp, ..row };
        match found.last_mut().filter(|(range, last)| range.end == it.ip() && *last == row) {
            Some((range, _)) => range.end = it.next_ip(),
            None => found.push((it.ip()..it.next_ip(), row)),
        }
        left -= Effect::of(it).bytes();
        restored |= Effect::of(it) == Effect::PopsRbp;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(code: &[u8], row: Row) -> Vec<RowOverride> {
        let code: Vec<Instruction> =
            Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).into_iter().collect();
        epilogue_rows(&code, &mut InstructionInfoFactory::new(), &|_: u64| Some(row))
    }

    fn row(cfa: CfaRule, rbp: RbpRule) -> Row {
        Row { cfa, rbp, ..Row::AT_CALL }
    }

    /// The end of a function of sqlite-jdbc's library: `pop r9; pop rbx; mov rax, rbp; pop rbp;
    /// ret`.
    const POPS: [u8; 8] = [0x41, 0x59, 0x5b, 0x48, 0x89, 0xe8, 0x5d, 0xc3];

    #[test]
    fn each_instruction_of_an_epilogue_has_the_frame_that_is_left() {
        let saved = RbpRule::AtCfa(-16);
        let found = rows_of(&POPS, row(CfaRule::Rsp(32), saved));
        let expected = [
            (0x1002..0x1003, row(CfaRule::Rsp(24), saved)),
            (0x1003..0x1007, row(CfaRule::Rsp(16), saved)),
            (0x1007..0x1008, row(CfaRule::Rsp(8), RbpRule::Same)),
        ];
        assert_eq!(found, expected);
        // add rsp, 0x18; pop rbx; jmp elsewhere
        let jumps = [0x48, 0x83, 0xc4, 0x18, 0x5b, 0xe9, 0, 1, 0, 0];
        let found = rows_of(&jumps, row(CfaRule::Rsp(40), RbpRule::Same));
        let expected = [
            (0x1004..0x1005, row(CfaRule::Rsp(16), RbpRule::Same)),
            (0x1005..0x100a, row(CfaRule::Rsp(8), RbpRule::Same)),
        ];
        assert_eq!(found, expected);
        // sub rsp, -128; ret
        let found = rows_of(&[0x48, 0x83, 0xec, 0x80, 0xc3], row(CfaRule::Rsp(136), RbpRule::Same));
        assert_eq!(found, [(0x1004..0x1005, row(CfaRule::Rsp(8), RbpRule::Same))]);
        // leave; ret
        let found = rows_of(&[0xc9, 0xc3], row(CfaRule::Rbp(16), saved));
        assert_eq!(found, [(0x1001..0x1002, row(CfaRule::Rsp(8), RbpRule::Same))]);
    }

    #[test]
    fn what_does_not_take_the_whole_frame_has_the_rows_that_it_had() {
        let has_none = |code: &[u8], row: Row| rows_of(code, row).is_empty();
        let of_frame = |bytes| row(CfaRule::Rsp(bytes), RbpRule::Same);
        for bytes in [12, 40] {
            assert!(has_none(&POPS, of_frame(bytes)), "a frame of {bytes} bytes");
        }
        assert!(!has_none(&POPS, of_frame(32)));
        assert!(has_none(&POPS, Row::AT_CALL), "its end is described");
        // call; pop r9; pop rbx; ret, and with push rax in place of the call
        assert!(has_none(&[0xe8, 0, 1, 0, 0, 0x41, 0x59, 0x5b, 0xc3], of_frame(32)));
        assert!(has_none(&[0x50, 0x41, 0x59, 0x5b, 0xc3], of_frame(32)));
        // mov ebp, eax; pop rbx; ret
        assert!(has_none(&[0x89, 0xc5, 0x5b, 0xc3], of_frame(24)));
        assert!(has_none(&POPS, Row { ra: RaRule::Undefined, ..of_frame(32) }));
        // pop rbx; jmp to it; nop
        assert!(has_none(&[0x5b, 0xeb, 0xfd, 0x90], of_frame(16)), "jumps within the function");
    }

    #[test]
    fn a_compiler_that_describes_epilogues_is_known_by_its_rows() {
        let cie = [0x0c, 0x07, 0x08, 0x90, 0x01];
        // DW_CFA_def_cfa_offset 16, DW_CFA_offset rbp, and with those of an epilogue.
        let old = [0x41, 0x0e, 0x10, 0x86, 0x02, 0, 0, 0].repeat(4000);
        let new = [0x41, 0x0e, 0x10, 0x86, 0x02, 0x45, 0x0e, 0x08].repeat(4000);
        assert!(is_without_epilogues(&[&cie[..], &old].concat()));
        assert!(!is_without_epilogues(&[&cie[..], &new].concat()));
    }
}
