//! Any bytes as a program, and others as its debug file: what is sent of them is an ELF file of the
//! program's segments, no larger than is allowed.
#![no_main]

mod pieces;

use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::debug_files_to_upload::extract_debug_info::{SymbolSources, extract};
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let program = pieces::piece(&mut rest);
    let (Ok(program), Ok(symbols)) = (ElfFile::parse(program), ElfFile::parse(rest)) else { return };
    let mut out = Vec::new();
    let Ok(made) = extract(&program, &symbols, LIMIT, &mut out) else { return };
    assert_eq!(made.size, out.len() as u64);
    assert!(made.size <= LIMIT);
    let Ok(sent) = ElfFile::parse(&*out) else { panic!("an extracted file doesn't parse") };
    assert_eq!(sent.header().segments, program.header().segments);
    assert_eq!(SymbolSources::of(&sent).dwarf, SymbolSources::of(&symbols).dwarf);
});
