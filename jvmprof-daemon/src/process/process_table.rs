//! The process table: kept by events, filled from `/proc` for what ran before, keyed by pid and
//! start time.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jvmprof_common::tables::NS_PER_TICK;

use super::cgroup::Cgroup;
use super::executable_mappings::{Backing, MappedCode, Mappings, is_hotspot};
use super::procfs::{self, Facts, MAX_MAPPING_BYTES};
use crate::types::{Avma, BuildId, FileOffset};

/// One program's life in one process: another exec or another tenant of the pid gets another key.
/// Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey(u64);

#[cfg(test)]
impl ProcessKey {
    /// For tests that have no process.
    pub(crate) fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// A process and its mapped code.
#[derive(Debug)]
pub struct Process {
    pub key: ProcessKey,
    pub pid: u32,
    /// `start_boottime` in ns, from its first sample; `None` before that.
    start_ns: Option<u64>,
    /// `CLOCK_MONOTONIC` of its last exec, in ns; `None` if it was there before the table.
    exec_ns: Option<u64>,
    /// Name of its first thread.
    pub comm: Arc<str>,
    pub mappings: Mappings,
    /// Changes whenever code may have been replaced by other code at the same address.
    pub generation: u64,
    /// Changes whenever its mappings do.
    pub version: u64,
    facts: Option<Facts>,
    /// Its parent's, which is its own until it is moved: for children that are gone before they are
    /// looked at.
    inherited_cgroup: Option<Arc<Cgroup>>,
    /// `CLOCK_MONOTONIC` of the last look at `/proc/PID/maps` that all was taken from; older events
    /// are known already.
    read_ns: u64,
    /// The same of the last look that only what events had not told was taken from: older events
    /// may tell of the same.
    looked_ns: u64,
    needs_read: bool,
    needs_facts: bool,
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

    /// When it was started, as samples tell it; `None` before its first one.
    pub fn start_ns(&self) -> Option<u64> {
        self.start_ns
    }

    /// `CLOCK_MONOTONIC` of its last exec in ns, if that was seen.
    pub fn exec_ns(&self) -> Option<u64> {
        self.exec_ns
    }

    /// What `/proc` said of it when it was first sampled.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// Its cgroup when it was first sampled, or its parent's if it was gone by then.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        let own = self.facts.as_ref().and_then(|facts| facts.cgroup.as_ref());
        own.or(self.inherited_cgroup.as_deref())
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

    /// It ended; what is known of it is kept until [`ProcessTable::remove_exited`].
    pub fn has_exited(&self) -> bool {
        self.exited
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
            // The kernel maps the program before its interpreter, but records have no order of
            // their own here: programs lie below libraries.
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
    /// Times that a process had mapped too much code to remember: what lies highest has no names.
    pub mappings_over_limit: u64,
    /// Times that all processes' mappings were forgotten to make room; they are read again when
    /// they are sampled.
    pub resets: u64,
}

/// All processes that were seen.
#[derive(Debug)]
pub struct ProcessTable {
    /// Memory for the mappings of all processes.
    max_bytes: usize,
    by_pid: HashMap<u32, Process>,
    next_key: u64,
    counts: TableCounts,
    /// Memory that mappings have taken since all were summed up last, bytes.
    grown: usize,
}

/// Memory for the mappings of all processes by default, bytes.
const MAX_BYTES: usize = 128 << 20;

/// An unknown address makes the table look at a process's mappings again at most this often.
const LOOK_INTERVAL_NS: u64 = 1_000_000_000;
/// And so that looks at one process take no more than this part of the time.
const LOOK_SHARE: u64 = 100;

impl Default for ProcessTable {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl ProcessTable {
    /// `mapping_bytes`: memory for the mappings of all processes.
    pub fn new(mapping_bytes: usize) -> Self {
        Self {
            max_bytes: mapping_bytes,
            by_pid: HashMap::new(),
            next_key: 0,
            counts: TableCounts::default(),
            grown: 0,
        }
    }

