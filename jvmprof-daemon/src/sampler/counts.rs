//! Counters of the way from the kernel programs to the daemon.

use jvmprof_common::abi::{Counter, Event, Stop};
use serde::Serialize;

use crate::event_type::SamplesByEvent;

/// The time that kernel programs ran, with the stacks that they took, and the number of runs, by
/// the kernel's own statistics. The fields' names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgramRunTime {
    pub run_time_ns: u64,
    pub run_count: u64,
}

/// The run times of the kernel programs; `None` where they aren't loaded, or the kernel doesn't
/// measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramRunTimes {
    /// Of the program at the clock.
    pub clock: Option<ProgramRunTime>,
    /// Of the uprobes of allocation.
    pub allocation: Option<ProgramRunTime>,
    /// Of the uprobes of pauses.
    pub pauses: Option<ProgramRunTime>,
}

/// Counters of the kernel programs and of the way from there to here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplerCounts {
    /// Those of each event, in the order of [`Event::ALL`].
    pub events: [EventCounts; Event::ALL.len()],
    /// Ring buffer records that weren't samples of this version, by the event that they say.
    pub malformed: SamplesByEvent,
    /// Process records that were dropped since their ring, or the queue after it, was full.
    pub records_lost: u64,
    /// Process records that could not be parsed.
    pub malformed_records: u64,
    /// Events that arrived after later ones had been delivered.
    pub late: u64,
    /// Samples that were dropped since the queue was full.
    pub shed: SamplesByEvent,
}

/// Counters of one event's kernel programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Counters in the order of [`Counter::ALL`].
    pub counters: [u64; Counter::ALL.len()],
    /// Walks of user stacks by [`Stop`], in the order of [`Stop::ALL`].
    pub stops: [u64; Stop::ALL.len()],
}

impl EventCounts {
    pub fn get(&self, counter: Counter) -> u64 {
        Counter::ALL.iter().position(|it| *it == counter).map_or(0, |index| self.counters[index])
    }
}

impl SamplerCounts {
    /// Adds samples that were taken without a record of the ring buffer.
    pub(crate) fn add_unrecorded(&mut self, event: Event, samples: u64) {
        let counts = &mut self.events[event as usize];
        for (counter, count) in Counter::ALL.iter().zip(&mut counts.counters) {
            if matches!(counter, Counter::Taken | Counter::Emitted) {
                *count += samples;
            }
        }
    }

    /// Returns a counter of all events.
    pub fn get(&self, counter: Counter) -> u64 {
        self.events.iter().map(|counts| counts.get(counter)).sum()
    }

    /// Returns a counter of each event.
    pub fn by_event(&self, counter: Counter) -> SamplesByEvent {
        SamplesByEvent::from_fn(|event| {
            event.kernel_event().map_or(0, |event| self.of_event(event).get(counter))
        })
    }

    /// Returns the counters of one event.
    pub fn of_event(&self, event: Event) -> &EventCounts {
        &self.events[event as usize]
    }

    /// Returns how many walks of user stacks ended in each way, in the order of [`Stop::ALL`].
    pub fn stops(&self) -> [u64; Stop::ALL.len()] {
        std::array::from_fn(|index| self.events.iter().map(|counts| counts.stops[index]).sum())
    }
}
