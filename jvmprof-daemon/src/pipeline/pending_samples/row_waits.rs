//! Samples that wait for unwind rows of their processes, and when they go on.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::clock::monotonic_ns;
use crate::pipeline::State;
use crate::process::procfs;
use crate::process::{Process, ProcessKey};
use crate::sampler::StackSample;
use crate::symbolize::Deadline;

/// Longest time that the begin of a recording waits for unwind rows.
const ROWS_TIMEOUT: Duration = Duration::from_secs(20);

impl State {
    /// Publishes the chosen processes that run already, before they are sampled. Others are
    /// published when they are sampled, since most of a host's processes never are.
    pub(in crate::pipeline) fn discover(&mut self, pids: Option<&[u32]>) {
        for &pid in pids.unwrap_or_default() {
            // A process that ends in this moment isn't sampled.
            let Ok(facts) = procfs::process_info(pid) else { continue };
            let now = monotonic_ns();
            let process = self.table.insert_running(pid, &facts, now);
            self.symbolizer.refresh(process, now, true);
        }
        self.take_rows(Some(Instant::now() + ROWS_TIMEOUT));
    }

    /// Takes over unwind rows that have been read, and completes the samples that waited for them.
    /// Waits until then for those that are being read.
    pub(in crate::pipeline) fn take_rows(&mut self, until: Option<Instant>) {
        if !self.symbolizer.is_loading() {
            return;
        }
        let by_key: HashMap<ProcessKey, &Process> =
            self.table.iter().map(|process| (process.key, process)).collect();
        if self.symbolizer.take_rows(|key| by_key.get(&key).copied(), until) {
            self.resolve_ready();
        }
    }

    /// Completes pending samples whose data is there.
    pub(in crate::pipeline) fn resolve_ready(&mut self) {
        let now = monotonic_ns();
        let mut until: HashMap<ProcessKey, u64> = HashMap::new();
        for key in self.pending.keys() {
            until.entry(key).or_insert_with(|| self.symbolizer.walkable_until(key, now));
        }
        self.resolve_waiting(|key, sample| {
            until.get(&key).is_some_and(|until| sample.header.time_ns <= *until)
        });
        self.tried = Instant::now();
    }

    /// Reads the jitdumps of the processes of pending samples to their ends, and completes the
    /// samples that waited for their unwind rows.
    pub(in crate::pipeline) fn complete_with_jitdumps(&mut self) {
        let now = monotonic_ns();
        let keys: HashSet<ProcessKey> = self.pending.keys().collect();
        for process in self.table.iter().filter(|process| keys.contains(&process.key)) {
            self.symbolizer.read_dump_to_end(process, now);
        }
        let ready: HashSet<_> = keys.into_iter().filter(|key| !self.symbolizer.awaits_rows(*key)).collect();
        self.resolve_waiting(|key, _| ready.contains(&key));
    }

    /// Completes the chosen samples, which wait no longer.
    fn resolve_waiting(&mut self, is_chosen: impl FnMut(ProcessKey, &StackSample) -> bool) {
        for sample in self.pending.take(is_chosen) {
            self.process_sample(sample, Deadline::Ready);
        }
    }
}
