//! The perf map of one process: where it may be, whether to believe it, and reading on in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use nix::time::{ClockId, clock_gettime};

use super::{PerfMap, PerfMapLimits};
use crate::clock::thread_cpu_ns;
use crate::jit::cpu_budget::{Pace, Urgency};
use crate::jit::memory_budget::{Budget, Share};
use crate::native::open_file::{OpenError, open_in_root_owned};
use crate::process::Process;

/// The path is looked up again at most this often, unless a change of its folder was noticed.
const PATH_INTERVAL_NS: u64 = 100_000_000;
/// Turns at a window's end, and when all is read for a person: a file that grows all the time has
/// no end.
const LAST_TURNS: usize = 64;
const ALL_TURNS: usize = 4096;
/// A file may seem this much older than its writer: the clock of file times ticks every 10 ms, and
/// start times of processes from `/proc` are rounded down to 10 ms.
const START_SLACK_NS: i128 = 50_000_000;

/// What is known of the process that should have written the map.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Where the file may be: a root folder, and the path below it. The first that can be used is
    /// taken.
    pub places: Vec<(PathBuf, PathBuf)>,
    /// Its effective user, as this process sees it.
    pub uid: u32,
    /// When it was started, or its program was, if that is known: in ns since 1970.
    pub started_ns: Option<i128>,
}

impl Writer {
    /// A map is written with the writer's own idea of its pid to the `/tmp` that it sees; by a tool
    /// for it, on the host.
    pub fn of(process: &Process) -> Self {
        let path = |pid: u32| PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let places = vec![
            (process.root(), path(process.inner_pid())),
            (host_root(Path::new("/proc/1/root")), path(process.pid)),
        ];
        Self { places, uid: process.uid().unwrap_or(0), started_ns: started_ns(process) }
    }
}

/// The host's files, as its first process sees them, if that may be looked at: this process may
/// have a `/tmp` of its own (`PrivateTmp=yes` of systemd, a container).
fn host_root(of_first_process: &Path) -> PathBuf {
    let is_readable = of_first_process.join("tmp").is_dir();
    if is_readable { of_first_process.to_owned() } else { PathBuf::from("/") }
}

/// When a process began, or replaced its program, in ns since 1970.
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

/// Times that a map could not be used. A map counts again only after it could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMapCounters {
    /// No regular file, of another user, or unreadable.
    pub unusable: u64,
    /// Written by an earlier process with the same pid.
    pub stale: u64,
}

/// The perf map of one process.
#[derive(Debug)]
pub struct ProcessMap {
    writer: Writer,
    map: PerfMap,
    file: Option<Opened>,
    /// Everything that was written before this time has been read.
    checked_ns: u64,
    next_path_ns: u64,
    problem: Option<&'static str>,
    counters: ProcessMapCounters,
    share: Share,
    pace: Pace,
    has_more: bool,
    /// Files that were opened so far.
    files: u64,
}

#[derive(Debug)]
struct Opened {
    file: File,
    device: u64,
    inode: u64,
    is_stale: bool,
}

impl ProcessMap {
    pub fn new(writer: Writer, budget: Budget) -> Self {
        Self {
            writer,
            map: PerfMap::default(),
            file: None,
            checked_ns: 0,
            next_path_ns: 0,
            problem: None,
            counters: ProcessMapCounters::default(),
            share: Share::new(budget),
            pace: Pace::default(),
            has_more: false,
            files: 0,
        }
    }

    /// Looks the file up, if it is time for that, and reads what is new in it: a bounded piece.
    /// False if the file has cost so much lately that it has to wait: see [`Self::ready_ns`].
    pub fn check(&mut self, now_ns: u64) -> bool {
        self.turn(now_ns, Urgency::Later)
    }

    /// Reads what it can before names are settled by what is known.
    pub fn finish(&mut self, now_ns: u64) {
        self.turns(now_ns, Urgency::LastChance, LAST_TURNS);
    }

    /// Reads everything, for somebody who waits for it.
    pub fn read_all(&mut self, now_ns: u64) {
        self.turns(now_ns, Urgency::Unlimited, ALL_TURNS);
    }

    fn turns(&mut self, now_ns: u64, urgency: Urgency, most: usize) {
        for _ in 0..most {
            if !self.turn(now_ns, urgency) || !self.has_more {
                break;
            }
        }
    }

    fn turn(&mut self, now_ns: u64, urgency: Urgency) -> bool {
        let most = self.pace.allowance(now_ns, urgency);
        if most == 0 {
            return false;
        }
        let (cpu_ns, read) = (thread_cpu_ns(), self.map.counters().bytes_read);
        self.read_on(now_ns, most.min(PerfMapLimits::default().read_bytes));
        let read = self.map.counters().bytes_read - read;
        self.pace.spend(read, thread_cpu_ns().saturating_sub(cpu_ns));
        true
    }

