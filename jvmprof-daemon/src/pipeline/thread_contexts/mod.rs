//! Contexts of the requests that samples belong to: trace, span and attributes of its thread's
//! context.
//!
//! A process that publishes thread contexts says so in its process context
//! ([`crate::process::process_context`]). The kernel programs then read the thread's record with
//! each sample; here it becomes labels of the sample. `docs/context.md` explains the protocol.

mod context_labels;
pub mod record;
mod unread_processes;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use jvmprof_common::off_cpu::WaitingThread;
use jvmprof_common::thread_context::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};
use jvmprof_common::thread_local::{ThreadLocalVariable, thread_local};
use jvmprof_common::unwind_tables::NS_PER_TICK;

use super::thread_local_variables::find_context_variable;
use crate::hotspot::{LiveMemory, ProcessMemory};
use crate::process::{Backing, Process, ProcessKey};
use crate::profile::aggregate::NamedStack;
use crate::sampler::ThreadContextMap;
use crate::types::Avma;
use context_labels::ContextLabels;
use record::ThreadContextRecord;
use unread_processes::UnreadProcesses;

const SECOND_NS: u64 = 1_000_000_000;
/// Searching one process's files takes at most 1/SEARCH_SHARE of wall time.
const SEARCH_SHARE: u64 = 1000;
/// Longest interval of searching a process's files for the variable.
const MAX_SEARCH_NS: u64 = 64 * SECOND_NS;

/// Attributes of contexts that become labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadContextOptions {
    /// Their names in OpenTelemetry, each with that of its label.
    pub attributes: Vec<(String, String)>,
}

/// Counts of thread contexts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadContextCounts {
    /// Samples that were labelled.
    pub labelled: u64,
    /// Samples without labels, since their window has too many different contexts.
    pub left_out: u64,
    /// Processes that publish contexts, but have no variable that was found when it was searched
    /// for the first time.
    pub without_variable: u64,
    /// Processes that publish contexts, which weren't read when they were to be first, since as
    /// many others publish some as the kernel's map holds.
    pub over_limit: u64,
    /// Processes that publish contexts, which weren't read when they were to be first, since the
    /// kernel's map refused them.
    pub refused: u64,
}

/// Follows the processes that publish thread contexts, and labels their samples.
#[derive(Debug)]
pub(super) struct ThreadContexts {
    map: ThreadContextMap,
    followed: HashMap<ProcessKey, FollowedProcess>,
    labels: ContextLabels,
    /// See [`ThreadContextCounts`].
    without_variable: u64,
    unread: UnreadProcesses,
}

#[derive(Debug)]
struct FollowedProcess {
    pid: u32,
    /// The variable, if the kernel programs read it.
    variable: Option<ThreadLocalVariable>,
    /// The process's version when its files were counted: see [`Process::version`].
    version: u64,
    /// How many files it had mapped then.
    files: usize,
    /// Time of the next search for the variable, in ns of `CLOCK_MONOTONIC`, and of the earliest
    /// one if a file is mapped.
    next_ns: u64,
    earliest_ns: u64,
    search_ns: u64,
}

impl ThreadContexts {
    pub(super) fn new(options: ThreadContextOptions, map: ThreadContextMap) -> Self {
        let labels = ContextLabels::new(options.attributes);
        let unread = UnreadProcesses::default();
        Self { map, followed: HashMap::new(), labels, without_variable: 0, unread }
    }

    pub(super) const fn counts(&self) -> ThreadContextCounts {
        ThreadContextCounts {
            labelled: self.labels.labelled,
            left_out: self.labels.left_out,
            without_variable: self.without_variable,
            over_limit: self.unread.over_limit,
            refused: self.unread.refused,
        }
    }

