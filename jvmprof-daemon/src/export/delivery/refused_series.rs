//! The series that a server refuses again and again, by what it has answered so far.
//!
//! Such a series costs the others of its request a division in each window, or a request of its
//! own, and is refused each time. One that was refused in several windows, while the server has
//! stored others, goes alone, and then isn't sent for a while.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::export::push::PushRequest;
use crate::proto::profilestore::RawProfileSeries;

/// Refusals, others having been stored in between, from which on a series has a request of its own.
const REFUSALS_BEFORE_ALONE: u32 = 2;
/// The same from which on it isn't sent for [`PAUSE`]. One or two of them may have had to do with
/// what was in that window.
const REFUSALS_BEFORE_PAUSE: u32 = 3;
/// The time after which a series is tried again: the server may have other settings by then.
pub(super) const PAUSE: Duration = Duration::from_mins(10);
/// Series that are remembered; with one more, all of them are forgotten.
const MAX_SERIES: usize = 1 << 14;

/// What is known of the series that a server has refused.
#[derive(Debug, Default)]
pub(super) struct RefusedSeries {
    hasher: RandomState,
    state: Mutex<RefusalState>,
}

#[derive(Debug, Default)]
struct RefusalState {
    /// By the hashes of their labels.
    series: HashMap<u64, Refusals>,
    /// Requests that were stored so far.
    stored: u64,
    /// The last request that was refused had others in it that were stored.
    takes_others: bool,
}

/// The refusals of one series.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    /// Those between which the server has stored something.
    count: u32,
    /// [`RefusalState::stored`] at the last of them.
    stored: u64,
    /// The time before which the series isn't sent.
    until: Option<Instant>,
}

impl RefusedSeries {
    /// Takes out of a request the series that were refused too often to be sent together with the
    /// others, and returns them as requests. At least one series stays.
    pub(super) fn take_suspects(&self, request: &mut PushRequest) -> Vec<PushRequest> {
        let state = self.state();
        if state.series.is_empty() || request.series() == 1 {
            return Vec::new();
        }
        let is_suspect = |series: &RawProfileSeries| {
            state.series.get(&self.hash(series)).is_some_and(|of| of.count >= REFUSALS_BEFORE_ALONE)
        };
        request.take_single_series(|series| !is_suspect(series))
    }

    /// Returns true if a request is of one series, which isn't to be sent now.
    pub(super) fn is_paused(&self, request: &PushRequest, now: Instant) -> bool {
        let [series] = request.all_series() else { return false };
        let refusals = self.state().series.get(&self.hash(series)).copied();
        refusals.and_then(|of| of.until).is_some_and(|until| now < until)
    }

    /// Notes that a request was stored.
    pub(super) fn note_stored(&self, request: &PushRequest) {
        let mut state = self.state();
        state.stored += 1;
        if let [series] = request.all_series()
            && !state.series.is_empty()
        {
            state.series.remove(&self.hash(series));
        }
    }

    /// Notes that a request was refused for its labels, and returns true if it is of one series
    /// that isn't sent for a while from now on.
    pub(super) fn note_refused(&self, request: &PushRequest, now: Instant) -> bool {
        let [series] = request.all_series() else { return false };
        let (hash, mut state) = (self.hash(series), self.state());
        let stored = state.stored;
        let Some(refusals) = state.series.get_mut(&hash) else {
            if state.series.len() >= MAX_SERIES {
                state.series.clear();
            }
            state.series.insert(hash, Refusals { count: 1, stored, until: None });
            return false;
        };
        // A server that refuses everything says nothing of this one.
        if stored > refusals.stored {
            refusals.count += 1;
            refusals.stored = stored;
        }
        if refusals.count < REFUSALS_BEFORE_PAUSE {
            return false;
        }
        refusals.until = Some(now + PAUSE);
        true
    }

    /// Notes that a request is over of which something was refused, and whether others in it were
    /// stored.
    pub(super) fn note_takes_others(&self, takes_others: bool) {
        self.state().takes_others = takes_others;
    }

    /// Returns true if the server has stored a part of the last request that it refused: it is
    /// known to take some series and not others.
    pub(super) fn takes_others(&self) -> bool {
        self.state().takes_others
    }

    fn hash(&self, series: &RawProfileSeries) -> u64 {
        self.hasher.hash_one(series.labels.as_ref().map(|set| &set.labels))
    }

    fn state(&self) -> MutexGuard<'_, RefusalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::delivery::tests::batch_of;
    use crate::export::push::requests;

    /// A request with the series of the pids 1..=n.
    fn request(pids: u64) -> PushRequest {
        requests(&batch_of(pids), 1 << 20).expect("encodable").remove(0)
    }

    /// One with the series of this pid alone.
    fn single(pid: u64) -> PushRequest {
        let mut all = request(pid);
        if pid == 1 { all } else { all.split_off(usize::try_from(pid).expect("small") - 1) }
    }

    /// The number of series of each message of a request of so many.
    fn messages(refused: &RefusedSeries, pids: u64) -> Vec<usize> {
        let mut rest = request(pids);
        let single = refused.take_suspects(&mut rest);
        std::iter::once(&rest).chain(&single).map(PushRequest::series).collect()
    }

    #[test]
    fn a_series_that_is_refused_while_others_are_stored_goes_alone_and_then_not_at_all_for_a_while() {
        let (refused, now) = (RefusedSeries::default(), Instant::now());
        for (expected, pauses) in [(vec![4], false), (vec![4], false), (vec![3, 1], true)] {
            assert_eq!(messages(&refused, 4), expected);
            assert!(!refused.is_paused(&single(3), now));
            assert_eq!(refused.note_refused(&single(3), now), pauses);
            refused.note_stored(&request(2));
        }
        let last = now + PAUSE - Duration::from_millis(1);
        assert!(refused.is_paused(&single(3), last));
        assert!(!refused.is_paused(&single(2), last) && !refused.is_paused(&request(4), last));
        // It is tried again, once for each such time.
        assert!(!refused.is_paused(&single(3), now + PAUSE));
        assert!(refused.note_refused(&single(3), now + PAUSE));
        assert!(refused.is_paused(&single(3), now + PAUSE));
    }

    #[test]
    fn a_series_that_is_stored_again_is_forgotten() {
        let (refused, now) = (RefusedSeries::default(), Instant::now());
        for _ in 0..3 {
            refused.note_refused(&single(1), now);
            refused.note_stored(&single(2));
        }
        assert!(refused.is_paused(&single(1), now));
        refused.note_stored(&single(1));
        assert!(!refused.is_paused(&single(1), now));
        assert_eq!(messages(&refused, 2), [2]);
    }

    #[test]
    fn a_server_that_stores_nothing_makes_no_series_suspect() {
        let (refused, now) = (RefusedSeries::default(), Instant::now());
        for _ in 0..10 {
            assert!(!refused.note_refused(&single(1), now));
        }
        assert!(!refused.is_paused(&single(1), now));
        assert_eq!(messages(&refused, 2), [2]);
    }

    #[test]
    fn a_request_of_several_series_says_nothing_of_one_of_them() {
        let (refused, now) = (RefusedSeries::default(), Instant::now());
        for _ in 0..10 {
            assert!(!refused.note_refused(&request(2), now));
            refused.note_stored(&single(3));
        }
        assert_eq!(messages(&refused, 2), [2]);
    }
}
