//! Options of the pipeline, and errors of its start.

mod memory_limits;

use std::io;

pub use memory_limits::MemoryLimits;

use super::allocation::AllocationOptions;
use super::labels::LabelOptions;
use super::off_cpu::OffCpuOptions;
use super::thread_contexts::ThreadContextOptions;
use crate::event_type::EventType;
use crate::process::container::{ContainersError, ContainersOptions};
use crate::sampler::{SamplerError, SamplerOptions};
use crate::symbolize::NativeOptions;

/// Options of sampling, and limits of its cost.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    pub sampler: SamplerOptions,
    /// Memory limits of caches and queues.
    pub memory: MemoryLimits,
    /// Percent of one CPU for which the threads that read sampled processes run at a raised
    /// priority.
    pub urgent_percent: f64,
    /// Options of series' labels.
    pub labels: LabelOptions,
    /// True if names of Java methods end in how they ran.
    pub java_frame_types: bool,
    /// Options of naming native frames.
    pub native: NativeOptions,
    /// Options of container metadata; `None`: containers aren't queried.
    pub containers: Option<ContainersOptions>,
    /// Options of allocation profiles, if [`SamplerOptions::allocation`] enables them.
    pub allocation: AllocationOptions,
    /// Options of profiles of waits, if [`SamplerOptions::off_cpu`] enables them.
    pub off_cpu: OffCpuOptions,
    /// Options of labels of requests, if [`SamplerOptions::thread_context`] enables them.
    pub thread_context: ThreadContextOptions,
}

impl PipelineOptions {
    /// Returns the events that samples are taken of.
    pub(super) fn events(&self) -> Vec<EventType> {
        let allocation = self.sampler.allocation.then_some(EventType::Allocation);
        let off_cpu = self.sampler.off_cpu.then_some(EventType::OffCpu);
        [Some(EventType::Cpu), allocation, off_cpu].into_iter().flatten().collect()
    }
}

/// A failure to start the pipeline.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    #[error(transparent)]
    Containers(#[from] ContainersError),
    #[error("starting the thread that reads unwind rows: {0}")]
    RowLoader(#[source] io::Error),
}
