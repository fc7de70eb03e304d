//! Starts a command that is paused until its profiler is ready.
//!
//! A command is to be profiled from its first instruction, so its process must exist, and be known
//! to the kernel programs, before it runs. It is started as this same binary, which waits at a pipe
//! and then becomes the command.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::unistd::{close, pipe2};

/// First argument that makes this binary an exec gate; the pipe's descriptor and the command
/// follow.
const ARGUMENT: &str = "__jvmprof_exec_gate";
/// Shells' exit codes for a command that isn't there, or can't be run.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// A command that hasn't begun yet.
#[derive(Debug)]
pub struct PausedCommand {
    pub child: Child,
    gate: File,
}

/// Starts a paused command.
///
/// # Errors
/// The process can't be created.
pub fn start(command: &[OsString]) -> io::Result<PausedCommand> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&read, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let child = Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .arg(read.as_raw_fd().to_string())
        .args(command)
        .spawn()?;
    Ok(PausedCommand { child, gate: File::from(write) })
}

impl PausedCommand {
    /// Resumes the command.
    ///
    /// # Errors
    /// The waiting process is gone.
    pub fn resume(mut self) -> io::Result<Child> {
        self.gate.write_all(&[1])?;
        Ok(self.child)
    }
}

/// The other side: this process waits and becomes a command.
#[derive(Debug)]
pub struct ExecGate {
    pipe: RawFd,
    command: Vec<OsString>,
}

/// Returns the gate if this process was started as one.
pub fn exec_gate() -> Option<ExecGate> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != OsStr::new(ARGUMENT) {
        return None;
    }
    let pipe = args.next()?.to_str()?.parse().ok()?;
    Some(ExecGate { pipe, command: args.collect() })
}

impl ExecGate {
    /// Waits, then becomes the command. Returns only if that failed.
    pub fn run(self) -> ExitCode {
        let Some((program, args)) = self.command.split_first() else {
            return ExitCode::FAILURE;
        };
        // Without the byte the profiler has died: the command isn't needed any more.
        if wait(self.pipe).is_err() {
            return ExitCode::FAILURE;
        }
        let error = Command::new(program).args(args).exec();
        eprintln!("jvmprof: cannot run {}: {error}", program.display());
        let code = if error.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE };
        code.into()
    }
}

fn wait(pipe: RawFd) -> io::Result<()> {
    // Opened anew, so that the descriptor that was inherited can be closed and the command doesn't
    // get either.
    let mut opened = File::open(format!("/proc/self/fd/{pipe}"))?;
    close(pipe)?;
    opened.read_exact(&mut [0])
}
