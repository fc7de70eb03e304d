//! Any text as the kernel's word for an address: a function that it tells contains the address.
#![no_main]

use jvmprof_daemon::sampler::KernelSymbol;
use jvmprof_daemon::types::Avma;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &str)| {
    let (address, text) = input;
    if let Some(found) = KernelSymbol::parse(text, Avma(address)) {
        assert!(found.start.0 <= address && address - found.start.0 < found.size);
        assert!(found.start.0.checked_add(found.size).is_some());
    }
});
