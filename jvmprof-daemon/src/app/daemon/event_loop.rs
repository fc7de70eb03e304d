//! The event loop of a daemon that profiles: processes samples, ends windows, delivers their
//! profiles to the sinks, and applies new settings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::sleep;

use super::cpu_budget::CpuBudget;
use super::debug_file_uploads::DebugFileUploads;
use super::host_fraction::HostChoice;
use super::reload::{DaemonState, ReloadedSettings, SighupReloader};
use super::replaced_sinks::ReplacedSinks;
use super::sinks;
use super::telemetry::DaemonTelemetry;
use super::window_schedule::WindowSchedule;
use crate::app::args::{DaemonArgs, SampleTimesArg};
use crate::app::native_options;
use crate::app::pipeline_options::{daemon_memory, node_name, options};
use crate::app::shutdown_signals::ShutdownSignals;
use crate::event_type::{EventType, SamplesByEvent};
use crate::export::delivery::{Delivery, DeliveryCounts, SampleTotals};
use crate::native::debuginfod::Debuginfod;
use crate::own_process::{SelfUsage, allocator};
use crate::pipeline::Pipeline;
use crate::pipeline::labels::LabelOptions;
use crate::profile::model::Batch;
use crate::telemetry::{HostStatus, MetricsSnapshot};

/// Longest time for which samples are processed before signals and deadlines are checked.
const POLL_LIMIT: Duration = Duration::from_millis(200);
/// Longest time for the last samples to be processed and named when the daemon ends.
const LAST_SAMPLES_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest time for the last batches to be delivered then, before they go to the spool.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for both together: the unit and the pod give 30 s.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time for deliveries to finish when settings replace the sinks.
const SINK_CHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the events that these flags ask for.
fn profiled_events(args: &DaemonArgs) -> BTreeSet<EventType> {
    let others = [
        (EventType::Allocation, args.alloc_enabled),
        (EventType::OffCpu, args.offcpu_enabled || args.lock_enabled),
        (EventType::Lock, args.lock_enabled),
        (EventType::LockHolder, args.lock_enabled),
    ];
    let others = others.into_iter().filter(|(_, is_enabled)| *is_enabled).map(|(event, _)| event);
    others.chain([EventType::Cpu]).collect()
}

/// Returns the options for the labels of series.
fn label_options(args: &DaemonArgs) -> LabelOptions {
    args.labels.options(args.labels.node.clone().unwrap_or_else(node_name))
}

/// Returns true if a sink gets the times of samples.
fn keeps_times(args: &DaemonArgs) -> bool {
    args.delivery.sample_times != SampleTimesArg::Off
}

/// The reason why the event loop ended.
pub(super) enum LoopEnd {
    /// This signal arrived.
    Signal(&'static str),
    /// By these new settings the host isn't profiled any more.
    HostLeftOut(Box<DaemonArgs>),
}

/// The state of the event loop.
pub(super) struct DaemonLoop<'a> {
    pipeline: Pipeline,
    delivery: Delivery,
    uploads: DebugFileUploads,
    debuginfod: Option<Arc<Debuginfod>>,
    telemetry: &'a mut DaemonTelemetry,
    host: HostStatus,
    budget: CpuBudget,
    schedule: WindowSchedule,
    /// The settings in force.
    args: Box<DaemonArgs>,
    /// Sinks that settings have replaced.
    replaced: ReplacedSinks,
    /// New settings, which apply from the next window on.
    reloaded: Option<ReloadedSettings>,
    /// Windows that have ended.
    windows: u64,
    /// Samples in all batches so far.
    handed_over: SamplesByEvent,
}

impl<'a> DaemonLoop<'a> {
    /// Opens the sinks, loads the kernel programs and begins to sample.
    ///
    /// # Errors
    /// What the settings ask for can't be opened; the kernel refuses what is needed.
    pub(super) fn start(
        args: Box<DaemonArgs>,
        host: HostStatus,
        telemetry: &'a mut DaemonTelemetry,
    ) -> anyhow::Result<Self> {
        let delivery = sinks::open(&args, SampleTotals::default())?;
        let mut native = native_options::options(&args.sampling.native)?;
        let uploads = DebugFileUploads::start(&args.upload, &args.remote, &mut native)?;
        let debuginfod = native.debuginfod.clone();
        let mut options = options(&args.sampling, None, native, &profiled_events(&args));
        options.memory = daemon_memory(&args);
        options.urgent_percent = args.budget.urgent_cpu;
        options.containers = args.container.options();
        options.labels = label_options(&args);
        let mut pipeline = Pipeline::start(&options)
            .context("cannot sample; `jvmprof doctor` says what this kernel and these capabilities allow")?;
        pipeline.keep_times(keeps_times(&args));
        let sinks: Vec<_> = delivery.counts().into_iter().map(|(sink, _)| sink).collect();
        tracing::info!(
            clock = pipeline.clock().as_str(),
            frequency = args.sampling.cpu.frequency,
            ?sinks,
            "profiling"
        );
        telemetry.started();
        let budget = CpuBudget::new(&args.budget, args.sampling.cpu.frequency);
        let schedule = WindowSchedule::new(args.push_interval);
        Ok(Self {
            pipeline,
            delivery,
            uploads,
            debuginfod,
            telemetry,
            host,
            budget,
            schedule,
            args,
            replaced: ReplacedSinks::default(),
            reloaded: None,
            windows: 0,
            handed_over: SamplesByEvent::NONE,
        })
    }

