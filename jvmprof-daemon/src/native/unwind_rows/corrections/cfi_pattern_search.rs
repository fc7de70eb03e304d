//! Search for functions whose frame information has certain instructions: those whose code has to
//! be decoded; and the rows of a function.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use jvmprof_common::rows::Row;
use memchr::memmem;

use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::unwind_rows::cfi::CallFrames;
use crate::types::Svma;

/// Limits of decoding: bytes of the longest function, and number of functions in a file.
const MAX_FUNCTION: u64 = 4 << 10;
const MAX_FUNCTIONS: usize = 64;

/// A function by its frame description entry (FDE): its first address, the first one after it, and
/// the entry's offset in `.eh_frame`.
pub(crate) type FdeRange = (Svma, Svma, usize);

/// Returns the functions with `cfa_instructions` in their entries.
pub(crate) fn functions_with<const N: usize>(
    frames: &CallFrames,
    cfa_instructions: [u8; N],
) -> impl Iterator<Item = FdeRange> {
    let entries = frames.index.ranges().zip(frames.index.entries()).filter(|_| frames.is_eh_frame());
    let finder = memmem::Finder::new(&cfa_instructions).into_owned();
    let suspects = entries.filter(move |(_, entry)| {
        let length =
            frames.bytes.get(*entry, 4).first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
        // The length doesn't count itself.
        finder.find(&frames.bytes.get(*entry, (length as usize).saturating_add(4))).is_some()
    });
    let suspects = suspects.take(MAX_FUNCTIONS).map(|((start, end), entry)| (start, end, entry));
    suspects.filter(|(start, end, _)| end.0.saturating_sub(start.0) <= MAX_FUNCTION)
}

/// Decodes the instructions of a function, in order of their addresses; none if it doesn't lie in
/// one section of code.
pub(crate) fn instructions<S: ByteSource>(file: &ElfFile<S>, function: FdeRange) -> Vec<Instruction> {
    let (start, end, _) = function;
    let holds = |address: u64, size: u64| start.0 >= address && end.0 <= address.saturating_add(size);
    let section = file.code().into_iter().find(|it| holds(it.address.0, it.size));
    let Some(section) = section else { return Vec::new() };
    let piece = file.read_piece(&section, start.0 - section.address.0, end.0.saturating_sub(start.0));
    let Ok(code) = piece else { return Vec::new() };
    Decoder::with_ip(64, &code, start.0, DecoderOptions::NONE).into_iter().collect()
}

/// The rows of a function by its frame information, in order of addresses: evaluated once.
#[derive(Debug)]
pub(crate) struct FunctionRows(Vec<(u64, u64, Row)>);

impl FunctionRows {
    /// Evaluates the entry of a function.
    pub(crate) fn of(frames: &CallFrames, function: FdeRange) -> Self {
        let (_, _, entry) = function;
        let mut rows = Vec::new();
        frames.each_row(std::iter::once(entry), &mut |_, start, end, row| rows.push((start, end, row)));
        Self(rows)
    }

    /// Returns the row for code at `pc`; `None` where there is none.
    pub(crate) fn row(&self, pc: u64) -> Option<Row> {
        let index = self.0.partition_point(|(start, ..)| *start <= pc).checked_sub(1)?;
        self.0.get(index).filter(|(_, end, _)| pc < *end).map(|(.., row)| *row)
    }
}