    /// Has the kernel programs read the contexts of a process's threads, if it publishes any.
    /// Returns where it has the variable, or that it has none, whenever that was searched.
    pub(super) fn follow(
        &mut self,
        process: &Process,
        start_ns: u64,
        now_ns: u64,
    ) -> Option<Option<ThreadLocalVariable>> {
        if process.context().is_none_or(|context| context.thread_keys.is_none()) {
            return None;
        }
        if !self.unread.has_capacity(&self.followed, process.key) {
            return None;
        }
        let followed = self.followed.entry(process.key).or_insert(FollowedProcess {
            pid: process.pid,
            variable: None,
            version: 0,
            files: 0,
            next_ns: 0,
            earliest_ns: 0,
            search_ns: SECOND_NS,
        });
        if followed.version != process.version {
            followed.version = process.version;
            let files = process.mappings.iter().filter(|mapping| mapping.backing == Backing::File).count();
            // A library that was loaded may have the variable, or have it elsewhere than before.
            if files != std::mem::replace(&mut followed.files, files) {
                followed.next_ns = followed.next_ns.min(followed.earliest_ns);
            }
        }
        if now_ns < followed.next_ns {
            return None;
        }
        let (is_first, began) = (followed.next_ns == 0, Instant::now());
        let found = find_context_variable(process, start_ns / NS_PER_TICK);
        let taken = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.without_variable += u64::from(is_first && found.is_none());
        let was_published = std::mem::replace(&mut followed.variable, found).is_some();
        match found {
            Some(variable) => {
                if let Err(error) = self.map.insert(process.pid, variable) {
                    followed.variable = None;
                    self.unread.refuse(process.key);
                    tracing::warn!(pid = process.pid, %error, "its thread contexts aren't read");
                }
            }
            None if was_published => self.map.remove(process.pid),
            None => {}
        }
        let pause = taken.saturating_mul(SEARCH_SHARE);
        followed.earliest_ns = now_ns.saturating_add(pause.max(SECOND_NS));
        followed.next_ns = match followed.variable {
            Some(_) => u64::MAX,
            None => now_ns.saturating_add(pause.max(followed.search_ns)),
        };
        followed.search_ns = (followed.search_ns * 2).min(MAX_SEARCH_NS);
        Some(followed.variable)
    }

    /// Reads the record of a thread that waits, as the kernel program does of one that runs: in
    /// words, empty if there is none. Whoever asks makes sure that the thread hasn't gone on
    /// meanwhile.
    pub(super) fn read_record(&self, thread: &WaitingThread) -> Vec<u64> {
        let of_process = |followed: &FollowedProcess| {
            let variable = followed.variable.filter(|_| followed.pid == thread.pid)?;
            (variable.start_ticks == thread.process_start_ns / NS_PER_TICK).then_some(variable)
        };
        let record = self.followed.values().find_map(of_process).and_then(|variable| {
            let memory = LiveMemory::new(thread.pid);
            let address = thread_local(&memory, Avma(thread.thread_pointer), &variable)?;
            let address = Some(Avma(address)).filter(|address| address.0 != 0)?;
            let mut record = memory.read_bytes(address, RECORD_HEADER_BYTES)?;
            let attributes = ThreadContextRecord::attributes_size(&record)?;
            let attributes = usize::from(attributes).min(MAX_RECORD_BYTES - RECORD_HEADER_BYTES);
            record.extend(memory.read_bytes(address.wrapping_add(RECORD_HEADER_BYTES as u64), attributes)?);
            Some(record)
        });
        let mut record = record.unwrap_or_default();
        record.resize(record.len().next_multiple_of(8), 0);
        record.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Adds the labels of a record, empty if there is none, to those of a sample's stacks. Returns
    /// true if it has an attribute whose key the process context doesn't have yet.
    pub(super) fn label<'a>(
        &mut self,
        process: &Process,
        record: &[u64],
        stacks: impl Iterator<Item = &'a mut NamedStack>,
    ) -> bool {
        if record.is_empty() {
            return false;
        }
        let bytes: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        let is_followed = self.followed.get(&process.key).is_some_and(|it| it.variable.is_some());
        let keys = process.context().and_then(|context| context.thread_keys.as_deref());
        let (true, Some(keys), Some(record)) = (is_followed, keys, ThreadContextRecord::parse(&bytes)) else {
            return false;
        };
        // Bytes after the record are whatever was in memory.
        self.labels.label(process.key, keys, &record, &bytes[..record.size_bytes()], stacks);
        record.attributes().any(|(key, _)| usize::from(key) >= keys.len())
    }

    /// Begins the next window.
    pub(super) fn begin_window(&mut self, live: &HashSet<ProcessKey>) {
        self.labels.begin_window();
        self.unread.retain(live);
        let ended: Vec<u32> =
            self.followed.extract_if(|key, _| !live.contains(key)).map(|(_, process)| process.pid).collect();
        let running: HashSet<u32> = self.followed.values().map(|process| process.pid).collect();
        ended.into_iter().filter(|pid| !running.contains(pid)).for_each(|pid| self.map.remove(pid));
    }

    /// Forgets the variable of the program that a process has replaced.
    pub(super) fn exec(&mut self, pid: u32) {
        if self.followed.values().any(|process| process.pid == pid) {
            self.followed.retain(|_, process| process.pid != pid);
            self.map.remove(pid);
        }
    }
}
