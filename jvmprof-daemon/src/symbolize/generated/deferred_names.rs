//! Frames of generated code that wait for their names, until their runtime has written its records
//! up to the time of their samples.

use std::collections::HashMap;
use std::sync::Arc;

use crate::profile::model::Frame;
use crate::types::Avma;

/// Maximum number of frames of one process that each wait for the name at their own time. Further
/// frames are merged by address and period: they get the name of the code that was there all the
/// while, or an ambiguous one.
const MAX_ALONE: usize = 20_000;
/// Maximum number of waiting frames of one process.
const MAX_WAITING: usize = 40_000;
const WHILE_NS: u64 = 1_000_000_000;

/// A sampled address whose name at the sample's time is wanted.
#[derive(Clone, Copy, Debug)]
pub(in crate::symbolize) struct SampledAddress {
    pub(in crate::symbolize) address: Avma,
    /// Number that is equal for samples with the same name.
    pub(in crate::symbolize) turn: u64,
    pub(in crate::symbolize) at_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Turn {
    Alone(u64),
    While(u64),
}

/// A frame without a name, and the period of the samples that have it.
#[derive(Debug)]
pub(in crate::symbolize) struct Waiting {
    pub(in crate::symbolize) frame: Arc<Frame>,
    pub(in crate::symbolize) address: Avma,
    pub(in crate::symbolize) first_ns: u64,
    pub(in crate::symbolize) last_ns: u64,
    pub(in crate::symbolize) samples: u64,
    turn: Turn,
}

/// Waiting frames of one process.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct WaitingFrames {
    by_turn: HashMap<(Avma, Turn), Waiting>,
    /// Resolved names, by the address of the unnamed frame, which is kept so that no other takes
    /// its place.
    resolved: HashMap<usize, (Arc<Frame>, Arc<Frame>)>,
}

impl WaitingFrames {
    pub(in crate::symbolize) fn is_empty(&self) -> bool {
        self.by_turn.is_empty()
    }

    /// Returns the frame of a sample until it is resolved; `None` if too many wait. `make` makes
    /// one without a name.
    pub(in crate::symbolize) fn push(
        &mut self,
        sampled: SampledAddress,
        make: impl FnOnce() -> Arc<Frame>,
    ) -> Option<Arc<Frame>> {
        let SampledAddress { address, turn, at_ns } = sampled;
        let count = self.by_turn.len() + self.resolved.len();
        let mut turn = Turn::Alone(turn);
        if count >= MAX_ALONE && !self.by_turn.contains_key(&(address, turn)) {
            turn = Turn::While(at_ns / WHILE_NS);
        }
        if count >= MAX_WAITING && !self.by_turn.contains_key(&(address, turn)) {
            return None;
        }
        let waiting = self.by_turn.entry((address, turn)).or_insert_with(|| Waiting {
            frame: make(),
            address,
            first_ns: at_ns,
            last_ns: at_ns,
            samples: 0,
            turn,
        });
        waiting.samples += 1;
        if let Turn::While(_) = turn {
            waiting.first_ns = waiting.first_ns.min(at_ns);
            waiting.last_ns = waiting.last_ns.max(at_ns);
        }
        Some(Arc::clone(&waiting.frame))
    }

    /// Takes the chosen frames: each is to be resolved, put back, or has no name for good.
    pub(in crate::symbolize) fn take(&mut self, is_chosen: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.by_turn.extract_if(|_, waiting| is_chosen(waiting)).map(|(_, waiting)| waiting).collect()
    }

    pub(in crate::symbolize) fn defer_again(&mut self, waiting: Waiting) {
        self.by_turn.insert((waiting.address, waiting.turn), waiting);
    }

    pub(in crate::symbolize) fn resolve(&mut self, waiting: Waiting, named: Arc<Frame>) {
        self.resolved.insert(Arc::as_ptr(&waiting.frame).addr(), (waiting.frame, named));
    }

    /// Returns the named frame for one that had no name.
    pub(in crate::symbolize) fn resolved(&self, frame: &Arc<Frame>) -> Option<Arc<Frame>> {
        let (_, named) = self.resolved.get(&Arc::as_ptr(frame).addr())?;
        Some(Arc::clone(named))
    }

    /// Drops resolved names, which are in the profile now: the next window begins.
    pub(in crate::symbolize) fn clear_resolved(&mut self) {
        self.resolved.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::FrameKind;

    fn unnamed() -> Arc<Frame> {
        Arc::new(Frame { kind: FrameKind::Jit, address: None, mapping: None, lines: Vec::new() })
    }

    #[test]
    fn frames_wait_alone_then_together_and_then_not_at_all() {
        let mut waiting = WaitingFrames::default();
        let mut push = |address: u64, at_ns: u64| {
            waiting.push(SampledAddress { address: Avma(address), turn: at_ns, at_ns }, unnamed)
        };
        let first = push(1, 0).expect("room");
        assert!(
            Arc::ptr_eq(&first, &push(1, 0).expect("room"))
                && !Arc::ptr_eq(&first, &push(1, 1).expect("room"))
        );
        for at_ns in 2..MAX_ALONE as u64 {
            push(1, at_ns).expect("room");
        }
        let together = push(2, 5).expect("room");
        assert!(Arc::ptr_eq(&together, &push(2, WHILE_NS - 1).expect("room")));
        assert!(Arc::ptr_eq(&together, &push(2, 3).expect("room")));
        assert!(Arc::ptr_eq(&first, &push(1, 0).expect("it has its place")));
        for address in 3..=(MAX_WAITING - MAX_ALONE + 1) as u64 {
            push(address, WHILE_NS).expect("room");
        }
        assert!(push(1 << 20, 0).is_none());
        let of_second = |waiting: &Waiting| waiting.address == Avma(2);
        let taken = waiting.take(of_second);
        let [taken] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((taken.first_ns, taken.last_ns, taken.samples), (3, WHILE_NS - 1, 3));
    }
}
