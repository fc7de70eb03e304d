//! Dropped processes, as the kernel is told of them, and when they are looked at again.
//!
//! What is known of a process changes: a JVM tells its main class late, a thread gets a name, a
//! library is loaded. So a process that was dropped is sampled once more after a second, and again
//! after twice the time, up to ten minutes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::sampler::DroppedProcesses;

const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(600);
/// Processes that are remembered beside those of which the kernel knows.
const MAX_REMEMBERED: usize = 65_536;

/// See the module's documentation. Without a kernel's table it only remembers.
#[derive(Debug, Default)]
pub(super) struct KernelDrops {
    table: Option<DroppedProcesses>,
    processes: HashMap<u32, Dropped>,
    /// When the first of them is due.
    due: Option<Instant>,
    refused: u64,
}

#[derive(Debug)]
struct Dropped {
    /// The kernel doesn't sample it.
    told: bool,
    step: Duration,
    next: Instant,
}

impl KernelDrops {
    pub(super) fn use_table(&mut self, table: DroppedProcesses) {
        self.table = Some(table);
    }

    /// Nobody wants samples of this process for now.
    pub(super) fn drop(&mut self, pid: u32, start_ns: u64, now: Instant) {
        let Some(table) = &mut self.table else { return };
        if self.processes.len() >= MAX_REMEMBERED && !self.processes.contains_key(&pid) {
            self.refused += 1;
            return;
        }
        let dropped =
            self.processes.entry(pid).or_insert(Dropped { told: false, step: FIRST_LOOK, next: now });
        if dropped.told {
            // Samples that were on their way.
            return;
        }
        if let Err(error) = table.insert(pid, start_ns) {
            self.refused += 1;
            tracing::debug!(pid, %error, "a dropped process is sampled on");
            return;
        }
        dropped.told = true;
        dropped.next = now + dropped.step;
        self.due = Some(self.due.map_or(dropped.next, |due| due.min(dropped.next)));
        dropped.step = (dropped.step * 2).min(LAST_LOOK);
    }

    /// Something about it has changed: it is looked at soon, but not for each change of many.
    pub(super) fn changed(&mut self, pid: u32, now: Instant) {
        if let Some(dropped) = self.processes.get_mut(&pid) {
            dropped.next = dropped.next.min(now + FIRST_LOOK);
            self.due = Some(self.due.map_or(dropped.next, |due| due.min(dropped.next)));
        }
    }

    /// It has ended or replaced its program, or is wanted.
    pub(super) fn forget(&mut self, pid: u32) {
        if let (Some(dropped), Some(table)) = (self.processes.remove(&pid), &mut self.table)
            && dropped.told
        {
            table.remove(pid);
        }
    }

    /// Everything is looked at anew.
    pub(super) fn forget_all(&mut self) {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.forget(pid));
    }

    /// Has those sampled that are due. To be called often.
    pub(super) fn refresh(&mut self, now: Instant) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let Some(table) = &mut self.table else { return };
        for (pid, dropped) in &mut self.processes {
            if dropped.told && dropped.next <= now {
                dropped.told = false;
                table.remove(*pid);
            }
        }
        self.due = self.processes.values().filter(|dropped| dropped.told).map(|dropped| dropped.next).min();
    }

    /// When [`Self::refresh`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// How often the kernel could not be told.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}
