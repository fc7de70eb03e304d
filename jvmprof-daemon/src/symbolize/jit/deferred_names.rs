//! Frames of generated code that wait for their names, until their runtime has written its records
//! up to the time of their samples.

use std::collections::HashMap;
use std::sync::Arc;

use crate::profile::model::Frame;
use crate::types::Avma;

/// Maximum number of frames of one process that wait for exactly one name each. Further frames are
/// merged by address and second: they get the name of the code that was there all the while, or an
/// ambiguous one.
const MAX_EXACT: usize = 20_000;
/// Maximum number of waiting frames of one process.
const MAX_WAITING: usize = 40_000;
/// Length of the periods by which frames are merged.
const PERIOD_NS: u64 = 1_000_000_000;

/// A sampled address whose name at the sample's time is wanted.
#[derive(Clone, Copy, Debug)]
pub(in crate::symbolize) struct SampledAddress {
    pub(in crate::symbolize) address: Avma,
    /// Number that is equal for samples of this address that get the same name.
    pub(in crate::symbolize) name_version: u64,
    pub(in crate::symbolize) at_ns: u64,
}

/// The samples of an address that share a waiting frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NamingPeriod {
    /// Those with this [`SampledAddress::name_version`].
    Version(u64),
    /// Those of this second ([`PERIOD_NS`]), which may get several names.
    Second(u64),
}

/// A frame without a name, and the period of the samples that have it.
#[derive(Debug)]
pub(in crate::symbolize) struct WaitingFrame {
    pub(in crate::symbolize) frame: Arc<Frame>,
    pub(in crate::symbolize) address: Avma,
    pub(in crate::symbolize) first_ns: u64,
    pub(in crate::symbolize) last_ns: u64,
    pub(in crate::symbolize) samples: u64,
    period: NamingPeriod,
}

/// Waiting frames of one process.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct WaitingFrames {
    by_period: HashMap<(Avma, NamingPeriod), WaitingFrame>,
    /// Resolved names, by the address of the unnamed frame, which is kept so that no other takes
    /// its place.
    resolved: HashMap<usize, (Arc<Frame>, Arc<Frame>)>,
}

impl WaitingFrames {
    pub(in crate::symbolize) fn is_empty(&self) -> bool {
        self.by_period.is_empty()
    }

    /// Returns the frame of a sample until it is resolved; `None` if too many wait. `make` makes
    /// one without a name.
    pub(in crate::symbolize) fn push(
        &mut self,
        sampled: SampledAddress,
        make: impl FnOnce() -> Arc<Frame>,
    ) -> Option<Arc<Frame>> {
        let SampledAddress { address, name_version, at_ns } = sampled;
        let count = self.by_period.len() + self.resolved.len();
        let mut period = NamingPeriod::Version(name_version);
        if count >= MAX_EXACT && !self.by_period.contains_key(&(address, period)) {
            period = NamingPeriod::Second(at_ns / PERIOD_NS);
        }
        if count >= MAX_WAITING && !self.by_period.contains_key(&(address, period)) {
            return None;
        }
        let waiting = self.by_period.entry((address, period)).or_insert_with(|| WaitingFrame {
            frame: make(),
            address,
            first_ns: at_ns,
            last_ns: at_ns,
            samples: 0,
            period,
        });
        waiting.samples += 1;
        if let NamingPeriod::Second(_) = period {
            waiting.first_ns = waiting.first_ns.min(at_ns);
            waiting.last_ns = waiting.last_ns.max(at_ns);
        }
        Some(Arc::clone(&waiting.frame))
    }

    /// Takes the chosen frames: each is to be resolved, put back, or has no name for good.
    pub(in crate::symbolize) fn take(
        &mut self,
        is_chosen: impl Fn(&WaitingFrame) -> bool,
    ) -> Vec<WaitingFrame> {
        self.by_period.extract_if(|_, waiting| is_chosen(waiting)).map(|(_, waiting)| waiting).collect()
    }

    pub(in crate::symbolize) fn defer_again(&mut self, waiting: WaitingFrame) {
        self.by_period.insert((waiting.address, waiting.period), waiting);
    }

    pub(in crate::symbolize) fn resolve(&mut self, waiting: WaitingFrame, named: Arc<Frame>) {
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
    fn frames_wait_by_name_then_by_second_and_then_not_at_all() {
        let mut waiting = WaitingFrames::default();
        let mut push = |address: u64, at_ns: u64| {
            waiting.push(SampledAddress { address: Avma(address), name_version: at_ns, at_ns }, unnamed)
        };
        let first = push(1, 0).expect("room");
        assert!(
            Arc::ptr_eq(&first, &push(1, 0).expect("room"))
                && !Arc::ptr_eq(&first, &push(1, 1).expect("room"))
        );
        for at_ns in 2..MAX_EXACT as u64 {
            push(1, at_ns).expect("room");
        }
        let together = push(2, 5).expect("room");
        assert!(Arc::ptr_eq(&together, &push(2, PERIOD_NS - 1).expect("room")));
        assert!(Arc::ptr_eq(&together, &push(2, 3).expect("room")));
        assert!(Arc::ptr_eq(&first, &push(1, 0).expect("it has its place")));
        for address in 3..=(MAX_WAITING - MAX_EXACT + 1) as u64 {
            push(address, PERIOD_NS).expect("room");
        }
        assert!(push(1 << 20, 0).is_none());
        let of_second = |waiting: &WaitingFrame| waiting.address == Avma(2);
        let taken = waiting.take(of_second);
        let [taken] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((taken.first_ns, taken.last_ns, taken.samples), (3, PERIOD_NS - 1, 3));
    }
}
