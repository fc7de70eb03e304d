//! ELF files of the kind that this profiler samples: 64-bit, little-endian, x86-64.
//!
//! Headers are read when a file is parsed, sections on demand, each with a limit in bytes. Layouts
//! are those of the System V gABI, chapters 4 and 5 (glibc's `elf.h` has the same).

pub mod build_id;
pub(crate) mod compressed_sections;
mod error;
pub(crate) mod section_chunks;
pub mod thread_local;

use std::io;
use std::ops::Range;

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::pod::{self, Pod};

use self::build_id::FileNotes;
pub use self::error::ElfError;

use crate::native::byte_source::{ByteSource, SourceReader};
use crate::types::{BuildId, FileOffset, Svma};

/// Most program headers that are read; linkers make about 15.
const MAX_PROGRAM_HEADERS: u64 = 4096;
/// Most section headers that are read; linked files have about 40, relocatable ones may have many
/// thousands.
const MAX_SECTIONS: u64 = 65_536;
/// Largest table of section names in bytes; also of all names together, which may share its bytes.
const MAX_SECTION_NAMES: u64 = 4 << 20;
/// Longest name of a section in bytes: the rest is cut off. Those that matter have twenty.
const MAX_SECTION_NAME: usize = 256;

/// Bytes of a section that are read at once where it is read in order.
const STREAM_BYTES: usize = 64 << 10;

/// Limits of the search for a build id: largest section of notes in bytes, and number of sections.
pub(crate) const MAX_NOTES: u64 = 16 << 10;
const MAX_NOTE_SECTIONS: usize = 16;

/// The file's type (`e_type`), which decides at which addresses the loader maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElfKind {
    /// An executable (`ET_EXEC`): runtime addresses are stated addresses.
    Executable,
    /// A shared object or position-independent executable (`ET_DYN`), mapped anywhere.
    Dynamic,
}

/// One `PT_LOAD` program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoadSegment {
    /// The start of its bytes in the file (`p_offset`).
    pub offset: FileOffset,
    /// Address as the file states it (`p_vaddr`).
    pub address: Svma,
    /// Bytes that come from the file (`p_filesz`).
    pub file_size: u64,
    /// Bytes in memory (`p_memsz`), zero-filled behind `file_size`.
    pub memory_size: u64,
    /// True with `PF_X`.
    pub executable: bool,
}

impl LoadSegment {
    fn svma_of(&self, offset: FileOffset) -> Option<Svma> {
        let inside = offset.0.checked_sub(self.offset.0).filter(|inside| *inside < self.file_size)?;
        self.address.0.checked_add(inside).map(Svma)
    }

    /// Returns [`Self::svma_of`] for bytes before the segment in its first page, which is mapped
    /// with it.
    fn svma_before(&self, offset: FileOffset) -> Option<Svma> {
        let before = self.offset.0.checked_sub(offset.0).filter(|before| *before <= self.offset.0 % PAGE)?;
        self.address.0.checked_sub(before).map(Svma)
    }
}

/// Bytes in a page of memory.
const PAGE: u64 = 4096;

/// The facts in the headers of a file: small, and kept for every mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfHeader {
    pub kind: ElfKind,
    /// Entry point (`e_entry`): `_start` of an executable, zero in most shared objects.
    pub entry: Svma,
    /// Segments in the file's order.
    pub segments: Box<[LoadSegment]>,
    pub build_id: Option<BuildId>,
    /// True if Go's linker made the file.
    pub is_go: bool,
}

impl ElfHeader {
    /// Returns the stated address of the code at `offset` in the file; `None` if no segment
    /// contains it.
    ///
    /// The offset of a runtime address is `avma - mapping.start + mapping.offset`. Segments may
    /// share a page of the file, and are then both mapped with it; code belongs to the executable
    /// one.
    pub fn svma_of(&self, offset: FileOffset) -> Option<Svma> {
        let find = |executable| {
            self.segments.iter().filter(|s| s.executable == executable).find_map(|s| s.svma_of(offset))
        };
        let before = || self.segments.iter().filter(|s| s.executable).find_map(|s| s.svma_before(offset));
        find(true).or_else(before).or_else(|| find(false))
    }
}