    /// Runs until a signal arrives or new settings leave the host out.
    pub(super) async fn run(
        &mut self,
        shutdown: &mut ShutdownSignals,
        reloads: &mut SighupReloader,
    ) -> LoopEnd {
        loop {
            let (mut snapshot_requested, mut new) = (false, None);
            let duration = self.schedule.loop_sleep(self.telemetry.max_loop_sleep(), self.pipeline.due());
            tokio::select! {
                signal = shutdown.requested() => return LoopEnd::Signal(signal),
                () = self.pipeline.urgent() => {}
                () = self.telemetry.snapshot_requested() => snapshot_requested = true,
                () = reloads.requested() => new = reloads.load(DaemonState::Profiling),
                () = self.pipeline.arrived(), if !self.schedule.has_work() => {}
                () = sleep(duration) => {}
            }
            // Samples may arrive without a pause: the other tasks of this thread, which deliver
            // profiles, run first.
            tokio::task::yield_now().await;
            let has_work = self.pipeline.poll(POLL_LIMIT);
            self.schedule.set_has_work(has_work);
            if let Some(new) = new {
                self.reload(new);
            } else if self.pipeline.check_clocks() {
                self.schedule.end_window();
            } else if self.budget.evaluate(&mut self.pipeline) {
                self.schedule.end_window_soon();
            }
            if self.schedule.window_is_over() {
                match self.end_window().await {
                    Ok(()) if !self.host.is_profiled => return LoopEnd::HostLeftOut(self.args.clone()),
                    Ok(()) => {}
                    Err(rejected) => reloads.reject(&rejected),
                }
            } else if self.schedule.record_is_due() {
                self.record_taken();
            }
            self.telemetry.update(&self.pipeline);
            if snapshot_requested {
                self.publish();
            }
        }
    }

    /// Ends the window soon: new settings apply from the next one on.
    fn reload(&mut self, new: ReloadedSettings) {
        let sampling = ["frequency", "max-cpu"];
        let frequency = new.args.sampling.cpu.frequency;
        if new.changes_any(&sampling)
            && self.budget.configure(&new.args.budget, frequency, &mut self.pipeline)
        {
            self.schedule.end_window_soon();
        } else {
            self.schedule.end_window();
        }
        self.reloaded = Some(new.merged_with(self.reloaded.take()));
    }

    /// Delivers the window's profiles and applies new settings.
    ///
    /// # Errors
    /// The new settings, where they can't be applied.
    async fn end_window(&mut self) -> Result<(), ReloadedSettings> {
        if self.delivery.is_empty()
            && let Err(error) = self.replace_sinks(self.args.clone()).await
        {
            tracing::error!("profiles are lost until there is a sink: {error:#}");
        }
        let applied = match self.reloaded.take() {
            Some(reloaded) => {
                // No window has two configurations: also what has a new period already goes out.
                let batches = self.pipeline.flush_all();
                self.deliver(batches);
                let applied = self.apply(reloaded).await;
                self.schedule.begin_first_window();
                applied
            }
            None => {
                let flushed = self.pipeline.flush();
                self.deliver(flushed.into_batches());
                self.schedule.begin_window();
                Ok(())
            }
        };
        self.windows += 1;
        self.telemetry.log_suppressed();
        allocator::trim_heap();
        applied
    }

    /// Applies all of the new settings, or none.
    async fn apply(&mut self, new: ReloadedSettings) -> Result<(), ReloadedSettings> {
        if new.changes_sinks()
            && let Err(error) = self.replace_sinks(new.args.clone()).await
        {
            tracing::error!("the configuration is kept as it was, SIGHUP tries again: {error:#}");
            let frequency = self.args.sampling.cpu.frequency;
            self.budget.configure(&self.args.budget, frequency, &mut self.pipeline);
            return Err(new);
        }
        if new.changes_labels() {
            self.pipeline.set_labels(label_options(&new.args));
        }
        self.pipeline.keep_times(keeps_times(&new.args));
        self.schedule.set_window(new.args.push_interval);
        self.host = HostChoice::of(&new.args).status();
        self.args = new.args;
        Ok(())
    }

