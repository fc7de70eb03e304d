//! What a stack needs before the thread that reads it has come to it: what it is for is about to
//! change, or need not wait.

use std::time::{Duration, Instant};

use crate::native::elf::ElfHeader;
use crate::process::Process;
use crate::sampler::Sample;
use crate::symbolize::{Outcome, Resolved, Symbolizer};

/// The most code, in bytes, of files whose rows are read while a stack is walked: a few hundredths
/// of a second. The C library has 2 MB, a browser 200.
const MAX_CODE: u64 = 8 << 20;
/// Meanwhile nothing else is named: in the long run it takes no more than one part in so many of
/// the time,
const SHARE: u32 = 4;
/// and at once no more than this.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Whether there is time for it.
#[derive(Debug)]
pub(in crate::symbolize) struct EarlyRows {
    /// Nanoseconds; negative once a file took longer than was left.
    left: i64,
    since: Instant,
}

impl Default for EarlyRows {
    fn default() -> Self {
        Self { left: nanoseconds(AT_ONCE), since: Instant::now() }
    }
}

impl EarlyRows {
    pub(in crate::symbolize) fn has_time(&mut self, now: Instant) -> bool {
        let earned = nanoseconds(now.saturating_duration_since(self.since) / SHARE);
        self.left = self.left.saturating_add(earned).min(nanoseconds(AT_ONCE));
        self.since = now;
        self.left > 0
    }

    pub(in crate::symbolize) fn took(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(nanoseconds(time));
    }
}

impl Symbolizer {
    /// As [`Self::resolve`], of a sample that should wait for unwind rows ([`Self::must_wait`]):
    /// those few that it needs may be had at once. `None` if its stack isn't whole with them.
    pub fn resolve_ahead(&mut self, process: &Process, sample: &Sample, now_ns: u64) -> Option<Resolved> {
        let at_ns = sample.header.time_ns;
        let symbols = self.processes.get_mut(&process.key)?;
        let awaits_more = symbols.jit.walkable_until(at_ns, &mut self.counts.perf_maps) < at_ns;
        if awaits_more || symbols.java.is_awaited(process) || !self.early.has_time(Instant::now()) {
            return None;
        }
        let (mut namer, symbols) = self.namer(process, sample, now_ns);
        let (_, outcome) = namer.walk(symbols, sample);
        let reading = namer.reading;
        self.early.took(reading);
        (outcome == Outcome::Whole).then(|| self.resolve(process, sample, now_ns))
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether the rows of a file are read in so little time.
pub(in crate::symbolize) fn is_small(header: &ElfHeader) -> bool {
    let code = header.segments.iter().filter(|segment| segment.executable);
    code.fold(0, |sum: u64, segment| sum.saturating_add(segment.memory_size)) <= MAX_CODE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_long_run_it_takes_a_part_of_the_time() {
        let mut early = EarlyRows::default();
        let mut now = Instant::now();
        let mut took = Duration::ZERO;
        for _ in 0..10_000 {
            now += Duration::from_millis(10);
            if early.has_time(now) {
                early.took(Duration::from_millis(50));
                took += Duration::from_millis(50);
            }
        }
        assert!((Duration::from_secs(25)..Duration::from_secs(28)).contains(&took), "{took:?} of 100 s");
    }
}