    /// A program was replaced: its mappings follow as events. `time_ns`: of `CLOCK_MONOTONIC`.
    pub fn exec(&mut self, pid: u32, comm: &str, time_ns: u64) {
        let before = self.by_pid.get(&pid);
        let start_ns = before.and_then(|process| process.start_ns);
        let cgroup = before.and_then(|process| process.cgroup()).cloned().map(Arc::new);
        let mut process = self.new_process(pid, comm);
        process.inherited_cgroup = cgroup;
        // Exec keeps the start time. What else `/proc` tells is read again.
        process.start_ns = start_ns;
        process.exec_ns = Some(time_ns);
        self.by_pid.insert(pid, process);
    }

    /// A child begins with its parent's code. One whose parent isn't known is read when it is
    /// sampled.
    pub fn fork(&mut self, pid: u32, parent: u32) {
        let Some(parent) = self.by_pid.get(&parent).filter(|parent| !parent.needs_read) else {
            self.by_pid.remove(&pid);
            return;
        };
        let (comm, mappings) = (parent.comm.clone(), parent.mappings.clone());
        let cgroup = parent.cgroup().cloned().map(Arc::new);
        let mut process = self.new_process(pid, &comm);
        process.inherited_cgroup = cgroup;
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
        {
            let is_known = process.knows(time_ns, &new);
            let before = process.mappings.bytes();
            let replaces = process.mappings.insert(new);
            if !is_known {
                process.version += 1;
                process.generation += u64::from(replaces);
            }
            // Nobody tells what is unmapped: a process that maps code again and again has less of
            // it than was told.
            if process.mappings.bytes() > MAX_MAPPING_BYTES {
                process.forget_mappings();
            }
            self.grown += process.mappings.bytes().saturating_sub(before);
            self.make_room();
        }
    }

    /// Whether this takes the place of other code of files, or of code in their place, that is
    /// known. Generated code in the place of other is the runtime's own business.
    pub fn takes_a_place(&self, pid: u32, time_ns: u64, new: &MappedCode) -> bool {
        let Some(process) = self.by_pid.get(&pid).filter(|process| time_ns > process.read_ns) else {
            return false;
        };
        let is_there = |known: &&Arc<MappedCode>| known.start < new.end && new.start < known.end;
        !process.knows(time_ns, new)
            && process.mappings.iter().filter(is_there).any(|known| {
                let is_same = known.path == new.path
                    && known.build_id == new.build_id
                    && known.file_offset(new.start) == new.offset;
                !is_same && (known.backing, new.backing) != (Backing::Anonymous, Backing::Anonymous)
            })
    }

    /// Keeps the limit of all processes together.
    fn make_room(&mut self) {
        if self.grown <= self.max_bytes / 2 {
            return;
        }
        self.grown = 0;
        if self.mapping_bytes() > self.max_bytes / 2 {
            self.counts.resets += 1;
            self.by_pid.values_mut().for_each(Process::forget_mappings);
        }
    }

    /// Memory that mappings take, at most.
    pub fn mapping_bytes(&self) -> usize {
        let mut seen = HashSet::new();
        let mappings = self.by_pid.values().map(|process| &process.mappings);
        mappings.filter(|mappings| seen.insert(mappings.identity())).map(Mappings::bytes).sum()
    }

    /// The limit of [`Self::mapping_bytes`].
    pub fn max_mapping_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Events were lost: every process is read again when it is sampled next.
    pub fn events_lost(&mut self) {
        for process in self.by_pid.values_mut() {
            process.needs_read = true;
        }
    }

