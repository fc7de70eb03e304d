//! The kernel programs that run, and the rings that they fill, read as one sequence of events.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::counts::{ProgramRunTimes, SamplerCounts};
use super::ebpf::maps::BpfMaps;
use super::ebpf::programs::KernelPrograms;
use super::ebpf::uprobes::{AttachedProbes, ProbedFunctions};
use super::error::SamplerError;
use super::event::{KernelEvent, KernelEventKind};
use super::online_cpus;
use super::options::{SampleClock, SamplerOptions};
use super::rings::epoll::RingEpoll;
use super::rings::event_order::EventOrder;
use super::rings::perf_records::PerfRecordRings;
use super::sampling_period::FrequencyChange;
use crate::clock::monotonic_ns;

/// The running kernel programs and their rings.
#[derive(Debug)]
pub struct Sampler {
    programs: KernelPrograms,
    records: PerfRecordRings,
    order: EventOrder,
    counts: SamplerCounts,
    epoll: Arc<RingEpoll>,
}

/// Longest time between an event's time stamp and the completion of its record: writers run with
/// preemption off, but a hypervisor may stop a CPU between the two.
pub const RECORD_WRITE_DELAY: Duration = Duration::from_millis(2);

impl Sampler {
    /// Loads the programs and attaches them to every online CPU. Between the two, `prepare` gets
    /// the maps, to fill them for the processes that run already.
    ///
    /// # Errors
    /// Returns the kernel facility that refused.
    pub fn start(options: &SamplerOptions, prepare: impl FnOnce(BpfMaps)) -> Result<Self, SamplerError> {
        let cpus = online_cpus::online()?;
        let epoll = Arc::new(RingEpoll::new().map_err(|source| SamplerError::Thread { source })?);
        let (programs, records) = KernelPrograms::start(options, &cpus, |tables| {
            // Opened before the first sample, so that no event of its process is missed.
            let records = PerfRecordRings::open(&cpus, Arc::clone(&epoll))?;
            prepare(tables);
            Ok(records)
        })?;
        epoll.add_samples(programs.ring_fd()).map_err(|source| SamplerError::Thread { source })?;
        let order = EventOrder::default();
        Ok(Self { programs, records, order, counts: SamplerCounts::default(), epoll })
    }

    pub fn clock(&self) -> SampleClock {
        self.programs.clock()
    }

    /// Returns the epoll instance of the rings.
    pub(super) fn epoll(&self) -> Arc<RingEpoll> {
        Arc::clone(&self.epoll)
    }

    /// Attaches to CPUs that came online, and detaches from those that went offline.
    ///
    /// # Errors
    /// Returns a CPU that is online but can't be sampled; the others go on.
    pub fn update_cpus(&mut self) -> Result<(), SamplerError> {
        let cpus = online_cpus::online()?;
        self.records.update_cpus(&cpus)?;
        self.programs.update_cpus(&cpus)
    }

    /// Attaches to every CPU anew: a suspended host takes CPUs away and brings them back before
    /// anybody sees that they were gone, and their events are dead by then.
    ///
    /// # Errors
    /// Returns a CPU that can't be sampled; [`Self::update_cpus`] tries again, and the others go
    /// on.
    pub fn reattach_cpus(&mut self) -> Result<(), SamplerError> {
        self.drain();
        self.records.update_cpus(&[])?;
        self.programs.update_cpus(&[])?;
        self.update_cpus()
    }

    /// Changes the frequency of each CPU.
    ///
    /// # Errors
    /// Returns a CPU that can't be sampled; [`Self::update_cpus`] tries again, and the others go
    /// on.
    pub fn set_frequency(&mut self, frequency: u32) -> (FrequencyChange, Result<(), SamplerError>) {
        self.programs.set_frequency(frequency)
    }

    /// Calls `handle` with the events since the last call, in the order of time, up to
    /// [`RECORD_WRITE_DELAY`] ago.
    pub fn poll(&mut self, handle: &mut impl FnMut(KernelEvent)) {
        let complete_ns = monotonic_ns().saturating_sub(RECORD_WRITE_DELAY.as_nanos() as u64);
        self.drain();
        self.order.drain(complete_ns, handle);
    }

    /// Makes the events that wait for earlier ones urgent: see [`EventOrder::expedite`].
    pub(super) fn expedite(&mut self) {
        self.order.expedite();
    }

    /// Returns the time of the last urgent event that waits for earlier ones, `CLOCK_MONOTONIC`, if
    /// one does.
    pub(super) fn urgent_ns(&self) -> Option<u64> {
        self.order.urgent_ns()
    }

    /// Stops sampling, and calls `handle` with the remaining events.
    pub fn stop(&mut self, handle: &mut impl FnMut(KernelEvent)) {
        self.programs.detach();
        self.drain();
        self.order.drain(u64::MAX, handle);
    }

    /// Returns the counters since the start.
    pub fn counts(&mut self) -> SamplerCounts {
        self.programs.read_counters(&mut self.counts);
        self.counts.late = self.order.late();
        self.counts.clone()
    }

    /// Attaches uprobes to a libjvm.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn attach_probes(
        &mut self,
        file: &Path,
        functions: &ProbedFunctions,
    ) -> Result<AttachedProbes, SamplerError> {
        self.programs.attach_probes(file, functions)
    }

    pub fn detach_probes(&mut self, attached: AttachedProbes) {
        self.programs.detach_probes(attached);
    }

    pub fn run_times(&self) -> ProgramRunTimes {
        self.programs.run_times()
    }

    fn drain(&mut self) {
        let order = &mut self.order;
        let mut ended = 0;
        let drained = self.records.drain(&mut |event| {
            ended += u32::from(matches!(event.kind, KernelEventKind::Exit { pid, tid } if pid == tid));
            order.push(event);
        });
        self.programs.remove_ended_processes(ended);
        self.counts.records_lost += drained.lost;
        self.counts.malformed_records += drained.malformed;
        self.counts.malformed += self.programs.drain(&mut |event| order.push(event));
    }
}
