//! The events that `-e` asks for, those that are sampled for them, and what that means for the
//! pipeline: the minimum wait where only locks are recorded, the frequency where CPU time isn't.

use std::collections::BTreeSet;

use super::wall_clock::{ThreadSpans, wall_batch};
use crate::app::args::EventArg;
use crate::event_type::EventType;
use crate::pipeline::off_cpu::OffCpuOptions;
use crate::pipeline::{PipelineOptions, WindowProfiles};
use crate::profile::model::Batch;

/// Samples of CPU time per second and CPU where they aren't recorded: JVMs are found by what runs.
const DISCOVERY_FREQUENCY: u32 = 19;
/// Minimum wait for a lock where only contention is recorded (`-e lock`, no `-e offcpu`), ns.
const LEAST_CONTENTION_NS: u64 = 10_000;

/// Events of a recording.
#[derive(Debug)]
pub(super) struct RecordedEvents {
    /// Events that the outputs have.
    pub(super) recorded: BTreeSet<EventType>,
    /// Events that samples are taken of.
    pub(super) sampled: BTreeSet<EventType>,
}

impl RecordedEvents {
    pub(super) fn new(events: &[EventArg]) -> Self {
        let of_arg = |event: &EventArg| match event {
            EventArg::Cpu => vec![EventType::Cpu],
            EventArg::Alloc => vec![EventType::Allocation],
            EventArg::Offcpu => vec![EventType::OffCpu],
            EventArg::Lock => vec![EventType::Lock, EventType::LockHolder],
            EventArg::Wall => vec![EventType::Wall],
        };
        let recorded: BTreeSet<EventType> = events.iter().flat_map(of_arg).collect();
        let of_event = |event: &EventType| match event {
            EventType::Wall => vec![EventType::Cpu, EventType::OffCpu],
            EventType::Lock => vec![EventType::OffCpu, EventType::Lock, EventType::LockHolder],
            event => vec![*event],
        };
        let sampled = recorded.iter().flat_map(of_event).collect();
        Self { recorded, sampled }
    }

    pub(super) fn has(&self, event: EventType) -> bool {
        self.recorded.contains(&event)
    }

    /// Sets which waits are sampled, and how often CPUs are.
    pub(super) fn adjust(&self, options: &mut PipelineOptions) {
        if self.has(EventType::Wall) {
            options.off_cpu.least_ns = 0;
            options.off_cpu.max_inspections = u64::MAX;
            options.sampler.thread_ends = true;
        }
        if self.has(EventType::Lock) && !self.has(EventType::OffCpu) {
            let least = &mut options.off_cpu.least_ns;
            // Who has set it means it.
            if *least == OffCpuOptions::default().least_ns {
                *least = LEAST_CONTENTION_NS;
            }
        }
        // Where locks are recorded, samples also show the stacks of the threads that hold them.
        if !self.sampled.contains(&EventType::Cpu) && !self.has(EventType::Lock) {
            options.sampler.frequency = DISCOVERY_FREQUENCY;
        }
    }

    /// Returns the profiles of the recorded events, in the order of [`EventType`]. `spans`: the
    /// threads' times, if wall-clock time is among them.
    pub(super) fn batches(&self, flushed: WindowProfiles, spans: Option<&ThreadSpans>) -> Vec<Batch> {
        let Batch { start, duration, period, .. } = flushed.batch;
        let empty = |event| Batch { event, start, duration, period, series: Vec::new() };
        let mut batches: Vec<Batch> = self.sampled.iter().copied().map(empty).collect();
        for batch in flushed.into_batches() {
            if let Some(sampled) = batches.iter_mut().find(|sampled| sampled.event == batch.event) {
                sampled.period = batch.period;
                sampled.series.extend(batch.series);
            }
        }
        batches.extend(spans.and_then(|spans| wall_batch(&batches, spans)));
        batches.retain(|batch| self.has(batch.event));
        batches
    }
}