    /// The process that a sample belongs to, read from `/proc` if it is new here, and again (now
    /// and then) if one of the sample's `addresses` lies in none of its mappings; none are given
    /// where that is known already.
    pub fn sampled<I: Iterator<Item = Avma>>(
        &mut self,
        pid: u32,
        start_ns: u64,
        comm: &str,
        now_ns: u64,
        addresses: impl FnOnce(&Process) -> Option<I>,
    ) -> &Process {
        // Before this process's own are read.
        self.make_room();
        // `/proc` rounds down to ticks.
        let is_same = |it: u64| it / NS_PER_TICK == start_ns / NS_PER_TICK;
        let known = self.by_pid.get(&pid).is_some_and(|process| process.start_ns.is_none_or(is_same));
        if !known {
            let mut process = self.new_process(pid, comm);
            process.needs_read = true;
            self.by_pid.insert(pid, process);
        }
        let counts = &mut self.counts;
        let process = self.by_pid.entry(pid).or_insert_with(|| unreachable_process(pid));
        process.start_ns.get_or_insert(start_ns);
        if std::mem::take(&mut process.needs_facts) {
            process.read_facts(counts);
        }
        let is_outdated = process.needs_read || {
            addresses(process)
                .is_some_and(|it| process.next_look_ns <= now_ns && process.mappings.lack_any(it))
        };
        if is_outdated {
            process.read_mappings(now_ns, counts);
            self.grown += process.mappings.bytes();
        }
        process
    }

    /// A process of which `/proc` has been asked: as if it were sampled now.
    pub fn existing(&mut self, pid: u32, facts: &Facts, now_ns: u64) -> &Process {
        let none = |_: &Process| None::<std::iter::Empty<Avma>>;
        self.sampled(pid, facts.start_ticks * NS_PER_TICK, &facts.comm, now_ns, none)
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
        exec_ns: None,
        comm: "".into(),
        mappings: Mappings::default(),
        generation: 0,
        version: 1,
        facts: None,
        inherited_cgroup: None,
        read_ns: 0,
        looked_ns: 0,
        needs_read: false,
        needs_facts: true,
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

    /// Whether an event tells of what was read from `/proc` later, which has no build id.
    fn knows(&self, time_ns: u64, new: &MappedCode) -> bool {
        time_ns <= self.looked_ns
            && self.mappings.find(new.start).is_some_and(|known| {
                known.build_id.is_none() && **known == MappedCode { build_id: None, ..new.clone() }
            })
    }

    fn forget_mappings(&mut self) {
        self.mappings = Mappings::default();
        self.needs_read = true;
        self.generation += 1;
        self.version += 1;
    }

    fn read_mappings(&mut self, now_ns: u64, counts: &mut TableCounts) {
        let knows_events = !std::mem::take(&mut self.needs_read);
        counts.reads += 1;
        let began = Instant::now();
        let read = procfs::mappings(self.pid);
        // Whoever makes this slow pays for it by being looked at less often.
        let taken = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.next_look_ns = now_ns.saturating_add(taken.saturating_mul(LOOK_SHARE).max(LOOK_INTERVAL_NS));
        match read {
            Ok(mappings) => {
                counts.mappings_over_limit += u64::from(mappings.is_cut());
                let mut merged = self.with_known_build_ids(&mappings);
                if knows_events {
                    // `/proc` tells of now, and events of up to now are still to come: what they
                    // told so far is of the sample's time.
                    self.mappings.iter().for_each(|known| _ = merged.insert((**known).clone()));
                    self.looked_ns = now_ns.saturating_add(taken);
                } else {
                    self.read_ns = now_ns;
                }
                self.mappings = merged;
                self.generation += 1;
                self.version += 1;
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
    pid: u32,
    start: Avma,
    length: u64,
    offset: FileOffset,
    path: &str,
    build_id: Option<BuildId>,
) -> MappedCode {
    let end = Avma(start.0.saturating_add(length));
    MappedCode {
        start,
        end,
        offset,
        path: path.into(),
        build_id,
        backing: Backing::of_path(path, || build_id.is_some() || procfs::maps_program(pid, start, end)),
    }
}

#[cfg(test)]
mod limits_tests;

#[cfg(test)]
mod tests;
