//! The perf map of one process: where it may be, whether to believe it, and reading on in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::time::{ClockId, clock_gettime};

use super::budget::{Budget, Share};
use super::perf_map::PerfMap;
use crate::native::open::{OpenError, open_in_root_owned};
use crate::process::Process;

/// The path is looked up again at most this often, unless a change of its folder was noticed.
const PATH_INTERVAL_NS: u64 = 100_000_000;
/// A file may seem this much older than its writer: the clock of file times ticks every 10 ms, and start times of
/// processes from `/proc` are rounded down to 10 ms.
const START_SLACK_NS: i128 = 50_000_000;

/// What is known of the process that should have written the map.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Where the file may be: a root folder, and the path below it. The first that can be used is taken.
    pub places: Vec<(PathBuf, PathBuf)>,
    /// Its effective user, as this process sees it.
    pub uid: u32,
    /// When it was started, in ns since 1970; `None` if that isn't known.
    pub started_ns: Option<i128>,
}

impl Writer {
    /// A map is written with the writer's own idea of its pid to the `/tmp` that it sees; by a tool for it, on the host.
    pub fn of(process: &Process) -> Self {
        let (inner, host) = (process.inner_pid(), process.pid);
        let path = |pid: u32| PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let mut places = vec![(process.root(), path(inner))];
        places.push((PathBuf::from("/"), path(host)));
        Self { places, uid: process.uid().unwrap_or(0), started_ns: process.start_ns().and_then(started_ns) }
    }
}

/// A start time since boot, in ns since 1970.
fn started_ns(since_boot_ns: u64) -> Option<i128> {
    let ns = |clock| {
        let time = clock_gettime(clock).ok()?;
        Some(i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec()))
    };
    Some(ns(ClockId::CLOCK_REALTIME)? - ns(ClockId::CLOCK_BOOTTIME)? + i128::from(since_boot_ns))
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
            has_more: false,
            files: 0,
        }
    }

    /// Looks the file up, if it is time for that, and reads what is new in it: a bounded piece.
    pub fn check(&mut self, now_ns: u64) {
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
        let limits = self.map.limits();
        let most = self.share.limit();
        if limits.memory_bytes != most {
            self.map.set_memory_limit(most);
        }
        match self.map.refresh(&opened.file) {
            Ok(done) => {
                self.has_more = done.more;
                self.problem = None;
                if !done.more {
                    self.checked_ns = self.map.checked_ns();
                }
            }
            Err(error) => self.problem("unreadable", &error),
        }
        self.share.set(self.map.size_bytes());
    }

    /// The folder has changed: the path may lead to another file.
    pub fn path_changed(&mut self) {
        self.next_path_ns = 0;
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
        self.file = Some(opened);
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
