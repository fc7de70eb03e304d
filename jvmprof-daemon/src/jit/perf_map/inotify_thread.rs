//! A thread that reads perf maps soon after they are written, so that the time of each line is
//! known closely.
//!
//! inotify reports changes of the files, and of their directories for maps that are created or
//! replaced. It doesn't see what other hosts write to a shared file system, and its watches are
//! limited: a map that can't be watched, or may appear in a directory that can't, is polled in
//! short intervals instead. Reading is bounded: one piece a turn, and less often the more it costs.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::process_perf_map::ProcessPerfMap;
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::native::open_file::open_folder_in_root;
use crate::own_process::thread_priority;

const MS: u64 = 1_000_000;
/// Interval of reading a map that changes all the time. One that changes seldom is read at once.
const BUSY_INTERVAL_NS: u64 = 10 * MS;
/// Interval of reading maps that can't be watched.
const POLL_INTERVAL_NS: u64 = 25 * MS;
/// Shortest interval of renewing watches, since a directory may be replaced or mounted over.
const REARM_INTERVAL_NS: u64 = 1_000 * MS;
/// Longest interval of renewing watches: it grows while no new process comes.
const LONGEST_REARM_INTERVAL_NS: u64 = 4_000 * MS;
/// Pause after a turn of reading, as a multiple of the turn's CPU time.
const PAUSE_FACTOR: u64 = 20;
/// Longest such pause.
const LONGEST_PAUSE_NS: u64 = 250 * MS;
/// Most maps that are watched; others are read when a frame is resolved in them.
const MAX_MAPS: usize = 4096;

type SharedPerfMap = Arc<Mutex<ProcessPerfMap>>;

/// Handle of the thread, which starts with the first map and ends when this is dropped.
#[derive(Debug, Default)]
pub struct PerfMapWatcher {
    thread: Mutex<Option<WatcherThread>>,
}

#[derive(Debug)]
struct WatcherThread {
    incoming: Arc<Mutex<Vec<Weak<Mutex<ProcessPerfMap>>>>>,
    wake: Arc<EventFd>,
}

/// Error of starting the thread. Without it maps are only read when a frame is resolved in them.
#[derive(Debug, thiserror::Error)]
pub enum PerfMapWatchError {
    #[error("creating an eventfd for the thread that reads perf maps: {0}")]
    EventFd(Errno),
    #[error("starting the thread that reads perf maps: {0}")]
    Thread(std::io::Error),
}

impl PerfMapWatcher {
    /// Reads this map as it is written, until its last other owner drops it.
    ///
    /// # Errors
    /// Returns an error if the thread can't be started.
    pub fn watch(&self, map: &SharedPerfMap) -> Result<(), PerfMapWatchError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let started = match &mut *thread {
            Some(started) => started,
            none => none.insert(WatcherThread::new()?),
        };
        let mut incoming = started.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        incoming.push(Arc::downgrade(map));
        // A full counter wakes as well.
        let _ = started.wake.write(1);
        Ok(())
    }
}

impl Drop for PerfMapWatcher {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(WatcherThread { incoming, wake }) = thread.take() {
            drop(incoming);
            let _ = wake.write(1);
        }
    }
}

impl WatcherThread {
    fn new() -> Result<Self, PerfMapWatchError> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags).map_err(PerfMapWatchError::EventFd)?);
        let incoming = Arc::new(Mutex::new(Vec::new()));
        let inotify_loop = InotifyLoop::new(Arc::downgrade(&incoming), Arc::clone(&wake));
        std::thread::Builder::new()
            .name("jit-maps".to_owned())
            .spawn(move || {
                thread_priority::default_priority();
                inotify_loop.run();
            })
            .map_err(PerfMapWatchError::Thread)?;
        Ok(Self { incoming, wake })
    }
}

/// One map, its watches, and the time of its next read.
#[derive(Debug)]
struct WatchedMap {
    map: Weak<Mutex<ProcessPerfMap>>,
    file: Option<WatchDescriptor>,
    /// Number of the watched file: see [`ProcessPerfMap::file_number`].
    file_number: u64,
    directories: Vec<(WatchDescriptor, OsString)>,
    /// True if the map may appear in a directory that can't be watched.
    has_unwatched_directory: bool,
    /// True if the file or its directory has changed since the last read.
    is_dirty: bool,
    /// True if changes aren't reported.
    is_polled: bool,
    /// Time before which it isn't read, in ns of `CLOCK_MONOTONIC`.
    next_ns: u64,
}

impl WatchedMap {
    /// Returns true if it is to be read at `next_ns`.
    fn is_due(&self) -> bool {
        self.is_dirty || self.is_polled
    }
}

