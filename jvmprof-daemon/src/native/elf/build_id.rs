//! GNU build ids: the note that identifies the contents of a file.

use object::LittleEndian as Le;
use object::elf::{self, ProgramHeader64};

use crate::native::byte_source::ByteSource;
use crate::native::elf::read_bytes;
use crate::types::BuildId;

/// Largest note segment that is read. Linked files have some hundred bytes; the kernel reads no
/// more than a page.
const MAX_NOTES: u64 = 64 << 10;

/// Type of the note with Go's own build id, under the name "Go" (go
/// src/cmd/link/internal/ld/elf.go, `ELF_NOTE_GOBUILDID_TAG`).
const GO_BUILD_ID: u32 = 4;

/// Returns the build id in the contents of a note section or segment (`.note.gnu.build-id`,
/// `PT_NOTE`, `/sys/kernel/notes`); `None` if there is none or the notes are malformed before it.
pub fn from_note_bytes(notes: &[u8], align: u64) -> Option<BuildId> {
    let is_build_id = |note: &Note<'_>| note.kind == elf::NT_GNU_BUILD_ID.0 && note.name == b"GNU\0";
    BuildId::new(Notes { rest: notes, align }.find(is_build_id)?.desc)
}

struct Note<'a> {
    kind: u32,
    name: &'a [u8],
    desc: &'a [u8],
}

/// Notes of a section or segment, up to the first malformed one.
///
/// Layout: gABI "Note Section": `namesz`, `descsz`, `type` (32 bits each), then name and
/// descriptor, each padded to 4 bytes. Segments aligned to 8 (`.note.gnu.property`) pad to 8;
/// `align` decides, values other than 8 mean 4.
struct Notes<'a> {
    rest: &'a [u8],
    align: u64,
}

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        let align = if self.align == 8 { 8 } else { 4 };
        let (header, rest) = self.rest.split_at_checked(12)?;
        let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let (name_size, desc_size, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let name = rest.get(..name_size)?;
        // Offsets are padded as counted from the note's start, and the header's 12 bytes aren't a
        // multiple of 8.
        let desc_start = (12 + name_size).next_multiple_of(align) - 12;
        let desc = rest.get(desc_start..)?.get(..desc_size)?;
        let next = (12 + desc_start + desc_size).next_multiple_of(align) - 12;
        self.rest = rest.get(next..).unwrap_or_default();
        Some(Note { kind, name, desc })
    }
}

/// The facts in the file's `PT_NOTE` segments. Notes that can't be read are as if they weren't
/// there: a missing build id is ordinary (static binaries), and no reason to reject the file.
pub(crate) struct FileNotes {
    pub(crate) build_id: Option<BuildId>,
    /// True if Go's linker made the file.
    pub(crate) is_go: bool,
}

impl FileNotes {
    pub(crate) fn read(source: &impl ByteSource, programs: &[ProgramHeader64<Le>]) -> Self {
        let mut of_file = Self { build_id: None, is_go: false };
        for program in programs.iter().filter(|program| program.p_type.get(Le) == elf::PT_NOTE) {
            let (offset, size) = (program.p_offset.get(Le), program.p_filesz.get(Le));
            let Ok(notes) = read_bytes(source, "a note segment", offset, size, MAX_NOTES) else { continue };
            let align = program.p_align.get(Le);
            of_file.build_id = of_file.build_id.or_else(|| from_note_bytes(&notes, align));
            let is_go = |note: Note<'_>| note.kind == GO_BUILD_ID && note.name == b"Go\0\0";
            of_file.is_go |= Notes { rest: &notes, align }.any(is_go);
        }
        of_file
    }
}
