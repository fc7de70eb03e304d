//! A thread that reads perf maps soon after they are written, so that it is known when each line
//! came.
//!
//! inotify tells of changes of the files, and of their folders for maps that come or are replaced.
//! It has no say over what other hosts write to a shared file system, and its watches are limited:
//! a map that can't be watched where it is, or everywhere where it may come, is looked at in short
//! intervals instead. Reading is bounded: one piece a turn, and less often the more it takes.

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

use super::process_perf_map::ProcessMap;
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::native::open_file::open_folder_in_root;

const MS: u64 = 1_000_000;
/// A map that goes on changing is read this often; one that changes after a while at once.
const BUSY_INTERVAL_NS: u64 = 10 * MS;
/// Maps that can't be watched are looked at this often.
const POLL_INTERVAL_NS: u64 = 25 * MS;
/// Watches are compared with what the paths lead to this often: a folder may be replaced, or
/// mounted over.
const REARM_INTERVAL_NS: u64 = 1_000 * MS;
/// At first: the longer a process is known the less often its folders change.
const LONGEST_REARM_INTERVAL_NS: u64 = 4_000 * MS;
/// A turn's reading is followed by a pause this many times as long.
const PAUSE_FACTOR: u64 = 20;
/// But the pause is never longer.
const LONGEST_PAUSE_NS: u64 = 250 * MS;
/// Most maps that are watched; others are read when they are asked.
const MAX_MAPS: usize = 4096;

type Shared = Arc<Mutex<ProcessMap>>;

/// Hands maps to the thread, which begins with the first and ends when this is dropped.
#[derive(Debug, Default)]
pub struct Watcher {
    thread: Mutex<Option<Started>>,
}

#[derive(Debug)]
struct Started {
    incoming: Arc<Mutex<Vec<Weak<Mutex<ProcessMap>>>>>,
    wake: Arc<EventFd>,
}

/// The thread could not begin: maps are then only read when they are asked.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("making an eventfd for the reader of perf maps: {0}")]
    EventFd(Errno),
    #[error("starting the reader of perf maps: {0}")]
    Thread(std::io::Error),
}

impl Watcher {
    /// Reads this map on as it is written, for as long as somebody else holds it.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn watch(&self, map: &Shared) -> Result<(), WatchError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let started = match &mut *thread {
            Some(started) => started,
            none => none.insert(Started::new()?),
        };
        let mut incoming = started.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        incoming.push(Arc::downgrade(map));
        // A full counter wakes as well.
        let _ = started.wake.write(1);
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Started { incoming, wake }) = thread.take() {
            drop(incoming);
            let _ = wake.write(1);
        }
    }
}

impl Started {
    fn new() -> Result<Self, WatchError> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags).map_err(WatchError::EventFd)?);
        let incoming = Arc::new(Mutex::new(Vec::new()));
        let reader = Reader::new(Arc::downgrade(&incoming), Arc::clone(&wake));
        std::thread::Builder::new()
            .name("jit-maps".to_owned())
            .spawn(move || reader.run())
            .map_err(WatchError::Thread)?;
        Ok(Self { incoming, wake })
    }
}

/// One map and when to read it.
#[derive(Debug)]
struct Watched {
    map: Weak<Mutex<ProcessMap>>,
    file: Option<WatchDescriptor>,
    /// Which file is watched: see [`ProcessMap::file_number`].
    file_number: u64,
    folders: Vec<(WatchDescriptor, OsString)>,
    /// A map may come where nothing would tell.
    has_blind_place: bool,
    /// Something has changed since it was read.
    is_dirty: bool,
    /// Nothing will tell of changes.
    is_polled: bool,
    /// Not to be read before this time.
    next_ns: u64,
}

impl Watched {
    /// Whether it is to be read when its time comes.
    fn is_due(&self) -> bool {
        self.is_dirty || self.is_polled
    }
}

struct Reader {
    incoming: Weak<Mutex<Vec<Weak<Mutex<ProcessMap>>>>>,
    wake: Arc<EventFd>,
    /// `None`: every map is looked at in intervals.
    inotify: Option<Inotify>,
    maps: Vec<Watched>,
    /// Watches that may be nobody's any more.
    retired: HashSet<WatchDescriptor>,
    next_rearm_ns: u64,
    rearm_interval_ns: u64,
}