struct InotifyLoop {
    incoming: Weak<Mutex<Vec<Weak<Mutex<ProcessPerfMap>>>>>,
    wake: Arc<EventFd>,
    /// The inotify instance; `None`: every map is polled.
    inotify: Option<Inotify>,
    maps: Vec<WatchedMap>,
    /// Watches that may have no map any more.
    unused: HashSet<WatchDescriptor>,
    next_rearm_ns: u64,
    rearm_interval_ns: u64,
}

impl InotifyLoop {
    fn new(incoming: Weak<Mutex<Vec<Weak<Mutex<ProcessPerfMap>>>>>, wake: Arc<EventFd>) -> Self {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .inspect_err(|errno| tracing::warn!(%errno, "inotify can't be used: perf maps are polled"));
        Self {
            incoming,
            wake,
            inotify: inotify.ok(),
            maps: Vec::new(),
            unused: HashSet::new(),
            next_rearm_ns: 0,
            rearm_interval_ns: REARM_INTERVAL_NS,
        }
    }

    fn run(mut self) {
        while self.register_new_maps() {
            self.wait();
            self.handle_inotify_events();
            let now = monotonic_ns();
            if now >= self.next_rearm_ns {
                self.next_rearm_ns = now + self.rearm_interval_ns;
                self.rearm_interval_ns = (self.rearm_interval_ns * 3 / 2).min(LONGEST_REARM_INTERVAL_NS);
                self.rearm();
            }
            for map in &mut self.maps {
                if map.is_due() && map.next_ns <= monotonic_ns() {
                    read(map, self.inotify.as_ref(), &mut self.unused);
                }
            }
        }
    }

    /// Adds new maps. Returns false if the handle is gone.
    fn register_new_maps(&mut self) -> bool {
        let Some(incoming) = self.incoming.upgrade() else { return false };
        let new = std::mem::take(&mut *incoming.lock().unwrap_or_else(PoisonError::into_inner));
        for map in new.into_iter().take(MAX_MAPS.saturating_sub(self.maps.len())) {
            let (file, directories) = (None, Vec::new());
            self.maps.push(WatchedMap {
                map,
                file,
                directories,
                has_unwatched_directory: false,
                is_dirty: true,
                is_polled: false,
                file_number: 0,
                next_ns: 0,
            });
            self.next_rearm_ns = 0;
            self.rearm_interval_ns = REARM_INTERVAL_NS;
        }
        true
    }

    /// Waits until something changes or a map is due.
    fn wait(&self) {
        let now = monotonic_ns();
        let due = |map: &WatchedMap| map.is_due().then_some(map.next_ns);
        let next = self.maps.iter().filter_map(due).min().unwrap_or(u64::MAX);
        let mut until = next.min(if self.maps.is_empty() { u64::MAX } else { self.next_rearm_ns });
        if next > now && next != u64::MAX {
            until = until.min(now + BUSY_INTERVAL_NS / 2);
        }
        let timeout = match until {
            u64::MAX => PollTimeout::NONE,
            until => {
                let wait = Duration::from_nanos(until.saturating_sub(now)) + Duration::from_micros(999);
                PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if let Some(inotify) = &self.inotify {
            fds.push(PollFd::new(inotify.as_fd(), PollFlags::POLLIN));
        }
        // While a busy map waits for its turn, its events would end the wait. Those of others are
        // handled a little later.
        if self.maps.iter().any(|map| map.is_dirty && map.next_ns > now) {
            fds.truncate(1);
        }
        let _ = poll(&mut fds, timeout);
        let _ = self.wake.read();
    }

    fn handle_inotify_events(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let events = match inotify.read_events() {
            Ok(events) => events,
            Err(_) => return,
        };
        let mut by_file: HashMap<WatchDescriptor, Vec<usize>> = HashMap::new();
        for (index, map) in self.maps.iter().enumerate() {
            map.file.iter().for_each(|wd| by_file.entry(*wd).or_default().push(index));
        }
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                self.maps.iter_mut().for_each(|map| map.is_dirty = true);
                continue;
            }
            for index in by_file.get(&event.wd).into_iter().flatten() {
                self.maps[*index].is_dirty = true;
            }
            let is_in_directory =
                event.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO);
            if is_in_directory
                && event.name.as_ref().is_some_and(|name| name.as_encoded_bytes().starts_with(b"perf-"))
            {
                self.handle_directory_change(event.wd, event.name.as_ref());
            }
            if event.mask.intersects(AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_MOVE_SELF) {
                self.next_rearm_ns = 0;
            }
        }
    }

    fn handle_directory_change(&mut self, wd: WatchDescriptor, name: Option<&OsString>) {
        for map in &mut self.maps {
            let is_its =
                map.directories.iter().any(|(directory, file)| *directory == wd && Some(file) == name);
            if is_its && let Some(shared) = map.map.upgrade() {
                shared.lock().unwrap_or_else(PoisonError::into_inner).invalidate_path();
                map.is_dirty = true;
            }
        }
    }

    /// Watches what the paths lead to now. A second watch of a file or directory is the same watch
    /// descriptor.
    fn rearm(&mut self) {
        let wds = |maps: &[WatchedMap]| -> HashSet<WatchDescriptor> {
            maps.iter().flat_map(|map| map.directories.iter().map(|(wd, _)| *wd).chain(map.file)).collect()
        };
        let before = wds(&self.maps);
        self.maps.retain(|map| map.map.strong_count() > 0);
        let Some(inotify) = &self.inotify else { return };
        for map in &mut self.maps {
            let Some(shared) = map.map.upgrade() else { continue };
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let watches: Vec<_> =
                shared.writer().candidate_paths.iter().map(|path| watch_directory(inotify, path)).collect();
            map.has_unwatched_directory =
                watches.iter().any(|watch| matches!(watch, DirectoryWatch::Unwatchable));
            let directories: Vec<_> = watches.into_iter().filter_map(DirectoryWatch::watched).collect();
            if directories != map.directories {
                shared.invalidate_path();
                map.is_dirty = true;
                map.directories = directories;
            }
        }
        let live = wds(&self.maps);
        self.unused.extend(before);
        for wd in self.unused.drain().filter(|wd| !live.contains(wd)) {
            // It may be gone with its file.
            let _ = inotify.rm_watch(wd);
        }
    }
}

