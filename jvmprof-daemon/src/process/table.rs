//! The process table: kept by events, filled from `/proc` for what ran before, keyed by pid and start time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mappings::{Backing, MappedCode, Mappings, is_hotspot};
use super::procfs::{self, Facts};
use crate::types::{Avma, BuildId, FileOffset};

/// One program's life in one process: another exec or another tenant of the pid gets another key. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey(u64);

/// A process and its mapped code.
#[derive(Debug)]
pub struct Process {
    pub key: ProcessKey,
    pub pid: u32,
    /// `start_boottime` in ns, from its first sample; `None` before that.
    start_ns: Option<u64>,
    /// Name of its first thread.
    pub comm: Arc<str>,
    pub mappings: Mappings,
    /// Changes whenever code may have been replaced by other code at the same address.
    pub generation: u64,
    facts: Option<Facts>,
    /// `CLOCK_MONOTONIC` of the last look at `/proc/PID/maps`; older events are known already.
    read_ns: u64,
    needs_read: bool,
    /// An address without a mapping makes the table look again, not more often than this.
    next_look_ns: u64,
    exited: bool,
}

impl Process {
    /// The program's path in its own mount namespace.
    pub fn executable(&self) -> Option<PathBuf> {
        let from_proc = self.facts.as_ref().and_then(|facts| facts.executable.clone());
        from_proc.or_else(|| self.main_mapping().map(|mapping| PathBuf::from(&*mapping.path)))
    }

    /// Its pid in its own pid namespace, as far as known.
    pub fn inner_pid(&self) -> u32 {
        self.facts.as_ref().map_or(self.pid, |facts| facts.inner_pid)
    }

    /// Effective user id when it was first looked at.
    pub fn uid(&self) -> Option<u32> {
        self.facts.as_ref().map(|facts| facts.uid)
    }

    /// `/proc/PID/root`: its file system as it sees it.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid))
    }

    /// True if it maps a HotSpot library.
    pub fn is_jvm(&self) -> bool {
        self.mappings.iter().any(|mapping| is_hotspot(mapping))
    }

    /// The mapping of the program itself, if it is known.
    pub fn main_mapping(&self) -> Option<&Arc<MappedCode>> {
        let executable = self.facts.as_ref().and_then(|facts| facts.executable.as_deref());
        let mut files = self.mappings.iter().filter(|mapping| mapping.backing == Backing::File);
        match executable {
            Some(path) => files.find(|mapping| Path::new(&*mapping.path) == path),
            // The kernel maps the program before its interpreter, but records have no order of their own here:
            // programs lie below libraries.
            None => files.next(),
        }
    }
}

/// Events and reads that went wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Processes that were gone, or not readable, when their first sample asked for them.
    pub unreadable: u64,
    /// Looks at `/proc/PID/maps`.
    pub reads: u64,
}

/// All processes that were seen.
#[derive(Debug, Default)]
pub struct ProcessTable {
    by_pid: HashMap<u32, Process>,
    next_key: u64,
    counts: TableCounts,
}

/// An unknown address makes the table look at a process's mappings again at most this often.
const LOOK_INTERVAL_NS: u64 = 1_000_000_000;
/// Ticks per second in `/proc/PID/stat`: `USER_HZ` is 100 on x86-64 whatever the kernel's own rate.
const NS_PER_TICK: u64 = 10_000_000;

impl ProcessTable {
    /// A program was replaced: its mappings follow as events.
    pub fn exec(&mut self, pid: u32, comm: &str) {
        let start_ns = self.by_pid.get(&pid).and_then(|process| process.start_ns);
        let mut process = self.new_process(pid, comm);
        // Exec keeps the start time.
        process.start_ns = start_ns;
        self.by_pid.insert(pid, process);
    }

    /// A child begins with its parent's code. One whose parent isn't known is read when it is sampled.
    pub fn fork(&mut self, pid: u32, parent: u32) {
        let Some(parent) = self.by_pid.get(&parent).filter(|parent| !parent.needs_read) else {
            self.by_pid.remove(&pid);
            return;
        };
        let (comm, mappings) = (parent.comm.clone(), parent.mappings.clone());
        let mut process = self.new_process(pid, &comm);
        process.mappings = mappings;
        self.by_pid.insert(pid, process);
    }

    /// A thread was named; the first thread's name is the process's.
    pub fn thread_name(&mut self, pid: u32, tid: u32, comm: &str) {
        if pid == tid
            && let Some(process) = self.by_pid.get_mut(&pid)
        {
            process.comm = comm.into();
        }
    }

