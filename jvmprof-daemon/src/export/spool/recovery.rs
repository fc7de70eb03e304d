//! Opening a spool: the lock, and what an earlier daemon left.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use super::segment::{self, Segment};
use super::segment_format::RecordMark;
use super::sums::WaitingSums;
use super::{RecordId, Spool, SpoolError, SpoolLosses, SpoolOptions};
use crate::event_type::SamplesByEvent;
use crate::export::directory_lock::DirectoryLock;

const LOCK: &str = "lock";
const DIR_MODE: u32 = 0o750;

/// The samples that an earlier daemon left, by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpoolRecovery {
    /// To be sent.
    pub waiting: SamplesByEvent,
    /// Samples of records that were being sent when that daemon ended, and that aren't sent again.
    pub interrupted: SamplesByEvent,
    /// The part of those that wait that was being sent when that daemon ended: perhaps it was
    /// stored, and it is sent again.
    pub sent_again: SamplesByEvent,
    /// Of the records that were asked for those that are over, and the samples that were delivered.
    pub finished: Vec<(RecordId, SamplesByEvent)>,
    /// Ever appended, as far as the files show.
    pub appended: SamplesByEvent,
    /// Places, not samples, where bytes were skipped that were no records: the last one of a crash,
    /// or damage.
    pub damaged_places: u64,
}

impl Spool {
    /// Opens the folder, and creates it if it isn't there. `unresolved`: the records that an
    /// earlier daemon was sending when it wrote down its counts for the last time, to find what
    /// became of them since.
    ///
    /// # Errors
    /// Another daemon uses it, or it can't be created, listed or written to.
    pub fn open(
        dir: &Path,
        options: SpoolOptions,
        unresolved: &[RecordId],
    ) -> Result<(Self, SpoolRecovery), SpoolError> {
        DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(dir)
            .map_err(SpoolError::io("create the folder", dir))?;
        let lock = lock(dir)?;
        let mut found = SpoolRecovery::default();
        let mut segments = VecDeque::new();
        let mut numbers = numbers(dir)?;
        numbers.sort_unstable();
        for number in numbers {
            let path = dir.join(segment::file_name(number));
            let (mut segment, inside) = Segment::scan(&path, number)?;
            found.damaged_places += inside.damaged_places;
            let finished = inside.finished.into_iter();
            let finished = finished.map(|(index, samples)| (RecordId { segment: number, index }, samples));
            found.finished.extend(finished.filter(|(id, _)| unresolved.contains(id)));
            segment.samples_through = segment.samples_through.max(found.appended);
            found.appended = segment.samples_through;
            segments.push_back(segment);
        }
        let mut spool = Self {
            dir: dir.to_owned(),
            options,
            segments,
            active: None,
            losses: SpoolLosses::default(),
            taken: Vec::new(),
            samples: SamplesByEvent::NONE,
            sums: WaitingSums::default(),
            expired_at_ms: 0,
            _lock: lock,
        };
        (found.interrupted, found.sent_again) = spool.resolve_interrupted();
        let pending = spool.segments.iter().flat_map(|segment| &segment.pending);
        spool.samples = pending.map(|record| record.header.samples_by_event()).sum();
        spool.sums = spool.walked_sums();
        found.waiting = spool.samples;
        spool.remove_finished();
        Ok((spool, found))
    }

    /// Records that were being sent are over, unless they may be sent again. Gives the samples of
    /// those that are over, and of those that are sent again.
    fn resolve_interrupted(&mut self) -> (SamplesByEvent, SamplesByEvent) {
        let send_again = self.options.send_again;
        let (mut interrupted, mut sent_again) = (SamplesByEvent::NONE, SamplesByEvent::NONE);
        for segment in &mut self.segments {
            let mut kept = VecDeque::with_capacity(segment.pending.len());
            for mut record in std::mem::take(&mut segment.pending) {
                let was_sending = record.mark == RecordMark::Sending;
                let is_over = was_sending && !send_again;
                let mark = if is_over { RecordMark::Done { delivered: 0 } } else { RecordMark::Waiting };
                if record.mark != mark
                    && let Err(error) = segment.mark(record.header.index, mark, false)
                {
                    tracing::warn!(%error, "a record of the spool keeps its old mark");
                }
                record.mark = mark;
                if is_over {
                    interrupted += record.header.samples_by_event();
                } else {
                    sent_again +=
                        if was_sending { record.header.samples_by_event() } else { SamplesByEvent::NONE };
                    kept.push_back(record);
                }
            }
            segment.pending = kept;
        }
        (interrupted, sent_again)
    }
}

fn lock(dir: &Path) -> Result<DirectoryLock, SpoolError> {
    let path = dir.join(LOCK);
    let lock = DirectoryLock::try_take(&path).map_err(SpoolError::io("lock", &path))?;
    lock.ok_or_else(|| SpoolError::Locked { dir: dir.to_owned() })
}

fn numbers(dir: &Path) -> Result<Vec<u64>, SpoolError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(SpoolError::io("list", dir))? {
        let entry = entry.map_err(SpoolError::io("list", dir))?;
        numbers.extend(entry.file_name().to_str().and_then(segment::parse_file_name));
    }
    Ok(numbers)
}

/// Makes new names in a folder survive a power cut.
pub(super) fn sync_dir(dir: &Path) -> Result<(), SpoolError> {
    let file = File::open(dir).map_err(SpoolError::io("open the folder", dir))?;
    file.sync_all().map_err(SpoolError::io("sync the folder", dir))
}
