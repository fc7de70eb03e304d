//! Any bytes behind a good header as a jitdump that is written in two parts: it gives what it gives
//! when it is read at once, within its limits, and names only addresses inside of entries.
#![no_main]

use std::fs::File;
use std::io::Write;

use jvmprof_daemon::jit::code_unwind_rows::CodeUnwindRows;
use jvmprof_daemon::jit::jitdump::JitDump;
use jvmprof_daemon::jit::name_formats::code_name;
use jvmprof_daemon::types::Avma;
use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};

const LIMIT: usize = 64 << 10;

fn dump(file: &File) -> JitDump {
    let mut dump = JitDump::new(file.try_clone().expect("a descriptor"), [7, 7]);
    dump.set_memory_limit(LIMIT);
    dump
}

fuzz_target!(|data: &[u8]| {
    let Some((options, body)) = data.split_first() else { return };
    // Also as the `.eh_frame` of some code, without a record around it.
    if let Some(rows) = CodeUnwindRows::compile(body, 0x7000_1000, 200) {
        assert!((200..u32::MAX).step_by(1 << 24).all(|offset| rows.at(offset).is_none()));
        (0..200).for_each(|offset| {
            std::hint::black_box(rows.at(offset));
        });
    }
    let Ok(file) = memfd_create("jit-7.dump", MFdFlags::MFD_CLOEXEC) else { return };
    let mut file = File::from(file);
    let mut text = Vec::new();
    if options & 1 == 0 {
        for word in [0x4A69_5444u32, 1, 40, 62, 0, 7, 0, 0, 0, 0] {
            text.extend(if options & 2 == 0 { word.to_le_bytes() } else { word.to_be_bytes() });
        }
    }
    text.extend(body);
    let cut = text.len() * usize::from(options >> 2) / 64;
    let mut grown = dump(&file);
    let mut failed = false;
    for part in [&text[..cut], &text[cut..]] {
        file.write_all(part).expect("memory can be written");
        failed |= grown.refresh().is_err();
    }
    let mut whole = dump(&file);
    assert_eq!(whole.refresh().is_err(), failed);
    assert_eq!(grown.counters().entries, whole.counters().entries);
    assert!(whole.size_bytes() <= LIMIT + 4096);
    for word in text.windows(8).step_by(4) {
        let address = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        for at_ns in [0, 1, 1 << 30, u64::MAX] {
            let found = whole.lookup(Avma(address), at_ns);
            if let Some(found) = found {
                assert!(found.start.0 <= address && address - found.start.0 < found.size);
                assert!(!found.name.contains(char::is_control));
                code_name(found.name);
                found.lines.map(|lines| lines.at((address - found.start.0) as u32));
                found.rows.map(|rows| rows.at((address - found.start.0) as u32));
            }
        }
    }
});
