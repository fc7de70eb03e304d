//! JVMs that have been sampled, or have mapped their library, and aren't followed yet: they are
//! starting, or a debug file is being fetched. Each is tried again by time, since one that sleeps
//! from its start has no further samples.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::process::{Process, ProcessKey};

/// Samples of a JVM that can be read after which it is followed without what it doesn't say: while
/// it starts it says less.
const LAST_SAMPLE: u32 = 20;
/// Time for the same, where there are no samples.
const LAST_ATTEMPT: Duration = Duration::from_secs(5);
/// Intervals of attempts, each until that age.
const INTERVALS: [(Duration, Duration); 2] = [
    (Duration::from_secs(2), Duration::from_millis(50)),
    (Duration::from_secs(60), Duration::from_millis(500)),
];
const LAST_INTERVAL: Duration = Duration::from_secs(5);

/// JVMs that aren't followed yet.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct AwaitedJvms(HashMap<ProcessKey, AwaitedJvm>);

#[derive(Debug)]
pub(super) struct AwaitedJvm {
    pid: u32,
    since: Instant,
    /// Time since when it can be read.
    readable_since: Option<Instant>,
    /// Samples since then.
    samples: u32,
    next: Instant,
}

impl AwaitedJvms {
    /// Awaits a JVM, if it isn't awaited yet.
    pub(super) fn add(&mut self, process: &Process, now: Instant) -> &mut AwaitedJvm {
        self.0.entry(process.key).or_insert_with(|| AwaitedJvm {
            pid: process.pid,
            since: now,
            readable_since: None,
            samples: 0,
            next: now + INTERVALS[0].1,
        })
    }

    /// Returns the time of the next attempt.
    pub(in crate::pipeline) fn due(&self) -> Option<Instant> {
        self.0.values().map(|jvm| jvm.next).min()
    }

    /// Returns the JVMs that are to be tried now, by their process ids.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(ProcessKey, u32)> {
        let due = self.0.iter_mut().filter(|(_, jvm)| jvm.next <= now);
        due.map(|(key, jvm)| {
            let age = now - jvm.since;
            let interval = INTERVALS.iter().find(|(until, _)| age < *until);
            jvm.next = now + interval.map_or(LAST_INTERVAL, |(_, interval)| *interval);
            (*key, jvm.pid)
        })
        .collect()
    }

    /// Forgets a JVM. Returns true if it was awaited.
    pub(super) fn remove(&mut self, key: ProcessKey) -> bool {
        !self.0.is_empty() && self.0.remove(&key).is_some()
    }

    /// Forgets all JVMs, and returns them.
    pub(super) fn take(&mut self) -> impl Iterator<Item = ProcessKey> + use<> {
        std::mem::take(&mut self.0).into_keys()
    }

    /// Forgets JVMs that have ended, or aren't wanted any more.
    pub(in crate::pipeline) fn retain(&mut self, mut is_wanted: impl FnMut(ProcessKey) -> bool) {
        self.0.retain(|key, _| is_wanted(*key));
    }
}

impl AwaitedJvm {
    /// Records an attempt on a JVM that can be read. Returns true if it won't say more than it does
    /// now.
    pub(super) fn is_last_attempt(&mut self, is_sampled: bool, now: Instant) -> bool {
        self.samples += u32::from(is_sampled);
        let since = *self.readable_since.get_or_insert(now);
        self.samples >= LAST_SAMPLE || now - since >= LAST_ATTEMPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessTable;

    #[test]
    fn attempts_become_fewer_and_end_with_the_jvm() {
        let mut table = ProcessTable::default();
        // A pid that can't exist.
        table.exec(5_000_000, "java", 0);
        let process = table.get(5_000_000).expect("it has begun a program");
        let mut awaited = AwaitedJvms::default();
        let began = Instant::now();
        awaited.add(process, began);
        let (mut attempts, mut last) = ([0; 3], began);
        while let Some(due) = awaited.due().filter(|due| *due < began + Duration::from_secs(120)) {
            assert!(due > last, "each attempt is later than the one before");
            assert_eq!(awaited.take_due(due), [(process.key, 5_000_000)]);
            assert!(awaited.take_due(due).is_empty());
            // A sample that comes between is no other JVM.
            awaited.add(process, due);
            let age = due - began;
            attempts[usize::from(age > INTERVALS[0].0) + usize::from(age > INTERVALS[1].0)] += 1;
            last = due;
        }
        // Every 50 ms, every 500 ms, every 5 s.
        assert_eq!(attempts, [40, 116, 11]);
        assert!(awaited.remove(process.key) && !awaited.remove(process.key));
        assert_eq!((awaited.due(), awaited.take().count()), (None, 0));
    }

    #[test]
    fn a_jvm_says_no_more_after_so_many_samples_or_so_long() {
        let now = Instant::now();
        let jvm = || AwaitedJvm { pid: 1, since: now, readable_since: None, samples: 0, next: now };
        let mut sampled = jvm();
        let last = (1..=LAST_SAMPLE).find(|_| sampled.is_last_attempt(true, now));
        assert_eq!(last, Some(LAST_SAMPLE));
        let mut asleep = jvm();
        let readable = now + Duration::from_secs(9);
        assert!(!asleep.is_last_attempt(false, readable), "it wasn't readable before");
        assert!(!asleep.is_last_attempt(false, readable + LAST_ATTEMPT / 2));
        assert!(asleep.is_last_attempt(false, readable + LAST_ATTEMPT));
    }
}
