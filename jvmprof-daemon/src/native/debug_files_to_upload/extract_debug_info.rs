//! Extraction of the part of a file that a server needs to resolve its addresses: an ELF file with
//! the symbols, and nothing of the code.
//!
//! Program headers are copied from the file that runs: servers convert runtime addresses by them.
//! Section headers are all there, so that numbers of sections stay right; those whose bytes aren't
//! needed are `SHT_NOBITS`, as `objcopy --only-keep-debug` makes them.

use std::io::{self, Write};

use object::LittleEndian as Le;
use object::elf::{self, SectionHeader64};
use object::pod::{bytes_of, bytes_of_slice};
use sha2::{Digest, Sha256};

use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile, MAX_NOTES, RawHeader, Section, read_bytes, read_raw};
use crate::types::hex;

/// Sections of DWARF that resolve addresses; variables, types' names and macros are left out.
const DWARF: [&str; 11] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];
/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;
/// Alignment of sections' offsets, as compressed sections and symbol tables need it.
const ALIGNMENT: u64 = 8;

/// Error of extracting debug information.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtractError {
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error("extracting debug information: its symbols take {size} bytes, more than the limit of {limit}")]
    TooLarge { size: u64, limit: u64 },
    #[error("writing the extracted debug information: {0}")]
    Write(io::Error),
}

/// The size and hash of a file that was extracted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtractedFile {
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal: the same on every host.
    pub hash: String,
}

/// The parts of a file that can resolve addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolSources {
    pub symtab: bool,
    pub dynsym: bool,
    pub dwarf: bool,
    /// True with Go's own table.
    pub gopclntab: bool,
}

impl SymbolSources {
    /// Returns the parts that `symbols` has.
    pub fn of<S: ByteSource>(symbols: &ElfFile<S>) -> Self {
        let mut sources = Self::default();
        for section in symbols.sections().iter().filter(|section| is_kept(symbols, section)) {
            // A table has an empty symbol at least.
            let has_symbols = section.size > 24;
            sources.symtab |= section.kind == elf::SHT_SYMTAB.0 && has_symbols;
            sources.dynsym |= section.kind == elf::SHT_DYNSYM.0 && has_symbols;
            sources.dwarf |= section.name == ".debug_info";
            sources.gopclntab |= section.name == ".gopclntab";
        }
        sources
    }
}

/// Writes the needed parts of `symbols`, the debug file of `program` or the program itself.
///
/// # Errors
/// [`ExtractError::TooLarge`] above `limit` bytes, before anything is written; else the error of
/// reading or writing. A partial output is of no use.
pub fn extract<P: ByteSource, S: ByteSource>(
    program: &ElfFile<P>,
    symbols: &ElfFile<S>,
    limit: u64,
    out: &mut impl Write,
) -> Result<ExtractedFile, ExtractError> {
    let (raw, sections) = (read_raw(program.source())?, read_raw(symbols.source())?);
    if sections.sections.len() >= usize::from(elf::SHN_LORESERVE) {
        return Err(ElfError::malformed("section headers", "too many").into());
    }
    let programs = bytes_of_slice(&raw.programs);
    let mut place = (size_of::<RawHeader>() + programs.len()) as u64;
    let mut headers = sections.sections;
    let mut kept = Vec::new();
    let is_dwarf = SymbolSources::of(symbols).dwarf;
    for (index, (section, header)) in symbols.sections().iter().zip(&mut headers).enumerate() {
        if index == sections.names_index || is_kept(symbols, section) {
            place = aligned(place);
            kept.push((section, place));
            header.sh_offset.set(Le, place);
            place = place.saturating_add(section.size);
        } else {
            empty(header);
            if is_dwarf && section.name.starts_with(".debug_") {
                // Go's debug/elf reads all of them, and rejects DWARF as a whole for one without
                // bytes.
                header.sh_type.set(Le, elf::SHT_PROGBITS);
                header.sh_size.set(Le, 0);
            }
        }
    }
    let headers_at = aligned(place);
    let size = headers_at.saturating_add(size_of_val(&*headers) as u64);
    if size > limit {
        return Err(ExtractError::TooLarge { size, limit });
    }
    let mut file = raw.file;
    file.e_phoff.set(Le, size_of::<RawHeader>() as u64);
    // Zero means that there are none; a zero index would otherwise be looked up in the first
    // section.
    file.e_shoff.set(Le, if headers.is_empty() { 0 } else { headers_at });
    file.e_shentsize.set(Le, size_of::<SectionHeader64<Le>>() as u16);
    file.e_shnum.set(Le, headers.len() as u16);
    let names_index = if sections.names_index < headers.len() { sections.names_index as u16 } else { 0 };
    file.e_shstrndx.set(Le, elf::SymbolSection(names_index));
    let mut out = HashingWriter { out, hash: Sha256::new(), written: 0 };
    out.write(bytes_of(&file))?;
    out.write(programs)?;
    for (section, place) in kept {
        out.pad_to(place)?;
        copy(symbols.source(), section, &mut out)?;
    }
    out.pad_to(headers_at)?;
    out.write(bytes_of_slice(&headers))?;
    let hash = hex(&out.hash.finalize());
    Ok(ExtractedFile { size: out.written, hash })
}

