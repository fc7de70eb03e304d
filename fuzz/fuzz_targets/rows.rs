//! Any bytes as an `.eh_frame`: every function that is found is evaluated at its start, middle and
//! end, and all rows of all of them cost no more than the bytes are worth.
#![no_main]

use jvmprof_daemon::native::unwind_rows::UnwindRows;
use jvmprof_daemon::types::Svma;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let rows = UnwindRows::from_eh_frame(data.into(), Svma(0x10_0000), Svma(0)..Svma(u64::MAX));
    for (start, end) in rows.function_ranges().take(64) {
        for pc in [start.0, start.0 + (end.0 - start.0) / 2, end.0 - 1, end.0] {
            rows.row(Svma(pc));
        }
    }
    assert!(rows.work() <= 4 * data.len());
    let mut handed_on = 0;
    rows.for_each(&mut |_, _, _| handed_on += 1);
    // Each row but a function's first takes a byte at least.
    assert!(handed_on <= rows.functions() + rows.work());
});
