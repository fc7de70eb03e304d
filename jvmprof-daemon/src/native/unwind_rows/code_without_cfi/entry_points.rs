//! Entry points of programs and threads in code without frame information: frames without a caller.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use jvmprof_common::rows::{RaRule, Row};
use memchr::memmem;

use crate::native::unwind_rows::row_table::RowRange;
use crate::types::Svma;

/// Longest entry code that is decoded, in bytes: musl's `clone` has 26 from its system call to the
/// end of the call, `_start` of glibc's dynamic linker has 61.
pub(crate) const MAX_BEGIN: usize = 128;

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Row of a frame without a caller.
const ROOT: Row = Row { ra: RaRule::Undefined, ..Row::AT_CALL };

/// Returns the row for the code at a program's entry, up to where it leaves for good.
pub(crate) fn program_entry(code: &[u8], base: u64, entry: Svma) -> Option<RowRange> {
    let mut end = entry.0;
    // A function that is called from there may follow at once.
    let mut called = Vec::new();
    for instruction in decoder(code, base, entry.0)? {
        if instruction.code() == Code::INVALID || called.contains(&instruction.ip()) {
            break;
        }
        end = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Call if instruction.op0_kind() == OpKind::NearBranch64 => {
                called.push(instruction.near_branch_target());
            }
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {}
            _ => break,
        }
    }
    (end > entry.0).then_some((entry.0, end, ROOT))
}

/// Returns the rows where threads begin: a system call gives the child an empty stack, on which it
/// clears `rbp` and calls its function.
pub(crate) fn thread_entries(code: &[u8], base: u64) -> Vec<RowRange> {
    let calls = memmem::find_iter(code, &SYSCALL);
    let mut found: Vec<RowRange> =
        calls.filter_map(|at| thread(code, base, base + (at + SYSCALL.len()) as u64)).collect();
    found.dedup_by_key(|(start, ..)| *start);
    found
}

/// Returns the row for the start of a thread after a system call, from where `rbp` is cleared.
fn thread(code: &[u8], base: u64, behind: u64) -> Option<RowRange> {
    let mut start = None;
    for instruction in decoder(code, base, behind)? {
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => {
                return Some((start?, instruction.next_ip(), ROOT));
            }
            // The parent returns, and the child is jumped to.
            FlowControl::Return | FlowControl::ConditionalBranch if start.is_none() => {}
            FlowControl::Next => {}
            _ => return None,
        }
        if instruction.mnemonic() == Mnemonic::Push && start.is_none() {
            return None;
        }
        if clears_rbp(&instruction) {
            start.get_or_insert(instruction.ip());
        }
    }
    None
}

pub(crate) fn clears_rbp(instruction: &Instruction) -> bool {
    let is_rbp = |register| matches!(register, Register::EBP | Register::RBP);
    instruction.mnemonic() == Mnemonic::Xor
        && is_rbp(instruction.op0_register())
        && instruction.op0_register() == instruction.op1_register()
}

fn decoder(code: &[u8], base: u64, address: u64) -> Option<Decoder<'_>> {
    let rest = code.get(usize::try_from(address.checked_sub(base)?).ok()?..)?;
    let rest = &rest[..rest.len().min(MAX_BEGIN)];
    Some(Decoder::with_ip(64, rest, address, DecoderOptions::NONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x40_1000;

    /// Code of musl arch/x86_64/crt_arch.h, and the function that follows.
    const MUSL_START: [u8; 24] = [
        0x48, 0x31, 0xed, // xor rbp, rbp
        0x48, 0x89, 0xe7, // mov rdi, rsp
        0x48, 0x8d, 0x35, 0, 0, 0, 0, // lea rsi, [rip]
        0x48, 0x83, 0xe4, 0xf0, // and rsp, -16
        0xe8, 0, 0, 0, 0, // call the next instruction
        0x8b, 0x37, // mov esi, [rdi]
    ];

    #[test]
    fn a_programs_entry_ends_where_the_function_begins_that_it_calls() {
        assert_eq!(program_entry(&MUSL_START, BASE, Svma(BASE)), Some((BASE, BASE + 22, ROOT)));
        assert_eq!(program_entry(&MUSL_START, BASE, Svma(BASE - 1)), None);
    }

    #[test]
    fn a_programs_entry_ends_where_it_jumps() {
        // glibc sysdeps/x86_64/dl-machine.h, shortened: call _dl_start; mov rsp, r13; jmp r12
        let code = [0xe8, 0, 0x10, 0, 0, 0x4c, 0x89, 0xec, 0x41, 0xff, 0xe4, 0x53, 0xc3];
        assert_eq!(program_entry(&code, BASE, Svma(BASE)), Some((BASE, BASE + 11, ROOT)));
    }

    /// Code of musl src/thread/x86_64/clone.s from the system call on.
    const MUSL_CLONE: [u8; 22] = [
        0x0f, 0x05, // syscall
        0x85, 0xc0, // test eax, eax
        0x74, 0x01, // jz to the child
        0xc3, // ret
        0x31, 0xed, // xor ebp, ebp
        0x5f, // pop rdi
        0x41, 0xff, 0xd1, // call r9
        0x89, 0xc7, // mov edi, eax
        0x31, 0xc0, // xor eax, eax
        0xb0, 0x3c, // mov al, 60
        0x0f, 0x05, // syscall
        0xf4, // hlt
    ];

    #[test]
    fn a_thread_begins_where_rbp_is_cleared_behind_a_system_call() {
        assert_eq!(thread_entries(&MUSL_CLONE, BASE), [(BASE + 7, BASE + 13, ROOT)]);
    }

    #[test]
    fn a_function_that_clears_rbp_for_itself_begins_no_thread() {
        // syscall; ret; push rbp; xor ebp, ebp; call rax
        let code = [0x0f, 0x05, 0xc3, 0x55, 0x31, 0xed, 0xff, 0xd0];
        assert_eq!(thread_entries(&code, BASE), []);
    }
}