/// One section header, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    pub address: Svma,
    pub offset: FileOffset,
    /// Bytes in memory; in the file too, unless `no_bits`.
    pub size: u64,
    /// True with `SHF_EXECINSTR`.
    pub executable: bool,
    /// True with `SHT_NOBITS`: the file doesn't hold its bytes (`.bss`; everything loadable in a
    /// separate debug file).
    pub no_bits: bool,
    compressed: bool,
    /// Type (`sh_type`), a `SHT_*` value.
    pub kind: u32,
    /// Value of `sh_link`: for symbol tables the index of their string table.
    pub link: u32,
}

impl Section {
    /// Returns whether the section has `SHF_COMPRESSED`.
    pub(crate) fn is_compressed(&self) -> bool {
        self.compressed
    }
}

/// A parsed ELF file; sections are read through it.
#[derive(Debug)]
pub struct ElfFile<S> {
    source: S,
    header: ElfHeader,
    sections: Vec<Section>,
}

impl<S: ByteSource> ElfFile<S> {
    /// Reads file header, program headers, build id and section headers.
    ///
    /// A file without section headers (`sstrip`, memory images) is fine and has no sections.
    ///
    /// # Errors
    /// See [`ElfError`]; a file that is cut short inside any of these parts is an error.
    pub fn parse(source: S) -> Result<Self, ElfError> {
        let (raw, header) = parse_header(&source)?;
        let sections = read_sections(&source, &raw)?;
        Ok(Self { source, header, sections })
    }

    /// Returns the source that the file is read from.
    pub fn source(&self) -> &S {
        &self.source
    }

    pub fn header(&self) -> &ElfHeader {
        &self.header
    }

    /// Returns the build id of the sections of notes, else of the segments, whose bytes debug files
    /// may have elsewhere than their program headers say.
    pub fn build_id(&self) -> Option<BuildId> {
        let notes =
            self.sections.iter().filter(|section| section.kind == elf::SHT_NOTE.0 && !section.no_bits);
        let of_section = |section| build_id::from_note_bytes(&self.read(section, MAX_NOTES).ok()?, 4);
        notes.take(MAX_NOTE_SECTIONS).find_map(of_section).or(self.header.build_id)
    }

    /// Returns all sections in the file's order; symbols refer to them by index (`st_shndx`).
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Returns the parts that have code: the executable sections, or the executable segments of a
    /// file without section headers.
    pub fn code(&self) -> Vec<Section> {
        if !self.sections.is_empty() {
            return self.sections.iter().filter(|it| it.executable && !it.no_bits).cloned().collect();
        }
        let segments = self.header.segments.iter().filter(|segment| segment.executable);
        let section = |segment: &LoadSegment| Section {
            name: "an executable segment".to_owned(),
            address: segment.address,
            offset: segment.offset,
            size: segment.file_size,
            executable: true,
            no_bits: false,
            compressed: false,
            kind: elf::SHT_PROGBITS.0,
            link: 0,
        };
        segments.map(section).collect()
    }

