//! The process table: updated by events, filled from `/proc` for processes that ran before the
//! profiler, keyed by pid and start time.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jvmprof_common::unwind_tables::NS_PER_TICK;

use super::cgroup::Cgroup;
use super::executable_mappings::{Backing, MappedCode, Mappings, is_hotspot};
use super::process_context::{ContextCounts, ContextWatch, ProcessContext};
use super::procfs::{self, MAX_MAPPING_BYTES, ProcessInfo};
use crate::types::{Avma, BuildId, FileOffset};

/// Identity of a process between two execs: another exec, or another process with the same pid,
/// gets another key. Keys are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey(u64);

impl ProcessKey {
    /// Returns the key as a number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
impl ProcessKey {
    /// Returns a key, for tests without a process.
    pub(crate) fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// A process and its mapped code.
#[derive(Debug)]
pub struct Process {
    pub key: ProcessKey,
    pub pid: u32,
    /// Value of `start_boottime` of its `task_struct` in ns, from its first sample; `None` before
    /// that.
    start_ns: Option<u64>,
    /// Time of its last exec, in ns of `CLOCK_MONOTONIC`; `None` if it ran before the table.
    exec_ns: Option<u64>,
    /// Name of its first thread.
    pub comm: Arc<str>,
    pub mappings: Mappings,
    /// Number that changes when code may have been replaced by other code at the same address.
    pub generation: u64,
    /// Number that changes with its mappings.
    pub version: u64,
    info: Option<Arc<ProcessInfo>>,
    /// That of the parent, until an exec or the first sample.
    inherited_info: Option<Arc<ProcessInfo>>,
    /// Cgroup of its parent, which is its own until it is moved: for children that end before they
    /// are read.
    inherited_cgroup: Option<Arc<Cgroup>>,
    /// Time of the last read of `/proc/PID/maps` that replaced all mappings, in ns of
    /// `CLOCK_MONOTONIC`; older events have no news.
    maps_replaced_ns: u64,
    /// Time of the last read of `/proc/PID/maps` that only added mappings, in ns of
    /// `CLOCK_MONOTONIC`; older events may have the same mappings.
    maps_merged_ns: u64,
    needs_maps: bool,
    needs_info: bool,
    /// Reads of its information since one in the middle of an exec.
    reads_in_exec: u8,
    /// Time before which an address without a mapping doesn't have the mappings read again.
    next_maps_read_ns: u64,
    exited: bool,
    /// True once another program has begun in its place: what `/proc` says is of that one.
    is_replaced: bool,
    /// True if its information, read once more, shows another program.
    has_missed_exec: bool,
    context: ContextWatch,
}

impl Process {
    /// Returns the program's path in its own mount namespace.
    pub fn executable(&self) -> Option<PathBuf> {
        let from_proc = self.info.as_ref().and_then(|info| info.executable.clone());
        from_proc.or_else(|| self.main_mapping().map(|mapping| PathBuf::from(&*mapping.path)))
    }

    /// Returns its start time as its samples have it, in ns of `CLOCK_BOOTTIME`; `None` before its
    /// first sample.
    pub fn start_ns(&self) -> Option<u64> {
        self.start_ns
    }

    /// Returns the time of its last exec in ns of `CLOCK_MONOTONIC`, if that was seen.
    pub fn exec_ns(&self) -> Option<u64> {
        self.exec_ns
    }

    /// Returns its `/proc` information from when it was first sampled.
    pub fn info(&self) -> Option<&Arc<ProcessInfo>> {
        self.info.as_ref()
    }

    /// Returns the context that it has published, if that was found.
    pub fn context(&self) -> Option<&Arc<ProcessContext>> {
        self.context.context()
    }

    /// Returns its cgroup when it was first sampled, or its parent's if it had ended by then.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        let own = self.info.as_ref().and_then(|info| info.cgroup.as_ref());
        own.or(self.inherited_cgroup.as_deref())
    }

    /// Returns its pid in its own pid namespace, as far as known.
    pub fn inner_pid(&self) -> u32 {
        self.info.as_ref().map_or(self.pid, |info| info.inner_pid)
    }

    /// Returns its effective user id when it was first sampled.
    pub fn uid(&self) -> Option<u32> {
        self.info.as_ref().map(|info| info.uid)
    }

    /// Returns `/proc/PID/root`, its root directory.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid))
    }

    /// Returns true if another program has begun in its place: what `/proc` says is of that one.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Returns true if it has ended. It is kept until [`ProcessTable::remove_exited`].
    pub fn has_exited(&self) -> bool {
        self.exited
    }

    /// Returns true if it maps a HotSpot library.
    pub fn is_jvm(&self) -> bool {
        self.mappings.iter().any(|mapping| is_hotspot(mapping))
    }

    /// Returns the mapping of the program itself, if it is known.
    pub fn main_mapping(&self) -> Option<&Arc<MappedCode>> {
        let executable = self.info.as_ref().and_then(|info| info.executable.as_deref());
        let mut files = self.mappings.iter().filter(|mapping| mapping.backing == Backing::File);
        match executable {
            Some(path) => files.find(|mapping| Path::new(&*mapping.path) == path),
            // The kernel maps the program before its interpreter, but records have no order of
            // their own here: programs lie below libraries.
            None => files.next(),
        }
    }
}