impl Reader {
    fn new(incoming: Weak<Mutex<Vec<Weak<Mutex<ProcessMap>>>>>, wake: Arc<EventFd>) -> Self {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).inspect_err(
            |errno| tracing::warn!(%errno, "inotify can't be used: perf maps are looked at in intervals"),
        );
        Self {
            incoming,
            wake,
            inotify: inotify.ok(),
            maps: Vec::new(),
            retired: HashSet::new(),
            next_rearm_ns: 0,
            rearm_interval_ns: REARM_INTERVAL_NS,
        }
    }

    fn run(mut self) {
        while self.take_incoming() {
            self.wait();
            self.take_events();
            let now = monotonic_ns();
            if now >= self.next_rearm_ns {
                self.next_rearm_ns = now + self.rearm_interval_ns;
                self.rearm_interval_ns = (self.rearm_interval_ns * 3 / 2).min(LONGEST_REARM_INTERVAL_NS);
                self.rearm();
            }
            for map in &mut self.maps {
                if map.is_due() && map.next_ns <= monotonic_ns() {
                    read(map, self.inotify.as_ref(), &mut self.retired);
                }
            }
        }
    }

    /// Adds new maps and drops those that nobody holds any more. False at the end.
    fn take_incoming(&mut self) -> bool {
        let Some(incoming) = self.incoming.upgrade() else { return false };
        let new = std::mem::take(&mut *incoming.lock().unwrap_or_else(PoisonError::into_inner));
        for map in new.into_iter().take(MAX_MAPS.saturating_sub(self.maps.len())) {
            let (file, folders) = (None, Vec::new());
            self.maps.push(Watched {
                map,
                file,
                folders,
                has_blind_place: false,
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

    /// Until something changes or a map is due.
    fn wait(&self) {
        let now = monotonic_ns();
        let due = |map: &Watched| map.is_due().then_some(map.next_ns);
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
        // While a busy map waits for its turn, its events would end the wait: those of others wait,
        // too, but not long.
        if self.maps.iter().any(|map| map.is_dirty && map.next_ns > now) {
            fds.truncate(1);
        }
        let _ = poll(&mut fds, timeout);
        let _ = self.wake.read();
    }

    fn take_events(&mut self) {
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
            let is_folder = event.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO);
            if is_folder
                && event.name.as_ref().is_some_and(|name| name.as_encoded_bytes().starts_with(b"perf-"))
            {
                self.folder_changed(event.wd, event.name.as_ref());
            }
            if event.mask.intersects(AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_MOVE_SELF) {
                self.next_rearm_ns = 0;
            }
        }
    }

    fn folder_changed(&mut self, wd: WatchDescriptor, name: Option<&OsString>) {
        for map in &mut self.maps {
            let is_its = map.folders.iter().any(|(folder, file)| *folder == wd && Some(file) == name);
            if is_its && let Some(shared) = map.map.upgrade() {
                shared.lock().unwrap_or_else(PoisonError::into_inner).path_changed();
                map.is_dirty = true;
            }
        }
    }

    /// Watches what the paths lead to by now. A watch of the same file or folder again is the same
    /// watch.
    fn rearm(&mut self) {
        let wds = |maps: &[Watched]| -> HashSet<WatchDescriptor> {
            maps.iter().flat_map(|map| map.folders.iter().map(|(wd, _)| *wd).chain(map.file)).collect()
        };
        let before = wds(&self.maps);
        self.maps.retain(|map| map.map.strong_count() > 0);
        let Some(inotify) = &self.inotify else { return };
        for map in &mut self.maps {
            let Some(shared) = map.map.upgrade() else { continue };
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let watches: Vec<_> =
                shared.writer().places.iter().map(|place| watch_folder(inotify, place)).collect();
            map.has_blind_place = watches.iter().any(|watch| matches!(watch, FolderWatch::Blind));
            let folders: Vec<_> = watches.into_iter().filter_map(FolderWatch::told).collect();
            if folders != map.folders {
                shared.path_changed();
                map.is_dirty = true;
                map.folders = folders;
            }
        }
        let live = wds(&self.maps);
        self.retired.extend(before);
        for wd in self.retired.drain().filter(|wd| !live.contains(wd)) {
            // It may be gone with its file.
            let _ = inotify.rm_watch(wd);
        }
    }
}

/// Whether it will be told when a map comes to a place.
enum FolderWatch {
    /// By this watch, as a file of this name.
    Told(WatchDescriptor, OsString),
    /// There is no such folder: when there is one it is watched.
    NoFolder,
    Blind,
}

impl FolderWatch {
    fn told(self) -> Option<(WatchDescriptor, OsString)> {
        if let Self::Told(wd, name) = self { Some((wd, name)) } else { None }
    }
}

fn watch_folder(inotify: &Inotify, place: &(PathBuf, PathBuf)) -> FolderWatch {
    let (root, path) = place;
    let Some((folder, name)) = path.parent().zip(path.file_name()) else { return FolderWatch::NoFolder };
    // As maps are opened: a container's `/tmp` may be a link, which leads to another folder for it
    // than for the host.
    let folder = match open_folder_in_root(root, folder) {
        Ok(folder) => folder,
        Err(error) if error.is_not_found() => return FolderWatch::NoFolder,
        Err(_) => return FolderWatch::Blind,
    };
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR;
    match inotify.add_watch(&link_of(&folder), flags) {
        Ok(wd) => FolderWatch::Told(wd, name.to_owned()),
        Err(_) => FolderWatch::Blind,
    }
}

/// A descriptor's own link leads to the very file that is open.
fn link_of(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Reads on in a map, and settles when it may be read again.
fn read(watched: &mut Watched, inotify: Option<&Inotify>, retired: &mut HashSet<WatchDescriptor>) {
    let Some(shared) = watched.map.upgrade() else { return };
    let mut map = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = thread_cpu_ns();
    let entries = map.map().counters().entries;
    let mut has_read = map.check(monotonic_ns());
    if map.file_number() != watched.file_number {
        watched.file_number = map.file_number();
        let wd = map.file().and_then(|file| {
            let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF;
            inotify?.add_watch(&link_of(file), flags).ok()
        });
        retired.extend(std::mem::replace(&mut watched.file, wd));
        // What was written before the watch was there is told by nobody.
        has_read = map.check(monotonic_ns());
    }
    let cost_ns = thread_cpu_ns().saturating_sub(begun);
    let has_grown = map.map().counters().entries != entries;
    watched.is_dirty = map.has_more() || !has_read;
    // Where there is no file yet, its folder tells when it comes.
    let is_file_blind = watched.file.is_none() && map.file().is_some();
    watched.is_polled = is_file_blind || watched.has_blind_place || inotify.is_none();
    let pause = match (watched.is_polled, map.has_more()) {
        (_, true) => 0,
        (true, _) => POLL_INTERVAL_NS,
        _ if has_grown => BUSY_INTERVAL_NS,
        _ => 0,
    };
    let long_pause = if map.has_more() { 0 } else { (PAUSE_FACTOR * cost_ns).min(LONGEST_PAUSE_NS) };
    watched.next_ns = (monotonic_ns() + pause.max(long_pause)).max(map.ready_ns());
}
