//! Budget of the time for reading unwind rows of whole files while a stack is walked: the loader
//! hasn't come to them, and the process's mappings are about to change.

use std::time::Duration;

use crate::budget::TimeBudget;
use crate::native::elf::ElfHeader;

/// The most code, in bytes, of files whose rows are read while a stack is walked: a few hundredths
/// of a second. The C library has 2 MB, a browser 200.
const MAX_CODE: u64 = 8 << 20;
/// Divisor of wall time: as nothing else is named meanwhile, reading takes at most 1/SHARE of it in
/// the long run.
const SHARE: u64 = 4;
/// Time that reading may take at once.
const BURST: Duration = Duration::from_secs(1);

/// Returns the budget that all processes share.
pub(in crate::symbolize) fn load_budget() -> TimeBudget {
    TimeBudget::new(SHARE, BURST)
}

/// Returns true if a file is small enough to be read while a stack is walked.
pub(in crate::symbolize) fn is_small(header: &ElfHeader) -> bool {
    let code = header.segments.iter().filter(|segment| segment.executable);
    code.fold(0, |sum: u64, segment| sum.saturating_add(segment.memory_size)) <= MAX_CODE
}