    /// A thread ended; with the first one the process mostly ends too.
    pub fn exit(&mut self, pid: u32, tid: u32) {
        if pid == tid
            && let Some(process) = self.by_pid.get_mut(&pid)
        {
            process.exited = true;
        }
    }

    /// Code was mapped.
    pub fn map(&mut self, pid: u32, time_ns: u64, new: MappedCode) {
        if let Some(process) = self.by_pid.get_mut(&pid)
            && time_ns > process.read_ns
            && process.mappings.insert(new)
        {
            process.generation += 1;
        }
    }

    /// Events were lost: every process is read again when it is sampled next.
    pub fn events_lost(&mut self) {
        for process in self.by_pid.values_mut() {
            process.needs_read = true;
        }
    }

    /// The process that a sample belongs to, read from `/proc` if it is new here, and again (now and then) if one of the
    /// sample's `addresses` lies in none of its mappings.
    pub fn sampled(
        &mut self,
        pid: u32,
        start_ns: u64,
        comm: &str,
        now_ns: u64,
        mut addresses: impl Iterator<Item = Avma>,
    ) -> &Process {
        let known =
            self.by_pid.get(&pid).is_some_and(|process| process.start_ns.is_none_or(|it| it == start_ns));
        if !known {
            let mut process = self.new_process(pid, comm);
            process.needs_read = true;
            self.by_pid.insert(pid, process);
        }
        let counts = &mut self.counts;
        let process = self.by_pid.entry(pid).or_insert_with(|| unreachable_process(pid));
        if process.start_ns.is_none() {
            process.start_ns = Some(start_ns);
            process.read_facts(counts);
        }
        let mut is_missing = || addresses.any(|address| process.mappings.find(address).is_none());
        if process.needs_read || (process.next_look_ns <= now_ns && is_missing()) {
            process.read_mappings(now_ns, counts);
        }
        process
    }

    /// A process of which `/proc` has been asked: as if it were sampled now.
    pub fn existing(&mut self, pid: u32, facts: &Facts, now_ns: u64) -> &Process {
        self.sampled(pid, facts.start_ticks * NS_PER_TICK, &facts.comm, now_ns, std::iter::empty())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.by_pid.values()
    }

    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.by_pid.get(&pid)
    }

    /// Forgets processes that have ended, and gives their keys.
    pub fn remove_exited(&mut self) -> Vec<ProcessKey> {
        let gone =
            |process: &Process| process.exited && !Path::new(&format!("/proc/{}", process.pid)).exists();
        self.by_pid.extract_if(|_, process| gone(process)).map(|(_, process)| process.key).collect()
    }

    pub fn len(&self) -> usize {
        self.by_pid.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_pid.is_empty()
    }

    pub fn counts(&self) -> TableCounts {
        self.counts
    }

    fn new_process(&mut self, pid: u32, comm: &str) -> Process {
        self.next_key += 1;
        Process { key: ProcessKey(self.next_key), comm: comm.into(), ..unreachable_process(pid) }
    }
}

/// A process of which nothing is known.
fn unreachable_process(pid: u32) -> Process {
    Process {
        key: ProcessKey(0),
        pid,
        start_ns: None,
        comm: "".into(),
        mappings: Mappings::default(),
        generation: 0,
        facts: None,
        read_ns: 0,
        needs_read: false,
        next_look_ns: 0,
        exited: false,
    }
}

impl Process {
    fn read_facts(&mut self, counts: &mut TableCounts) {
        match procfs::facts(self.pid) {
            // `/proc` rounds down to ticks. Another tenant of the pid is not this process.
            Ok(facts) if self.start_ns.is_none_or(|ns| ns / NS_PER_TICK == facts.start_ticks) => {
                self.comm = facts.comm.as_str().into();
                self.facts = Some(facts);
            }
            Ok(_) => counts.unreadable += 1,
            Err(error) => {
                counts.unreadable += 1;
                tracing::debug!(pid = self.pid, %error, "a sampled process can't be read");
            }
        }
    }

    fn read_mappings(&mut self, now_ns: u64, counts: &mut TableCounts) {
        self.needs_read = false;
        self.next_look_ns = now_ns + LOOK_INTERVAL_NS;
        counts.reads += 1;
        match procfs::mappings(self.pid) {
            Ok(mappings) => {
                self.mappings = self.with_known_build_ids(&mappings);
                self.generation += 1;
                self.read_ns = now_ns;
            }
            Err(error) => tracing::debug!(pid = self.pid, %error, "the mappings of a process can't be read"),
        }
    }