    /// Returns the first section called `name` whose bytes are in the file.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name && !s.no_bits)
    }

    /// Returns the bytes of `section`, decompressed, if they are no more than `limit`.
    ///
    /// # Errors
    /// [`ElfError::TooLarge`] above `limit`, [`ElfError::Read`] where the file ends before the
    /// section does, [`ElfError::Malformed`] for compressed data that can't be expanded (zlib and
    /// zstd are supported).
    pub fn read(&self, section: &Section, limit: u64) -> Result<Vec<u8>, ElfError> {
        if section.no_bits {
            return Err(ElfError::malformed(&section.name, "its bytes aren't in this file"));
        }
        let (name, offset, size) = (&section.name, section.offset.0, section.size);
        if section.compressed {
            return compressed_sections::expand_section(name, self.stream(section, limit)?, limit);
        }
        read_bytes(&self.source, name, offset, size, limit)
    }

    /// Returns a reader of the bytes of `section` as they are in the file, if they are no more than
    /// `limit`.
    ///
    /// # Errors
    /// [`ElfError::TooLarge`] above `limit`, [`ElfError::Read`] where the file ends before the
    /// section does.
    pub(crate) fn stream(&self, section: &Section, limit: u64) -> Result<impl io::Read, ElfError> {
        let (what, offset, len) = (section.name.clone(), section.offset.0, section.size);
        if len > limit {
            return Err(ElfError::TooLarge { what, size: len, limit });
        }
        match offset.checked_add(len).filter(|end| *end <= self.source.size()) {
            Some(end) => {
                Ok(io::BufReader::with_capacity(STREAM_BYTES, SourceReader::new(&self.source, offset..end)))
            }
            None => Err(ElfError::Read { what, offset, len, source: io::ErrorKind::UnexpectedEof.into() }),
        }
    }

    /// Returns the offset of the bytes of `section` in the file, if all of them are there
    /// uncompressed.
    ///
    /// # Errors
    /// Those of [`Self::read_piece`].
    pub fn place(&self, section: &Section) -> Result<FileOffset, ElfError> {
        if section.no_bits || section.compressed {
            return Err(ElfError::malformed(&section.name, "isn't in the file as it is"));
        }
        let (offset, len) = (section.offset.0, section.size);
        if offset.checked_add(len).is_none_or(|end| end > self.source.size()) {
            let (what, source) = (section.name.clone(), io::ErrorKind::UnexpectedEof.into());
            return Err(ElfError::Read { what, offset, len, source });
        }
        Ok(section.offset)
    }

    /// Returns the range of the file that holds `section` uncompressed, if that has no more than
    /// `limit` bytes.
    ///
    /// # Errors
    /// Those of [`Self::place`], and [`ElfError::TooLarge`] above the limit.
    pub(crate) fn range(&self, section: &Section, limit: u64) -> Result<Range<u64>, ElfError> {
        let (start, size) = (self.place(section)?.0, section.size);
        if size > limit {
            return Err(ElfError::TooLarge { what: section.name.clone(), size, limit });
        }
        Ok(start..start + size)
    }

    /// Reads `len` bytes of `section` from `offset` inside it, for tables that are read piece by
    /// piece.
    ///
    /// # Errors
    /// Those of [`Self::read`]; [`ElfError::Malformed`] if the piece isn't inside the section or
    /// the section is compressed.
    pub fn read_piece(&self, section: &Section, offset: u64, len: u64) -> Result<Vec<u8>, ElfError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= section.size);
        if !inside || section.no_bits || section.compressed {
            return Err(ElfError::malformed(&section.name, "a piece of it isn't in the file as it is"));
        }
        let start = section.offset.0.checked_add(offset);
        let start = start.ok_or_else(|| ElfError::malformed(&section.name, "file offset overflows"))?;
        read_bytes(&self.source, &section.name, start, len, len)
    }
}

/// Reads only the parts of [`ElfHeader`]: file header, program headers and the notes they point to.
///
/// # Errors
/// See [`ElfError`].
pub fn read_header(source: &impl ByteSource) -> Result<ElfHeader, ElfError> {
    parse_header(source).map(|(_, header)| header)
}

pub(crate) type RawHeader = FileHeader64<Le>;

/// Headers of a file, unparsed.
pub(crate) struct RawHeaders {
    pub(crate) file: RawHeader,
    pub(crate) programs: Vec<ProgramHeader64<Le>>,
    pub(crate) sections: Vec<SectionHeader64<Le>>,
    /// Index of the section with the sections' names.
    pub(crate) names_index: usize,
}

/// Reads the headers of a file to write them again.
pub(crate) fn read_raw(source: &impl ByteSource) -> Result<RawHeaders, ElfError> {
    let file = read_file_header(source)?;
    let programs = read_programs(source, &file)?;
    let (sections, names_index) = read_section_headers(source, &file)?;
    Ok(RawHeaders { file, programs, sections, names_index })
}

