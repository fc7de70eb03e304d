//! Queue of files whose frames a server is to name: the namer offers them, the uploader takes them.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::mpsc;

use crate::native::debug_files::DebugFile;
use crate::types::BuildId;

/// Number of build ids that are remembered as offered.
const MAX_REMEMBERED: u64 = 16_384;
/// Time after which a build id is offered again: the server may have lost its file.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Length of the queue; each candidate has one or two open files.
const MAX_WAITING: usize = 64;

/// A file that runs, and its debug file if there is one. Both are open, because they may be gone
/// when their turn comes.
#[derive(Debug)]
pub struct UploadCandidate {
    pub build_id: BuildId,
    /// Path as the process sees it.
    pub path: Arc<str>,
    pub file: File,
    pub debug: Option<DebugFile>,
}

/// A bounded queue that takes each build id once.
#[derive(Debug)]
pub struct UploadQueue {
    queue: mpsc::Sender<UploadCandidate>,
    offered: Cache<BuildId, ()>,
}

impl UploadQueue {
    /// Makes the queue and its receiving end.
    pub fn new() -> (Arc<Self>, mpsc::Receiver<UploadCandidate>) {
        let (queue, offers) = mpsc::channel(MAX_WAITING);
        let offered = Cache::builder().max_capacity(MAX_REMEMBERED).time_to_live(REMEMBERED_FOR).build();
        (Arc::new(Self { queue, offered }), offers)
    }

    /// Queues a build id unless it was offered before. `open` is called if there is space;
    /// otherwise, and if the file can't be opened, the next frame of the file tries again.
    pub fn offer(&self, id: BuildId, open: impl FnOnce() -> Option<UploadCandidate>) {
        if self.offered.contains_key(&id) {
            return;
        }
        let Ok(place) = self.queue.try_reserve() else { return };
        if let Some(offer) = open() {
            self.offered.insert(id, ());
            place.send(offer);
        }
    }

    /// Allows every file to be offered again: the server has changed.
    pub fn reset(&self) {
        self.offered.invalidate_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_offered_once_and_again_if_the_queue_was_full() {
        let (offers, mut taken) = UploadQueue::new();
        let id = |n: u8| BuildId::new(&[n, 1, 2, 3]).expect("four bytes");
        let offer = |n: u8| UploadCandidate {
            build_id: id(n),
            path: "/bin/x".into(),
            file: File::open("/proc/self/exe").expect("this test runs"),
            debug: None,
        };
        offers.offer(id(0), || None);
        for n in (0..100).chain(0..100) {
            offers.offer(id(n), || Some(offer(n)));
        }
        let mut drain = || std::iter::from_fn(|| taken.try_recv().ok().map(|offer| offer.build_id)).count();
        assert_eq!(drain(), MAX_WAITING);
        for n in 0..100 {
            offers.offer(id(n), || Some(offer(n)));
        }
        assert_eq!(drain(), 100 - MAX_WAITING);
    }
}
