//! The kernel programs that run, and the rings that they fill, read as one sequence of events.

use std::sync::Arc;
use std::time::Duration;

use super::counts::SamplerCounts;
use super::ebpf::maps::KernelTables;
use super::ebpf::programs::Programs;
use super::error::SamplerError;
use super::event::Event;
use super::online_cpus;
use super::options::{Clock, SamplerOptions};
use super::rings::epoll::Waker;
use super::rings::event_order::EventOrder;
use super::rings::perf_records::Records;
use super::sampling_period::FrequencyChange;
use crate::clock::monotonic_ns;

/// Kernel programs that run, and the rings they fill.
#[derive(Debug)]
pub struct Sampler {
    programs: Programs,
    records: Records,
    order: EventOrder,
    counts: SamplerCounts,
    waker: Arc<Waker>,
}

/// An event's record is complete this long after its time stamp: writers run with preemption off,
/// but a hypervisor may still stop a CPU between the two.
pub const SETTLE: Duration = Duration::from_millis(2);

impl Sampler {
    /// Loads the programs and attaches them to every online CPU. Between the two `prepare` gets the
    /// tables, to tell of what runs already.
    ///
    /// # Errors
    /// Each names the kernel facility that refused.
    pub fn start(options: &SamplerOptions, prepare: impl FnOnce(KernelTables)) -> Result<Self, SamplerError> {
        let cpus = online_cpus::online()?;
        let waker = Arc::new(Waker::new().map_err(|source| SamplerError::Thread { source })?);
        let (programs, records) = Programs::start(options, &cpus, |tables| {
            // Before the first sample: its process is known that way.
            let records = Records::open(&cpus, Arc::clone(&waker))?;
            prepare(tables);
            Ok(records)
        })?;
        waker.add_samples(programs.ring_fd()).map_err(|source| SamplerError::Thread { source })?;
        let order = EventOrder::default();
        Ok(Self { programs, records, order, counts: SamplerCounts::default(), waker })
    }

    pub fn clock(&self) -> Clock {
        self.programs.clock()
    }

    /// What the rings are waited on with.
    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Follows CPUs that came or went.
    ///
    /// # Errors
    /// A CPU that is online but can't be sampled; the others go on.
    pub fn follow_cpus(&mut self) -> Result<(), SamplerError> {
        let cpus = online_cpus::online()?;
        self.records.follow(&cpus)?;
        self.programs.follow(&cpus)
    }

    /// Samples each CPU so often from now on.
    ///
    /// # Errors
    /// A CPU that can't be sampled; [`Self::follow_cpus`] tries again, and the others go on.
    pub fn set_frequency(&mut self, frequency: u32) -> (FrequencyChange, Result<(), SamplerError>) {
        self.programs.set_frequency(frequency)
    }

    /// Hands on what has happened since the last call, in order of time, up to a moment ago.
    pub fn poll(&mut self, handle: &mut impl FnMut(Event)) {
        let settled = monotonic_ns().saturating_sub(SETTLE.as_nanos() as u64);
        self.drain();
        self.order.drain(settled, handle);
    }

    /// Stops sampling and hands on the rest.
    pub fn stop(&mut self, handle: &mut impl FnMut(Event)) {
        self.programs.detach();
        self.drain();
        self.order.drain(u64::MAX, handle);
    }

    /// Counters since the start.
    pub fn counts(&mut self) -> SamplerCounts {
        self.programs.read_counters(&mut self.counts);
        self.counts.late = self.order.late();
        self.counts.clone()
    }

    /// (nanoseconds, runs) of the kernel programs, from the kernel's own statistics; `None` unless
    /// they are enabled.
    pub fn run_time(&self) -> Option<(u64, u64)> {
        self.programs.run_time()
    }

    fn drain(&mut self) {
        let order = &mut self.order;
        let drained = self.records.drain(&mut |event| order.push(event));
        self.counts.records_lost += drained.lost;
        self.counts.malformed_records += drained.malformed;
        self.counts.malformed += self.programs.drain(&mut |event| order.push(event));
    }
}
