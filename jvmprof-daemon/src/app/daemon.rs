//! `jvmprof daemon`: profiles the host and pushes, until it is told to end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use jvmprof_common::abi::Counter;
use rand::RngExt;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::cli::{DaemonArgs, RemoteStoreArgs};
use super::pipeline::Pipeline;
use super::sampling::options;
use super::signals::Shutdown;
use super::usage::SelfUsage;
use crate::export::parca::{ParcaClient, ParcaOptions, Token};
use crate::export::sink::{Delivered, Sink};
use crate::export::store::{Store, StoreOptions};
use crate::profile::model::Batch;

/// How often samples are taken in, and for how long at most before signals and time are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const POLL_LIMIT: Duration = Duration::from_millis(200);
/// A window is this much longer or shorter by chance, so that a fleet doesn't push in step.
const JITTER: f64 = 0.2;
/// Batches that wait for the sink; more are shed, oldest last, and counted.
const QUEUED_BATCHES: usize = 6;
/// How long the last batches may take when the daemon ends.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs the subcommand.
pub(super) fn run(args: &DaemonArgs) -> anyhow::Result<()> {
    // One thread is enough, and a second one would be woken for each tick: encoding and files go to blocking threads, and
    // the rings have a thread of their own.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?
        .block_on(profile(args))
}

async fn profile(args: &DaemonArgs) -> anyhow::Result<()> {
    let sink = sink(args)?;
    let mut shutdown = Shutdown::new().context("cannot handle signals")?;
    let mut pipeline = Pipeline::start(&options(&args.sampling, None))
        .context("cannot sample; `jvmprof doctor` tells what this kernel and these capabilities allow")?;
    tracing::info!(clock = pipeline.clock().as_str(), frequency = args.sampling.frequency, %sink, "profiling");
    let (queue, batches) = mpsc::channel(QUEUED_BATCHES);
    let exporter = tokio::spawn(export(sink, batches));
    // Not under systemd, nobody listens.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut window_ends = Instant::now() + jittered(args.push_interval);
    let mut shed = 0;
    let signal = loop {
        tokio::select! {
            signal = shutdown.requested() => break signal,
            _ = tick.tick() => {}
        }
        pipeline.poll(POLL_LIMIT);
        if Instant::now() >= window_ends {
            window_ends = Instant::now() + jittered(args.push_interval);
            let batch = pipeline.flush();
            log_window(&mut pipeline, &batch);
            shed += enqueue(&queue, batch);
        }
    };
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    tracing::info!(signal, "ending: what was sampled is still delivered");
    pipeline.stop();
    let batch = pipeline.flush();
    log_window(&mut pipeline, &batch);
    // Of all batches this one can wait for room.
    let last = batch.samples();
    if tokio::time::timeout(DRAIN, queue.send(batch)).await.is_err() {
        shed += last;
    }
    drop(queue);
    let delivered = match tokio::time::timeout(DRAIN, exporter).await {
        Ok(done) => done.context("the exporter broke down")?,
        Err(_) => {
            tracing::error!(
                seconds = DRAIN.as_secs(),
                "the last profiles were not delivered in time and are lost"
            );
            Delivered::default()
        }
    };
    let counts = pipeline.counts();
    tracing::info!(
        taken = counts.sampler.get(Counter::Taken),
        samples = counts.samples(),
        delivered = delivered.samples,
        lost = delivered.lost_samples,
        possibly_lost = delivered.possibly_lost_samples,
        shed,
        "ended"
    );
    Ok(())
}

fn sink(args: &DaemonArgs) -> anyhow::Result<Sink> {
    match &args.remote.remote_store_address {
        Some(address) => Ok(Sink::Parca(ParcaClient::new(parca_options(&args.remote, address))?)),
        None => {
            let limits = StoreOptions { limit_bytes: args.local_store_limit_mib << 20 };
            let store = Store::open(&args.local_store_directory, limits)?;
            Ok(Sink::Store(Arc::new(store)))
        }
    }
}

fn parca_options(args: &RemoteStoreArgs, address: &str) -> ParcaOptions {
    let token = match (&args.remote_store_bearer_token, &args.remote_store_bearer_token_file) {
        (Some(token), _) => Some(Token::Literal(token.clone())),
        (None, Some(file)) => Some(Token::File(file.clone())),
        (None, None) => None,
    };
    ParcaOptions {
        insecure: args.remote_store_insecure,
        token,
        headers: args.remote_store_grpc_headers.clone(),
        ca_file: args.remote_store_ca_file.clone(),
        client_identity: args.remote_store_client_cert.clone().zip(args.remote_store_client_key.clone()),
        ..ParcaOptions::new(address)
    }
}

/// Takes batches one after the other.
async fn export(sink: Sink, mut batches: mpsc::Receiver<Batch>) -> Delivered {
    let mut total = Delivered::default();
    while let Some(batch) = batches.recv().await {
        let delivered = sink.deliver(Arc::new(batch)).await;
        tracing::info!(
            samples = delivered.samples,
            lost = delivered.lost_samples,
            possibly_lost = delivered.possibly_lost_samples,
            "batch handed over"
        );
        total += delivered;
    }
    total
}

/// Gives how many samples had to be shed.
fn enqueue(queue: &mpsc::Sender<Batch>, batch: Batch) -> u64 {
    let samples = batch.samples();
    match queue.try_send(batch) {
        Ok(()) => 0,
        Err(_) => {
            tracing::error!(samples, "the sink is too slow or gone: a batch is lost");
            samples
        }
    }
}

fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(1.0 + rand::rng().random_range(-JITTER..JITTER))
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
