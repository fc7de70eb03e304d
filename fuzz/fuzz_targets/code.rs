//! Any bytes as code without frame information.
#![no_main]

use jvmprof_daemon::hotspot::stubs::analyze_native;
use jvmprof_daemon::types::Svma;
use libfuzzer_sys::fuzz_target;

const BASE: u64 = 0x10_0000;

fuzz_target!(|data: &[u8]| {
    let entries = [Svma(BASE), Svma(BASE + 7), Svma(BASE + data.len() as u64)];
    let mut last = BASE;
    for (start, end, _) in analyze_native(data, Svma(BASE), &entries) {
        assert!(last <= start && start < end && end <= BASE + data.len() as u64);
        last = end;
    }
});
