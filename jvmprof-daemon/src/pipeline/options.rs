//! Options of the pipeline, and why it doesn't start.

use std::io;

use super::allocation::AllocationOptions;
use super::labels::LabelOptions;
use super::memory_limits::MemoryLimits;
use crate::process::container::{ContainersError, ContainersOptions};
use crate::sampler::{SamplerError, SamplerOptions};
use crate::symbolize::NativeOptions;

/// What to sample, and what the way may cost.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    pub sampler: SamplerOptions,
    /// What may be remembered, and what may wait.
    pub memory: MemoryLimits,
    /// How series are labelled.
    pub labels: LabelOptions,
    /// Names of Java methods end in how they ran.
    pub java_frame_types: bool,
    /// How native frames get their names.
    pub native: NativeOptions,
    /// How containers are asked for; `None`: they aren't.
    pub containers: Option<ContainersOptions>,
    /// How allocation is profiled, where [`SamplerOptions::allocation`] says so.
    pub allocation: AllocationOptions,
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
