//! The event loop of the daemon: takes samples in, ends windows, hands their profiles to the sinks,
//! and carries out new settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use jvmprof_common::abi::Counter;
use tokio::time::sleep;

use super::cpu_budget::CpuBudget;
use super::debug_file_uploads::Uploads;
use super::reload::{Reloaded, Reloads};
use super::sinks;
use super::telemetry::Telemetry;
use super::window_schedule::Schedule;
use crate::app::args::DaemonArgs;
use crate::app::debuginfod_client;
use crate::app::pipeline_options::{daemon_memory, node_name, options};
use crate::app::shutdown_signals::Shutdown;
use crate::config::Setting;
use crate::export::delivery::{Delivery, DeliveryCounts, SoFar};
use crate::native::debuginfod::Debuginfod;
use crate::own_process::{SelfUsage, allocator};
use crate::pipeline::Pipeline;
use crate::pipeline::labels::LabelOptions;
use crate::profile::model::Batch;
use crate::telemetry::Snapshot;
use crate::telemetry::log::LogLimit;

/// How long samples are taken in at most before signals and time are looked at.
const POLL_LIMIT: Duration = Duration::from_millis(200);
/// How long the last samples may take to be looked at and named when the daemon ends.
const LAST_SAMPLES: Duration = Duration::from_secs(8);
/// How long the last batches may take to be delivered then, before they go to the spool.
const DRAIN: Duration = Duration::from_secs(10);
/// How long both may take together: the unit and the pod give 30 s.
const END: Duration = Duration::from_secs(20);
/// How long they may take when settings replace the sinks.
const CHANGE: Duration = Duration::from_secs(2);

/// Profiles the host until a signal arrives.
pub(super) async fn profile(
    args: &DaemonArgs,
    settings: &BTreeMap<String, Setting>,
    log: LogLimit,
) -> anyhow::Result<()> {
    let telemetry = Telemetry::start(&args.telemetry, log)?;
    let delivery = sinks::sinks(args, SoFar::default())?;
    let mut native = debuginfod_client::options(&args.sampling.native)?;
    let uploads = Uploads::start(&args.upload, &args.remote, &mut native)?;
    let debuginfod = native.debuginfod.clone();
    let mut shutdown = Shutdown::new().context("cannot handle signals")?;
    let mut reloads = Reloads::new(settings).context("cannot handle signals")?;
    let mut options = options(&args.sampling, None, native);
    options.memory = daemon_memory(args);
    options.containers = args.container.options();
    options.labels = label_options(args);
    let pipeline = Pipeline::start(&options)
        .context("cannot sample; `jvmprof doctor` tells what this kernel and these capabilities allow")?;
    let sinks: Vec<_> = delivery.counts().into_iter().map(|(sink, _)| sink).collect();
    tracing::info!(
        clock = pipeline.clock().as_str(),
        frequency = args.sampling.frequency,
        ?sinks,
        "profiling"
    );
    telemetry.started();
    let budget = CpuBudget::new(&args.budget, args.sampling.frequency);
    let schedule = Schedule::new(args.push_interval);
    let mut daemon = Daemon {
        pipeline,
        delivery,
        uploads,
        debuginfod,
        telemetry,
        budget,
        schedule,
        args: Box::new(args.clone()),
        closed: BTreeMap::new(),
        reloaded: None,
        windows: 0,
        handed_over: 0,
    };
    let signal = daemon.turn_until(&mut shutdown, &mut reloads).await;
    daemon.end(signal).await;
    Ok(())
}

/// How series are labelled.
fn label_options(args: &DaemonArgs) -> LabelOptions {
    args.labels.options(args.node.clone().unwrap_or_else(node_name))
}

/// All that turns with the event loop.
struct Daemon {
    pipeline: Pipeline,
    delivery: Delivery,
    uploads: Uploads,
    debuginfod: Option<Arc<Debuginfod>>,
    telemetry: Telemetry,
    budget: CpuBudget,
    schedule: Schedule,
    /// The settings in force.
    args: Box<DaemonArgs>,
    /// Counts of sinks that settings have replaced.
    closed: BTreeMap<String, DeliveryCounts>,
    /// Settings that hold from the next window on.
    reloaded: Option<Reloaded>,
    /// Windows that have ended.
    windows: u64,
    /// Samples in all batches so far.
    handed_over: u64,
}

