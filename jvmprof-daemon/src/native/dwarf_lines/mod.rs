//! Inlined functions and lines from DWARF.
//!
//! DWARF is large: the sections of a JVM take some hundred megabytes. So it is read only if lines
//! are enabled, within a limit of memory of its own, and results for addresses are cached
//! elsewhere.

mod memory_estimate;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use addr2line::{Context, LookupResult};
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};

use crate::native::byte_source::ByteSource;
use crate::native::debug_files::DebugFileLocator;
use crate::native::elf::{ElfError, ElfFile};
use crate::native::symbols::demangle::demangle;
use crate::types::Svma;
use memory_estimate::DwarfUnits;

/// Most inlined functions at one address.
const MAX_INLINED: usize = 128;
/// Section bytes that always count: the parsed units may take twice the sections' bytes, or twice
/// these; real ones take as many at most.
const SOME_SECTIONS: u64 = 1 << 20;
/// Longest name or path that is accepted, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// A function at one place of its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Linker's name, else the source's; `None` if DWARF has none.
    pub raw_name: Option<Arc<str>>,
    /// Demangled name, if it differs.
    pub name: Option<Arc<str>>,
    pub file: Option<Arc<str>>,
    /// Line, 1-based; 0 if unknown.
    pub line: u32,
}

type DwarfReader = EndianArcSlice<LittleEndian>;

/// DWARF of one file.
pub struct DwarfLineTable {
    /// addr2line's state. It parses units on first use, into cells that only one thread may fill.
    context: Mutex<(Context<DwarfReader>, DwarfUnits)>,
    /// Limit of the bytes that parsed units take.
    made_limit: u64,
    /// Bytes of the sections, and of the units that will be parsed.
    bytes: u64,
}

impl std::fmt::Debug for DwarfLineTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DwarfLineTable").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl DwarfLineTable {
    /// Loads the DWARF of `file`, which was mapped from `path` as its process sees it, or of its
    /// debug file; `None` if there is none. `limit` is that of its sections' bytes; the parsed
    /// units may take as many again.
    ///
    /// # Errors
    /// [`ElfError`] where sections can't be read, or are no DWARF; [`ElfError::TooLarge`] above the
    /// limit; [`ElfError::TooDeep`] for what would exhaust the stack.
    pub fn load<S: ByteSource>(
        file: &ElfFile<S>,
        path: &Path,
        places: &DebugFileLocator,
        limit: u64,
    ) -> Result<Option<Self>, ElfError> {
        if has_dwarf(file) {
            return Self::of_sections(file, path, places, limit).map(Some);
        }
        let Some(debug) = places.find(file, path) else { return Ok(None) };
        let parsed = debug.parse()?;
        if !has_dwarf(&parsed) {
            return Ok(None);
        }
        let table = Self::of_sections(&parsed, &debug.place, places, limit)?;
        debug.check_unchanged()?;
        Ok(Some(table))
    }

    fn of_sections<S: ByteSource>(
        file: &ElfFile<S>,
        path: &Path,
        places: &DebugFileLocator,
        limit: u64,
    ) -> Result<Self, ElfError> {
        let mut left = limit;
        let mut dwarf = Dwarf::load(|id| read_section(file, id, &mut left))?;
        if let Some(supplementary) = places.supplementary(file, path) {
            let parsed = supplementary.parse()?;
            dwarf.load_sup(|id| read_section(&parsed, id, &mut left))?;
            supplementary.check_unchanged()?;
        }
        let units = DwarfUnits::check(&mut dwarf, limit)?;
        let section_bytes = limit - left;
        let made_limit = section_bytes.max(SOME_SECTIONS).saturating_mul(2).min(limit - units.first_bytes);
        let bytes = section_bytes + units.first_bytes + units.all_bytes().min(made_limit);
        let context = Context::from_dwarf(dwarf).map_err(ElfError::Dwarf)?;
        Ok(Self { context: Mutex::new((context, units)), made_limit, bytes })
    }

    /// Returns the functions at `address`, innermost first: inlined ones, then the one that has the
    /// code. Empty where DWARF has nothing.
    ///
    /// # Errors
    /// [`ElfError::Dwarf`] where it is malformed; [`ElfError::TooLarge`] where its units would take
    /// more than their size justifies.
    pub fn find(&self, address: Svma) -> Result<Vec<SourceLine>, ElfError> {
        // addr2line counts on from it.
        if address.0 == u64::MAX {
            return Ok(Vec::new());
        }
        let mut guard = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let (context, units) = &mut *guard;
        units.start_use(address.0, self.made_limit)?;
        let mut lookup = context.find_frames(address.0);
        let mut frames = loop {
            match lookup {
                LookupResult::Output(frames) => break frames.map_err(ElfError::Dwarf)?,
                // Split DWARF (.dwo, .dwp) lies with the build, not on hosts.
                LookupResult::Load { continuation, .. } => {
                    lookup = addr2line::LookupContinuation::resume(continuation, None);
                }
            }
        };
        let mut lines = Vec::new();
        while let Some(frame) = frames.next().map_err(ElfError::Dwarf)? {
            if lines.len() == MAX_INLINED {
                break;
            }
            let raw = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let raw = raw.filter(|name| !name.is_empty() && name.len() <= MAX_TEXT);
            let location = frame.location.as_ref();
            let file = location.and_then(|location| location.file).filter(|file| file.len() <= MAX_TEXT);
            lines.push(SourceLine {
                name: raw.as_deref().and_then(demangle).map(Arc::from),
                raw_name: raw.as_deref().map(Arc::from),
                file: file.map(Arc::from),
                line: location.and_then(|location| location.line).unwrap_or(0),
            });
        }
        Ok(lines)
    }

    /// Returns an upper bound of the memory in bytes: the sections, and the parsed units.
    pub fn size_bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

pub(crate) fn has_dwarf<S: ByteSource>(file: &ElfFile<S>) -> bool {
    file.section(".debug_info").is_some() && file.section(".debug_abbrev").is_some()
}

/// Reads a section; it is empty where the file has none or addresses don't need it.
fn read_section<S: ByteSource>(
    file: &ElfFile<S>,
    id: SectionId,
    left: &mut u64,
) -> Result<DwarfReader, ElfError> {
    // Variables, types and macros are about half of it.
    let needed = matches!(
        id,
        SectionId::DebugAbbrev
            | SectionId::DebugAddr
            | SectionId::DebugAranges
            | SectionId::DebugInfo
            | SectionId::DebugLine
            | SectionId::DebugLineStr
            | SectionId::DebugRanges
            | SectionId::DebugRngLists
            | SectionId::DebugStr
            | SectionId::DebugStrOffsets
    );
    let section = needed.then(|| file.section(id.name())).flatten();
    let bytes = section.map(|section| file.read(section, *left)).transpose()?.unwrap_or_default();
    *left = left.saturating_sub(bytes.len() as u64);
    Ok(DwarfReader::new(bytes.into(), LittleEndian))
}
