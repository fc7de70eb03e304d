//! Any text as `/proc/kallsyms`: what a lookup finds contains the address.
#![no_main]

use jvmprof_daemon::native::kallsyms::Kallsyms;
use jvmprof_daemon::types::Avma;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(symbols) = Kallsyms::parse(data) else { return };
    for line in data.split(|byte| *byte == b'\n') {
        let digits = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let address = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        for address in address.into_iter().flat_map(|at| [at, at.wrapping_add(1), at.wrapping_sub(1)]) {
            if let Some(found) = symbols.lookup(Avma(address)) {
                assert!(found.start.0 <= address && address - found.start.0 < found.size);
            }
        }
    }
});