/// Watch for a map that may be created in a directory.
enum DirectoryWatch {
    /// Creation of a file of this name is reported by this watch.
    Watched(WatchDescriptor, OsString),
    /// The directory doesn't exist; it is watched once it does.
    Missing,
    /// The kernel refused the watch.
    Unwatchable,
}

impl DirectoryWatch {
    fn watched(self) -> Option<(WatchDescriptor, OsString)> {
        if let Self::Watched(wd, name) = self { Some((wd, name)) } else { None }
    }
}

fn watch_directory(inotify: &Inotify, path: &(PathBuf, PathBuf)) -> DirectoryWatch {
    let (root, path) = path;
    let Some((directory, name)) = path.parent().zip(path.file_name()) else { return DirectoryWatch::Missing };
    // Opened as maps are: a container's `/tmp` may be a link, which leads to another directory for
    // it than for the host.
    let directory = match open_folder_in_root(root, directory) {
        Ok(directory) => directory,
        Err(error) if error.is_not_found() => return DirectoryWatch::Missing,
        Err(_) => return DirectoryWatch::Unwatchable,
    };
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR;
    match inotify.add_watch(&descriptor_link(&directory), flags) {
        Ok(wd) => DirectoryWatch::Watched(wd, name.to_owned()),
        Err(_) => DirectoryWatch::Unwatchable,
    }
}

/// Returns the path of a descriptor's own link, which leads to the very file that is open.
fn descriptor_link(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Reads new lines of a map, and schedules its next read.
fn read(watched: &mut WatchedMap, inotify: Option<&Inotify>, unused: &mut HashSet<WatchDescriptor>) {
    let Some(shared) = watched.map.upgrade() else { return };
    let mut map = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = thread_cpu_ns();
    let entries = map.map().counters().entries;
    let mut has_read = map.read_new(monotonic_ns());
    if map.file_number() != watched.file_number {
        watched.file_number = map.file_number();
        let wd = map.file().and_then(|file| {
            let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF;
            inotify?.add_watch(&descriptor_link(file), flags).ok()
        });
        unused.extend(std::mem::replace(&mut watched.file, wd));
        // Lines that were written before the watch was there aren't reported.
        has_read = map.read_new(monotonic_ns());
    }
    let cost_ns = thread_cpu_ns().saturating_sub(begun);
    let has_grown = map.map().counters().entries != entries;
    watched.is_dirty = map.has_more() || !has_read;
    // A file that doesn't exist yet is reported by its directory.
    let is_file_unwatched = watched.file.is_none() && map.file().is_some();
    watched.is_polled = is_file_unwatched || watched.has_unwatched_directory || inotify.is_none();
    let pause = match (watched.is_polled, map.has_more()) {
        (_, true) => 0,
        (true, _) => POLL_INTERVAL_NS,
        _ if has_grown => BUSY_INTERVAL_NS,
        _ => 0,
    };
    let long_pause = if map.has_more() { 0 } else { (PAUSE_FACTOR * cost_ns).min(LONGEST_PAUSE_NS) };
    watched.next_ns = (monotonic_ns() + pause.max(long_pause)).max(map.ready_ns());
}