    /// Replaces the sinks by those of these settings, or opens those of the settings in force
    /// again. Pending profiles are delivered to the sinks so far for a moment, then they wait in
    /// their spools.
    async fn replace_sinks(&mut self, args: Box<DaemonArgs>) -> anyhow::Result<()> {
        // The new sinks may share a spool with these, and can't be opened before.
        let ended = std::mem::take(&mut self.delivery).finish(SINK_CHANGE_TIMEOUT).await;
        self.replaced.close(ended);
        let so_far = self.so_far();
        let opened = sinks::open(&args, so_far);
        match opened {
            Ok(sinks) => {
                let from = &self.args.delivery.spool_directory;
                self.replaced.open(from, &args.delivery.spool_directory, sinks.counts());
                self.uploads.configure(&args.remote);
                self.delivery = sinks;
                let sinks: Vec<_> = self.delivery.counts().into_iter().map(|(sink, _)| sink).collect();
                tracing::info!(?sinks, "profiles go there from now on");
                Ok(())
            }
            Err(error) => {
                match sinks::open(&self.args, so_far) {
                    Ok(sinks) => self.delivery = sinks,
                    Err(error) => tracing::error!("profiles are lost until there is a sink: {error:#}"),
                }
                Err(error)
            }
        }
    }

    fn deliver(&mut self, batches: impl IntoIterator<Item = Batch>) {
        for batch in batches {
            log_window(&mut self.pipeline, &batch);
            self.handed_over += batch.samples_by_event();
            self.delivery.enqueue(batch);
        }
        for late in self.pipeline.take_labelled() {
            self.handed_over += late.samples_by_event();
            self.delivery.enqueue(late);
        }
        for (sink, counts) in self.delivery.counts() {
            sinks::log(&sink, &counts, "sink");
        }
        self.record_taken();
    }

    /// Records how many samples were taken: a daemon that is killed has no other chance to.
    fn record_taken(&mut self) {
        let so_far = self.so_far();
        self.delivery.record_taken(&so_far);
        self.schedule.set_recorded();
    }

    fn so_far(&self) -> SampleTotals {
        let (taken, lost_before) = self.pipeline.taken_and_lost();
        let taken_by_daemon = self.pipeline.taken_by_daemon();
        SampleTotals { taken, taken_by_daemon, lost_before, handed_over: self.handed_over }
    }

    /// Publishes a snapshot for scrapes.
    fn publish(&mut self) {
        self.telemetry.publish(MetricsSnapshot {
            sinks: self.replaced.since_start(self.delivery.counts()).into_iter().collect(),
            uploads: self.uploads.counts(),
            debuginfod: self.debuginfod.as_ref().map(|server| server.counts()),
            budget: self.budget.state(),
            host: self.host,
            windows: self.windows,
            ..self.telemetry.snapshot(self.pipeline.counts())
        });
    }

    /// Stops sampling and delivers the rest. Ends with this signal, if with one: else the daemon
    /// will be idle.
    pub(super) async fn end(mut self, signal: Option<&str>) {
        let end = Instant::now() + SHUTDOWN_TIMEOUT;
        match signal {
            Some(signal) => {
                self.telemetry.stopping();
                tracing::info!(signal, "ending: what was sampled is still delivered");
            }
            None => tracing::info!("profiling ends: what was sampled is still delivered"),
        }
        self.pipeline.stop(LAST_SAMPLES_TIMEOUT);
        let batches = self.pipeline.flush_all();
        self.deliver(batches);
        let drain = end.saturating_duration_since(Instant::now()).min(DRAIN_TIMEOUT);
        let sinks = self.delivery.finish(drain).await;
        let sinks = self.replaced.since_start(sinks);
        self.uploads.end();
        for (sink, counts) in &sinks {
            sinks::log(sink, counts, "sink closed");
        }
        let counts = self.pipeline.counts();
        let so_far = SampleTotals {
            taken: counts.taken(),
            taken_by_daemon: self.pipeline.taken_by_daemon(),
            lost_before: counts.lost_before_delivery(),
            handed_over: self.handed_over,
        };
        sinks::log_account(so_far, &sinks);
        let SampleTotals { taken, lost_before, handed_over, .. } = so_far;
        let sum = |of: fn(&DeliveryCounts) -> SamplesByEvent| {
            sinks.values().map(of).sum::<SamplesByEvent>().total()
        };
        tracing::info!(
            taken = taken.total(),
            lost_before = lost_before.total(),
            handed_over = handed_over.total(),
            samples = counts.samples(),
            delivered = sum(|counts| counts.delivered),
            lost = sum(|counts| counts.losses.total() - counts.losses.possibly_lost),
            possibly_lost = sum(|counts| counts.losses.possibly_lost),
            spooled = sum(|counts| counts.spooled + counts.orphaned),
            "ended"
        );
    }
}

fn log_window(pipeline: &mut Pipeline, batch: &Batch) {
    let counts = pipeline.counts();
    let usage = SelfUsage::now();
    tracing::info!(
        event = batch.event.as_str(),
        samples = batch.samples(),
        series = batch.series.len(),
        samples_total = counts.samples(),
        whole_total = counts.whole(),
        losses_total = ?counts.losses(),
        cpu_ms = u64::try_from(usage.cpu.as_millis()).unwrap_or(u64::MAX),
        peak_rss_bytes = usage.peak_rss_bytes,
        "window"
    );
}
