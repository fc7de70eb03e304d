//! The perf map of one process: finding the file, validating its owner and age, and reading it
//! within the process's budgets of memory and CPU time.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use nix::time::{ClockId, clock_gettime};

use super::{PerfMap, PerfMapLimits};
use crate::clock::thread_cpu_ns;
use crate::jit::MAX_FILE_BYTES;
use crate::jit::reading_budget::{ReadUrgency, ReadingBudget};
use crate::memory_budget::{MemoryBudget, MemoryReservation};
use crate::native::open_file::{OpenError, open_in_root_owned};
use crate::process::Process;

/// Shortest interval in which the path is opened again, in ns, unless its directory has changed.
const REOPEN_INTERVAL_NS: u64 = 100_000_000;
/// Most turns of reading at a window's end, and for a person: a file that grows all the time has no
/// end.
const MAX_FINAL_TURNS: usize = 64;
const MAX_UNLIMITED_TURNS: usize = 4096;
/// A file may seem this much older than its writer: the clock of file times ticks every 10 ms, and
/// start times of processes from `/proc` are rounded down to 10 ms.
const START_SLACK_NS: i128 = 50_000_000;

/// The process that should have written the map.
#[derive(Clone, Debug)]
pub struct PerfMapWriter {
    /// Paths where the file may be, each as a root directory and the path below it. The first
    /// usable one is taken.
    pub candidate_paths: Vec<(PathBuf, PathBuf)>,
    /// Effective user id, in this process's user namespace.
    pub uid: u32,
    /// Time of its start or its last exec, if known, in ns since 1970.
    pub started_ns: Option<i128>,
}

impl PerfMapWriter {
    /// Returns the writer for a process. A runtime writes its map to the `/tmp` that it sees, under
    /// the pid of its own namespace; a tool writes one for it on the host.
    pub fn of(process: &Process) -> Self {
        let path = |pid: u32| PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let candidate_paths = vec![
            (process.root(), path(process.inner_pid())),
            (host_root(Path::new("/proc/1/root")), path(process.pid)),
        ];
        Self { candidate_paths, uid: process.uid().unwrap_or(0), started_ns: started_ns(process) }
    }
}

/// Returns the root directory of the host's first process if it can be read, else our own: this
/// process may have a `/tmp` of its own (`PrivateTmp=yes` of systemd, a container).
fn host_root(of_first_process: &Path) -> PathBuf {
    let is_readable = of_first_process.join("tmp").is_dir();
    if is_readable { of_first_process.to_owned() } else { PathBuf::from("/") }
}

/// Returns the time of a process's start or of its last exec, in ns since 1970.
fn started_ns(process: &Process) -> Option<i128> {
    let since_1970 = |clock, at_ns: Option<u64>| {
        Some(clock_ns(ClockId::CLOCK_REALTIME)? - clock_ns(clock)? + i128::from(at_ns?))
    };
    let started = since_1970(ClockId::CLOCK_BOOTTIME, process.start_ns());
    started.max(since_1970(ClockId::CLOCK_MONOTONIC, process.exec_ns()))
}

fn clock_ns(clock: ClockId) -> Option<i128> {
    let time = clock_gettime(clock).ok()?;
    Some(i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec()))
}

/// Counters of maps that could not be used. A map counts again only after it could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessPerfMapCounters {
    /// Files that are not regular, are of another user, or are unreadable.
    pub unusable: u64,
    /// Maps of an earlier process with the same pid.
    pub stale: u64,
}

/// The perf map of one process.
#[derive(Debug)]
pub struct ProcessPerfMap {
    writer: PerfMapWriter,
    map: PerfMap,
    file: Option<OpenPerfMap>,
    /// Everything that was written before this time has been read, in ns of `CLOCK_MONOTONIC`.
    read_until_ns: u64,
    next_open_ns: u64,
    /// Reason why the file can't be used.
    unusable: Option<&'static str>,
    counters: ProcessPerfMapCounters,
    memory: MemoryReservation,
    reading_budget: ReadingBudget,
    has_more: bool,
    /// Number of files that have been opened.
    files_opened: u64,
}

