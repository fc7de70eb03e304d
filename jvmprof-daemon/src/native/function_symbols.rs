//! Functions of a mapped file from the best symbols there are: its own, or those of its debug file,
//! or those in its `.gnu_debugdata`, or those of a Go program's own table; beside them its
//! `.dynsym`.

use std::fs::File;
use std::path::Path;

use object::elf::SHT_SYMTAB;

use crate::native::byte_source::{ByteSource, FileExcerpt, RegularFile};
use crate::native::debug_files::{CHANGED, DebugFile, DebugFileLocator};
use crate::native::elf::compressed_sections;
use crate::native::elf::{ElfError, ElfFile};
use crate::native::file_identity::{FileIdentity, FileStat};
use crate::native::symbols::{SymbolRef, SymbolTable};

/// Largest `.gnu_debugdata` that is expanded, in bytes; Fedora's largest have some hundred
/// thousand.
const MAX_MINI: u64 = 16 << 20;
/// Largest ELF file that may come out of it, which is in memory for a moment.
const MAX_MINI_EXPANDED: u64 = 24 << 20;
/// Largest string table of a debug file that is copied to memory.
const MAX_COPIED_NAMES: u64 = 16 << 20;

/// Functions of one file, and the source of their names.
#[derive(Debug)]
pub struct FunctionSymbols {
    table: SymbolTable,
    symtab: Symtab,
}

/// The source of the names of `.symtab`.
#[derive(Debug)]
enum Symtab {
    /// The file itself.
    Own,
    /// A debug file of the host, kept open: what a path leads to may change.
    Debug { file: File, identity: FileIdentity },
    /// The names alone: of `.gnu_debugdata`, or of a debug file of a container, which isn't kept
    /// open since that would keep the container's file system alive.
    Copied(FileExcerpt),
}

impl FunctionSymbols {
    /// Loads the functions of `file`, which was mapped from `path`.
    ///
    /// # Errors
    /// [`ElfError`] where the file's own symbols can't be read or are too large. An error of a
    /// debug file is logged, and the file is skipped.
    pub fn load<S: ByteSource>(
        file: &ElfFile<S>,
        path: &Path,
        places: &DebugFileLocator,
    ) -> Result<Self, ElfError> {
        if has_symtab(file) {
            return Ok(Self { table: SymbolTable::load(file)?, symtab: Symtab::Own });
        }
        let separate = places.find(file, path).and_then(|debug| {
            Self::with_debug_file(file, &debug).inspect_err(|error| note(&debug.path, error)).ok().flatten()
        });
        let mini = || Self::with_mini(file).inspect_err(|error| note(path, error)).ok().flatten();
        let go = || SymbolTable::load_go(file).inspect_err(|error| note(path, error)).ok().flatten();
        match separate.or_else(mini) {
            Some(loaded) => Ok(loaded),
            None => {
                let table = go().map_or_else(|| SymbolTable::load(file), Ok)?;
                Ok(Self { table, symtab: Symtab::Own })
            }
        }
    }

    /// Loads the functions of a debug file; `None` if it has no symbols.
    fn with_debug_file<S: ByteSource>(
        file: &ElfFile<S>,
        debug: &DebugFile,
    ) -> Result<Option<Self>, ElfError> {
        let parsed = debug.parse()?;
        if !has_symtab(&parsed) {
            return Ok(None);
        }
        let table = SymbolTable::load_with(file, &parsed)?;
        let symtab = match debug.is_of_host {
            false => Symtab::Copied(copy_names(&table, parsed.source())?),
            true => {
                let (file, identity) =
                    (debug.file.try_clone().map_err(|source| debug.read_error(source))?, debug.stat.identity);
                Symtab::Debug { file, identity }
            }
        };
        debug.check_unchanged()?;
        Ok(Some(Self { table, symtab }))
    }

    /// Loads MiniDebugInfo: an ELF file, compressed by xz, with the `.symtab` of what `.dynsym`
    /// lacks.
    fn with_mini<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<Self>, ElfError> {
        let Some(image) = mini_debug_info(file)? else { return Ok(None) };
        let mini = ElfFile::parse(&*image)?;
        let table = SymbolTable::load_with(file, &mini)?;
        let symtab = Symtab::Copied(copy_names(&table, mini.source())?);
        Ok(Some(Self { table, symtab }))
    }

    /// Returns the function that contains `address`; `None` in holes, never a neighbour.
    pub fn lookup(&self, address: crate::types::Svma) -> Option<SymbolRef> {
        self.table.lookup(address)
    }

    /// Reads the name of a function that [`Self::lookup`] found. `own` is the file that these
    /// functions are of.
    ///
    /// # Errors
    /// [`ElfError::Read`] where a file doesn't give the bytes, or is another one by now.
    pub fn name(&self, found: SymbolRef, own: &impl ByteSource) -> Result<Option<String>, ElfError> {
        match &self.symtab {
            _ if found.is_dynamic() => self.table.name(found, own),
            Symtab::Own => self.table.name(found, own),
            Symtab::Copied(names) => self.table.name(found, names),
            Symtab::Debug { file, identity } => {
                let failed =
                    |source| ElfError::Read { what: "a debug file".to_owned(), offset: 0, len: 0, source };
                let name = self.table.name(found, &RegularFile::new(file).map_err(failed)?)?;
                // It may be removed meanwhile, which changes only when it was changed.
                match FileStat::of(file).map_err(failed)?.identity == *identity {
                    true => Ok(name),
                    false => Err(ElfError::malformed("a debug file", CHANGED)),
                }
            }
        }
    }

    /// Returns the number of ranges that a lookup distinguishes.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns true if these are all functions of the file, not only those that `.dynsym` exports.
    pub fn has_symtab(&self) -> bool {
        !self.table.symtab_names().is_empty()
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        let copied = match &self.symtab {
            Symtab::Copied(names) => names.size_bytes(),
            Symtab::Own | Symtab::Debug { .. } => 0,
        };
        self.table.size_bytes() + copied
    }
}

/// Expands the ELF file in `.gnu_debugdata`; `None` without that section.
///
/// # Errors
/// [`ElfError::TooLarge`] above 24 MiB, [`ElfError::Malformed`] for data that can't be expanded.
pub fn mini_debug_info<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<Vec<u8>>, ElfError> {
    let Some(section) = file.section(".gnu_debugdata") else { return Ok(None) };
    let compressed = file.stream(section, MAX_MINI)?;
    compressed_sections::expand_xz(&section.name, compressed, MAX_MINI_EXPANDED).map(Some)
}

pub(crate) fn has_symtab<S: ByteSource>(file: &ElfFile<S>) -> bool {
    // One entry is the empty symbol that each table begins with.
    file.sections().iter().any(|s| s.kind == SHT_SYMTAB.0 && !s.no_bits && s.size > 24)
}

fn copy_names(table: &SymbolTable, source: &impl ByteSource) -> Result<FileExcerpt, ElfError> {
    let range = table.symtab_names();
    let (what, size) = ("names of a debug file".to_owned(), range.end.saturating_sub(range.start));
    if size > MAX_COPIED_NAMES {
        return Err(ElfError::TooLarge { what, size, limit: MAX_COPIED_NAMES });
    }
    let offset = range.start;
    FileExcerpt::copy(source, range).map_err(|source| ElfError::Read { what, offset, len: size, source })
}

fn note(path: &Path, error: &ElfError) {
    tracing::debug!(path = %path.display(), %error, "debug symbols can't be used");
}
