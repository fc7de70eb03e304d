//! Programs that run side by side until Ctrl-C or until one of them dies.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run::command_line;

/// Interval at which children and Ctrl-C are polled.
const TICK: Duration = Duration::from_millis(100);

/// Grace time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(15);

/// Number of lines of a dead child's output that are shown.
const TAIL: usize = 20;

/// Set by Ctrl-C and SIGTERM.
#[derive(Clone, Debug)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// A handler is installed already.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let stop = Self(Arc::default());
        let seen = Arc::clone(&stop.0);
        ctrlc::set_handler(move || seen.store(true, Ordering::Relaxed)).context("handling Ctrl-C")?;
        Ok(stop)
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A child with its output in a file.
#[derive(Debug)]
struct LoggedChild {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// Children in the order of their start. They end in the opposite order, also when this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct Children {
    logs: PathBuf,
    running: Vec<LoggedChild>,
}

impl Children {
    /// Creates an empty list; each child's output goes to `NAME.log` in this folder.
    pub(crate) fn new(logs: PathBuf) -> Self {
        Self { logs, running: Vec::new() }
    }

    /// Starts a child in a process group of its own, so that Ctrl-C reaches it through
    /// [`Children::stop`] only, in order. Returns its pid.
    ///
    /// # Errors
    /// It can't be started.
    pub(crate) fn start(&mut self, name: &'static str, command: &mut Command) -> anyhow::Result<u32> {
        let log = self.logs.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("opening {}", log.display()))?;
        let line = command_line(command);
        eprintln!("$ {line} > {}", log.display());
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().with_context(|| format!("starting `{line}`"))?;
        let pid = child.id();
        self.running.push(LoggedChild { name, child, log });
        Ok(pid)
    }

    /// Fails if a child has ended by itself, with the end of its output.
    ///
    /// # Errors
    /// A child has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for running in &mut self.running {
            let ended = running.child.try_wait().with_context(|| format!("waiting for {}", running.name))?;
            if let Some(status) = ended {
                bail!("{} has ended: {status}\n{}", running.name, tail(&running.log));
            }
        }
        Ok(())
    }

    /// Polls the children until `until`, Ctrl-C, or `done`; returns whether `done` was reached.
    ///
    /// # Errors
    /// A child has ended.
    pub(crate) fn watch(
        &mut self,
        stop: &StopFlag,
        until: Option<Instant>,
        mut done: impl FnMut() -> bool,
    ) -> anyhow::Result<bool> {
        loop {
            self.check()?;
            if done() {
                return Ok(true);
            }
            if stop.is_requested() || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            sleep(TICK);
        }
    }

    /// Ends all children, the last started first: the daemon flushes to a collector that is still
    /// there.
    pub(crate) fn stop(&mut self) {
        while let Some(mut running) = self.running.pop() {
            match end(&mut running.child) {
                Ok(Some(status)) => eprintln!("{} ended: {status}", running.name),
                Ok(None) => eprintln!("{} was killed: it didn't end in {GRACE:?}", running.name),
                Err(error) => eprintln!("{} can't be ended: {error:#}", running.name),
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends SIGTERM, and SIGKILL after [`GRACE`]; returns `None` if that was needed.
fn end(child: &mut Child) -> anyhow::Result<Option<ExitStatus>> {
    if let Some(status) = child.try_wait().context("waiting for it")? {
        return Ok(Some(status));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).context("its pid is out of range")?);
    kill(pid, Signal::SIGTERM).context("sending SIGTERM")?;
    let terminated = Instant::now();
    while terminated.elapsed() < GRACE {
        if let Some(status) = child.try_wait().context("waiting for it")? {
            return Ok(Some(status));
        }
        sleep(TICK / 4);
    }
    child.kill().context("killing it")?;
    child.wait().context("waiting for it")?;
    Ok(None)
}

/// Returns the last lines of a log.
fn tail(log: &PathBuf) -> String {
    let text = match fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("(no output: reading {}: {error})", log.display()),
    };
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL);
    lines[from..].iter().map(|line| format!("  | {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_dies_is_reported_with_the_end_of_its_output() {
        let folder = std::env::temp_dir().join(format!("xtask-children-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut children = Children::new(folder.clone());
        children.start("steady", Command::new("sleep").arg("100")).unwrap();
        children.start("dying", Command::new("sh").args(["-c", "echo out of coffee >&2; exit 3"])).unwrap();
        let stop = StopFlag(Arc::default());
        let until = Instant::now() + Duration::from_secs(20);
        let error = children.watch(&stop, Some(until), || false).unwrap_err().to_string();
        assert!(error.contains("dying has ended: exit status: 3\n  | out of coffee"), "{error}");
        let began = Instant::now();
        children.stop();
        assert!(began.elapsed() < GRACE, "sleep ends by SIGTERM");
        fs::remove_dir_all(folder).unwrap();
    }
}
