//! Exported symbols of the files that a process maps, read from its memory: no file is opened, so
//! deleted files, other mount namespaces and renamed copies make no difference.
//!
//! Layouts: System V gABI chapter 5 (`elf.h`), and glibc's `DT_GNU_HASH` (elf/dl-lookup.c,
//! `do_lookup_x`).

use std::collections::BTreeMap;
use std::ops::Range;

use object::elf::{DT_GNU_HASH, DT_HASH, DT_STRTAB, DT_SYMTAB, ELFMAG, PT_DYNAMIC, PT_LOAD};

use crate::hotspot::process_memory::{MAX_READ, ProcessMemory, field};
use crate::process::procfs::{self, ProcfsError};
use crate::types::{Avma, LoadBias, Svma};

/// Bytes of file header and program headers that are read: linkers put both at the file's start.
const HEADER_BYTES: usize = 64 + 56 * 16;
/// Largest dynamic section, in bytes; linkers write about 40 entries of 16 bytes.
const MAX_DYNAMIC: u64 = 4096;
/// Symbols of one hash chain that are looked at, at most.
const MAX_CHAIN: usize = 256;

/// A file mapped into a process: where its first byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Image(pub Avma);

/// The dynamic symbol tables of one image.
#[derive(Clone, Copy, Debug)]
struct DynamicSymbols {
    /// Zero for an executable that isn't relocatable.
    bias: LoadBias,
    hash: HashSection,
    symbols: Avma,
    strings: Avma,
    /// First address behind the image's last segment.
    end: Avma,
}

/// The exported symbols of an image.
#[derive(Debug)]
pub(crate) struct ExportedSymbols {
    pub(crate) image: Image,
    /// All memory of the image.
    pub(crate) memory: Range<Avma>,
    pub(crate) addresses: BTreeMap<&'static str, Avma>,
}

/// Address of the hash table, by its kind. Linkers of old write only `DT_HASH`, those of today
/// often only the other.
#[derive(Clone, Copy, Debug)]
enum HashSection {
    Gnu(Avma),
    SysV(Avma),
}

