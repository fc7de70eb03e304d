//! Code that was mapped over other code while the kernel program still used the other's unwind
//! rows.
//!
//! Where the kernel calls it at each new mapping, the kernel program invalidates the rows by
//! itself. Elsewhere it has outdated rows for code that is mapped at an address of the process's
//! choice, until the daemon has read the event. Stacks that it walked through such code by then end
//! there.

use std::ops::Range;

use jvmprof_common::frame::UserFrame;

use crate::sampler::RECORD_WRITE_DELAY;
use crate::types::Avma;

/// Reason of such a stack's truncation.
pub(in crate::symbolize) const REMAPPED: &str = "code mapped over other code";

/// Maximum number of remapped ranges; a process that maps code over code all the time loses more of
/// its stacks.
const MAX_PLACES: usize = 32;
/// Time for which a range is kept: samples don't wait longer than a window.
const KEPT_NS: u64 = 60_000_000_000;

/// Ranges of one process that were recently mapped over other code.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct RemappedCode(Vec<Remapping>);

#[derive(Debug)]
struct Remapping {
    code: Range<Avma>,
    /// Time of the mapping, and below it that of its publication, in ns of `CLOCK_MONOTONIC`.
    mapped_ns: u64,
    published_ns: Option<u64>,
}

impl RemappedCode {
    /// Adds a range that was mapped over other code.
    pub(in crate::symbolize) fn add(&mut self, code: Range<Avma>, mapped_ns: u64) {
        self.0.retain(|place| place.published_ns.is_none_or(|at| at + KEPT_NS > mapped_ns));
        let is_full = self.0.len() == MAX_PLACES;
        match self.0.last_mut() {
            Some(last) if is_full => {
                last.code = last.code.start.min(code.start)..last.code.end.max(code.end);
                last.published_ns = None;
            }
            _ => self.0.push(Remapping { code, mapped_ns, published_ns: None }),
        }
    }

    /// Records that the kernel tables are up to date for all ranges.
    pub(in crate::symbolize) fn published(&mut self, now_ns: u64) {
        self.0.iter_mut().for_each(|place| _ = place.published_ns.get_or_insert(now_ns));
    }

    /// Returns the number of valid frames of a stack that the kernel program walked at that time;
    /// `None`: all.
    pub(in crate::symbolize) fn trusted(&self, stack: &[UserFrame], at_ns: u64) -> Option<usize> {
        if self.0.is_empty() {
            return None;
        }
        // A sample's time is taken a moment after the tables were read.
        let delay_ns = RECORD_WRITE_DELAY.as_nanos() as u64;
        let is_then = |place: &&Remapping| {
            at_ns >= place.mapped_ns && place.published_ns.is_none_or(|at| at_ns <= at + delay_ns)
        };
        let is_in = |frame: &UserFrame| {
            let address = Avma(frame.lookup_address().unwrap_or(0));
            self.0.iter().filter(is_then).any(|place| place.code.contains(&address))
        };
        let trusted = stack.iter().position(is_in)? + 1;
        (trusted < stack.len()).then_some(trusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(addresses: &[u64]) -> Vec<UserFrame> {
        addresses.iter().map(|pc| UserFrame::Native { pc: *pc, exact: true }).collect()
    }

    fn place(start: u64) -> Range<Avma> {
        Avma(start)..Avma(start + 0x1000)
    }

    #[test]
    fn callers_of_such_code_are_trusted_once_it_has_been_published() {
        let mut remapped = RemappedCode::default();
        let through = stack(&[0x5010, 0x8010, 0x8020, 0x9010]);
        assert_eq!(remapped.trusted(&through, 1_000_000_000), None);
        remapped.add(place(0x8000), 1_000_000_000);
        assert_eq!(remapped.trusted(&through, 999_999_999), None, "the other code was there");
        assert_eq!(remapped.trusted(&through, 1_000_000_000), Some(2));
        assert_eq!(remapped.trusted(&stack(&[0x5010, 0x8010]), 1_000_000_000), None, "nothing comes of it");
        assert_eq!(remapped.trusted(&stack(&[0x5010, 0x7010, 0x9010]), 1_000_000_000), None);
        remapped.published(1_400_000_000);
        assert_eq!(remapped.trusted(&through, 1_401_000_000), Some(2), "the tables were read before");
        assert_eq!(remapped.trusted(&through, 1_403_000_000), None);
        assert_eq!(remapped.trusted(&through, 1_200_000_000), Some(2), "a sample that comes late");
    }

    #[test]
    fn what_is_mapped_over_code_without_end_takes_no_more_memory() {
        let mut remapped = RemappedCode::default();
        for round in 0..1000u64 {
            remapped.add(place(0x10_0000 + round * 0x1000), 1_000_000_000 + round);
        }
        assert_eq!(remapped.0.len(), MAX_PLACES);
        for round in 0..1000u64 {
            let through = stack(&[0x10_0010 + round * 0x1000, 0x5010]);
            assert_eq!(remapped.trusted(&through, 2_000_000_000), Some(1), "{round}");
        }
        remapped.published(2_000_000_000);
        remapped.add(place(0x8000), 2_000_000_000 + KEPT_NS);
        assert_eq!(remapped.0.len(), 1, "no sample is so late");
    }
}
