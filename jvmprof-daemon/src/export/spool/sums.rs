//! The records that wait in a spool, added up as they come and go, so that nobody walks all of
//! them for each request.

use std::collections::BTreeSet;

use super::RecordId;
use crate::event_type::SamplesByEvent;

/// Sums of the records that wait and aren't being sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitingSums {
    /// Samples of records that weren't tried yet.
    untried: SamplesByEvent,
    /// Samples of the others.
    tried: SamplesByEvent,
    /// The others by tries, segment and index: those that were tried least come first, of these
    /// the oldest. There are few.
    by_tries: BTreeSet<(u32, u64, u32)>,
}

impl WaitingSums {
    pub(super) fn untried(&self) -> SamplesByEvent {
        self.untried
    }

    pub(super) fn tried(&self) -> SamplesByEvent {
        self.tried
    }

    /// Returns the record that was tried least, of those that were tried.
    pub(super) fn least_tried(&self) -> Option<RecordId> {
        self.by_tries.first().map(|&(_, segment, index)| RecordId { segment, index })
    }

    /// Adds a record that waits from now on.
    pub(super) fn add(&mut self, id: RecordId, samples: SamplesByEvent, tries: u32) {
        if tries == 0 {
            self.untried += samples;
        } else {
            self.tried += samples;
            self.by_tries.insert((tries, id.segment, id.index));
        }
    }

    /// Removes a record that was added with these samples and tries.
    pub(super) fn remove(&mut self, id: RecordId, samples: SamplesByEvent, tries: u32) {
        if tries == 0 {
            self.untried -= samples;
        } else {
            self.tried -= samples;
            self.by_tries.remove(&(tries, id.segment, id.index));
        }
    }
}
