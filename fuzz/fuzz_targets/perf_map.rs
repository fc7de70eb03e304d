//! Any bytes as a perf map that is written in two parts: it gives what it gives when it is read at
//! once, within its limits, and names only addresses inside of entries.
#![no_main]

use std::fs::File;
use std::io::Write;

use jvmprof_daemon::jit::name_formats::code_name;
use jvmprof_daemon::jit::perf_map::{PerfMap, PerfMapLimits};
use jvmprof_daemon::jit::timeline::CodeMatch;
use jvmprof_daemon::types::Avma;
use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};

const LIMITS: PerfMapLimits = PerfMapLimits { memory_bytes: 64 << 10, line_bytes: 200, read_bytes: 1 << 20 };

fuzz_target!(|data: &[u8]| {
    let Some((cut, text)) = data.split_first() else { return };
    let Ok(file) = memfd_create("perf-1.map", MFdFlags::MFD_CLOEXEC) else { return };
    let mut file = File::from(file);
    let cut = text.len() * usize::from(*cut) / 256;
    let mut grown = PerfMap::new(LIMITS);
    for part in [&text[..cut], &text[cut..]] {
        file.write_all(part).expect("memory can be written");
        grown.refresh(&file).expect("memory can be read");
    }
    let mut whole = PerfMap::new(LIMITS);
    whole.refresh(&file).expect("memory can be read");
    assert_eq!((grown.counters(), grown.len()), (whole.counters(), whole.len()));
    assert!(whole.size_bytes() <= LIMITS.memory_bytes + 4096);
    for line in text.split(|byte| *byte == b'\n') {
        let digits = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let start = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        for address in start.into_iter().flat_map(|at| [at, at.wrapping_add(1), at.wrapping_sub(1)]) {
            let found = whole.lookup(Avma(address), u64::MAX);
            let same = grown.lookup(Avma(address), u64::MAX);
            let told = |found: Option<CodeMatch<'_>>| found.map(|it| (it.name.to_owned(), it.start, it.size));
            assert_eq!(told(found), told(same));
            if let Some(found) = found {
                assert!(found.start.0 <= address && address - found.start.0 < found.size);
                assert!(!found.name.contains(char::is_control));
                code_name(found.name);
            }
        }
    }
});
