//! Any text as a mangled name: demangling is bounded in size (and, by the fuzzer's own limit, in time and stack).
#![no_main]

use jvmprof_daemon::native::demangle::demangle;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|name: &str| {
    if let Some(demangled) = demangle(name) {
        assert!(demangled.len() <= 16 << 10);
    }
});