/// Counters of reads of `/proc` and of limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessTableCounts {
    /// Processes that were gone or not readable when their first sample arrived.
    pub unreadable: u64,
    /// Reads of `/proc/PID/maps`.
    pub reads: u64,
    /// Reads of a process with more mappings than the limit: those at the highest addresses are
    /// left out.
    pub mappings_over_limit: u64,
    /// Times that all processes' mappings were dropped for the memory limit. They are read again
    /// when their processes are sampled.
    pub resets: u64,
    pub contexts: ContextCounts,
}

/// All processes that were seen, by pid.
#[derive(Debug)]
pub struct ProcessTable {
    /// Most memory of the mappings of all processes, in bytes.
    max_bytes: usize,
    by_pid: HashMap<u32, Process>,
    /// Sampled programs of this window in whose places others have begun.
    replaced: Vec<Process>,
    next_key: u64,
    counts: ProcessTableCounts,
    /// Memory of mappings that were added since all were last summed up, in bytes.
    grown: usize,
}

/// Default limit of the memory of all mappings, in bytes.
const MAX_BYTES: usize = 128 << 20;

impl Default for ProcessTable {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl ProcessTable {
    /// Makes an empty table. `mapping_bytes`: most memory of the mappings of all processes.
    pub fn new(mapping_bytes: usize) -> Self {
        Self {
            max_bytes: mapping_bytes,
            by_pid: HashMap::new(),
            replaced: Vec::new(),
            next_key: 0,
            counts: ProcessTableCounts::default(),
            grown: 0,
        }
    }

    /// Records a thread's name; that of the first thread is the process's name.
    pub fn thread_name(&mut self, pid: u32, tid: u32, comm: &str) {
        if pid == tid
            && let Some(process) = self.by_pid.get_mut(&pid)
        {
            process.comm = comm.into();
        }
    }

    /// Records the end of a thread; with the first one the process mostly ends, too.
    pub fn exit(&mut self, pid: u32, tid: u32) {
        if pid == tid
            && let Some(process) = self.by_pid.get_mut(&pid)
        {
            process.exited = true;
        }
    }

    /// Records a new executable mapping.
    pub fn insert_mapping(&mut self, pid: u32, time_ns: u64, new: MappedCode) {
        if let Some(process) = self.by_pid.get_mut(&pid)
            && time_ns > process.maps_replaced_ns
        {
            let is_known = process.was_read_after(time_ns, &new);
            let before = process.mappings.bytes();
            let new_is_file = new.backing == Backing::File;
            let replaces = process.mappings.insert(new);
            if !is_known {
                if new_is_file {
                    process.context.expect(time_ns);
                }
                process.version += 1;
                process.generation += u64::from(replaces);
            }
            // No event reports an unmapping: a process that maps code again and again has less of
            // it than its events.
            if process.mappings.bytes() > MAX_MAPPING_BYTES {
                process.drop_mappings();
            }
            self.grown += process.mappings.bytes().saturating_sub(before);
            self.enforce_limit();
        }
    }

    /// Returns true if a new mapping replaces other code of a file, or code of a file replaces
    /// other code. A runtime may replace generated code by generated code as it likes.
    pub fn replaces_file_code(&self, pid: u32, time_ns: u64, new: &MappedCode) -> bool {
        let Some(process) = self.by_pid.get(&pid).filter(|process| time_ns > process.maps_replaced_ns) else {
            return false;
        };
        let overlaps = |known: &&Arc<MappedCode>| known.start < new.end && new.start < known.end;
        !process.was_read_after(time_ns, new)
            && process.mappings.iter().filter(overlaps).any(|known| {
                let is_same = known.path == new.path
                    && known.build_id == new.build_id
                    && known.file_offset(new.start) == new.offset;
                !is_same && (known.backing, new.backing) != (Backing::Anonymous, Backing::Anonymous)
            })
    }

    /// Drops all mappings if they exceed half of the limit of all processes.
    fn enforce_limit(&mut self) {
        if self.grown <= self.max_bytes / 2 {
            return;
        }
        self.grown = 0;
        if self.mapping_bytes() > self.max_bytes / 2 {
            self.counts.resets += 1;
            self.by_pid.values_mut().for_each(Process::drop_mappings);
        }
    }

    /// Returns an upper bound of the memory of all mappings, in bytes.
    pub fn mapping_bytes(&self) -> usize {
        let mut seen = HashSet::new();
        let mappings = self.by_pid.values().map(|process| &process.mappings);
        mappings.filter(|mappings| seen.insert(mappings.identity())).map(Mappings::bytes).sum()
    }

