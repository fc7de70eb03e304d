//! Any bytes as a Go program's table of functions: every function, its name and its steps.
#![no_main]

use jvmprof_daemon::native::go::pclntab::Pclntab;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(table) = Pclntab::parse(&data, 0..data.len() as u64) else { return };
    assert!(table.names().end <= data.len() as u64);
    let mut end = 0;
    for function in table.functions().take(1 << 12) {
        assert!(end <= function.start && function.start < function.limit);
        end = function.limit;
        let mut at = function.start;
        for (to, _) in table.steps(&function) {
            assert!(at <= to && to <= function.limit);
            at = to;
        }
    }
    let _ = table.named(["runtime.goexit", "runtime.gogo"]);
});