impl Daemon {
    /// The event loop. Gives the signal that ends it.
    async fn turn_until(&mut self, shutdown: &mut Shutdown, reloads: &mut Reloads) -> &'static str {
        loop {
            let (mut is_asked, mut new) = (false, None);
            let pause = self.schedule.pause(self.telemetry.beat(), self.pipeline.due());
            tokio::select! {
                signal = shutdown.requested() => return signal,
                () = self.pipeline.urgent() => {}
                () = self.telemetry.asked() => is_asked = true,
                () = reloads.requested() => new = reloads.load(),
                () = self.pipeline.arrived(), if !self.schedule.has_work() => {}
                () = sleep(pause) => {}
            }
            // There may always be something to take in: others on this thread, who deliver what
            // was, have their turn first.
            tokio::task::yield_now().await;
            let has_work = self.pipeline.poll(POLL_LIMIT);
            self.schedule.worked(has_work);
            if let Some(new) = new {
                self.reload(new);
            } else if self.pipeline.look_at_clocks() {
                self.schedule.end_window();
            } else if self.budget.look(&mut self.pipeline) {
                self.schedule.end_window_soon();
            }
            if self.schedule.window_is_over() {
                if let Err(not_taken) = self.end_window().await {
                    reloads.not_taken(&not_taken);
                }
            } else if self.schedule.note_is_due() {
                self.note();
            }
            self.telemetry.turn(&self.pipeline);
            if is_asked {
                self.publish();
            }
        }
    }

    /// New settings hold from the next window on, which begins soon.
    fn reload(&mut self, new: Reloaded) {
        let sampling = ["frequency", "max-cpu"];
        let frequency = new.args.sampling.frequency;
        if new.concerns(&sampling) && self.budget.change(&new.args.budget, frequency, &mut self.pipeline) {
            self.schedule.end_window_soon();
        } else {
            self.schedule.end_window();
        }
        self.reloaded = Some(new.behind(self.reloaded.take()));
    }

    /// `Err`: settings that were to hold from now on and can't.
    async fn end_window(&mut self) -> Result<(), Reloaded> {
        if self.delivery.is_empty()
            && let Err(error) = self.change_sinks(self.args.clone()).await
        {
            tracing::error!("profiles are lost until there is a sink: {error:#}");
        }
        let done = match self.reloaded.take() {
            Some(reloaded) => {
                // No window has two configurations: also what has a new period already goes out.
                let batches = self.pipeline.flush_all();
                self.hand_over(batches);
                self.take_over(reloaded).await
            }
            None => {
                let flushed = self.pipeline.flush();
                self.hand_over(flushed.into_batches());
                Ok(())
            }
        };
        self.schedule.begin_window();
        self.windows += 1;
        self.telemetry.log_suppressed();
        allocator::trim_heap();
        done
    }

    /// All of the new settings hold from now on, or none.
    async fn take_over(&mut self, new: Reloaded) -> Result<(), Reloaded> {
        if new.concerns_sinks()
            && let Err(error) = self.change_sinks(new.args.clone()).await
        {
            tracing::error!("the configuration is kept as it was, SIGHUP tries again: {error:#}");
            let frequency = self.args.sampling.frequency;
            self.budget.change(&self.args.budget, frequency, &mut self.pipeline);
            return Err(new);
        }
        if new.concerns_labels() {
            self.pipeline.set_labels(label_options(&new.args));
        }
        self.schedule.set_window(new.args.push_interval);
        self.args = new.args;
        Ok(())
    }

    /// Has what is sampled from now on go where these settings say, or else where those in force
    /// say. What waits for the sinks so far has a moment to go there, then it waits in their
    /// spools.
    async fn change_sinks(&mut self, args: Box<DaemonArgs>) -> anyhow::Result<()> {
        // They may share a spool with those that follow, so these can't be opened before.
        let ended = std::mem::take(&mut self.delivery).finish(CHANGE).await;
        self.closed = sinks::since_start(&self.closed, ended);
        let so_far = self.so_far();
        let opened = sinks::sinks(&args, so_far);
        match opened {
            Ok(sinks) => {
                if args.delivery.spool_directory != self.args.delivery.spool_directory {
                    for counts in self.closed.values_mut() {
                        *counts = counts.leaving_its_spool();
                    }
                }
                self.uploads.change(&args.remote);
                self.delivery = sinks;
                let sinks: Vec<_> = self.delivery.counts().into_iter().map(|(sink, _)| sink).collect();
                tracing::info!(?sinks, "profiles go there from now on");
                Ok(())
            }
            Err(error) => {
                match sinks::sinks(&self.args, so_far) {
                    Ok(sinks) => self.delivery = sinks,
                    Err(error) => tracing::error!("profiles are lost until there is a sink: {error:#}"),
                }
                Err(error)
            }
        }
    }

    fn hand_over(&mut self, batches: impl IntoIterator<Item = Batch>) {
        for batch in batches {
            log_window(&mut self.pipeline, &batch);
            self.handed_over += batch.samples();
            self.delivery.hand_over(batch);
        }
        for late in self.pipeline.take_late() {
            self.handed_over += late.samples();
            self.delivery.hand_over(late);
        }
        for (sink, counts) in self.delivery.counts() {
            sinks::log(&sink, &counts, "sink");
        }
        self.note();
    }

    /// Notes down what was taken: a daemon that is killed can't tell any more.
    fn note(&mut self) {
        let SoFar { taken, lost_before, .. } = self.so_far();
        self.delivery.note_taken(taken, lost_before);
        self.schedule.noted();
    }

    fn so_far(&self) -> SoFar {
        let (taken, lost_before) = self.pipeline.taken_and_lost();
        SoFar { taken, lost_before, handed_over: self.handed_over }
    }

    /// Puts a snapshot where scrapes find it.
    fn publish(&mut self) {
        self.telemetry.publish(Snapshot {
            sinks: sinks::since_start(&self.closed, self.delivery.counts()).into_iter().collect(),
            uploads: self.uploads.counts(),
            debuginfod: self.debuginfod.as_ref().map(|server| server.counts()),
            budget: self.budget.told(),
            windows: self.windows,
            ..self.telemetry.snapshot(&mut self.pipeline)
        });
    }

    /// Delivers the rest.
    async fn end(mut self, signal: &str) {
        let end = Instant::now() + END;
        self.telemetry.stopping();
        tracing::info!(signal, "ending: what was sampled is still delivered");
        self.pipeline.stop(LAST_SAMPLES);
        let batches = self.pipeline.flush_all();
        self.hand_over(batches);
        let drain = end.saturating_duration_since(Instant::now()).min(DRAIN);
        let sinks = self.delivery.finish(drain).await;
        let sinks = sinks::since_start(&self.closed, sinks);
        self.uploads.end();
        for (sink, counts) in &sinks {
            sinks::log(sink, counts, "sink closed");
        }
        let counts = self.pipeline.counts();
        let sum = |of: fn(&DeliveryCounts) -> u64| sinks.values().map(of).sum::<u64>();
        let (taken, lost_before) = (counts.sampler.get(Counter::Taken), counts.lost_before_delivery());
        let accounted = self.handed_over + lost_before;
        if taken != accounted {
            tracing::error!(
                taken,
                handed_over = self.handed_over,
                lost_before,
                "samples are missing that nothing counts: report it"
            );
        }
        tracing::info!(
            taken,
            lost_before,
            handed_over = self.handed_over,
            samples = counts.samples(),
            delivered = sum(|counts| counts.delivered),
            lost = sum(|counts| counts.losses.total() - counts.losses.possibly_lost),
            possibly_lost = sum(|counts| counts.losses.possibly_lost),
            spooled = sum(|counts| counts.spooled + counts.left_behind),
            "ended"
        );
    }
}

fn log_window(pipeline: &mut Pipeline, batch: &Batch) {
    let counts = pipeline.counts();
    let usage = SelfUsage::now();
    tracing::info!(
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
