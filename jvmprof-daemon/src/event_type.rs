//! The events that samples are taken of: what a sample's count and value stand for, and under which
//! names they are stored.

mod samples_by_event;

use jvmprof_common::abi::Event;
use serde::{Deserialize, Serialize};

pub use samples_by_event::{AtomicSamplesByEvent, SamplesByEvent};

/// A kind of event. Samples, profiles, windows and series are each of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    /// CPU time: a tick of a CPU's clock.
    Cpu,
    /// Allocation in the heaps of JVMs.
    Allocation,
    /// Time that threads wait off the CPU.
    OffCpu,
    /// Contention of locks in JVMs: the waits off the CPU that are for one.
    Lock,
    /// Pauses of JVMs, in which they stop their Java threads. No samples: every one is seen.
    Pause,
    /// Contention of monitors in JVMs once more, by the stacks of the threads that had them. No
    /// samples of its own: where the holder's stack is known, a contention has one.
    LockHolder,
    /// All time of threads: what a recording makes of CPU time and waits at its end. It isn't in
    /// [`Self::ALL`].
    Wall,
}

/// One of the numbers that a pprof sample has, by its name and unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleType {
    pub name: &'static str,
    pub unit: &'static str,
    pub number: SampleNumber,
}

/// The number of a sample that a [`SampleType`] shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleNumber {
    /// The number of events that the sample stands for: see
    /// [`crate::profile::model::Sample::count`].
    Count,
    /// The sum of their values.
    Value,
}

/// The names that backends know an event by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventDescriptor {
    /// What `record -e` calls it.
    pub name: &'static str,
    /// `__name__` of its series, a name that Parca's page knows.
    pub series: &'static str,
    /// What is written to files.
    pub sample_types: &'static [SampleType],
    /// What is pushed: a backend of the Parca family stores each sample type as a profile of its
    /// own, and knows the period.
    pub pushed_types: &'static [SampleType],
    /// What a period is measured in.
    pub period_type: SampleType,
    /// The label of samples whose value is a number; values of others are texts.
    pub number_label: Option<NumberLabel>,
}

/// A label of samples whose value is a number, by its name and unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberLabel {
    pub name: &'static str,
    pub unit: &'static str,
}

/// The unit of what a picture counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownUnit {
    Samples,
    /// Samples too, shown as the time that they stand for.
    Nanoseconds,
    Objects,
    Bytes,
    Waits,
    /// Nanoseconds of waits.
    WaitingTime,
    Contentions,
    /// Nanoseconds of waits for locks.
    LockTime,
    /// Nanoseconds of threads, on the CPU or off it.
    WallTime,
    Pauses,
    /// Nanoseconds of pauses.
    PauseTime,
}

impl ShownUnit {
    /// Returns true for waits, and for what has waits in it.
    pub const fn is_of_waits(self) -> bool {
        matches!(self, Self::Waits | Self::WaitingTime | Self::Contentions | Self::LockTime | Self::WallTime)
    }

    /// Returns the unit of a sample type by its name.
    pub fn of_sample_type(name: Option<&str>) -> Self {
        let number = |types: &[SampleType]| types.iter().find(|of| Some(of.name) == name).map(|of| of.number);
        let numbers = [ALLOCATED, WAITED, DELAYED, CAUSED, PAUSED].map(number);
        let units = [
            [Self::Objects, Self::Bytes],
            [Self::Waits, Self::WaitingTime],
            [Self::Contentions, Self::LockTime],
            [Self::Contentions, Self::LockTime],
            [Self::Pauses, Self::PauseTime],
        ];
        let found = numbers.into_iter().zip(units).find_map(|(number, units)| Some((number?, units)));
        match found {
            Some((SampleNumber::Count, [count, _])) => count,
            Some((SampleNumber::Value, [_, value])) => value,
            None if name == Some(WALL_TIME.name) => Self::WallTime,
            None => Self::Samples,
        }
    }
}

impl EventType {
    /// All events that are delivered. Their order is written to disk by the spool: new ones come
    /// last.
    pub const ALL: [Self; Event::ALL.len() + 3] =
        [Self::Cpu, Self::Allocation, Self::OffCpu, Self::Lock, Self::Pause, Self::LockHolder];

    /// Returns the event's place in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the name that metrics, logs and the ledger have.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Allocation => "allocation",
            Self::OffCpu => "off_cpu",
            Self::Lock => "lock",
            Self::Pause => "pause",
            Self::LockHolder => "lock_holder",
            Self::Wall => "wall",
        }
    }

    /// Returns the event as the kernel programs count it; `None` if they don't sample it.
    pub const fn kernel_event(self) -> Option<Event> {
        match self {
            Self::Cpu => Some(Event::Cpu),
            Self::Allocation => Some(Event::Allocation),
            Self::OffCpu => Some(Event::OffCpu),
            Self::Lock | Self::Pause | Self::LockHolder | Self::Wall => None,
        }
    }

    /// Returns true if a sample's numbers don't show how many events were seen: they are estimates,
    /// or the value isn't a multiple of a period.
    pub const fn is_estimated(self) -> bool {
        match self {
            Self::Cpu => false,
            Self::Allocation | Self::OffCpu | Self::Lock | Self::Pause | Self::LockHolder | Self::Wall => {
                true
            }
        }
    }

    /// Returns the number of a sample that pictures of this event show.
    pub fn shown_number(self) -> SampleNumber {
        match self {
            Self::Cpu => SampleNumber::Count,
            Self::Allocation | Self::OffCpu | Self::Lock | Self::Pause | Self::LockHolder | Self::Wall => {
                SampleNumber::Value
            }
        }
    }

    /// The event's names.
    pub fn descriptor(self) -> &'static EventDescriptor {
        match self {
            Self::Cpu => &CPU,
            Self::Allocation => &ALLOCATION,
            Self::OffCpu => &OFF_CPU,
            Self::Lock => &LOCK,
            Self::Pause => &PAUSE,
            Self::LockHolder => &LOCK_HOLDER,
            Self::Wall => &WALL,
        }
    }
}

