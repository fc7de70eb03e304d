//! The series that go together in a message, by what the receiver has answered so far.
//!
//! One message with all series of a window costs least. But the answer of a receiver that stores a
//! part of a message doesn't say which part, and one that works through its series one after the
//! other may not be done in the time for an answer: both leave it open what became of all of them.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::Code;

use crate::export::push::{PushOutcome, PushRequest};
use crate::proto::profilestore::RawProfileSeries;

/// Label sets that are remembered; with one more, all of them are forgotten.
const MAX_ACCEPTED: usize = 1 << 16;
/// An answer within this part of the time for it is one to a message that could have had twice as
/// many series.
const QUICK_SHARE: u32 = 4;

/// The grouping of series for one receiver.
#[derive(Debug)]
pub(super) struct SeriesGrouping {
    /// The time for an answer.
    timeout: Duration,
    hasher: RandomState,
    state: Mutex<GroupingState>,
}

#[derive(Debug)]
struct GroupingState {
    group: SeriesGroup,
    /// The most series of a message, by the time that answers take.
    most_series: usize,
}

/// The series that may go together.
#[derive(Debug)]
enum SeriesGroup {
    All,
    /// Those that were stored by themselves before, by the hashes of their labels. Mostly these are
    /// what a series is refused for.
    Accepted(HashSet<u64>),
    /// None: a part of a message was stored for another reason than its labels.
    None,
}

impl SeriesGrouping {
    /// Makes the grouping for a receiver of which nothing is known yet.
    pub(super) fn new(timeout: Duration) -> Self {
        let state = GroupingState { group: SeriesGroup::All, most_series: usize::MAX };
        Self { timeout, hasher: RandomState::new(), state: Mutex::new(state) }
    }

    /// Takes out of a request the series that aren't to be in one message with the others, and
    /// returns them as requests. At least one series stays.
    pub(super) fn take_others(&self, request: &mut PushRequest) -> Vec<PushRequest> {
        let state = self.state();
        let mut others = match &state.group {
            SeriesGroup::All => Vec::new(),
            SeriesGroup::Accepted(accepted) => {
                request.take_single_series(|series| accepted.contains(&self.hash(series)))
            }
            SeriesGroup::None => request.take_single_series(|_| false),
        };
        if request.series() > state.most_series {
            others.push(request.split_off(state.most_series));
        }
        others
    }

    /// Notes the outcome of a message with the series of a request, and how long it took.
    pub(super) fn note(&self, request: &PushRequest, outcome: &PushOutcome, took: Duration) {
        let (mut state, series) = (self.state(), request.all_series());
        if let (SeriesGroup::Accepted(accepted), [single]) = (&mut state.group, series) {
            let hash = self.hash(single);
            match outcome {
                PushOutcome::Stored => {
                    if accepted.len() >= MAX_ACCEPTED {
                        accepted.clear();
                    }
                    accepted.insert(hash);
                }
                PushOutcome::Refused { .. } => {
                    accepted.remove(&hash);
                }
                PushOutcome::PossiblyLost { .. } | PushOutcome::NotStored { .. } => {}
            }
        }
        let is_full = series.len() >= state.most_series;
        match outcome {
            PushOutcome::Stored if is_full && took < self.timeout / QUICK_SHARE => {
                state.most_series = state.most_series.saturating_mul(2);
            }
            PushOutcome::PossiblyLost { code, .. }
                if series.len() > 1 && (took >= self.timeout || *code == Code::DeadlineExceeded) =>
            {
                state.most_series = series.len() / 2;
            }
            _ => {}
        }
    }