    fn read_on(&mut self, now_ns: u64, most: u64) {
        let is_replaced = self.is_unlinked();
        if now_ns >= self.next_path_ns || is_replaced {
            self.next_path_ns = now_ns + PATH_INTERVAL_NS;
            self.look_up();
        }
        let Some(opened) = self.file.as_mut() else {
            self.checked_ns = now_ns;
            return;
        };
        if opened.is_stale {
            match is_stale(&opened.file, &self.writer) {
                Ok(false) => opened.is_stale = false,
                Ok(true) | Err(_) => {
                    self.checked_ns = now_ns;
                    return;
                }
            }
        }
        self.map.set_memory_limit(self.share.limit());
        self.map.set_read_limit(most);
        match self.map.refresh(&opened.file) {
            Ok(done) => {
                self.has_more = done.more;
                self.problem = None;
                if !done.more {
                    self.checked_ns = self.map.checked_ns();
                }
            }
            Err(error) => {
                self.has_more = false;
                self.problem("unreadable", &error);
            }
        }
        self.share.set(self.map.size_bytes());
    }

    /// The folder has changed: the path may lead to another file.
    pub fn path_changed(&mut self) {
        self.next_path_ns = 0;
    }

    /// Opens what the path leads to by now: what is open can be read on when the path is gone.
    pub fn open_now(&mut self) {
        self.look_up();
    }

    /// When the file may be read on, in ns of `CLOCK_MONOTONIC`, if it had to wait.
    pub fn ready_ns(&self) -> u64 {
        self.pace.ready_ns()
    }

    /// What was written before this time, in ns of `CLOCK_MONOTONIC`, has been read.
    pub fn checked_ns(&self) -> u64 {
        self.checked_ns
    }

    /// The rest of a large map waits for the next check.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    pub fn map(&self) -> &PerfMap {
        &self.map
    }

    pub fn map_mut(&mut self) -> &mut PerfMap {
        &mut self.map
    }

    pub fn counters(&self) -> ProcessMapCounters {
        self.counters
    }

    /// The file that is read, if there is one.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref().map(|opened| &opened.file)
    }

    /// Which file that is: another number for each that was opened, 0 for none.
    pub fn file_number(&self) -> u64 {
        self.files
    }

    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    fn is_unlinked(&self) -> bool {
        self.file().is_some_and(|file| file.metadata().is_ok_and(|metadata| metadata.nlink() == 0))
    }

    fn look_up(&mut self) {
        let mut problem = None;
        for (root, path) in &self.writer.places {
            match open_in_root_owned(root, path, self.writer.uid).map(|file| (file.metadata(), file)) {
                Ok((Ok(metadata), file)) => {
                    let (device, inode) = (metadata.dev(), metadata.ino());
                    if self.file.as_ref().is_some_and(|it| (it.device, it.inode) == (device, inode)) {
                        return;
                    }
                    return self.opened(Opened { file, device, inode, is_stale: false });
                }
                Ok((Err(source), _)) => problem = Some(OpenError::Open { path: path.clone(), source }),
                Err(error) if error.is_not_found() => {}
                Err(error) => problem = Some(error),
            }
        }
        // A map that was deleted stays true: its writer still has it open.
        if let Some(error) = problem {
            self.problem(error.reason(), &error);
        }
    }

    fn opened(&mut self, mut opened: Opened) {
        if is_stale(&opened.file, &self.writer).unwrap_or(false) {
            opened.is_stale = true;
            self.counters.stale += 1;
            if let Err(error) = self.map.skip_present(&opened.file) {
                self.problem("unreadable", &error);
                return;
            }
        }
        // An old file that was changed lately: its writer has added to what the one before it left,
        // or somebody else has.
        let is_doubtful = !opened.is_stale && is_born_before(&opened.file, &self.writer);
        if is_doubtful {
            self.map.doubt_present();
        }
        self.file = Some(opened);
        self.has_more = false;
        self.files += 1;
    }

    fn problem(&mut self, reason: &'static str, error: &dyn std::error::Error) {
        if self.problem.replace(reason) != Some(reason) {
            self.counters.unusable += 1;
            tracing::debug!(places = ?self.writer.places, %error, "a perf map can't be used");
        }
    }
}

/// Whether a file was changed last before its writer was there.
fn is_stale(file: &File, writer: &Writer) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let changed = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    Ok(writer.started_ns.is_some_and(|started| changed < started - START_SLACK_NS))
}

/// Whether a file was there before its writer was, as far as its file system tells.
fn is_born_before(file: &File, writer: &Writer) -> bool {
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
