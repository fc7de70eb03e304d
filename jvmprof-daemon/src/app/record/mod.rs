//! `jvmprof record`: profile processes, a command or the whole host into a file, now.

mod output_files;
pub mod paused_command;
mod progress;
mod recorded_events;
mod recorded_profiles;
mod recording_title;
mod summary;
mod target_end;
mod thread_kind_filter;
pub(super) mod top;
mod virtual_threads;
mod wall_clock;

use std::ffi::OsString;
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
use crate::symbolize::NativeOptions;
use output_files::{OutputFile, SummaryFile};
use paused_command::PausedCommand;
use progress::RecordingProgress;
use recorded_events::RecordedEvents;
use recorded_profiles::RecordedProfiles;
use summary::RecordingSummary;
use summary::threads::THREAD_LABELS;
use target_end::{end_command, have_ended};
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
    let events = RecordedEvents::new(&args.events);
    let targets = checked_targets(&args, &events)?;
    let outputs = args.outputs.iter().map(|path| OutputFile::prepare_each(path, &events.recorded));
    let outputs: Vec<OutputFile> = outputs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let json = args.json_file().map(|path| SummaryFile::prepare(path)).transpose()?;
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;

    let paused = (!args.command.is_empty()).then(|| paused_command::start(&args.command));
    let paused = paused.transpose().context("cannot start a process for the command")?;
    let of_command = paused.as_ref().map(|paused| paused.child.id());
    let pids: Vec<u32> = targets.iter().copied().chain(of_command).collect();
    let native = native_options::options(&args.sampling.native)?;
    // If this fails, the command's pipe closes, and the command never begins.
    let mut pipeline = start_pipeline(&args, &events, &pids, native.clone())?;
    pipeline.keep_times(outputs.iter().any(OutputFile::shows_times));
    pipeline.keep_pauses();
    let child = paused.map(PausedCommand::resume).transpose();
    let mut child = child.map_err(|source| CommandError { program: program(&args), source })?;
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
    report_end(&ended, &targets);

    native_options::wait_for_debug_files(&native, &mut pipeline).await;
    let profiles = RecordedProfiles::take(&mut pipeline, &args, &events, &targets, spans.as_ref());
    let (written, mut failed) = profiles.write(outputs);
    let mut summary = profiles.into_summary(&pipeline, written, startup_cpu);
    summary.virtual_threads = virtual_threads;
    if let Err(error) = publish_summary(&args, &summary, json)? {
        failed = Some(error);
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

/// Returns the processes to record, none for the whole host.
///
/// # Errors
/// One of them isn't there, or the arguments don't say what to record.
fn checked_targets(args: &RecordArgs, events: &RecordedEvents) -> Result<Vec<u32>, UsageError> {
    if has_empty_command(&args.command) {
        let message = "there is no command behind --: name one, or leave -- out for the whole host";
        return Err(UsageError(message.to_owned()));
    }
    let targets = pids_of(&args.processes)?;
    if events.has(EventType::Wall) && targets.is_empty() && args.command.is_empty() {
        let message = "-e wall needs processes: -p PID or NAME, or a command";
        return Err(UsageError(message.to_owned()));
    }
    Ok(targets)
}

/// Starts sampling these processes, or the whole host.
///
/// # Errors
/// The kernel or this process's capabilities don't allow it.
fn start_pipeline(
    args: &RecordArgs,
    events: &RecordedEvents,
    pids: &[u32],
    native: NativeOptions,
) -> anyhow::Result<Pipeline> {
    let filter = (!pids.is_empty()).then(|| pids.to_vec());
    let mut options = options(&args.sampling, filter, native, &events.sampled);
    if args.threads || events.has(EventType::Wall) {
        options.labels.sample_labels = THREAD_LABELS.to_vec();
        options.labels.has_numbered_threads = true;
    }
    events.adjust(&mut options);
    Pipeline::start(&options)
        .context("cannot sample; `jvmprof doctor` says what this kernel and these capabilities allow")
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

/// Reports what has ended a recording, unless that was its time or its command.
fn report_end(ended: &EndReason, targets: &[u32]) {
    match ended {
        EndReason::Signal(signal) => tracing::info!(signal, "stopped"),
        EndReason::Target if !targets.is_empty() => {
            stderr_line!("jvmprof: the recorded processes have ended");
        }
        EndReason::Target | EndReason::Time => {}
    }
}

/// Writes the summary as JSON where that was asked for, and prints it. The inner error is that of
/// the file, after which the recording isn't lost.
///
/// # Errors
/// Standard output can't be written to.
fn publish_summary(
    args: &RecordArgs,
    summary: &RecordingSummary,
    json: Option<SummaryFile>,
) -> anyhow::Result<anyhow::Result<()>> {
    let text = serde_json::to_string(summary)? + "\n";
    let written = json.map_or(Ok(()), |file| file.write(&text));
    if let Err(error) = &written {
        stderr_line!("jvmprof: {}", with_causes(error.as_ref()));
    }
    if args.prints_json() {
        print_report(&text)?;
    } else {
        summary.print();
    }
    Ok(written)
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
