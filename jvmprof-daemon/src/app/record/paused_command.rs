//! Starts a command that is paused until its profiler is ready.
//!
//! A command is to be profiled from its first instruction, so its process must exist, and be known
//! to the kernel programs, before it runs. It is started as this same binary, which waits at a pipe
//! and then becomes the command. Why it can't, it says at a second pipe.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::unistd::{close, pipe2};

/// First argument that makes this binary an exec gate; the pipes' descriptors and the command
/// follow.
const ARGUMENT: &str = "__jvmprof_exec_gate";

/// A command that hasn't begun yet.
#[derive(Debug)]
pub struct PausedCommand {
    pub child: Child,
    gate: File,
    /// Closed when the command begins; before, it may bring the error number of why it can't.
    failure: File,
}

/// Starts a paused command.
///
/// # Errors
/// The process can't be created.
pub fn start(command: &[OsString]) -> io::Result<PausedCommand> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    let (failure, report) = pipe2(OFlag::O_CLOEXEC)?;
    for inherited in [&read, &report] {
        fcntl(inherited, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let child = Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .arg(read.as_raw_fd().to_string())
        .arg(report.as_raw_fd().to_string())
        .args(command)
        .spawn()?;
    Ok(PausedCommand { child, gate: File::from(write), failure: File::from(failure) })
}

impl PausedCommand {
    /// Resumes the command, and returns when it has begun.
    ///
    /// # Errors
    /// There is no such program, it can't be run, or the waiting process is gone.
    pub fn resume(mut self) -> io::Result<Child> {
        self.gate.write_all(&[1])?;
        let mut number = Vec::new();
        self.failure.read_to_end(&mut number)?;
        match <[u8; 4]>::try_from(&*number) {
            Ok(number) => {
                self.child.wait()?;
                Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
            }
            Err(_) => Ok(self.child),
        }
    }
}

/// The other side: this process waits and becomes a command.
#[derive(Debug)]
pub struct ExecGate {
    pipe: RawFd,
    report: RawFd,
    command: Vec<OsString>,
}

/// Returns the gate if this process was started as one.
pub fn exec_gate() -> Option<ExecGate> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != OsStr::new(ARGUMENT) {
        return None;
    }
    let mut descriptor = || args.next()?.to_str()?.parse().ok();
    let (pipe, report) = (descriptor()?, descriptor()?);
    Some(ExecGate { pipe, report, command: args.collect() })
}

impl ExecGate {
    /// Waits, then becomes the command. Returns only if that failed.
    pub fn run(self) -> ExitCode {
        let Some((program, args)) = self.command.split_first() else { return ExitCode::FAILURE };
        // Without the byte the profiler has died: the command isn't needed any more.
        if wait(self.pipe).is_err() {
            return ExitCode::FAILURE;
        }
        let Ok(mut report) = open_anew(self.report, OpenOptions::new().write(true)) else {
            return ExitCode::FAILURE;
        };
        let error = Command::new(program).args(args).exec();
        let number = error.raw_os_error().unwrap_or(nix::libc::EINVAL);
        // If this fails, the profiler is gone.
        let _ = report.write_all(&number.to_ne_bytes());
        ExitCode::FAILURE
    }
}

fn wait(pipe: RawFd) -> io::Result<()> {
    open_anew(pipe, OpenOptions::new().read(true))?.read_exact(&mut [0])
}

/// Opens an inherited pipe by itself and closes the descriptor that was inherited, so that the
/// command gets neither.
fn open_anew(pipe: RawFd, options: &OpenOptions) -> io::Result<File> {
    let opened = options.open(format!("/proc/self/fd/{pipe}"))?;
    close(pipe)?;
    Ok(opened)
}
