//! Errors of starting and running the sampler.

use std::io;

use aya::programs::ProgramError;

use super::btf::BtfError;

/// Errors of starting or running the sampler.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    #[error("reading kernel type information: {0}")]
    Btf(#[from] BtfError),
    #[error("loading the kernel programs: {0}")]
    Load(#[from] aya::EbpfError),
    #[error("loading kernel program {program}: {source}")]
    Program {
        program: &'static str,
        #[source]
        source: Box<ProgramError>,
    },
    #[error(
        "the eBPF object has no {kind} {name}: it is older than this program, rebuild it with `cargo xtask ebpf`"
    )]
    Object { kind: &'static str, name: &'static str },
    #[error("using kernel map {map}: {source}")]
    Map {
        map: &'static str,
        #[source]
        source: aya::maps::MapError,
    },
    #[error("opening a {event} perf event on CPU {cpu}: {source}{}", paranoia(source))]
    PerfEvent { event: &'static str, cpu: u32, source: io::Error },
    #[error("starting the thread that reads the rings: {source}")]
    Thread { source: io::Error },
    #[error("reading {path}: {source}")]
    Cpus { path: &'static str, source: io::Error },
}

impl SamplerError {
    /// Returns true if a file that was to be probed isn't there.
    pub fn is_missing_file(&self) -> bool {
        self.uprobe_refusal() == Some(io::ErrorKind::NotFound)
    }

    /// Returns true if the kernel denies this process an uprobe: see [`SYS_ADMIN`].
    ///
    /// [`SYS_ADMIN`]: crate::own_process::capabilities::SYS_ADMIN
    pub fn is_denied_uprobe(&self) -> bool {
        self.uprobe_refusal() == Some(io::ErrorKind::PermissionDenied)
    }

    fn uprobe_refusal(&self) -> Option<io::ErrorKind> {
        let Self::Program { source, .. } = self else { return None };
        let ProgramError::SyscallError(error) = &**source else { return None };
        (error.call == OPEN_EVENT).then(|| error.io_error.kind())
    }
}

/// The system call that opens the file of an uprobe.
const OPEN_EVENT: &str = "perf_event_open";

#[cfg(test)]
impl SamplerError {
    /// Returns what attaching an uprobe fails with, by the number of the kernel's error.
    pub(crate) fn of_uprobe(number: i32) -> Self {
        let io_error = io::Error::from_raw_os_error(number);
        let source = aya::sys::SyscallError { call: OPEN_EVENT, io_error };
        Self::Program { program: "pause_end", source: Box::new(source.into()) }
    }
}

/// Returns a hint if a refusal is due to a patch of Debian and Ubuntu: from level 3 on (the default
/// of both) their kernels require CAP_SYS_ADMIN.
fn paranoia(refusal: &io::Error) -> String {
    let level =
        || std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse::<i32>().ok();
    match level() {
        Some(level @ 3..) if refusal.kind() == io::ErrorKind::PermissionDenied => format!(
            "; kernel.perf_event_paranoid is {level}, at which this kernel wants CAP_SYS_ADMIN: set it to 2 or less"
        ),
        _ => String::new(),
    }
}
