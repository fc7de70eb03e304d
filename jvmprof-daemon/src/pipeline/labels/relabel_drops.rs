//! Dropped processes in the kernel's table, and the times at which they are evaluated again.
//!
//! A process changes: a JVM exports its main class late, a thread gets a name, a library is loaded.
//! So a dropped process is sampled once more after a second, and again after twice the time, up to
//! ten minutes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::sampler::DroppedProcesses;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(600);
/// Maximum number of processes that are kept beside those in the kernel's table.
const MAX_REMEMBERED: usize = 65_536;

/// Dropped processes. Without a kernel table they are only kept here.
#[derive(Debug, Default)]
pub(super) struct RelabelDrops {
    table: Option<DroppedProcesses>,
    processes: HashMap<u32, DropEntry>,
    /// Time when the first of them is due.
    due: Option<Instant>,
    refused: u64,
}

#[derive(Debug)]
struct DropEntry {
    /// True if it is in the kernel's table, so that it isn't sampled.
    is_in_kernel: bool,
    step: Duration,
    next: Instant,
}

impl RelabelDrops {
    pub(super) fn use_table(&mut self, table: DroppedProcesses) {
        self.table = Some(table);
    }

    /// Adds a process whose samples were dropped.
    pub(super) fn drop(&mut self, pid: u32, start_ns: u64, now: Instant) {
        let Some(table) = &mut self.table else { return };
        if self.processes.len() >= MAX_REMEMBERED && !self.processes.contains_key(&pid) {
            self.refused += 1;
            return;
        }
        let dropped = self.processes.entry(pid).or_insert(DropEntry {
            is_in_kernel: false,
            step: FIRST_RETRY,
            next: now,
        });
        if dropped.is_in_kernel {
            // Samples that were on their way.
            return;
        }
        if let Err(error) = table.insert(pid, start_ns) {
            self.refused += 1;
            tracing::debug!(pid, %error, "a dropped process is sampled on");
            return;
        }
        dropped.is_in_kernel = true;
        dropped.next = now + dropped.step;
        self.due = Some(self.due.map_or(dropped.next, |due| due.min(dropped.next)));
        dropped.step = (dropped.step * 2).min(LAST_RETRY);
    }

    /// Schedules an evaluation of a process that has changed: soon, but not for each change of
    /// many.
    pub(super) fn changed(&mut self, pid: u32, now: Instant) {
        if let Some(dropped) = self.processes.get_mut(&pid) {
            dropped.next = dropped.next.min(now + FIRST_RETRY);
            self.due = Some(self.due.map_or(dropped.next, |due| due.min(dropped.next)));
        }
    }

    /// Removes a process that has ended or replaced its program, or is wanted.
    pub(super) fn remove(&mut self, pid: u32) {
        if let (Some(dropped), Some(table)) = (self.processes.remove(&pid), &mut self.table)
            && dropped.is_in_kernel
        {
            table.remove(pid);
        }
    }

    /// Removes all processes: each is evaluated anew.
    pub(super) fn clear(&mut self) {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.remove(pid));
    }

    /// Lets processes be sampled that are due. To be called often.
    pub(super) fn refresh(&mut self, now: Instant) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let Some(table) = &mut self.table else { return };
        for (pid, dropped) in &mut self.processes {
            if dropped.is_in_kernel && dropped.next <= now {
                dropped.is_in_kernel = false;
                table.remove(*pid);
            }
        }
        self.due =
            self.processes.values().filter(|dropped| dropped.is_in_kernel).map(|dropped| dropped.next).min();
    }

    /// Returns the time when [`Self::refresh`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns how often the kernel's table refused a process.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}