/// The first of `images` that exports `name`, and the addresses of those of `names` that it
/// exports.
pub(crate) fn find_exports(
    images: &[Image],
    name: &str,
    names: &[&'static str],
    memory: &impl ProcessMemory,
) -> Option<ExportedSymbols> {
    let dynamics = read_dynamics(images, memory);
    // Most files are ruled out by one word of their hash tables' filters, for all files in two
    // calls.
    let (image, dynamic, table) = hash_tables(&dynamics, memory)
        .into_iter()
        .filter(|(.., table)| table.may_have(name, memory))
        .find(|(_, dynamic, table)| table.lookup(name, dynamic, memory).is_some())?;
    let address = |name: &&'static str| Some((*name, table.lookup(name, &dynamic, memory)?));
    let addresses = names.iter().filter_map(address).collect();
    Some(ExportedSymbols { image, memory: image.0..dynamic.end, addresses })
}

fn read_dynamics(images: &[Image], memory: &impl ProcessMemory) -> Vec<(Image, DynamicSymbols)> {
    let places: Vec<(Avma, usize)> = images.iter().map(|image| (image.0, HEADER_BYTES)).collect();
    let headers = memory.read_ranges(&places);
    let sections: Vec<(Image, ElfHeaders)> = images
        .iter()
        .zip(headers)
        .filter_map(|(image, header)| Some((*image, ElfHeaders::parse(image.0, &header?)?)))
        .collect();
    let places: Vec<(Avma, usize)> = sections.iter().map(|(_, header)| header.dynamic).collect();
    let bytes = memory.read_ranges(&places);
    sections
        .iter()
        .zip(bytes)
        .filter_map(|((image, header), bytes)| Some((*image, parse_dynamic(header, &bytes?)?)))
        .collect()
}

/// The parts of file header and program headers that are needed.
struct ElfHeaders {
    bias: LoadBias,
    /// `PT_DYNAMIC`.
    dynamic: (Avma, usize),
    /// First address behind the last segment.
    end: Avma,
}

impl ElfHeaders {
    fn parse(base: Avma, header: &[u8]) -> Option<Self> {
        let shared_object = field::u16(header, 16)? == 3;
        if header.get(..4)? != ELFMAG || field::u16(header, 18)? != 62 || field::u16(header, 54)? != 56 {
            return None;
        }
        let bias = LoadBias(if shared_object { base.0 } else { 0 });
        let programs = usize::try_from(field::u64(header, 32)?).ok()?;
        let count = usize::from(field::u16(header, 56)?).min(HEADER_BYTES / 56);
        let (mut dynamic, mut end) = (None, base);
        for index in 0..count {
            let Some(program) = programs.checked_add(index * 56).and_then(|at| header.get(at..)) else {
                break;
            };
            let address = Avma(bias.0.checked_add(field::u64(program, 16)?)?);
            let size = field::u64(program, 40)?;
            match field::u32(program, 0)? {
                kind if kind == PT_DYNAMIC.0 => {
                    dynamic = Some((address, size.min(MAX_DYNAMIC) as usize));
                }
                kind if kind == PT_LOAD.0 => end = end.max(Avma(address.0.checked_add(size)?)),
                _ => {}
            }
        }
        Some(Self { bias, dynamic: dynamic?, end })
    }
}

fn parse_dynamic(header: &ElfHeaders, section: &[u8]) -> Option<DynamicSymbols> {
    let ElfHeaders { bias, end, .. } = *header;
    let (mut gnu, mut sysv, mut symbols, mut strings) = (None, None, None, None);
    for entry in section.chunks_exact(16) {
        let (tag, value) = (field::u64(entry, 0)?, field::u64(entry, 8)?);
        // glibc adds the load address in place, musl leaves the file's own address.
        let address = if value < bias.0 { bias.avma(Svma(value)) } else { Avma(value) };
        match i64::try_from(tag) {
            Ok(0) => break,
            Ok(tag) if tag == DT_GNU_HASH.0 => gnu = Some(address),
            Ok(tag) if tag == DT_HASH.0 => sysv = Some(address),
            Ok(tag) if tag == DT_SYMTAB.0 => symbols = Some(address),
            Ok(tag) if tag == DT_STRTAB.0 => strings = Some(address),
            _ => {}
        }
    }
    let hash = gnu.map(HashSection::Gnu).or_else(|| sysv.map(HashSection::SysV))?;
    Some(DynamicSymbols { bias, hash, symbols: symbols?, strings: strings?, end })
}

/// A hash table's header.
#[derive(Clone, Copy, Debug)]
enum HashTable {
    Gnu { buckets: u32, first_symbol: u32, filter_words: u32, filter_shift: u32, filter: Avma },
    SysV { buckets: u32, chains: u32, start: Avma },
}

fn hash_tables(
    dynamics: &[(Image, DynamicSymbols)],
    memory: &impl ProcessMemory,
) -> Vec<(Image, DynamicSymbols, HashTable)> {
    let place = |dynamic: &DynamicSymbols| match dynamic.hash {
        HashSection::Gnu(at) => (at, 16),
        HashSection::SysV(at) => (at, 8),
    };
    let places: Vec<(Avma, usize)> = dynamics.iter().map(|(_, dynamic)| place(dynamic)).collect();
    let headers = memory.read_ranges(&places);
    let tables = dynamics.iter().zip(headers);
    tables
        .filter_map(|((image, dynamic), header)| {
            Some((*image, *dynamic, HashTable::parse(dynamic.hash, &header?)?))
        })
        .collect()
}

impl HashTable {
    fn parse(hash: HashSection, header: &[u8]) -> Option<Self> {
        let word = |index: usize| field::u32(header, index * 4);
        let buckets = word(0).filter(|buckets| *buckets != 0)?;
        Some(match hash {
            HashSection::Gnu(at) => Self::Gnu {
                buckets,
                first_symbol: word(1)?,
                filter_words: word(2).filter(|words| *words != 0)?,
                filter_shift: word(3)?,
                filter: at.wrapping_add(16),
            },
            HashSection::SysV(at) => Self::SysV { buckets, chains: word(1)?, start: at.wrapping_add(8) },
        })
    }

    fn may_have(&self, name: &str, memory: &impl ProcessMemory) -> bool {
        let Self::Gnu { filter_words, filter_shift, filter, .. } = *self else { return true };
        let hash = gnu_hash(name);
        let index = u64::from((hash / 64) % filter_words);
        let Some(word) = memory.read_u64(filter.wrapping_add(index * 8)) else { return false };
        let second = hash.checked_shr(filter_shift).unwrap_or(0);
        let mask = (1u64 << (hash % 64)) | (1u64 << (second % 64));
        word & mask == mask
    }

    fn lookup(&self, name: &str, dynamic: &DynamicSymbols, memory: &impl ProcessMemory) -> Option<Avma> {
        match *self {
            Self::Gnu { buckets, first_symbol, filter_words, filter, .. } => {
                let hash = gnu_hash(name);
                let start = filter.wrapping_add(u64::from(filter_words) * 8);
                let chains = start.wrapping_add(u64::from(buckets) * 4);
                let mut symbol = word(start, hash % buckets, memory)?;
                for _ in 0..MAX_CHAIN {
                    let link = word(chains, symbol.checked_sub(first_symbol)?, memory)?;
                    if link | 1 == hash | 1
                        && let Some(address) = symbol_if_named(name, symbol, dynamic, memory)
                    {
                        return Some(address);
                    }
                    if link & 1 == 1 {
                        return None;
                    }
                    symbol = symbol.checked_add(1)?;
                }
                None
            }
            Self::SysV { buckets, chains, start } => {
                let links = start.wrapping_add(u64::from(buckets) * 4);
                let mut symbol = word(start, sysv_hash(name) % buckets, memory)?;
                for _ in 0..MAX_CHAIN {
                    if symbol == 0 || symbol >= chains {
                        return None;
                    }
                    if let Some(address) = symbol_if_named(name, symbol, dynamic, memory) {
                        return Some(address);
                    }
                    symbol = word(links, symbol, memory)?;
                }
                None
            }
        }
    }
}

/// The `index`th 32-bit word of a table.
fn word(table: Avma, index: u32, memory: &impl ProcessMemory) -> Option<u32> {
    let mut bytes = [0; 4];
    let at = table.wrapping_add(u64::from(index) * 4);
    memory.read_into(at, &mut bytes).then(|| u32::from_le_bytes(bytes))
}

/// The address of a defined symbol, if it has this name.
fn symbol_if_named(
    name: &str,
    index: u32,
    dynamic: &DynamicSymbols,
    memory: &impl ProcessMemory,
) -> Option<Avma> {
    let symbol = memory.read_bytes(dynamic.symbols.wrapping_add(u64::from(index) * 24), 24)?;
    let at = dynamic.strings.wrapping_add(u64::from(field::u32(&symbol, 0)?));
    debug_assert!(name.len() < MAX_READ, "names are ours");
    let text = memory.read_bytes(at, name.len() + 1)?;
    let same = text.split_last() == Some((&0, name.as_bytes()));
    let defined = field::u16(&symbol, 6)? != 0;
    let value = Svma(field::u64(&symbol, 8)?);
    (same && defined).then(|| dynamic.bias.avma(value))
}

/// The hash function of the gABI's chapter "Hash Table".
fn sysv_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        (hash ^ ((hash >> 24) & 0xf0)) & 0x0fff_ffff
    })
}

