//! Thread-local variables of ELF files: where their threads have them.
//!
//! Relocations: System V ABI AMD64 supplement, 4.4.1; access models: U. Drepper, "ELF Handling For
//! Thread-Local Storage", and A. Oliva, "Thread-Local Storage Descriptors".

use object::LittleEndian as Le;
use object::elf::{self, Rela64, Sym64};
use object::pod::{self, Pod};

use super::{ElfError, ElfFile, Section, read_bytes, read_raw};
use crate::native::byte_source::ByteSource;
use crate::types::Svma;

/// Largest tables that are read: those of Chromium have some ten megabytes.
const MAX_SYMBOLS: u64 = 16 << 20;
/// Maximum number of bytes of all tables of relocations of a file together.
const MAX_RELOCATIONS: u64 = 64 << 20;
/// Thread-local symbols of a file whose names are read: few have a dozen.
const MAX_THREAD_LOCALS: usize = 4096;
/// Bytes of a table that are read at a time: a multiple of an entry's 24.
const PIECE: u64 = 24 << 10;

/// A thread-local variable that a file defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLocal {
    /// Distance from the begin of the module's block of such variables.
    pub offset: u64,
    /// Bytes of that block.
    pub block_bytes: u64,
    pub access: TlsAccess,
}

/// The way in which the variable's address is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsAccess {
    /// Only if the file is the program itself: at this distance from the thread pointer.
    Program { from_thread_pointer: i64 },
    /// The loader has written the distance from the thread pointer there (`R_X86_64_TPOFF64`).
    Static { slot: Svma },
    /// The loader has written the module's number there, and behind it the distance from the begin
    /// of its block (`R_X86_64_DTPMOD64`).
    Dynamic { slot: Svma },
    /// The loader has written a descriptor there (`R_X86_64_TLSDESC`): a function and its argument.
    Descriptor { slot: Svma },
}

/// Longest path of a loader in bytes (`PATH_MAX`).
const MAX_INTERPRETER: u64 = 4096;

/// Returns the path of a program's loader (`PT_INTERP`); `None` for a library and a static program.
pub fn interpreter(file: &ElfFile<impl ByteSource>) -> Option<String> {
    let programs = read_raw(file.source()).ok()?.programs;
    let found = programs.iter().find(|it| it.p_type.get(Le) == elf::PT_INTERP)?;
    let (offset, size) = (found.p_offset.get(Le), found.p_filesz.get(Le));
    let bytes = read_bytes(file.source(), "the loader's path", offset, size, MAX_INTERPRETER).ok()?;
    let path = bytes.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(path).into_owned())
}

/// Finds a thread-local variable that the file exports.
///
/// # Errors
/// [`ElfError`] where the file's tables can't be read or are too large.
pub fn find_thread_local(
    file: &ElfFile<impl ByteSource>,
    name: &str,
) -> Result<Option<ThreadLocal>, ElfError> {
    let Some(symbols) = file.sections().iter().find(|it| it.kind == elf::SHT_DYNSYM.0) else {
        return Ok(None);
    };
    let Some((index, offset)) = find_symbol(file, symbols, name)? else { return Ok(None) };
    let programs = read_raw(file.source())?.programs;
    let Some(block) = programs.iter().find(|it| it.p_type.get(Le) == elf::PT_TLS) else {
        return Ok(None);
    };
    let block_bytes = block.p_memsz.get(Le);
    let access = match find_slot(file, index, offset)? {
        Some(access) => access,
        None => {
            // The program's block ends at the thread pointer, as far as its alignment allows.
            let align = block.p_align.get(Le).max(1).checked_next_power_of_two().unwrap_or(1);
            let padding = block.p_vaddr.get(Le).wrapping_add(block_bytes).wrapping_neg() & (align - 1);
            let below = block_bytes.wrapping_add(padding);
            TlsAccess::Program { from_thread_pointer: offset.wrapping_sub(below).cast_signed() }
        }
    };
    Ok(Some(ThreadLocal { offset, block_bytes, access }))
}

