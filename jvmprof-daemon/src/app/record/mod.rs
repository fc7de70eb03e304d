//! `jvmprof record`: profile processes, a command or the whole host into a file, now.

mod output_files;
pub mod paused_command;
mod progress;
mod recorded_events;
mod recording_title;
mod summary;
mod target_end;
mod thread_kind_filter;
pub(super) mod top;
mod virtual_threads;
mod wall_clock;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::{MissedTickBehavior, interval};

use super::args::{RecordArgs, ThreadKindArg};
use super::errors::{CommandError, UsageError, check_can_profile, with_causes};
use super::jvms::process_arguments::pids_of;
use super::native_options;
use super::pipeline_options::options;
use super::shutdown_signals::ShutdownSignals;
use super::stdout::print_report;
use crate::event_type::EventType;
use crate::own_process::{cpu_time, stderr_line};
use crate::pipeline::Pipeline;
use crate::profile::recording_page::StackGroups;
use output_files::{OutputFile, SummaryFile};
use progress::RecordingProgress;
use recorded_events::RecordedEvents;
use recording_title::recording_title;
use summary::RecordingSummary;
use summary::java_frames::ShownBatches;
use summary::jvm_time::JvmTime;
use summary::pauses::{JvmPauseSummary, jvm_names};
use summary::threads::{THREAD_LABELS, ThreadShare, with_thread_frames};
use target_end::{end_command, have_ended};
use thread_kind_filter::ThreadKindFilter;
use virtual_threads::VirtualThreadCounts;
use wall_clock::ThreadClocks;

/// Interval of polls for samples, and their longest duration before signals and time are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLL_LIMIT: Duration = Duration::from_millis(200);
/// Interval of checks whether the recorded processes run: they cost more than polls.
const TARGET_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Longest time for the last samples to be processed and named.
const LAST_SAMPLES_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the subcommand.
pub(super) fn run(args: RecordArgs) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?
        .block_on(record(args))
}

