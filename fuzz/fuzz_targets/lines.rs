//! Any bytes as the sections of DWARF: what is found takes no more memory than is allowed, and no
//! more stack than a thread has.
#![no_main]

mod image;
mod pieces;

use std::path::Path;

use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::dwarf_lines::DwarfLineTable;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::types::Svma;
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 16 << 20;
const SECTIONS: [&str; 8] = [
    ".debug_abbrev",
    ".debug_info",
    ".debug_line",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_line_str",
    ".debug_aranges",
];

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let sections = SECTIONS.map(|name| (name, pieces::piece(&mut rest)));
    let file = image::of_sections(&sections);
    let Ok(elf) = ElfFile::parse(&*file) else { panic!("the file around it doesn't parse") };
    let Ok(Some(lines)) = DwarfLineTable::load(&elf, Path::new("/x"), &DebugFileLocator::default(), LIMIT)
    else {
        return;
    };
    assert!(lines.size_bytes() as u64 <= 2 * LIMIT);
    for address in (0..64).map(|n| n * 16).chain([1 << 20, u64::MAX]) {
        let _ = lines.find(Svma(address));
    }
});
