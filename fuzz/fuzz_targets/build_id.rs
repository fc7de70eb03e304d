//! Any bytes as ELF notes.
#![no_main]

use jvmprof_daemon::native::elf::build_id::from_note_bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for align in [1, 4, 8] {
        if let Some(id) = from_note_bytes(data, align) {
            assert!((1..=20).contains(&id.as_bytes().len()));
        }
    }
});
