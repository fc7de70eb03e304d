//! Any text as a mangled name: demangling is bounded in size, by the fuzzer's limits in time, and
//! in stack: run it under `ulimit -s 2048`, since the main thread of a fuzz target has more than
//! the daemon's threads.
#![no_main]

use jvmprof_daemon::native::symbols::demangle::demangle;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|name: &str| {
    if let Some(demangled) = demangle(name) {
        assert!(demangled.len() <= 16 << 10);
    }
});
