//! `.eh_frame` of files whose section headers were removed (`sstrip`). The program headers lead
//! there by way of `.eh_frame_hdr`, the table by which a program finds its own (Linux Standard Base
//! 5.0, core, 10.6.2).

use object::LittleEndian as Le;
use object::elf::PT_GNU_EH_FRAME;

use super::frame_bytes::MAX_SECTION;
use crate::native::byte_source::ByteSource;
use crate::native::elf::{self, ElfError, ElfFile};
use crate::types::Svma;

/// Usual header: version, and the linkers' encodings of the pointer, the number of functions and
/// the table: `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, `DW_EH_PE_udata4`, `DW_EH_PE_datarel |
/// DW_EH_PE_sdata4`.
pub(crate) const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// Returns the section's address and bytes, for a file without section headers; `None` if it has
/// none.
///
/// # Errors
/// It can't be read or is too large.
pub(crate) fn eh_frame<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<(Svma, Vec<u8>)>, ElfError> {
    if !file.sections().is_empty() {
        return Ok(None);
    }
    let programs = elf::read_raw(file.source())?.programs;
    let Some(table) = programs.iter().find(|program| program.p_type.get(Le) == PT_GNU_EH_FRAME) else {
        return Ok(None);
    };
    let (address, what) = (table.p_vaddr.get(Le), ".eh_frame_hdr");
    let (offset, size) = (table.p_offset.get(Le), table.p_filesz.get(Le));
    let table = elf::read_bytes(file.source(), what, offset, size, MAX_SECTION)?;
    let Some((begin, last)) = begin_and_last(&table, address) else { return Ok(None) };
    let segments = &file.header().segments;
    let inside = segments.iter().find_map(|segment| {
        let inside = begin.checked_sub(segment.address.0).filter(|inside| *inside < segment.file_size)?;
        Some((segment.offset.0.checked_add(inside)?, segment.file_size - inside))
    });
    let Some((offset, room)) = inside else { return Ok(None) };
    // Behind the last entry come other things.
    let head = last.checked_sub(begin).and_then(|last| last.checked_add(4)).filter(|head| *head <= room);
    let Some(head) = head else { return Ok(None) };
    let what = ".eh_frame";
    let length = elf::read_bytes(file.source(), what, offset.saturating_add(head - 4), 4, 4)?;
    let length = length.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    let size = head.saturating_add(length).min(room);
    Ok(Some((Svma(begin), elf::read_bytes(file.source(), what, offset, size, MAX_SECTION)?)))
}

/// Returns the addresses at which `.eh_frame` and its last entry begin.
fn begin_and_last(table: &[u8], address: u64) -> Option<(u64, u64)> {
    let rest = table.strip_prefix(&USUAL)?;
    let mut words = rest.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    let begin = address.checked_add(4)?.checked_add_signed(words.next()?.into())?;
    let functions = words.next()? as u32 as usize;
    // Pairs of a function and its entry.
    let entries = words.skip(1).step_by(2).take(functions);
    let last = entries.max()?;
    Some((begin, address.checked_add_signed(last.into())?))
}
