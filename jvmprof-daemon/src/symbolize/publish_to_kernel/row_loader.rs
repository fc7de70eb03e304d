//! Thread that reads unwind rows.
//!
//! Rows of a large library take a tenth of a second and more. Meanwhile the kernel program walks
//! what it can, and the daemon names Java code while it is there; stacks that need the rows wait
//! for them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::kernel_tables::{FileRows, RowsOnDisk};
use crate::native::file_cache::FileCache;
use crate::native::file_identity::FileKey;
use crate::native::open_file::OpenError;
use crate::native::unwind_rows::UnwindRows;
use crate::own_process::{UrgentCpu, UrgentThread};

/// Handle of the thread.
#[derive(Debug)]
pub(in crate::symbolize) struct RowsLoader {
    requests: Sender<Request>,
    loaded: Receiver<(FileKey, LoadedRows)>,
    loading: HashSet<FileKey>,
    /// Files that could not be read for a reason that may pass, and when.
    failed: HashMap<FileKey, Instant>,
}

/// A file's rows, none if it is malformed or has none; `None` if another try may succeed.
type LoadedRows = Option<FileRows>;

/// Time of reading from which on rows are kept on disk.
const KEPT_FROM: Duration = Duration::from_millis(2);
/// Time until that try.
const RETRY_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Request {
    key: FileKey,
    path: Arc<Path>,
    file: File,
    /// Size in bytes.
    size: u64,
}

/// Requests, in the order in which they are served: by turns the smallest file and the one that has
/// waited longest. Most files take no time beside a few that take seconds, and neither delays the
/// other.
struct Queue {
    wanted: Receiver<Request>,
    /// Requests in order of arrival.
    waiting: Vec<Request>,
    is_longests_turn: bool,
}

impl Queue {
    fn new(wanted: Receiver<Request>) -> Self {
        Self { wanted, waiting: Vec::new(), is_longests_turn: false }
    }

    /// Waits for a request; `None` once the handle is dropped.
    fn next(&mut self) -> Option<Request> {
        self.waiting.extend(self.wanted.try_iter());
        if self.waiting.is_empty() {
            self.waiting.push(self.wanted.recv().ok()?);
        }
        let smallest = self.waiting.iter().enumerate().min_by_key(|(_, request)| request.size);
        let next = if self.is_longests_turn { 0 } else { smallest.map_or(0, |(index, _)| index) };
        self.is_longests_turn = !self.is_longests_turn;
        Some(self.waiting.remove(next))
    }
}

impl RowsLoader {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(in crate::symbolize) fn start(
        files: Arc<FileCache>,
        on_disk: Option<Arc<RowsOnDisk>>,
        urgent_cpu: UrgentCpu,
    ) -> io::Result<Self> {
        let (requests, wanted) = channel::<Request>();
        let (ready, loaded) = channel();
        // It ends with the sender of requests.
        std::thread::Builder::new().name("rows".to_owned()).spawn(move || {
            // A file is read once, for a tenth of a second; with a lower priority it would take
            // seconds on a busy host, in which stacks are cut.
            let mut thread = UrgentThread::start(urgent_cpu);
            let mut queue = Queue::new(wanted);
            while let Some(Request { key, path, file, .. }) = queue.next() {
                thread.update();
                let rows = read(&files, on_disk.as_deref(), &key, &path, file);
                if ready.send((key, rows)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, loaded, loading: HashSet::new(), failed: HashMap::new() })
    }

    /// Requests a file's rows, once; `open` opens it. Returns true if they will arrive.
    pub(in crate::symbolize) fn request(
        &mut self,
        key: FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> bool {
        if self.loading.contains(&key) {
            return true;
        }
        if self.failed.get(&key).is_some_and(|at| at.elapsed() < RETRY_AFTER) {
            return false;
        }
        // Another process may have a path to the file that works. Why this one has none is counted
        // where it is opened for its names.
        let Ok(file) = open() else { return false };
        let size = file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        if self.requests.send(Request { key, path: path.into(), file, size }).is_err() {
            tracing::error!("the thread that reads unwind rows is gone: stacks will be cut");
            return false;
        }
        self.loading.insert(key)
    }

    /// Returns whether a file's rows were requested and aren't there yet.
    pub(in crate::symbolize) fn is_loading(&self, key: &FileKey) -> bool {
        self.loading.contains(key)
    }

    /// Returns whether any request is pending.
    pub(in crate::symbolize) fn is_busy(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Returns rows that have arrived.
    pub(in crate::symbolize) fn next(&mut self) -> Option<(FileKey, LoadedRows)> {
        let loaded = self.loaded.try_recv().ok()?;
        self.note(&loaded);
        Some(loaded)
    }

    /// Waits until `end` for the rows of [`Self::next`]; `None` too if nothing is requested.
    pub(in crate::symbolize) fn wait(&mut self, end: Instant) -> Option<(FileKey, LoadedRows)> {
        if self.loading.is_empty() {
            return None;
        }
        match self.loaded.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(loaded) => {
                self.note(&loaded);
                Some(loaded)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    fn note(&mut self, (key, rows): &(FileKey, LoadedRows)) {
        self.loading.remove(key);
        if rows.is_none() {
            self.failed.retain(|_, at| at.elapsed() < RETRY_AFTER);
            self.failed.insert(*key, Instant::now());
        }
    }
}

fn read(
    files: &FileCache,
    on_disk: Option<&RowsOnDisk>,
    key: &FileKey,
    path: &Path,
    file: File,
) -> LoadedRows {
    let began = Instant::now();
    if let Some(rows) = on_disk.and_then(|on_disk| on_disk.get(key)) {
        tracing::debug!(path = %path.display(), taken = ?began.elapsed(), "unwind rows were on disk");
        return Some(rows);
    }
    let pack = |rows: &UnwindRows| {
        let indexed = began.elapsed();
        let packed = FileRows::new(|handle| rows.for_each(handle)).without(rows.over_budget());
        tracing::debug!(path = %path.display(), ?indexed, taken = ?began.elapsed(), "unwind rows were read");
        packed
    };
    match files.convert_rows(key, path, || Ok(file), pack) {
        Ok(packed) => {
            if let Some(on_disk) = on_disk.filter(|_| began.elapsed() >= KEPT_FROM) {
                on_disk.store(key, &packed);
            }
            Some(packed)
        }
        Err(error) if error.is_of_the_file() => Some(FileRows::new(|_| ())),
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "unwind rows can't be read now");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::file_identity::ContentId;
    use crate::types::BuildId;

    #[test]
    fn large_files_hold_up_no_small_ones_and_are_not_put_off_for_ever() {
        let (requests, wanted) = channel();
        let ask = |size: u64| {
            let build_id = BuildId::new(&size.to_le_bytes());
            let key = FileKey { build_id, content: ContentId::Hash(size), debug: None };
            let file = File::open("/proc/self/exe").expect("this test runs");
            requests.send(Request { key, path: Path::new("/x").into(), file, size }).expect("somebody reads");
        };
        let mut queue = Queue::new(wanted);
        for size in [900, 800, 5, 700, 4, 3, 2, 1] {
            ask(size);
        }
        let mut next = || queue.next().map(|request| request.size);
        assert_eq!([next(), next(), next(), next()].map(Option::unwrap_or_default), [1, 900, 2, 800]);
        ask(0);
        drop(requests);
        let rest: Vec<u64> = std::iter::from_fn(next).collect();
        assert_eq!(rest, [0, 5, 3, 700, 4]);
    }
}
