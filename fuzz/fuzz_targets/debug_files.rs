//! Any bytes as a debug file: MiniDebugInfo, inlined functions and lines, and what is extracted to
//! be uploaded.
#![no_main]

use std::path::Path;

use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::dwarf_lines::DwarfLineTable;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::function_symbols::{FunctionSymbols, mini_debug_info};
use jvmprof_daemon::native::debug_files_to_upload::extract_debug_info::{SymbolSources, extract};
use jvmprof_daemon::types::Svma;
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Ok(elf) = ElfFile::parse(data) else { return };
    let (path, nowhere) = (Path::new("/x"), DebugFileLocator::default());
    let addresses = elf.header().segments.iter().take(4).flat_map(|segment| {
        (0..16).map(|step| Svma(segment.address.0.wrapping_add(segment.memory_size / 16 * step)))
    });
    if let Ok(Some(lines)) = DwarfLineTable::load(&elf, path, &nowhere, LIMIT) {
        for address in addresses.clone() {
            let _ = lines.find(address);
        }
    }
    if let Ok(functions) = FunctionSymbols::load(&elf, path, &nowhere) {
        for address in addresses {
            if let Some(found) = functions.lookup(address) {
                assert!(found.start <= address && address.0 - found.start.0 < found.size);
                let _ = functions.name(found, elf.source());
            }
        }
    }
    let _ = mini_debug_info(&elf);
    let mut out = Vec::new();
    if extract(&elf, &elf, LIMIT, &mut out).is_ok() {
        // What we send is an ELF file with the same contents.
        let Ok(sent) = ElfFile::parse(&*out) else { panic!("an extracted file doesn't parse") };
        assert_eq!(sent.header().segments, elf.header().segments);
        let (sent, own) = (SymbolSources::of(&sent), SymbolSources::of(&elf));
        assert_eq!(sent.dwarf, own.dwarf);
    }
});