    /// `/proc` doesn't tell build ids; those that events told stay valid for the same mapping.
    fn with_known_build_ids(&self, read: &Mappings) -> Mappings {
        let mut merged = Mappings::default();
        for mapping in read.iter() {
            let build_id = self
                .mappings
                .find(mapping.start)
                .filter(|known| {
                    known.path == mapping.path && known.file_offset(mapping.start) == mapping.offset
                })
                .and_then(|known| known.build_id);
            merged.insert(MappedCode { build_id, ..(**mapping).clone() });
        }
        merged
    }
}

/// A mapping as events tell it.
pub fn mapped_code(
    start: Avma,
    length: u64,
    offset: FileOffset,
    path: &str,
    build_id: Option<BuildId>,
) -> MappedCode {
    MappedCode {
        start,
        end: Avma(start.0.saturating_add(length)),
        offset,
        path: path.into(),
        build_id,
        backing: Backing::of_path(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pids that can't exist: above the kernel's PID_MAX_LIMIT of 4,194,304.
    const A: u32 = 5_000_000;
    const B: u32 = 5_000_001;

    fn none() -> std::iter::Empty<Avma> {
        std::iter::empty()
    }

    fn code(start: u64, path: &str) -> MappedCode {
        mapped_code(Avma(start), 0x1000, FileOffset(0), path, None)
    }

    #[test]
    fn exec_forgets_the_old_program_and_gets_another_key() {
        let mut table = ProcessTable::default();
        table.exec(A, "first");
        table.map(A, 10, code(0x1000, "/bin/first"));
        let first = table.sampled(A, 77, "first", 20, none()).key;
        table.exec(A, "second");
        table.map(A, 30, code(0x8000, "/bin/second"));
        let process = table.sampled(A, 77, "second", 40, none());
        assert_ne!(process.key, first);
        assert_eq!(&*process.comm, "second");
        assert!(process.mappings.find(Avma(0x1000)).is_none());
        assert_eq!(process.executable(), Some(PathBuf::from("/bin/second")));
    }

    #[test]
    fn a_child_begins_with_its_parents_code() {
        let mut table = ProcessTable::default();
        table.exec(A, "sh");
        table.map(A, 10, code(0x1000, "/bin/sh"));
        table.fork(B, A);
        table.map(A, 20, code(0x9000, "/later"));
        let child = table.sampled(B, 99, "sh", 30, none());
        assert!(child.mappings.find(Avma(0x1000)).is_some());
        assert!(child.mappings.find(Avma(0x9000)).is_none());
    }

    #[test]
    fn another_start_time_is_another_process() {
        let mut table = ProcessTable::default();
        table.exec(A, "old");
        table.map(A, 10, code(0x1000, "/bin/old"));
        let old = table.sampled(A, 1_000, "old", 20, none()).key;
        assert_eq!(table.sampled(A, 1_000, "old", 30, none()).key, old);
        let new = table.sampled(A, 2_000, "new", 40, none());
        assert_ne!(new.key, old);
        assert!(new.mappings.is_empty(), "nothing of the old process is believed");
    }

    #[test]
    fn code_replaced_at_its_address_changes_the_generation() {
        let mut table = ProcessTable::default();
        table.exec(A, "jit");
        table.map(A, 10, code(0x1000, "//anon"));
        let before = table.sampled(A, 5, "jit", 11, none()).generation;
        table.map(A, 12, code(0x4000, "/lib/new.so"));
        assert_eq!(table.sampled(A, 5, "jit", 13, none()).generation, before);
        table.map(A, 14, code(0x1000, "/lib/over.so"));
        assert_ne!(table.sampled(A, 5, "jit", 15, none()).generation, before);
    }

    #[test]
    fn a_process_that_ran_before_is_read_from_proc() {
        let pid = std::process::id();
        let ticks = procfs::facts(pid).expect("a process may read itself").start_ticks;
        let mut table = ProcessTable::default();
        let process = table.sampled(pid, ticks * NS_PER_TICK + 1, "?", 1, none());
        assert_eq!(process.executable(), std::env::current_exe().ok());
        assert!(process.main_mapping().is_some());
        table.exit(pid, pid);
        table.remove_exited();
        assert!(table.get(pid).is_some(), "the process still runs");
        table.exec(A, "gone");
        table.exit(A, A);
        table.remove_exited();
        assert!(table.get(A).is_none(), "the process has ended");
    }
}
