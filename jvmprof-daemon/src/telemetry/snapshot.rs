//! All counters and gauges at one time.

use std::collections::BTreeMap;

use crate::event_type::SamplesByEvent;
use crate::export::delivery::DeliveryCounts;
use crate::export::parca::debuginfo_upload::UploadCounts;
use crate::native::debuginfod::DebuginfodCounts;
use crate::own_process::SelfUsage;
use crate::process::container::ContainerCounts;
use crate::process::process_table::ProcessTableCounts;
use crate::sampler::SamplerCounts;
use crate::symbolize::{CacheUsage, Outcome, SymbolCounts};

/// Counters since the start, and gauges. To add a metric, add a field here and a row in
/// [`super::metrics`].
#[derive(Clone, Debug, Default)]
pub struct MetricsSnapshot {
    pub sampler: SamplerCounts,
    pub table: ProcessTableCounts,
    /// Processes that are known now.
    pub processes: u64,
    pub symbols: SymbolCounts,
    pub caches: Vec<CacheUsage>,
    /// Samples with names, by the outcome of their stack.
    pub outcomes: BTreeMap<Outcome, SamplesByEvent>,
    /// Samples that wait for unwind rows now.
    pub waiting: u64,
    /// (nanoseconds, runs) of the kernel programs, where the kernel measures them.
    pub kernel_run_time: Option<(u64, u64)>,
    pub targets: TargetCounts,
    /// Samples in the series that takes what exceeds the limit of series.
    pub over_series_limit: u64,
    pub window_full: u64,
    pub waiting_full: u64,
    /// Different stacks that wait for their labels now.
    pub unlabelled_stacks: u64,
    /// What each sink is called, and what became of samples that were handed to it.
    pub sinks: Vec<(String, DeliveryCounts)>,
    /// `None`: nothing is uploaded.
    pub uploads: Option<UploadCounts>,
    /// `None`: no debuginfod server is asked.
    pub debuginfod: Option<DebuginfodCounts>,
    pub budget: CpuBudgetStatus,
    pub windows: u64,
    pub clock_steps: u64,
    pub suspends: u64,
    /// Log messages that were held back since too many like them had been written.
    pub suppressed_messages: u64,
    /// HTTP connections that were not taken since too many were open.
    pub refused_connections: u64,
    pub usage: SelfUsage,
}

/// What was decided of samples: whether they are wanted, and under which labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    pub containers: ContainerCounts,
    /// Samples that went out without the metadata of their container's runtime.
    pub without_container_metadata: u64,
    /// Samples that arrived and that rules dropped. Those that the kernel didn't take any more
    /// aren't among them.
    pub dropped: SamplesByEvent,
    /// How often a dropped process could not be published to the kernel, which sampled it on.
    pub kernel_drops_refused: u64,
    /// Samples whose thread is called `[other]`, since too many names of threads were there
    /// already.
    pub other_threads: u64,
    /// Values of labels that were too long and were cut, in each label set that was made.
    pub cut_labels: u64,
}

/// State of the CPU budget and the sampling frequency.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuBudgetStatus {
    /// Percent of one core; `None`: no limit.
    pub limit_percent: Option<f64>,
    /// CPU that sampling took in the last measured interval, in percent of one core.
    pub used_percent: f64,
    /// Samples per second and CPU that were asked for.
    pub wanted_hz: u32,
    /// The same as it is now.
    pub current_hz: u32,
    pub lowered: u64,
    pub raised: u64,
}