const SAMPLES: SampleType = SampleType { name: "samples", unit: "count", number: SampleNumber::Count };
const CPU_TIME: SampleType = SampleType { name: "cpu", unit: "nanoseconds", number: SampleNumber::Value };
const CPU: EventDescriptor = EventDescriptor {
    name: "cpu",
    series: "process_cpu",
    sample_types: &[SAMPLES, CPU_TIME],
    pushed_types: &[SAMPLES],
    period_type: CPU_TIME,
    number_label: None,
};

const SPACE: SampleType = SampleType { name: "space", unit: "bytes", number: SampleNumber::Value };
const ALLOCATED: &[SampleType] = &[
    SampleType { name: "alloc_objects", unit: "count", number: SampleNumber::Count },
    SampleType { name: "alloc_space", unit: "bytes", number: SampleNumber::Value },
];
const ALLOCATION: EventDescriptor = EventDescriptor {
    name: "alloc",
    series: "memory",
    sample_types: ALLOCATED,
    pushed_types: ALLOCATED,
    period_type: SPACE,
    number_label: None,
};

const WAITED: &[SampleType] =
    &[SampleType { name: "waits", unit: "count", number: SampleNumber::Count }, OFF_CPU_TIME];
const OFF_CPU_TIME: SampleType =
    SampleType { name: "off_cpu", unit: "nanoseconds", number: SampleNumber::Value };
const OFF_CPU: EventDescriptor = EventDescriptor {
    name: "offcpu",
    series: "off_cpu",
    sample_types: WAITED,
    pushed_types: WAITED,
    period_type: OFF_CPU_TIME,
    number_label: None,
};

const DELAYED: &[SampleType] =
    &[CONTENTIONS, SampleType { name: "delay", unit: "nanoseconds", number: SampleNumber::Value }];
const CONTENTIONS: SampleType =
    SampleType { name: "contentions", unit: "count", number: SampleNumber::Count };
/// As Go names it.
const LOCK: EventDescriptor = EventDescriptor {
    name: "lock",
    series: "mutex",
    sample_types: DELAYED,
    pushed_types: DELAYED,
    period_type: CONTENTIONS,
    number_label: None,
};

const CAUSED: &[SampleType] = &[
    CAUSED_CONTENTIONS,
    SampleType { name: "caused_delay", unit: "nanoseconds", number: SampleNumber::Value },
];
const CAUSED_CONTENTIONS: SampleType =
    SampleType { name: "caused_contentions", unit: "count", number: SampleNumber::Count };
const LOCK_HOLDER: EventDescriptor = EventDescriptor {
    name: "lock_holder",
    series: "mutex_holders",
    sample_types: CAUSED,
    pushed_types: CAUSED,
    period_type: CAUSED_CONTENTIONS,
    number_label: None,
};

const PAUSED: &[SampleType] = &[PAUSES, PAUSE_TIME];
const PAUSES: SampleType = SampleType { name: "pauses", unit: "count", number: SampleNumber::Count };
const PAUSE_TIME: SampleType = SampleType { name: "pause", unit: "nanoseconds", number: SampleNumber::Value };
const PAUSE: EventDescriptor = EventDescriptor {
    name: "pause",
    series: "jvm_pauses",
    sample_types: PAUSED,
    pushed_types: PAUSED,
    period_type: PAUSES,
    number_label: Some(PAUSE_BEGIN),
};
/// The begin of a pause: nanoseconds since 1970.
pub const PAUSE_BEGIN: NumberLabel = NumberLabel { name: "begin", unit: "nanoseconds" };

const WALL_TIME: SampleType = SampleType { name: "wall", unit: "nanoseconds", number: SampleNumber::Value };
const WALL: EventDescriptor = EventDescriptor {
    name: "wall",
    series: "wall",
    sample_types: &[SAMPLES, WALL_TIME],
    pushed_types: &[SAMPLES, WALL_TIME],
    period_type: WALL_TIME,
    number_label: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_at_its_index_and_has_one_name() {
        for (index, event) in EventType::ALL.into_iter().enumerate() {
            assert_eq!(event.index(), index);
            assert!(event.kernel_event().is_none_or(|event| event as usize == index));
            let json = serde_json::to_string(&event).expect("JSON");
            assert_eq!(json, format!("{:?}", event.as_str()));
        }
    }
}