fn read_programs(source: &impl ByteSource, raw: &RawHeader) -> Result<Vec<ProgramHeader64<Le>>, ElfError> {
    let count = u64::from(raw.e_phnum.get(Le));
    if count == 0 {
        return Ok(Vec::new());
    }
    check_entry_size::<ProgramHeader64<Le>>("program headers", raw.e_phentsize.get(Le))?;
    read_table(source, "program headers", raw.e_phoff.get(Le), count, MAX_PROGRAM_HEADERS)
}

fn parse_header(source: &impl ByteSource) -> Result<(RawHeader, ElfHeader), ElfError> {
    let raw = read_file_header(source)?;
    let kind = match raw.e_type.get(Le) {
        elf::ET_EXEC => ElfKind::Executable,
        elf::ET_DYN => ElfKind::Dynamic,
        other => return Err(ElfError::NotLoadable(other.0)),
    };
    let programs = read_programs(source, &raw)?;
    let segments = programs.iter().filter(|p| p.p_type.get(Le) == elf::PT_LOAD).map(load_segment).collect();
    let notes = FileNotes::read(source, &programs);
    let header = ElfHeader {
        kind,
        entry: Svma(raw.e_entry.get(Le)),
        segments,
        build_id: notes.build_id,
        is_go: notes.is_go,
    };
    Ok((raw, header))
}

fn load_segment(program: &ProgramHeader64<Le>) -> LoadSegment {
    LoadSegment {
        offset: FileOffset(program.p_offset.get(Le)),
        address: Svma(program.p_vaddr.get(Le)),
        file_size: program.p_filesz.get(Le),
        memory_size: program.p_memsz.get(Le),
        executable: program.p_flags.get(Le).0 & elf::PF_X.0 != 0,
    }
}

fn read_file_header(source: &impl ByteSource) -> Result<RawHeader, ElfError> {
    let len = size_of::<RawHeader>() as u64;
    // An empty or tiny file isn't a broken ELF file, it is none.
    if source.size() < 4 {
        return Err(ElfError::NotElf);
    }
    let mut magic = [0; 4];
    let what = "the file header";
    let read = |source_error| ElfError::Read { what: what.into(), offset: 0, len, source: source_error };
    source.read_exact_at(0, &mut magic).map_err(read)?;
    if magic != elf::ELFMAG {
        return Err(ElfError::NotElf);
    }
    let bytes = read_bytes(source, what, 0, len, len)?;
    let (raw, _) = pod::from_bytes::<RawHeader>(&bytes).map_err(|()| ElfError::NotElf)?;
    let ident = &raw.e_ident;
    if ident.class != elf::ELFCLASS64 || ident.data != elf::ELFDATA2LSB {
        let found = format!("class {}, byte order {}", ident.class.0, ident.data.0);
        return Err(ElfError::Foreign { found });
    }
    let machine = raw.e_machine.get(Le);
    if machine != elf::EM_X86_64 {
        return Err(ElfError::Foreign { found: format!("machine {}", machine.0) });
    }
    Ok(*raw)
}

/// Reads the section headers, unparsed, and the index of that with their names.
fn read_section_headers(
    source: &impl ByteSource,
    raw: &RawHeader,
) -> Result<(Vec<SectionHeader64<Le>>, usize), ElfError> {
    let offset = raw.e_shoff.get(Le);
    if offset == 0 {
        return Ok((Vec::new(), 0));
    }
    let what = "section headers";
    check_entry_size::<SectionHeader64<Le>>(what, raw.e_shentsize.get(Le))?;
    let mut count = u64::from(raw.e_shnum.get(Le));
    let mut names_index = u32::from(raw.e_shstrndx.get(Le).0);
    if count == 0 || names_index == u32::from(elf::SHN_XINDEX.0) {
        // gABI: numbers that don't fit the file header stand in the first section header.
        let first: Vec<SectionHeader64<Le>> = read_table(source, what, offset, 1, 1)?;
        let first = first.first().ok_or_else(|| ElfError::malformed(what, "none"))?;
        if count == 0 {
            count = first.sh_size.get(Le);
        }
        if names_index == u32::from(elf::SHN_XINDEX.0) {
            names_index = first.sh_link.get(Le);
        }
    }
    let headers = read_table(source, what, offset, count, MAX_SECTIONS)?;
    Ok((headers, names_index as usize))
}