    /// Notes that some of several series of a message may be stored and others weren't, for a
    /// reason with this code. Returns how series go from now on, if that is another way than
    /// before.
    pub(super) fn note_partly_stored(&self, code: Code) -> Option<&'static str> {
        let mut state = self.state();
        let (group, consequence) = match (&state.group, code) {
            (SeriesGroup::None, _) => return None,
            (SeriesGroup::All, Code::InvalidArgument) => {
                let consequence = "from now on each series has its own until it has been stored so";
                (SeriesGroup::Accepted(HashSet::new()), consequence)
            }
            (SeriesGroup::All | SeriesGroup::Accepted(_), _) => {
                (SeriesGroup::None, "from now on each series has its own")
            }
        };
        state.group = group;
        Some(consequence)
    }

    fn hash(&self, series: &RawProfileSeries) -> u64 {
        self.hasher.hash_one(series.labels.as_ref().map(|set| &set.labels))
    }

    fn state(&self) -> MutexGuard<'_, GroupingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::otlp::requests;
    use crate::profile::model::FrameKind;
    use crate::profile::testing::{batch, frame, series};

    const SECOND: Duration = Duration::from_secs(1);

    fn request(pids: u64) -> PushRequest {
        let stack = || vec![(vec![frame(FrameKind::Native, "main")], 1)];
        let all = (1..=pids).map(|pid| series(&[("pid", &pid.to_string())], stack())).collect();
        requests(&batch(all)).expect("encodable").remove(0)
    }

    fn pids(request: &PushRequest) -> Vec<u64> {
        let labels = request.all_series().iter().flat_map(|series| &series.labels);
        let pid = labels.flat_map(|set| &set.labels).filter(|label| label.name == "pid");
        pid.map(|label| label.value.parse().expect("a pid")).collect()
    }

    /// The series of each message of a request of so many.
    fn messages(grouping: &SeriesGrouping, series: u64) -> Vec<Vec<u64>> {
        let mut rest = request(series);
        let others = grouping.take_others(&mut rest);
        std::iter::once(rest).chain(others).map(|request| pids(&request)).collect()
    }

    /// Notes the outcome of the series of this pid by itself.
    fn note_single(grouping: &SeriesGrouping, pid: u64, outcome: &PushOutcome) {
        let mut all = request(pid);
        let last = all.take_single_series(|series| pids_of(series) != [pid.to_string()]);
        grouping.note(last.first().unwrap_or(&all), outcome, Duration::ZERO);
    }

    fn pids_of(series: &RawProfileSeries) -> Vec<String> {
        let labels = series.labels.iter().flat_map(|set| &set.labels);
        labels.filter(|label| label.name == "pid").map(|label| label.value.clone()).collect()
    }

    fn refused() -> PushOutcome {
        PushOutcome::Refused { code: Code::InvalidArgument, message: String::new(), divisible: true }
    }

    #[test]
    fn series_that_were_stored_by_themselves_go_together_again_and_a_refused_one_alone() {
        let grouping = SeriesGrouping::new(SECOND);
        assert_eq!(messages(&grouping, 4), [[1, 2, 3, 4]]);
        assert!(grouping.note_partly_stored(Code::InvalidArgument).is_some());
        assert_eq!(messages(&grouping, 4), [[1], [2], [3], [4]]);
        for pid in [1, 2, 4] {
            note_single(&grouping, pid, &PushOutcome::Stored);
        }
        note_single(&grouping, 3, &refused());
        assert_eq!(messages(&grouping, 5), [vec![1, 2, 4], vec![3], vec![5]]);
        // What isn't stored any more is alone, too.
        note_single(&grouping, 2, &refused());
        assert_eq!(messages(&grouping, 4), [vec![1, 4], vec![2], vec![3]]);
    }

    #[test]
    fn after_a_part_of_a_message_of_series_that_were_stored_before_each_is_alone() {
        for first in [Code::InvalidArgument, Code::ResourceExhausted] {
            let grouping = SeriesGrouping::new(SECOND);
            assert!(grouping.note_partly_stored(first).is_some());
            note_single(&grouping, 1, &PushOutcome::Stored);
            note_single(&grouping, 2, &PushOutcome::Stored);
            // A server that throttles would leave open what becomes of each message.
            let is_grouped = first == Code::InvalidArgument;
            assert_eq!(messages(&grouping, 2).len(), if is_grouped { 1 } else { 2 }, "{first:?}");
            assert_eq!(grouping.note_partly_stored(Code::InvalidArgument).is_some(), is_grouped);
            assert_eq!(messages(&grouping, 2), [[1], [2]], "{first:?}");
            assert_eq!(grouping.note_partly_stored(Code::InvalidArgument), None);
        }
    }

    #[test]
    fn messages_that_take_too_long_are_halved_and_double_while_answers_are_quick() {
        let grouping = SeriesGrouping::new(SECOND);
        let too_late = |code| PushOutcome::possibly_lost(code, "no answer");
        // The time is over, by our clock or by somebody else's.
        grouping.note(&request(8), &too_late(Code::Cancelled), SECOND);
        assert_eq!(messages(&grouping, 8), [[1, 2, 3, 4], [5, 6, 7, 8]]);
        grouping.note(&request(4), &too_late(Code::DeadlineExceeded), Duration::ZERO);
        assert_eq!(messages(&grouping, 4), [[1, 2], [3, 4]]);
        // Another failure, and one of a series that can't be less.
        grouping.note(&request(2), &too_late(Code::Unavailable), SECOND / 2);
        grouping.note(&request(1), &too_late(Code::DeadlineExceeded), SECOND);
        assert_eq!(messages(&grouping, 4), [[1, 2], [3, 4]]);
        // Answers that say nothing of more series: of too few, and too late for twice as many.
        grouping.note(&request(1), &PushOutcome::Stored, Duration::ZERO);
        grouping.note(&request(2), &PushOutcome::Stored, SECOND / 4);
        assert_eq!(messages(&grouping, 4), [[1, 2], [3, 4]]);
        grouping.note(&request(2), &PushOutcome::Stored, SECOND / 5);
        assert_eq!(messages(&grouping, 4), [[1, 2, 3, 4]]);
    }
}
