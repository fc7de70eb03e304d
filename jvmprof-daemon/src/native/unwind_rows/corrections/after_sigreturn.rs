//! Rows for the address behind the system call that ends a signal's handler.
//!
//! `rt_sigreturn` never returns there, so that frame information ends with the call (glibc
//! sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c). A thread that is sampled within it has that
//! address, and the frame that the kernel made for the signal is still whole.

use super::cfi_pattern_search::functions_with;
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::unwind_rows::cfi::CallFrames;
use crate::native::unwind_rows::row_table::RowRange;
use crate::native::unwind_rows::signal_return::{is_padding, signal_return_length};
use crate::types::Svma;

/// Encoding of `DW_CFA_expression`, `rip` (DWARF 5, 7.24), as the saved registers of a signal need
/// it.
const SAVED_BY_KERNEL: [u8; 2] = [0x10, 0x10];
/// Bytes of the longest instruction.
const MAX_INSTRUCTION: usize = 15;

/// Returns a row of one byte for each such place, in order of their addresses.
pub(crate) fn rows<S: ByteSource>(frames: &CallFrames, file: &ElfFile<S>) -> Vec<RowRange> {
    let found = functions_with(frames, SAVED_BY_KERNEL).filter_map(|(start, end, _)| {
        let row = frames.row(Svma(end.0.checked_sub(1)?)).filter(|row| row.signal)?;
        let length = usize::try_from(end.0.checked_sub(start.0)?).ok()?;
        let code = code(file, start, length + MAX_INSTRUCTION)?;
        // The entry begins a byte early, since a return address is looked up before it.
        let is_return = signal_return_length(code.get(1..)?) == Some(length - 1);
        (is_return && is_padding(code.get(length..)?) && frames.index.find(end).is_none()).then_some((
            end.0,
            end.0 + 1,
            row,
        ))
    });
    found.collect()
}

/// Returns up to `length` bytes of code from `start` on.
fn code<S: ByteSource>(file: &ElfFile<S>, start: Svma, length: usize) -> Option<Vec<u8>> {
    let holds = |address: u64, size: u64| start.0.checked_sub(address).is_some_and(|at| at < size);
    let section = file.code().into_iter().find(|it| holds(it.address.0, it.size))?;
    let at = start.0 - section.address.0;
    file.read_piece(&section, at, (length as u64).min(section.size - at)).ok()
}
