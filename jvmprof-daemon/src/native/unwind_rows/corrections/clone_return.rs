//! Rows for the code after the system call that begins a thread: the parent returns from there, the
//! child has no caller.
//!
//! glibc ends its frame information right before that call (sysdeps/unix/sysv/linux/x86_64/clone.S,
//! clone3.S), since no rule would be right for both. A program that creates threads all the time is
//! mostly sampled there.

use iced_x86::{FlowControl, Instruction, Mnemonic};
use jvmprof_common::rows::{CfaRule, RaRule, Row};

use super::cfi_pattern_search::{functions_with, instructions};
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::unwind_rows::cfi::CallFrames;
use crate::native::unwind_rows::code_without_cfi::entry_points::clears_rbp;
use crate::native::unwind_rows::row_table::RowRange;
use crate::types::Svma;

/// Encoding of `DW_CFA_undefined`, `rip` (DWARF 5, 7.24), where the child begins.
const WITHOUT_CALLER: [u8; 2] = [0x07, 0x10];
/// Most bytes between the system call and that encoding's address.
const MAX_BETWEEN: u64 = 24;
/// Bytes of `xor ebp, ebp`.
const FIRST_BYTES: u64 = 2;

/// Returns the rows of such code, each from the system call to where the child begins, in order of
/// their addresses.
pub(crate) fn rows<S: ByteSource>(frames: &CallFrames, file: &ElfFile<S>) -> Vec<RowRange> {
    let begins = functions_with(frames, WITHOUT_CALLER).map(|(start, ..)| start);
    let found = begins.filter_map(|child| {
        let (_, call) = frames.index.last_before(child)?;
        if !(1..=MAX_BETWEEN).contains(&child.0.checked_sub(call.0)?) {
            return None;
        }
        let own = frames.row(Svma(call.0.checked_sub(1)?))?;
        let is_plain = matches!((own.cfa, own.ra), (CfaRule::Rsp(_), RaRule::AtCfa(-8)));
        let code = instructions(file, (call, Svma(child.0 + FIRST_BYTES), 0));
        let row = Row { ra: RaRule::AfterClone, ..own };
        (is_plain && is_return(&code, child)).then_some((call.0, child.0, row))
    });
    found.collect()
}

/// Returns true if this is a system call whose result decides who returns, up to the first
/// instruction of the child.
fn is_return(code: &[Instruction], child: Svma) -> bool {
    let [call, test, decide @ .., back, first] = code else { return false };
    let is_jump = |it: &Instruction| it.flow_control() == FlowControl::ConditionalBranch;
    call.mnemonic() == Mnemonic::Syscall
        && test.mnemonic() == Mnemonic::Test
        && !decide.is_empty()
        && decide.iter().all(is_jump)
        && back.flow_control() == FlowControl::Return
        && first.ip() == child.0
        && clears_rbp(first)
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn decoded(code: &[u8]) -> Vec<Instruction> {
        Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).into_iter().collect()
    }

    #[test]
    fn only_what_lets_a_child_begin_is_taken_for_it() {
        // glibc's clone3: syscall; test rax, rax; jl; je; ret; xor ebp, ebp
        let clone = [0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, 0x18, 0x74, 0x01, 0xc3, 0x31, 0xed];
        assert!(is_return(&decoded(&clone), Svma(0x100a)));
        assert!(!is_return(&decoded(&clone), Svma(0x100b)));
        assert!(!is_return(&decoded(&clone[2..]), Svma(0x100a)), "no system call");
        let pushes = [0x0f, 0x05, 0x48, 0x85, 0xc0, 0x50, 0x74, 0x01, 0xc3, 0x31, 0xed];
        assert!(!is_return(&decoded(&pushes), Svma(0x1009)));
    }
}
