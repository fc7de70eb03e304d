//! All counters and gauges at one time.

use crate::export::delivery::DeliveryCounts;
use crate::export::parca::debuginfo_upload::UploadCounts;
use crate::native::debuginfod::DebuginfodCounts;
use crate::own_process::SelfUsage;
use crate::pipeline::Counts;

/// Counters since the start, and gauges. To add a metric, add a field here or to [`Counts`], and a
/// row in [`super::metrics`].
#[derive(Clone, Debug, Default)]
pub struct MetricsSnapshot {
    pub pipeline: Counts,
    /// What each sink is called, and what became of samples that were handed to it.
    pub sinks: Vec<(String, DeliveryCounts)>,
    /// `None`: nothing is uploaded.
    pub uploads: Option<UploadCounts>,
    /// `None`: no debuginfod server is asked.
    pub debuginfod: Option<DebuginfodCounts>,
    pub budget: CpuBudgetStatus,
    pub host: HostStatus,
    pub windows: u64,
    /// Log messages that were held back since too many like them had been written.
    pub suppressed_messages: u64,
    /// HTTP connections that were not taken since too many were open.
    pub refused_connections: u64,
    pub usage: SelfUsage,
}

/// The state of profiling of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostStatus {
    pub is_profiled: bool,
    /// Share of the fleet's hosts that are profiled.
    pub fraction: f64,
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