#[derive(Debug)]
struct OpenPerfMap {
    file: File,
    device: u64,
    inode: u64,
    is_stale: bool,
}

impl ProcessPerfMap {
    pub fn new(writer: PerfMapWriter, budget: MemoryBudget) -> Self {
        Self {
            writer,
            map: PerfMap::default(),
            file: None,
            read_until_ns: 0,
            next_open_ns: 0,
            unusable: None,
            counters: ProcessPerfMapCounters::default(),
            memory: MemoryReservation::new(budget),
            reading_budget: ReadingBudget::default(),
            has_more: false,
            files_opened: 0,
        }
    }

    /// Opens the file, if that is due, and reads a bounded piece of what is new in it. Returns
    /// false if the process's budget is used up: see [`Self::ready_ns`].
    pub fn read_new(&mut self, now_ns: u64) -> bool {
        self.read_turn(now_ns, ReadUrgency::Deferrable)
    }

    /// Reads as much as possible before the window's frames are named.
    pub fn read_before_naming(&mut self, now_ns: u64) {
        self.read_turns(now_ns, ReadUrgency::Final, MAX_FINAL_TURNS);
    }

    /// Reads the whole file, for a person who waits for it.
    pub fn read_all(&mut self, now_ns: u64) {
        self.read_turns(now_ns, ReadUrgency::Unlimited, MAX_UNLIMITED_TURNS);
    }

    fn read_turns(&mut self, now_ns: u64, urgency: ReadUrgency, most: usize) {
        for _ in 0..most {
            if !self.read_turn(now_ns, urgency) || !self.has_more {
                break;
            }
        }
    }

    fn read_turn(&mut self, now_ns: u64, urgency: ReadUrgency) -> bool {
        let most = self.reading_budget.bytes_allowed(now_ns, urgency);
        if most == 0 {
            return false;
        }
        let (cpu_ns, read) = (thread_cpu_ns(), self.map.counters().bytes_read);
        self.read_on(now_ns, most.min(PerfMapLimits::default().read_bytes));
        let read = self.map.counters().bytes_read - read;
        self.reading_budget.charge(read, thread_cpu_ns().saturating_sub(cpu_ns));
        true
    }

    fn read_on(&mut self, now_ns: u64, most: u64) {
        let is_replaced = self.is_unlinked();
        if now_ns >= self.next_open_ns || is_replaced {
            self.next_open_ns = now_ns + REOPEN_INTERVAL_NS;
            self.open();
        }
        let Some(opened) = self.file.as_mut() else {
            self.read_until_ns = now_ns;
            return;
        };
        if opened.is_stale {
            match is_stale(&opened.file, &self.writer) {
                Ok(false) => opened.is_stale = false,
                Ok(true) | Err(_) => {
                    self.read_until_ns = now_ns;
                    return;
                }
            }
        }
        self.map.set_memory_limit(self.memory.available().min(MAX_FILE_BYTES));
        self.map.set_read_limit(most);
        match self.map.refresh(&opened.file) {
            Ok(done) => {
                self.has_more = done.more;
                self.unusable = None;
                if !done.more {
                    self.read_until_ns = self.map.read_until_ns();
                }
            }
            Err(error) => {
                self.has_more = false;
                self.set_unusable("unreadable", &error);
            }
        }
        self.memory.set(self.map.size_bytes());
    }

    /// Invalidates the path, which is opened again at the next read: its directory has changed.
    pub fn invalidate_path(&mut self) {
        self.next_open_ns = 0;
    }

    /// Returns the time when the budget allows to read on, in ns of `CLOCK_MONOTONIC`.
    pub fn ready_ns(&self) -> u64 {
        self.reading_budget.ready_ns()
    }

