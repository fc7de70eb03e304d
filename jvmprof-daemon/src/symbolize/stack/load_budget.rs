//! The time for reading unwind rows of whole files while a stack is walked: the thread that reads
//! them hasn't come to them, and what the stack is for is about to change.

use std::time::Duration;

use crate::budget::TimeBudget;
use crate::native::elf::ElfHeader;

/// The most code, in bytes, of files whose rows are read while a stack is walked: a few hundredths
/// of a second. The C library has 2 MB, a browser 200.
const MAX_CODE: u64 = 8 << 20;
/// Meanwhile nothing else is named: in the long run it takes at most 1/SHARE of the time,
const SHARE: u32 = 4;
/// and at once no more than this.
const BURST: Duration = Duration::from_secs(1);

/// The time that all processes share for it.
pub(in crate::symbolize) fn load_budget() -> TimeBudget {
    TimeBudget::new(SHARE, BURST)
}

/// Returns true if the rows of a file are read in so little time.
pub(in crate::symbolize) fn is_small(header: &ElfHeader) -> bool {
    let code = header.segments.iter().filter(|segment| segment.executable);
    code.fold(0, |sum: u64, segment| sum.saturating_add(segment.memory_size)) <= MAX_CODE
}
