//! Numbers of samples, apart for each event: their sums hold for each event by itself.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::EventType;

const EVENTS: usize = EventType::ALL.len();

/// A number of samples of each event.
///
/// As JSON an object of the events that have some: `{"cpu":99,"allocation":3}`. A bare number, as
/// older versions wrote it, is read as samples of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplesByEvent([u64; EVENTS]);

impl SamplesByEvent {
    pub const NONE: Self = Self([0; EVENTS]);

    /// Samples of one event.
    pub fn of(event: EventType, samples: u64) -> Self {
        Self::from_fn(|it| if it == event { samples } else { 0 })
    }

    pub fn from_fn(mut samples: impl FnMut(EventType) -> u64) -> Self {
        Self(EventType::ALL.map(&mut samples))
    }

    pub fn get(self, event: EventType) -> u64 {
        self.0[event.index()]
    }

    /// Samples of all events.
    pub fn total(self) -> u64 {
        self.0.into_iter().sum()
    }

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub fn iter(self) -> impl Iterator<Item = (EventType, u64)> {
        EventType::ALL.into_iter().zip(self.0)
    }

    /// The smaller number of each event.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.zip(other, u64::min)
    }

    /// The larger number of each event.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.zip(other, u64::max)
    }

    /// The difference of each event, 0 where it would be negative.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    fn zip(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self::from_fn(|event| combine(self.get(event), other.get(event)))
    }
}

impl Add for SamplesByEvent {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip(other, |one, two| one + two)
    }
}

impl Sub for SamplesByEvent {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |one, two| one - two)
    }
}

impl AddAssign for SamplesByEvent {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for SamplesByEvent {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for SamplesByEvent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::NONE, Self::add)
    }
}

impl Serialize for SamplesByEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().filter(|(_, samples)| *samples > 0))
    }
}

impl<'de> Deserialize<'de> for SamplesByEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Stored {
            Cpu(u64),
            ByEvent(BTreeMap<EventType, u64>),
        }
        Ok(match Stored::deserialize(deserializer)? {
            Stored::Cpu(samples) => Self::of(EventType::Cpu, samples),
            Stored::ByEvent(samples) => {
                Self::from_fn(|event| samples.get(&event).copied().unwrap_or_default())
            }
        })
    }
}

/// The same, counted by several threads.
#[derive(Debug, Default)]
pub struct AtomicSamplesByEvent([AtomicU64; EVENTS]);

impl AtomicSamplesByEvent {
    pub fn add(&self, event: EventType, samples: u64) {
        self.0[event.index()].fetch_add(samples, Ordering::Relaxed);
    }

    pub fn load(&self) -> SamplesByEvent {
        SamplesByEvent::from_fn(|event| self.0[event.index()].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(cpu: u64, allocation: u64) -> SamplesByEvent {
        SamplesByEvent::of(EventType::Cpu, cpu) + SamplesByEvent::of(EventType::Allocation, allocation)
    }

    #[test]
    fn events_are_added_and_subtracted_each_by_itself() {
        let (mut sum, other) = (samples(5, 2), samples(3, 0));
        sum += other;
        assert_eq!((sum, sum.total()), (samples(8, 2), 10));
        sum -= samples(1, 2);
        assert_eq!(sum, samples(7, 0));
        assert_eq!(sum.saturating_sub(samples(2, 9)), samples(5, 0));
        assert_eq!((sum.min(samples(9, 9)), sum.max(samples(1, 4))), (samples(7, 0), samples(7, 4)));
        assert_eq!([sum, other, samples(0, 6)].into_iter().sum::<SamplesByEvent>(), samples(10, 6));
        assert!((sum - sum).is_none() && !other.is_none());
    }

    #[test]
    fn json_names_the_events_and_a_bare_number_is_of_cpu_time() {
        let text = |samples: SamplesByEvent| serde_json::to_string(&samples).expect("JSON");
        assert_eq!(text(samples(99, 3)), r#"{"cpu":99,"allocation":3}"#);
        assert_eq!(text(samples(0, 3)), r#"{"allocation":3}"#);
        assert_eq!(text(SamplesByEvent::NONE), "{}");
        let read = |text: &str| serde_json::from_str::<SamplesByEvent>(text).ok();
        for written in [samples(99, 3), samples(0, u64::MAX), SamplesByEvent::NONE] {
            assert_eq!(read(&text(written)), Some(written));
        }
        assert_eq!(read("17"), Some(samples(17, 0)));
        assert_eq!(read(r#"{"cpu":1,"of a later version":2}"#), None, "nothing is left out in silence");
    }

    #[test]
    fn threads_count_each_event_by_itself() {
        let counts = AtomicSamplesByEvent::default();
        std::thread::scope(|scope| {
            for event in EventType::ALL {
                let counts = &counts;
                scope.spawn(move || (0..100).for_each(|_| counts.add(event, event.index() as u64 + 1)));
            }
        });
        let expected = SamplesByEvent::from_fn(|event| (event.index() as u64 + 1) * 100);
        assert_eq!(counts.load(), expected);
    }
}