    /// Returns the time up to which everything that was written has been read, in ns of
    /// `CLOCK_MONOTONIC`.
    pub fn read_until_ns(&self) -> u64 {
        self.read_until_ns
    }

    /// Returns true if the rest of a large map is left to the next read.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    pub fn map(&self) -> &PerfMap {
        &self.map
    }

    pub fn map_mut(&mut self) -> &mut PerfMap {
        &mut self.map
    }

    pub fn counters(&self) -> ProcessPerfMapCounters {
        self.counters
    }

    /// Returns the file that is being read.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref().map(|opened| &opened.file)
    }

    /// Returns a number that differs for each file that was opened; 0 for none.
    pub fn file_number(&self) -> u64 {
        self.files_opened
    }

    pub fn writer(&self) -> &PerfMapWriter {
        &self.writer
    }

    fn is_unlinked(&self) -> bool {
        self.file().is_some_and(|file| file.metadata().is_ok_and(|metadata| metadata.nlink() == 0))
    }

    /// Opens the file that the path leads to now.
    fn open(&mut self) {
        let mut refusal = None;
        for (root, path) in &self.writer.candidate_paths {
            match open_in_root_owned(root, path, self.writer.uid).map(|file| (file.metadata(), file)) {
                Ok((Ok(metadata), file)) => {
                    let (device, inode) = (metadata.dev(), metadata.ino());
                    if self.file.as_ref().is_some_and(|it| (it.device, it.inode) == (device, inode)) {
                        return;
                    }
                    return self.use_file(OpenPerfMap { file, device, inode, is_stale: false });
                }
                Ok((Err(source), _)) => refusal = Some(OpenError::Open { path: path.clone(), source }),
                Err(error) if error.is_not_found() => {}
                Err(error) => refusal = Some(error),
            }
        }
        // A map that was deleted stays in use: its writer still has it open.
        if let Some(error) = refusal {
            self.set_unusable(error.reason(), &error);
        }
    }

    fn use_file(&mut self, mut opened: OpenPerfMap) {
        if is_stale(&opened.file, &self.writer).unwrap_or(false) {
            opened.is_stale = true;
            self.counters.stale += 1;
            tracing::debug!(paths = ?self.writer.candidate_paths, "a perf map was there before its process");
            if let Err(error) = self.map.skip_present(&opened.file) {
                self.set_unusable("unreadable", &error);
                return;
            }
        }
        // A file that is older than its writer and was changed since: the writer has added to an
        // earlier process's map, or somebody else has.
        let may_be_foreign = !opened.is_stale && is_created_before(&opened.file, &self.writer);
        if may_be_foreign {
            self.map.mark_next_lines_ambiguous();
        }
        self.file = Some(opened);
        self.has_more = false;
        self.files_opened += 1;
    }

    fn set_unusable(&mut self, reason: &'static str, error: &dyn std::error::Error) {
        if self.unusable.replace(reason) != Some(reason) {
            self.counters.unusable += 1;
            tracing::debug!(paths = ?self.writer.candidate_paths, %error, "a perf map can't be used");
        }
    }
}

/// Returns true if a file was last changed before its writer began.
fn is_stale(file: &File, writer: &PerfMapWriter) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let changed = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    Ok(writer.started_ns.is_some_and(|started| changed < started - START_SLACK_NS))
}

/// Returns true if a file was created before its writer began, as far as its file system records
/// that.
fn is_created_before(file: &File, writer: &PerfMapWriter) -> bool {
    let born = file.metadata().and_then(|metadata| metadata.created()).ok();
    let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let born = born.and_then(|since| i128::try_from(since.as_nanos()).ok());
    born.zip(writer.started_ns).is_some_and(|(born, started)| born < started - START_SLACK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_its_first_process_sees_where_that_can_be_read() {
        let root = |process: &str| host_root(&Path::new("/proc").join(process).join("root"));
        assert_eq!(root("self"), Path::new("/proc/self/root"));
        assert_eq!(root("0"), Path::new("/"));
    }
}
