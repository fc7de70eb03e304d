//! The profilers whose sums are compared, each beside a run of its own.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::sums::{Run, method_of};
use crate::files;
use crate::paths;
use crate::run::{command_line, stdout_text};
use crate::setup::{async_profiler, flight_recording, installed_jdks};
use crate::zoo::Jdk;

const PROGRAM: &str = "Waits";
/// Seconds between the program's start and its waits, in which a profiler gets to know the JVM.
const DELAY: u32 = 3;
/// JFR's settings: each wait is an event, however short.
const SETTINGS: &str = "waits.jfc";
const JFR_EVENTS: &str = "jdk.JavaMonitorEnter,jdk.JavaMonitorWait,jdk.ThreadPark,jdk.ThreadSleep,\
    jdk.SocketRead,jdk.FileRead";
const LIBRARY: &str = "libasyncProfiler.so";
/// Interval of async-profiler's samples of wall-clock time.
const WALL_MS: u64 = 5;

/// What all runs need.
#[derive(Debug)]
pub(super) struct Setup {
    jvmprof: PathBuf,
    /// For how long the program measures its waits.
    seconds: u32,
    /// The program's classes, what the profilers need and what they write: JDKs with a file system
    /// of their own see it, too.
    folder: PathBuf,
}

impl Setup {
    /// Compiles the program, and gets async-profiler.
    ///
    /// # Errors
    /// There is no compiler, or async-profiler can't be had.
    pub(super) fn prepare(jvmprof: &Path, seconds: u32) -> anyhow::Result<Self> {
        let folder = paths::zoo_shared().join("waits");
        installed_jdks::compile("bench/Waits.java", &folder)?;
        let settings = paths::workspace().join("xtask/bench").join(SETTINGS);
        for (from, name) in [(settings, SETTINGS), (async_profiler::library()?, LIBRARY)] {
            fs::copy(&from, folder.join(name)).with_context(|| format!("copying {}", from.display()))?;
        }
        Ok(Self { jvmprof: jvmprof.to_owned(), seconds, folder })
    }
}

/// A profiler, and what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    OffCpu,
    Lock,
    FlightRecorder,
    AsyncWall,
    AsyncLock,
}

impl Tool {
    pub(super) const ALL: [Self; 5] =
        [Self::OffCpu, Self::Lock, Self::FlightRecorder, Self::AsyncWall, Self::AsyncLock];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::OffCpu => "jvmprof offcpu",
            Self::Lock => "jvmprof lock",
            Self::FlightRecorder => "JFR",
            Self::AsyncWall => "async-p. wall",
            Self::AsyncLock => "async-p. lock",
        }
    }

    /// Returns the name of the file that it writes.
    const fn output(self) -> &'static str {
        match self {
            Self::OffCpu => "offcpu.folded",
            Self::Lock => "lock.folded",
            Self::FlightRecorder => "run.jfr",
            Self::AsyncWall => "async-wall.collapsed",
            Self::AsyncLock => "async-lock.collapsed",
        }
    }

    /// Runs the program beside it, and reads what both say.
    ///
    /// # Errors
    /// The program or the profiler fails, or what they write can't be understood.
    pub(super) fn run(self, setup: &Setup, jdk: &Jdk) -> anyhow::Result<Run> {
        let output = setup.folder.join(self.output());
        // What an earlier run has written must not be read.
        let _ = fs::remove_file(&output);
        let mut command = self.command(setup, jdk, &output);
        eprintln!("$ {}", command_line(&command));
        let mut run = Run::parse(&stdout_text(&mut command)?)?;
        self.add_seen(jdk, &output, &mut run)
            .with_context(|| format!("reading what {} wrote", self.name()))?;
        Ok(run)
    }

    fn command(self, setup: &Setup, jdk: &Jdk, output: &Path) -> Command {
        let mut args: Vec<OsString> = self.jvm_option(setup, output).into_iter().collect();
        args.extend(["-Xmx512m".into(), "-cp".into(), setup.folder.clone().into(), PROGRAM.into()]);
        args.extend([setup.seconds, DELAY].map(|seconds| OsString::from(seconds.to_string())));
        let words = jdk.words(&args);
        let Some(event) = self.event() else {
            let mut java = Command::new(&words[0]);
            java.args(&words[1..]);
            return java;
        };
        let mut record = Command::new(&setup.jvmprof);
        record.args(["record", "-e", event, "-o"]).arg(output).arg("--").args(words);
        record
    }

    /// Returns what jvmprof is to record; `None` for the others.
    const fn event(self) -> Option<&'static str> {
        match self {
            Self::OffCpu => Some("offcpu"),
            Self::Lock => Some("lock"),
            Self::FlightRecorder | Self::AsyncWall | Self::AsyncLock => None,
        }
    }

    /// Returns the JVM's option of those that are inside of it.
    fn jvm_option(self, setup: &Setup, output: &Path) -> Option<OsString> {
        let (folder, output) = (setup.folder.display(), output.display());
        let agent = |options: &str| format!("-agentpath:{folder}/{LIBRARY}=start,{options},file={output}");
        let option = match self {
            Self::OffCpu | Self::Lock => return None,
            Self::FlightRecorder => {
                format!("-XX:StartFlightRecording=filename={output},settings={folder}/{SETTINGS}")
            }
            Self::AsyncWall => agent(&format!("event=wall,interval={WALL_MS}ms,collapsed")),
            Self::AsyncLock => agent("event=lock,lock=1,total,collapsed"),
        };
        Some(option.into())
    }

    fn add_seen(self, jdk: &Jdk, output: &Path, run: &mut Run) -> anyhow::Result<()> {
        if self == Self::FlightRecorder {
            for event in flight_recording::events(&jdk.home, output, JFR_EVENTS)? {
                let methods = flight_recording::methods(&event).unwrap_or_default();
                let method = method_of(methods.iter().map(String::as_str));
                if let (Some(method), Some(ns)) = (method, flight_recording::nanoseconds(&event)) {
                    run.add(method, ns, None);
                }
            }
            return Ok(());
        }
        let text = files::read_text(output)?;
        let value_ns = if self == Self::AsyncWall { WALL_MS * 1_000_000 } else { 1 };
        run.add_folded(&text, value_ns)
    }
}