/// Finds a thread-local variable that the file keeps for itself, by its distance from the begin of
/// the module's block.
///
/// # Errors
/// As [`find_thread_local`].
pub fn find_private_thread_local(
    file: &ElfFile<impl ByteSource>,
    offset: u64,
) -> Result<Option<ThreadLocal>, ElfError> {
    const NO_SYMBOL: u32 = 0;
    let programs = read_raw(file.source())?.programs;
    let block = programs.iter().find(|it| it.p_type.get(Le) == elf::PT_TLS);
    let Some(block_bytes) = block.map(|block| block.p_memsz.get(Le)).filter(|bytes| offset < *bytes) else {
        return Ok(None);
    };
    let access = find_slot(file, NO_SYMBOL, offset)?;
    Ok(access.map(|access| ThreadLocal { offset, block_bytes, access }))
}

/// Returns index and value of the thread-local variable of this name that the file defines.
fn find_symbol(
    file: &ElfFile<impl ByteSource>,
    symbols: &Section,
    name: &str,
) -> Result<Option<(u32, u64)>, ElfError> {
    let Some(names) = file.sections().get(symbols.link as usize) else { return Ok(None) };
    let wanted = [name.as_bytes(), b"\0"].concat();
    let (mut found, mut index, mut names_read) = (None, 0, 0);
    for_each_entry(file, symbols, MAX_SYMBOLS, |symbol: &Sym64<Le>| {
        let is_defined = symbol.st_shndx.get(Le) != elf::SHN_UNDEF;
        if is_defined && symbol.st_info.st_type() == elf::STT_TLS {
            let start = u64::from(symbol.st_name.get(Le));
            names_read += 1;
            if file.read_piece(names, start, wanted.len() as u64).is_ok_and(|it| it == wanted) {
                found = Some((index, symbol.st_value.get(Le)));
            }
        }
        index += 1;
        found.is_none() && names_read < MAX_THREAD_LOCALS
    })?;
    Ok(found)
}

/// Returns where the loader writes how the symbol is accessed. A relocation of a variable that
/// can't be replaced by another module's names no symbol, but its offset.
fn find_slot(
    file: &ElfFile<impl ByteSource>,
    symbol: u32,
    offset: u64,
) -> Result<Option<TlsAccess>, ElfError> {
    let mut found = None;
    let mut left = MAX_RELOCATIONS;
    let tables = file.sections().iter().filter(|it| it.kind == elf::SHT_RELA.0 && it.address.0 != 0);
    for table in tables {
        for_each_entry(file, table, left, |entry: &Rela64<Le>| {
            let number = entry.r_sym(Le, false);
            let is_local = number == 0 && entry.r_addend.get(Le).cast_unsigned() == offset;
            let slot = Svma(entry.r_offset.get(Le));
            let access = match entry.r_type(Le, false) {
                elf::R_X86_64_TLSDESC => TlsAccess::Descriptor { slot },
                elf::R_X86_64_TPOFF64 => TlsAccess::Static { slot },
                // The module is that of all variables that the file keeps for itself.
                elf::R_X86_64_DTPMOD64 if number == symbol => {
                    found = Some(TlsAccess::Dynamic { slot });
                    return false;
                }
                _ => return true,
            };
            if number != 0 && number == symbol || is_local {
                found = Some(access);
            }
            found.is_none()
        })?;
        if found.is_some() {
            break;
        }
        left -= table.size;
    }
    Ok(found)
}

/// Calls `entry` with each entry of a table, until it returns false.
fn for_each_entry<T: Pod>(
    file: &ElfFile<impl ByteSource>,
    table: &Section,
    limit: u64,
    mut entry: impl FnMut(&T) -> bool,
) -> Result<(), ElfError> {
    if table.size > limit {
        return Err(ElfError::TooLarge { what: table.name.clone(), size: table.size, limit });
    }
    let mut at = 0;
    while at < table.size {
        let piece = file.read_piece(table, at, PIECE.min(table.size - at))?;
        let entries = pod::slice_from_all_bytes::<T>(&piece)
            .map_err(|()| ElfError::malformed(&table.name, "not a whole number of entries"))?;
        if !entries.iter().all(&mut entry) {
            return Ok(());
        }
        at += PIECE;
    }
    Ok(())
}
