//! GNU build ids: the note that names the contents of a file.

use object::LittleEndian as Le;
use object::elf::{self, ProgramHeader64};

use crate::native::elf::read_bytes;
use crate::native::source::ByteSource;
use crate::types::BuildId;

/// Largest note segment that is read. Linked files have some hundred bytes; the kernel reads no more than a page.
const MAX_NOTES: u64 = 64 << 10;

/// The build id in the contents of a note section or segment (`.note.gnu.build-id`, `PT_NOTE`,
/// `/sys/kernel/notes`); `None` if there is none or the notes are malformed before it.
///
/// Layout: gABI "Note Section": `namesz`, `descsz`, `type` (32 bits each), then name and descriptor, each padded to
/// 4 bytes. Segments aligned to 8 (`.note.gnu.property`) pad to 8; `align` says which, values other than 8 mean 4.
pub fn from_note_bytes(mut notes: &[u8], align: u64) -> Option<BuildId> {
    let align = if align == 8 { 8 } else { 4 };
    while let Some((header, rest)) = notes.split_at_checked(12) {
        let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let (name_size, desc_size, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let name = rest.get(..name_size)?;
        // Offsets are padded as counted from the note's start, and the header's 12 bytes aren't a multiple of 8.
        let desc_start = (12 + name_size).next_multiple_of(align) - 12;
        let desc = rest.get(desc_start..)?.get(..desc_size)?;
        if kind == elf::NT_GNU_BUILD_ID.0 && name == b"GNU\0" {
            return BuildId::new(desc);
        }
        let next = (12 + desc_start + desc_size).next_multiple_of(align) - 12;
        notes = rest.get(next..).unwrap_or_default();
    }
    None
}

/// The build id that the file's `PT_NOTE` segments hold. Notes that can't be read are as if they weren't there: a
/// missing build id is ordinary (Go, static binaries), and no reason to reject the file.
pub(crate) fn from_notes(source: &impl ByteSource, programs: &[ProgramHeader64<Le>]) -> Option<BuildId> {
    programs.iter().filter(|p| p.p_type.get(Le) == elf::PT_NOTE).find_map(|p| {
        let (offset, size) = (p.p_offset.get(Le), p.p_filesz.get(Le));
        let notes = read_bytes(source, "a note segment", offset, size, MAX_NOTES).ok()?;
        from_note_bytes(&notes, p.p_align.get(Le))
    })
}