/// The event that ended a recording.
enum EndReason {
    Signal(&'static str),
    Time,
    Target,
}

async fn record(args: RecordArgs) -> anyhow::Result<ExitCode> {
    check_can_profile()?;
    if has_empty_command(&args.command) {
        let message = "there is no command behind --: name one, or leave -- out for the whole host";
        return Err(UsageError(message.to_owned()).into());
    }
    let targets = pids_of(&args.processes)?;
    let events = RecordedEvents::new(&args.events);
    if events.has(EventType::Wall) && targets.is_empty() && args.command.is_empty() {
        let message = "-e wall needs processes: -p PID or NAME, or a command".to_owned();
        return Err(UsageError(message).into());
    }
    let outputs = args.outputs.iter().map(|path| OutputFile::prepare_each(path, &events.recorded));
    let outputs: Vec<OutputFile> = outputs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let json = args.json_file().map(|path| SummaryFile::prepare(path)).transpose()?;
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;

    let mut pids = targets.clone();
    let mut paused = None;
    if !args.command.is_empty() {
        let started =
            paused_command::start(&args.command).context("cannot start a process for the command")?;
        pids.push(started.child.id());
        paused = Some(started);
    }
    let native = native_options::options(&args.sampling.native)?;
    let filter = (!pids.is_empty()).then(|| pids.clone());
    let mut pipeline_options = options(&args.sampling, filter, native.clone(), &events.sampled);
    if args.threads || events.has(EventType::Wall) {
        pipeline_options.labels.sample_labels = THREAD_LABELS.to_vec();
        pipeline_options.labels.has_numbered_threads = true;
    }
    events.adjust(&mut pipeline_options);
    let mut pipeline = match Pipeline::start(&pipeline_options) {
        Ok(pipeline) => pipeline,
        Err(error) => {
            // Its pipe closes with it: the command never begins.
            drop(paused);
            return Err(anyhow::Error::new(error).context(
                "cannot sample; `jvmprof doctor` says what this kernel and these capabilities allow",
            ));
        }
    };
    pipeline.keep_times(outputs.iter().any(OutputFile::shows_times));
    pipeline.keep_pauses();
    let mut child = match paused {
        Some(paused) => {
            Some(paused.resume().map_err(|source| CommandError { program: program(&args), source })?)
        }
        None => None,
    };
    let wall_clock =
        events.has(EventType::Wall).then(|| ThreadClocks::begin(&pids, pipeline.total_wait_times()));
    let waits_are_sampled = events.sampled.contains(&EventType::OffCpu);
    let has_virtual = args.thread_kinds.is_empty() || args.thread_kinds.contains(&ThreadKindArg::Virtual);
    let mut virtual_threads = (waits_are_sampled && has_virtual).then(VirtualThreadCounts::begin);
    let (ended, startup_cpu) = sample_until_end(
        &args,
        &events,
        &targets,
        &mut pipeline,
        &mut shutdown,
        child.as_mut(),
        virtual_threads.as_mut(),
    )
    .await;
    let spans = wall_clock.map(|clock| {
        let (pids, waits) = (pipeline.pids(), pipeline.total_wait_times());
        clock.end(&pids, &waits, || pipeline.take_ended_threads())
    });
    pipeline.stop(LAST_SAMPLES_TIMEOUT);
    let virtual_threads = virtual_threads.map(|counts| counts.end(&mut pipeline)).unwrap_or_default();
    let command = match &mut child {
        Some(child) => Some(end_command(child, &ended).await),
        None => None,
    };
    match ended {
        EndReason::Signal(signal) => tracing::info!(signal, "stopped"),
        EndReason::Target if !targets.is_empty() => {
            stderr_line!("jvmprof: the recorded processes have ended");
        }
        EndReason::Target | EndReason::Time => {}
    }
    native_options::wait_for_debug_files(&native, &mut pipeline).await;
    let (pauses, began_ns) = (pipeline.take_pauses(), pipeline.window_began_ns());
    let stops = pipeline.take_stops();
    let flushed = pipeline.flush();
    let counts = pipeline.counts();
    let mut batches = events.batches(flushed, spans.as_ref());
    // What is said of whole JVMs is of all their threads.
    let pauses = pauses.map(|pauses| JvmPauseSummary::of_jvms(&pauses, &batches, began_ns));
    let names = jvm_names(&batches);
    let title = recording_title(&args.command, &targets, &batches);
    let mut jvms = JvmTime::of_batches(&batches);
    JvmTime::add_stops(&mut jvms, &stops, &names);
    let filter = ThreadKindFilter::apply(&args.thread_kinds, &mut batches);
    let shown = ShownBatches::new(&batches, args.java);
    let by_thread = args.threads.then(|| shown.batches.iter().map(with_thread_frames).collect::<Vec<_>>());
    let drawn = by_thread.as_ref().unwrap_or(&shown.batches);
    let groups = if args.threads { StackGroups::Threads } else { StackGroups::Programs };
    let mut lanes = pauses.as_deref().map(JvmPauseSummary::lanes).unwrap_or_default();
    lanes.extend(JvmTime::stop_lanes(&stops, &names));
    let (written, mut failed) =
        write_outputs(outputs, |output| output.write(&batches, drawn, &lanes, groups, &title));
    let mut summary =
        RecordingSummary::new(&batches, &shown, &counts, &pipeline, written, startup_cpu, filter);
    summary.jvms = jvms;
    summary.virtual_threads = virtual_threads;
    summary.pauses = pauses;
    summary.threads = args.threads.then(|| ThreadShare::of_batch(&batches[0]));
    let text = serde_json::to_string(&summary)? + "\n";
    if let Some(json) = json
        && let Err(error) = json.write(&text)
    {
        stderr_line!("jvmprof: {}", with_causes(error.as_ref()));
        failed = Some(error);
    }
    if args.prints_json() {
        print_report(&text)?;
    } else {
        summary.print();
    }
    if let Some(error) = pipeline.kernel_error() {
        stderr_line!("jvmprof: kernel frames have no names: {error}");
    }
    if let Some(failure) = command.as_ref().and_then(|end| end.failure(&program(&args))) {
        stderr_line!("jvmprof: {failure}");
    }
    match failed {
        Some(error) => Err(error.context("not everything was written")),
        None => Ok(command.map_or(ExitCode::SUCCESS, |end| end.exit_code())),
    }
}

/// Samples until the recording ends. Returns what ended it, and the CPU time of this process up to
/// the first sample.
async fn sample_until_end(
    args: &RecordArgs,
    events: &RecordedEvents,
    targets: &[u32],
    pipeline: &mut Pipeline,
    shutdown: &mut ShutdownSignals,
    mut child: Option<&mut Child>,
    mut virtual_threads: Option<&mut VirtualThreadCounts>,
) -> (EndReason, Option<Duration>) {
    // Not among what the command itself prints. Threads' kinds are known at the end only.
    let shows_methods = args.command.is_empty() && events.has(EventType::Cpu) && args.thread_kinds.is_empty();
    let mut progress = RecordingProgress::new(args.duration, shows_methods);
    let began = Instant::now();
    let mut next_target_check = began;
    let mut startup_cpu = None;
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            signal = shutdown.requested() => break EndReason::Signal(signal),
            () = pipeline.urgent() => {}
            _ = tick.tick() => {}
        }
        pipeline.poll(POLL_LIMIT);
        // Samples go on after a suspend; here they are all of one window.
        pipeline.check_clocks();
        if pipeline.samples() > 0 {
            startup_cpu.get_or_insert_with(cpu_time);
        }
        progress.show(began.elapsed(), pipeline);
        if let Some(virtual_threads) = &mut virtual_threads {
            virtual_threads.refresh(pipeline);
        }
        if Instant::now() >= next_target_check {
            next_target_check = Instant::now() + TARGET_CHECK_INTERVAL;
            if have_ended(child.as_deref_mut(), targets) {
                break EndReason::Target;
            }
        }
        if args.duration.is_some_and(|duration| began.elapsed() >= duration) {
            break EndReason::Time;
        }
    };
    progress.finish();
    (ended, startup_cpu)
}

/// Writes the outputs: one that can't be written loses nothing of the others. Returns the paths of
/// those that were written, and the last error.
fn write_outputs(
    outputs: Vec<OutputFile>,
    write: impl Fn(OutputFile) -> anyhow::Result<PathBuf>,
) -> (Vec<PathBuf>, Option<anyhow::Error>) {
    let (mut written, mut failed) = (Vec::new(), None);
    for output in outputs {
        match write(output) {
            Ok(path) => written.push(path),
            Err(error) => {
                stderr_line!("jvmprof: {}", with_causes(error.as_ref()));
                failed = Some(error);
            }
        }
    }
    (written, failed)
}

/// Returns true if a command was announced by `--`, and there is none: a script's variable may have
/// been empty, which doesn't mean the whole host.
fn has_empty_command(command: &[OsString]) -> bool {
    command.first().is_none_or(|program| program.is_empty()) && std::env::args_os().any(|it| it == "--")
}

/// Returns the command's first word.
fn program(args: &RecordArgs) -> String {
    args.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
