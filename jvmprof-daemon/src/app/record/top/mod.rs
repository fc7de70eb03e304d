//! `jvmprof top`: which JVMs and methods cost most, live in the terminal, or once as text.

mod samples;
mod screen;
mod state;
mod text;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Context;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::target_end::have_ended;
use crate::app::args::TopArgs;
use crate::app::errors::{UsageError, check_can_profile};
use crate::app::jvms::process_arguments::pids_of;
use crate::app::native_options;
use crate::app::pipeline_options::cpu_options;
use crate::app::shutdown_signals::ShutdownSignals;
use crate::app::stdout::print_report;
use crate::event_type::EventType;
use crate::own_process::{cpu_time, stderr_line};
use crate::pipeline::Pipeline;
use samples::{SampleSlice, TopSamples};
use state::{KeyEffect, TopState};

/// Interval of polls for samples, and their longest duration before keys are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLL_LIMIT: Duration = Duration::from_millis(100);
/// Time that one slice of the window covers, and between two pictures.
const SLICE: Duration = Duration::from_secs(1);
/// Longest time for the last samples of `--once`.
const LAST_SAMPLES_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the subcommand.
pub(in crate::app) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !args.once && !is_terminal {
        let message = "top needs a terminal for its keys and its picture: `jvmprof top --once` prints one \
                       table, `jvmprof record` writes a profile";
        return Err(UsageError(message.to_owned()).into());
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?
        .block_on(top(args))
}

async fn top(args: &TopArgs) -> anyhow::Result<()> {
    check_can_profile()?;
    let targets = pids_of(&args.processes)?;
    let native = native_options::options(&args.native)?;
    let pids = (!targets.is_empty()).then(|| targets.clone());
    let mut pipeline = Pipeline::start(&cpu_options(&args.sampling, pids, native))
        .context("cannot sample; `jvmprof doctor` says what this kernel and these capabilities allow")?;
    if args.once {
        return once(args, &mut pipeline, &targets).await;
    }
    let slices = usize::try_from(args.duration.as_secs()).unwrap_or(usize::MAX);
    let mut state = TopState::new(TopSamples::new(slices), args.java);
    // Restores the terminal on a panic, too, before the panic is printed.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let shown = show(&mut terminal, &mut state, &mut pipeline, &targets).await;
    ratatui::try_restore().context("cannot restore the terminal")?;
    if shown? == ScreenEnd::Targets {
        stderr_line!("jvmprof: the processes have ended");
    }
    Ok(())
}

/// The reason why the screen is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScreenEnd {
    Asked,
    Targets,
}

async fn show(
    terminal: &mut DefaultTerminal,
    state: &mut TopState,
    pipeline: &mut Pipeline,
    targets: &[u32],
) -> anyhow::Result<ScreenEnd> {
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot handle signals")?;
    let mut keys = EventStream::new();
    let mut tick = ticks();
    let mut slice_began = Instant::now();
    let mut cpu_before = cpu_time();
    loop {
        terminal.draw(|frame| screen::draw(state, frame)).context("cannot draw on the terminal")?;
        let is_changed = loop {
            tokio::select! {
                _ = shutdown.requested() => return Ok(ScreenEnd::Asked),
                _ = hangup.recv() => return Ok(ScreenEnd::Asked),
                event = keys.next() => match event {
                    Some(Ok(Event::Key(key))) => match state.press(key) {
                        KeyEffect::Quit => return Ok(ScreenEnd::Asked),
                        KeyEffect::Redraw => break true,
                        KeyEffect::Nothing => {}
                    },
                    Some(Ok(Event::Resize(..))) => break true,
                    Some(Ok(_)) => {}
                    // The terminal is gone.
                    Some(Err(_)) | None => return Ok(ScreenEnd::Asked),
                },
                () = pipeline.urgent() => {
                    pipeline.poll(POLL_LIMIT);
                }
                _ = tick.tick() => {
                    pipeline.poll(POLL_LIMIT);
                    if slice_began.elapsed() >= SLICE {
                        break false;
                    }
                }
            }
        };
        if is_changed {
            continue;
        }
        let cpu = cpu_time();
        let share = cpu.saturating_sub(cpu_before).as_secs_f64() / slice_began.elapsed().as_secs_f64();
        (slice_began, cpu_before) = (Instant::now(), cpu);
        state.add(take_slice(pipeline), share);
        if have_ended(None, targets) {
            return Ok(ScreenEnd::Targets);
        }
    }
}

fn ticks() -> Interval {
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

/// Ends the pipeline's window, and takes the samples of CPU time.
fn take_slice(pipeline: &mut Pipeline) -> SampleSlice {
    let batches = pipeline.flush().into_batches();
    let mut slice = SampleSlice::default();
    for batch in batches.into_iter().filter(|batch| batch.event == EventType::Cpu) {
        slice.add(&batch);
    }
    slice
}

/// Prints one table of the time that was asked for, or of what there was when the processes ended.
async fn once(args: &TopArgs, pipeline: &mut Pipeline, targets: &[u32]) -> anyhow::Result<()> {
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;
    let mut tick = ticks();
    let began = Instant::now();
    while began.elapsed() < args.duration && !have_ended(None, targets) {
        tokio::select! {
            _ = shutdown.requested() => break,
            () = pipeline.urgent() => {}
            _ = tick.tick() => {}
        }
        pipeline.poll(POLL_LIMIT);
    }
    pipeline.stop(LAST_SAMPLES_TIMEOUT);
    let table = text::table(&take_slice(pipeline), args.java, args.rows as usize);
    Ok(print_report(&table)?)
}