    /// Returns the limit of [`Self::mapping_bytes`].
    pub fn max_mapping_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Returns the process of a sample. It is read from `/proc` if it is new, and again, within
    /// limits, if one of the sample's `addresses` lies in none of its mappings. `addresses` gives
    /// `None` if they needn't be checked.
    pub fn process_of_sample<I: Iterator<Item = Avma>>(
        &mut self,
        pid: u32,
        start_ns: u64,
        comm: &str,
        now_ns: u64,
        addresses: impl FnOnce(&Process) -> Option<I>,
    ) -> &Process {
        // Before this process's mappings are read.
        self.enforce_limit();
        // `/proc` rounds down to ticks.
        let is_same = |it: u64| it / NS_PER_TICK == start_ns / NS_PER_TICK;
        let known = self.by_pid.get(&pid).is_some_and(|process| process.start_ns.is_none_or(is_same));
        if !known {
            let mut process = self.new_process(pid, comm);
            process.needs_maps = true;
            self.by_pid.insert(pid, process);
        }
        let counts = &mut self.counts;
        let process = self.by_pid.entry(pid).or_insert_with(|| empty_process(pid));
        // What `/proc` says is rounded, what the kernel programs say is exact.
        if process.start_ns.is_none_or(|it| it.is_multiple_of(NS_PER_TICK)) {
            process.start_ns = Some(start_ns);
        }
        if process.takes_info() {
            process.read_info(counts);
            if process.has_missed_exec {
                self.next_key += 1;
                process.begin_program(ProcessKey(self.next_key));
            }
        }
        let is_outdated = process.needs_maps || {
            addresses(process)
                .is_some_and(|it| process.next_maps_read_ns <= now_ns && process.mappings.misses_any(it))
        };
        if is_outdated {
            process.read_mappings(now_ns, counts);
            self.grown += process.mappings.bytes();
        }
        if process.context.is_due(now_ns) {
            process.context.check(pid, now_ns, &mut counts.contexts);
        }
        process
    }

    /// Has a process's context read again soon: a context of one of its threads has an attribute
    /// that the process's doesn't name.
    pub fn expect_context(&mut self, pid: u32, now_ns: u64) {
        if let Some(process) = self.by_pid.get_mut(&pid) {
            process.context.expect_change(now_ns);
        }
    }

    /// Returns a process that an event was of, as if it were sampled now; `None` if it isn't known.
    /// `start_ns`: as samples have it.
    pub fn process_of_event(&mut self, pid: u32, start_ns: u64, now_ns: u64) -> Option<&Process> {
        let comm = Arc::clone(&self.by_pid.get(&pid)?.comm);
        let none = |_: &Process| None::<std::iter::Empty<Avma>>;
        Some(self.process_of_sample(pid, start_ns, &comm, now_ns, none))
    }

    /// Returns a process that was found in `/proc`, as if it were sampled now.
    pub fn insert_running(&mut self, pid: u32, info: &ProcessInfo, now_ns: u64) -> &Process {
        let none = |_: &Process| None::<std::iter::Empty<Avma>>;
        self.process_of_sample(pid, info.start_ticks * NS_PER_TICK, &info.comm, now_ns, none)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.by_pid.values()
    }

    /// Returns all processes, also those in whose places others have begun since
    /// [`Self::remove_exited`].
    pub fn iter_with_replaced(&self) -> impl Iterator<Item = &Process> {
        self.by_pid.values().chain(&self.replaced)
    }

    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.by_pid.get(&pid)
    }

    /// Removes processes that have ended, and returns their keys. The end of one whose mappings are
    /// to be read again may have been in events that were lost.
    pub fn remove_exited(&mut self) -> Vec<ProcessKey> {
        self.replaced.clear();
        let may_be = |process: &Process| process.exited || process.needs_maps;
        let gone =
            |process: &Process| may_be(process) && !Path::new(&format!("/proc/{}", process.pid)).exists();
        self.by_pid.extract_if(|_, process| gone(process)).map(|(_, process)| process.key).collect()
    }

    pub fn len(&self) -> usize {
        self.by_pid.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_pid.is_empty()
    }

    pub fn counts(&self) -> ProcessTableCounts {
        self.counts
    }

    fn new_process(&mut self, pid: u32, comm: &str) -> Process {
        self.next_key += 1;
        Process { key: ProcessKey(self.next_key), comm: comm.into(), ..empty_process(pid) }
    }
}

/// Returns a process without any information.
fn empty_process(pid: u32) -> Process {
    Process {
        key: ProcessKey(0),
        pid,
        start_ns: None,
        exec_ns: None,
        comm: "".into(),
        mappings: Mappings::default(),
        generation: 0,
        version: 1,
        info: None,
        inherited_info: None,
        inherited_cgroup: None,
        maps_replaced_ns: 0,
        maps_merged_ns: 0,
        needs_maps: false,
        needs_info: true,
        reads_in_exec: 0,
        next_maps_read_ns: 0,
        exited: false,
        is_replaced: false,
        has_missed_exec: false,
        context: ContextWatch::default(),
    }
}

/// Returns the mapping that an event describes.
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

mod forks_and_execs;
mod proc_reads;

#[cfg(test)]
mod limits_tests;

#[cfg(test)]
mod tests;
