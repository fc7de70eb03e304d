//! What `/proc` says of a process that is already running.

use std::path::PathBuf;

use procfs::ProcError;
use procfs::process::{MMPermissions, MMapPath, Process};

use super::mappings::{Backing, MappedCode, Mappings};
use crate::types::{Avma, FileOffset};

/// A process's facts at one time.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When it was started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
    pub comm: String,
    /// Target of `/proc/PID/exe`, as seen in the process's own mount namespace.
    pub executable: Option<PathBuf>,
    /// Its pid in its own, innermost pid namespace.
    pub inner_pid: u32,
    /// Effective user id.
    pub uid: u32,
}

/// A process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcfsError {
    #[error("there is no process {0}")]
    Gone(u32),
    #[error("/proc/{pid} may not be read: {hint}")]
    Denied { pid: u32, hint: &'static str },
    #[error("reading /proc/{pid}: {source}")]
    Other { pid: u32, source: ProcError },
}

impl ProcfsError {
    fn new(pid: u32, source: ProcError) -> Self {
        match source {
            ProcError::NotFound(_) => Self::Gone(pid),
            ProcError::PermissionDenied(_) => {
                Self::Denied { pid, hint: "run as root or give the profiler CAP_SYS_PTRACE" }
            }
            ProcError::Io(error, _) if error.raw_os_error() == Some(nix::libc::ESRCH) => Self::Gone(pid),
            source => Self::Other { pid, source },
        }
    }

    /// A short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Gone(_) => "gone",
            Self::Denied { .. } => "denied",
            Self::Other { .. } => "unreadable",
        }
    }
}

fn open(pid: u32) -> Result<Process, ProcfsError> {
    let id = i32::try_from(pid).map_err(|_| ProcfsError::Gone(pid))?;
    Process::new(id).map_err(|source| ProcfsError::new(pid, source))
}

/// Reads a process's facts.
///
/// # Errors
/// It is gone, or may not be read.
pub fn facts(pid: u32) -> Result<Facts, ProcfsError> {
    let error = |source| ProcfsError::new(pid, source);
    let process = open(pid)?;
    let stat = process.stat().map_err(error)?;
    let status = process.status().map_err(error)?;
    let inner_pid =
        status.nspid.and_then(|pids| pids.last().copied()).and_then(|pid| u32::try_from(pid).ok());
    Ok(Facts {
        start_ticks: stat.starttime,
        comm: stat.comm,
        executable: process.exe().ok(),
        inner_pid: inner_pid.unwrap_or(pid),
        uid: status.euid,
    })
}

/// Reads a process's executable mappings.
///
/// # Errors
/// It is gone, or may not be read.
pub fn mappings(pid: u32) -> Result<Mappings, ProcfsError> {
    let maps = open(pid)?.maps().map_err(|source| ProcfsError::new(pid, source))?;
    let mut mappings = Mappings::default();
    for map in maps.into_iter().filter(|map| map.perms.contains(MMPermissions::EXECUTE)) {
        let path = path_text(&map.pathname);
        mappings.insert(MappedCode {
            start: Avma(map.address.0),
            end: Avma(map.address.1),
            offset: FileOffset(map.offset),
            backing: Backing::of_path(&path),
            path: path.into(),
            build_id: None,
        });
    }
    Ok(mappings)
}

/// Names as perf records have them.
fn path_text(path: &MMapPath) -> String {
    match path {
        MMapPath::Path(path) => path.to_string_lossy().into_owned(),
        MMapPath::Heap => "[heap]".to_owned(),
        MMapPath::Stack => "[stack]".to_owned(),
        MMapPath::Vdso => "[vdso]".to_owned(),
        MMapPath::Vsyscall => "[vsyscall]".to_owned(),
        MMapPath::Other(name) => format!("[{name}]"),
        _ => "//anon".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let pid = std::process::id();
        let facts = facts(pid).expect("a process may read itself");
        assert!(facts.start_ticks > 0);
        assert_eq!(facts.executable, std::env::current_exe().ok());
        let mappings = mappings(pid).expect("a process may read itself");
        let here =
            mappings.find(Avma(this_process_is_known as *const () as u64)).expect("this code is mapped");
        assert_eq!(here.backing, Backing::File);
        assert!(mappings.iter().any(|mapping| mapping.backing == Backing::Vdso));
    }

    #[test]
    fn a_process_that_does_not_exist_is_told_from_others() {
        for pid in [u32::MAX, 0x3fff_ffff] {
            assert!(matches!(facts(pid), Err(ProcfsError::Gone(_))), "{pid}");
            assert!(matches!(mappings(pid), Err(ProcfsError::Gone(_))), "{pid}");
        }
    }
}