fn read_sections(source: &impl ByteSource, raw: &RawHeader) -> Result<Vec<Section>, ElfError> {
    let (headers, names_index) = read_section_headers(source, raw)?;
    let names = match headers.get(names_index) {
        Some(names) if names.sh_type.get(Le) == elf::SHT_STRTAB => {
            let what = "section names";
            read_bytes(source, what, names.sh_offset.get(Le), names.sh_size.get(Le), MAX_SECTION_NAMES)?
        }
        _ => Vec::new(),
    };
    let mut left = MAX_SECTION_NAMES as usize;
    let mut sections = Vec::with_capacity(headers.len());
    for header in &headers {
        let section = section(header, &names);
        left = left.checked_sub(section.name.len()).ok_or_else(|| ElfError::TooLarge {
            what: "all section names".to_owned(),
            size: MAX_SECTION_NAMES + 1,
            limit: MAX_SECTION_NAMES,
        })?;
        sections.push(section);
    }
    Ok(sections)
}

fn section(header: &SectionHeader64<Le>, names: &[u8]) -> Section {
    let flags = header.sh_flags.get(Le).0;
    Section {
        name: String::from_utf8_lossy(section_name(names, header.sh_name.get(Le) as usize)).into_owned(),
        address: Svma(header.sh_addr.get(Le)),
        offset: FileOffset(header.sh_offset.get(Le)),
        size: header.sh_size.get(Le),
        executable: flags & elf::SHF_EXECINSTR.0 != 0,
        no_bits: header.sh_type.get(Le) == elf::SHT_NOBITS,
        compressed: flags & elf::SHF_COMPRESSED.0 != 0,
        kind: header.sh_type.get(Le).0,
        link: header.sh_link.get(Le),
    }
}

/// Returns the bytes from `start` up to the next zero byte, the end or [`MAX_SECTION_NAME`]; empty
/// if `start` is outside.
fn section_name(table: &[u8], start: usize) -> &[u8] {
    let rest = table.get(start..).unwrap_or_default();
    let rest = &rest[..rest.len().min(MAX_SECTION_NAME)];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    &rest[..end]
}

fn check_entry_size<T>(what: &'static str, stated: u16) -> Result<(), ElfError> {
    if usize::from(stated) == size_of::<T>() {
        return Ok(());
    }
    Err(ElfError::malformed(what, "entries of another size than ELF64 has"))
}

fn read_table<T: Pod>(
    source: &impl ByteSource,
    what: &str,
    offset: u64,
    count: u64,
    most: u64,
) -> Result<Vec<T>, ElfError> {
    let entry = size_of::<T>() as u64;
    let bytes = read_bytes(source, what, offset, count.saturating_mul(entry), most * entry)?;
    let table = pod::slice_from_all_bytes(&bytes);
    table.map(<[T]>::to_vec).map_err(|()| ElfError::malformed(what, "not a whole number of entries"))
}

/// Reads `len` bytes at `offset`. Nothing is allocated unless the file is that long.
pub(crate) fn read_bytes(
    source: &impl ByteSource,
    what: &str,
    offset: u64,
    len: u64,
    limit: u64,
) -> Result<Vec<u8>, ElfError> {
    if len > limit {
        return Err(ElfError::TooLarge { what: what.into(), size: len, limit });
    }
    let failed = |source| ElfError::Read { what: what.into(), offset, len, source };
    if offset.checked_add(len).is_none_or(|end| end > source.size()) {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let size = usize::try_from(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    let mut bytes = vec![0; size];
    source.read_exact_at(offset, &mut bytes).map_err(failed)?;
    Ok(bytes)
}
