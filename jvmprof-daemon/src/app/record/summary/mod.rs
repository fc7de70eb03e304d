//! The summary at the end of a recording: as text for people, as JSON for programs.

mod allocation;
pub(super) mod hottest_functions;
pub(super) mod java_frames;
pub(super) mod jvm_time;
mod locks;
pub(super) mod pauses;
pub(super) mod threads;
mod waits;
mod wall;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use self::allocation::AllocationSummary;
use self::hottest_functions::{TopRow, hottest_functions};
use self::java_frames::{JavaAttribution, ShownBatches};
use self::jvm_time::JvmTime;
use self::locks::LockSummary;
use self::pauses::JvmPauseSummary;
use self::threads::ThreadShare;
use self::waits::WaitSummary;
use self::wall::WallSummary;
use super::thread_kind_filter::ThreadKindFilter;
use super::virtual_threads::VirtualThreadSummary;
use crate::event_type::EventType;
use crate::own_process::{SelfUsage, one_line, stderr_line};
use crate::pipeline::{Counts, Pipeline};
use crate::profile::model::Batch;
use crate::sampler::ProgramRunTime;

const TOP_METHODS: usize = 10;

/// The summary at the end of a recording; the fields' names are an interface.
#[derive(Debug, Serialize)]
pub(super) struct RecordingSummary {
    samples: u64,
    complete: u64,
    /// The samples that were labelled with the request of their thread, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_context_samples: Option<u64>,
    losses: BTreeMap<String, u64>,
    kernel: KernelSummary,
    daemon: DaemonSummary,
    /// The samples of CPU time that the tables of functions are made of.
    #[serde(skip)]
    cpu_samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_kind_filter: Option<ThreadKindFilter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    java_frames: Option<JavaAttribution>,
    top: Vec<TopRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation: Option<AllocationSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    off_cpu: Option<WaitSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<LockSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wall: Option<WallSummary>,
    /// The JVMs with virtual threads, where waits were sampled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) virtual_threads: Vec<VirtualThreadSummary>,
    /// The JVMs whose CPU time was sampled, and how long they were stopped.
    pub(super) jvms: Vec<JvmTime>,
    /// The threads, by what they did of the first of the recorded events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<Vec<ThreadShare>>,
    /// When JVMs stopped their threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pauses: Option<Vec<JvmPauseSummary>>,
    outputs: Vec<PathBuf>,
    duration_ms: u64,
    clock: &'static str,
    period_ns: u64,
}

#[derive(Debug, Serialize)]
struct KernelSummary {
    /// Left out where the kernel didn't measure it.
    #[serde(flatten)]
    runs: Option<ProgramRunTime>,
    /// Samples that the kernel program took.
    taken: u64,
}

#[derive(Debug, Serialize)]
struct DaemonSummary {
    cpu_ms: f64,
    startup_cpu_ms: Option<f64>,
    peak_rss_bytes: u64,
}

impl RecordingSummary {
    pub(super) fn new(
        batches: &[Batch],
        shown: &ShownBatches,
        counts: &Counts,
        pipeline: &Pipeline,
        outputs: Vec<PathBuf>,
        startup_cpu: Option<Duration>,
        thread_kind_filter: Option<ThreadKindFilter>,
    ) -> Self {
        let usage = SelfUsage::now();
        let of_event = |event| batches.iter().find(|batch| batch.event == event);
        let allocated = of_event(EventType::Allocation);
        // They are those of all threads together.
        let class_errors = pipeline.class_errors().filter(|_| thread_kind_filter.is_none());
        let cpu = shown.batches.iter().find(|batch| batch.event == EventType::Cpu);
        let batch = &batches[0];
        // To the microsecond: a float of seconds would have digits that nobody measured.
        let milliseconds = |duration: Duration| duration.as_micros() as f64 / 1e3;
        Self {
            samples: counts.samples(),
            complete: counts.whole(),
            thread_context_samples: pipeline
                .reads_thread_contexts()
                .then_some(counts.thread_contexts.labelled),
            losses: counts.losses(),
            kernel: KernelSummary {
                runs: counts.run_times.clock,
                taken: counts.sampler.get(jvmprof_common::abi::Counter::Taken),
            },
            daemon: DaemonSummary {
                cpu_ms: milliseconds(usage.cpu),
                startup_cpu_ms: startup_cpu.map(milliseconds),
                peak_rss_bytes: usage.peak_rss_bytes,
            },
            cpu_samples: cpu.map_or(0, Batch::samples),
            thread_kind_filter,
            java_frames: shown.java.filter(|_| cpu.is_some()),
            top: cpu.map(|batch| hottest_functions(batch, TOP_METHODS)).unwrap_or_default(),
            allocation: allocated.map(|batch| AllocationSummary::new(batch, counts, class_errors)),
            off_cpu: of_event(EventType::OffCpu).map(|batch| WaitSummary::new(batch, &counts.off_cpu)),
            lock: of_event(EventType::Lock)
                .map(|batch| LockSummary::new(batch, of_event(EventType::LockHolder))),
            wall: of_event(EventType::Wall).map(WallSummary::new),
            virtual_threads: Vec::new(),
            jvms: Vec::new(),
            threads: None,
            pauses: None,
            outputs,
            duration_ms: u64::try_from(batch.duration.as_millis()).unwrap_or(u64::MAX),
            clock: pipeline.clock().as_str(),
            period_ns: batch.period,
        }
    }

    pub(super) fn print(&self) {
        let percent_of = |all: u64, part: u64| if all == 0 { 0.0 } else { part as f64 * 100.0 / all as f64 };
        let percent = |part: u64| percent_of(self.cpu_samples, part);
        stderr_line!(
            "{} samples in {:.1} s by {}, {:.2} % of their stacks whole",
            self.samples,
            self.duration_ms as f64 / 1e3,
            self.clock,
            percent_of(self.samples, self.complete)
        );
        if self.samples == 0 {
            stderr_line!("nothing ran: an idle process or host has no samples");
        }
        if let Some(labelled) = self.thread_context_samples {
            stderr_line!("{labelled} samples have the labels of a request");
        }
        for (reason, count) in &self.losses {
            stderr_line!("  {count:>8}  {reason}");
        }
        if let Some(filter) = &self.thread_kind_filter {
            filter.print();
        }
        JvmTime::print(&self.jvms);
        ThreadShare::print(self.threads.as_deref().unwrap_or_default());
        JvmPauseSummary::print(self.pauses.as_deref().unwrap_or_default());
        if let Some(frames) = self.java_frames.filter(|_| self.cpu_samples > 0) {
            frames.print(percent);
        }
        if !self.top.is_empty() {
            stderr_line!("    self   total");
        }
        for row in &self.top {
            let line = row.line_text().map_or_else(String::new, |line| format!("  {}", one_line(&line)));
            let name = one_line(&row.name);
            stderr_line!("{:>6.2} % {:>6.2} %  {name}{line}", percent(row.own), percent(row.total));
        }
        if let Some(allocation) = &self.allocation {
            allocation.print();
        }
        if let Some(off_cpu) = &self.off_cpu {
            off_cpu.print();
        }
        VirtualThreadSummary::print(&self.virtual_threads);
        if let Some(lock) = &self.lock {
            lock.print();
        }
        if let Some(wall) = &self.wall {
            wall.print();
        }
        for path in &self.outputs {
            stderr_line!("wrote {}", path.display());
        }
    }
}