/// The hash function of `dl-new-hash.h`: h * 33 + byte, from 5381.
fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

/// The images that a running process has code mapped of.
///
/// # Errors
/// It is gone, or may not be read.
pub fn images(pid: u32) -> Result<Vec<Image>, ProcfsError> {
    Ok(procfs::image_starts(pid)?.into_iter().map(Image).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::process_memory::LiveMemory;

    #[test]
    fn exports_are_found_in_this_process_where_the_loader_finds_them() {
        let images = images(std::process::id()).expect("a process may read itself");
        let memory = LiveMemory::new(std::process::id());
        let found = find_exports(&images, "malloc_usable_size", &["malloc_usable_size", "no such"], &memory)
            .expect("libc exports it");
        let expected = libc::malloc_usable_size as *const () as u64;
        assert!(found.memory.contains(&Avma(expected)));
        assert_eq!(found.addresses.into_iter().collect::<Vec<_>>(), [("malloc_usable_size", Avma(expected))]);
        assert!(find_exports(&images, "gHotSpotVMStructs", &[], &memory).is_none());
    }

    #[test]
    fn hashes_are_those_of_the_linker() {
        // As `readelf` and the gABI's own example have them.
        assert_eq!((gnu_hash("printf"), gnu_hash("")), (0x156b_2bb8, 5381));
        assert_eq!((sysv_hash("printf"), sysv_hash("exit")), (0x0779_05a6, 0x0006_cf04));
    }
}
