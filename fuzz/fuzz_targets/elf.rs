//! Any bytes as an ELF file: headers, symbols, rows and thread-local variables, and lookups all
//! over its segments.
#![no_main]

use jvmprof_daemon::hotspot::stubs::analyze_native;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::elf::thread_local::{find_thread_local, interpreter};
use jvmprof_daemon::native::symbols::SymbolTable;
use jvmprof_daemon::native::unwind_rows::UnwindRows;
use jvmprof_daemon::types::{FileOffset, Svma};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(elf) = ElfFile::parse(data) else { return };
    let symbols = SymbolTable::load(&elf);
    let rows = UnwindRows::load_with(&elf, Some(analyze_native));
    let _ = SymbolTable::load_go(&elf);
    let _ = find_thread_local(&elf, "otel_thread_ctx_v1");
    let _ = interpreter(&elf);
    for segment in elf.header().segments.iter().take(8) {
        for step in 0..16 {
            let address = Svma(segment.address.0.wrapping_add(segment.memory_size / 16 * step));
            if let Ok(symbols) = &symbols
                && let Some(found) = symbols.lookup(address)
            {
                assert!(found.start <= address && address.0 - found.start.0 < found.size);
                let _ = symbols.name(found, elf.source());
            }
            if let Ok(rows) = &rows {
                rows.row(address);
            }
        }
        elf.header().svma_of(FileOffset(segment.offset.0.wrapping_add(segment.file_size / 2)));
    }
});
