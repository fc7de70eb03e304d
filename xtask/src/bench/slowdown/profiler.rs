//! The profilers whose slowdown is compared.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::bench::{BenchArgs, LoadProcess};

/// The place of [`Profiler::None`] among [`all`].
pub(super) const NONE: usize = 0;

/// The profiler of the host, or of the program, during a run.
#[derive(Debug)]
pub(super) enum Profiler {
    None,
    /// This project's daemon, which writes to a store in this folder.
    Jvmprof {
        program: PathBuf,
        frequency: u32,
        /// Waits off the CPU are profiled, too.
        waits: bool,
        store: PathBuf,
    },
    /// Another profiler of the whole host: a program with its arguments.
    Peer {
        command: String,
    },
    /// async-profiler as an agent of the JVM, which writes to a file.
    Agent {
        library: PathBuf,
        frequency: u32,
        output: PathBuf,
    },
}

/// Returns the profilers to compare, [`Profiler::None`] first.
pub(super) fn all(args: &BenchArgs, jvmprof: &Path, folder: &Path, frequencies: &[u32]) -> Vec<Profiler> {
    let mut all = vec![Profiler::None];
    let store = folder.join("slowdown-store");
    all.extend(frequencies.iter().map(|frequency| Profiler::Jvmprof {
        program: jvmprof.into(),
        frequency: *frequency,
        waits: false,
        store: store.clone(),
    }));
    all.extend(args.peers.iter().map(|command| Profiler::Peer { command: command.clone() }));
    let output = folder.join("slowdown-agent.jfr");
    all.extend(args.async_profiler.iter().map(|library| Profiler::Agent {
        library: library.clone(),
        frequency: frequencies[0],
        output: output.clone(),
    }));
    all
}

/// Returns this project's daemon at its own frequency, without and with waits, behind
/// [`Profiler::None`].
pub(super) fn of_waits(jvmprof: &Path, folder: &Path) -> Vec<Profiler> {
    let daemon = |waits| Profiler::Jvmprof {
        program: jvmprof.into(),
        frequency: super::FREQUENCIES[0],
        waits,
        store: folder.join("switches-store"),
    };
    vec![Profiler::None, daemon(false), daemon(true)]
}

impl Profiler {
    /// Starts it, unless it is part of the program.
    ///
    /// # Errors
    /// It can't be started.
    pub(super) fn start(&self) -> anyhow::Result<Option<LoadProcess>> {
        let mut command = match self {
            Self::None | Self::Agent { .. } => return Ok(None),
            Self::Jvmprof { program, frequency, waits, store } => {
                let mut command = Command::new(program);
                command.args(["daemon", "-F", &frequency.to_string(), "--local-store-directory"]).arg(store);
                command.args(waits.then_some("--offcpu-enabled"));
                command
            }
            Self::Peer { command } => {
                let mut words = command.split_whitespace();
                let mut command = Command::new(words.next().context("a peer's command is empty")?);
                command.args(words);
                command
            }
        };
        LoadProcess::start(command.stdout(Stdio::null()).stderr(Stdio::null())).map(Some)
    }

    /// Returns the JVM's argument that loads it, if it is an agent.
    pub(super) fn jvm_argument(&self) -> Option<String> {
        let Self::Agent { library, frequency, output } = self else { return None };
        let interval = 1_000_000_000 / frequency;
        let (library, output) = (library.display(), output.display());
        Some(format!("-agentpath:{library}=start,event=cpu,interval={interval},file={output}"))
    }

    /// Returns true for a JVM's agent, which can't profile other programs.
    pub(super) fn is_agent(&self) -> bool {
        matches!(self, Self::Agent { .. })
    }

    /// Removes what it has written.
    ///
    /// # Errors
    /// That can't be removed.
    pub(super) fn clean_up(&self) -> anyhow::Result<()> {
        match self {
            Self::Jvmprof { store, .. } => {
                fs::remove_dir_all(store).with_context(|| format!("removing {}", store.display()))
            }
            Self::None | Self::Peer { .. } | Self::Agent { .. } => Ok(()),
        }
    }
}

impl fmt::Display for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("alone"),
            Self::Jvmprof { frequency, waits, .. } => {
                write!(f, "jvmprof, {frequency} Hz{}", if *waits { ", waits" } else { "" })
            }
            Self::Peer { command } => {
                let program = command.split_whitespace().next().unwrap_or_default();
                f.write_str(program.rsplit('/').next().unwrap_or_default())
            }
            Self::Agent { frequency, .. } => write!(f, "async-profiler, {frequency} Hz"),
        }
    }
}