/// Returns the next aligned position for a section. No file has sections at the end of all offsets.
fn aligned(place: u64) -> u64 {
    place.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}

/// Returns true if the bytes of a section are needed.
fn is_kept<S: ByteSource>(file: &ElfFile<S>, section: &Section) -> bool {
    if section.no_bits {
        return false;
    }
    let is_table = |section: &Section| {
        !section.no_bits && (section.kind == elf::SHT_SYMTAB.0 || section.kind == elf::SHT_DYNSYM.0)
    };
    // DWARF that dwz split refers to another file. A server doesn't have that, and would reject all
    // names for it.
    let dwarf_is_whole = || file.section(".gnu_debugaltlink").is_none();
    let name = section.name.as_str();
    let is_names_of_symbols = || {
        section.kind == elf::SHT_STRTAB.0
            && file.sections().iter().any(|table| {
                is_table(table)
                    && file
                        .sections()
                        .get(table.link as usize)
                        .is_some_and(|names| std::ptr::eq(names, section))
            })
    };
    is_table(section)
        || is_names_of_symbols()
        || (section.kind == elf::SHT_NOTE.0 && section.size <= MAX_NOTES)
        || name == ".gopclntab"
        || (DWARF.contains(&name) && dwarf_is_whole())
}

fn empty(header: &mut SectionHeader64<Le>) {
    if header.sh_type.get(Le) == elf::SHT_NULL {
        return;
    }
    header.sh_type.set(Le, elf::SHT_NOBITS);
    // Where there are no bytes there is no compression header either.
    let flags = header.sh_flags.get(Le).0 & !elf::SHF_COMPRESSED.0;
    header.sh_flags.set(Le, elf::SectionFlags(flags));
    header.sh_offset.set(Le, size_of::<RawHeader>() as u64);
}

fn copy<S: ByteSource, W: Write>(
    source: &S,
    section: &Section,
    out: &mut HashingWriter<'_, W>,
) -> Result<(), ExtractError> {
    for at in (0..section.size).step_by(PIECE as usize) {
        let len = PIECE.min(section.size - at);
        let start = section.offset.0.checked_add(at);
        let start = start.ok_or_else(|| ElfError::malformed(&section.name, "file offset overflows"))?;
        out.write(&read_bytes(source, &section.name, start, len, PIECE)?)?;
    }
    Ok(())
}

/// Writes, and hashes what it writes.
struct HashingWriter<'w, W> {
    out: &'w mut W,
    hash: Sha256,
    written: u64,
}

impl<W: Write> HashingWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ExtractError> {
        self.out.write_all(bytes).map_err(ExtractError::Write)?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeros up to the next multiple of [`ALIGNMENT`].
    fn pad_to(&mut self, place: u64) -> Result<(), ExtractError> {
        let missing = place.saturating_sub(self.written).min(ALIGNMENT) as usize;
        self.write(&[0; ALIGNMENT as usize][..missing])
    }
}
