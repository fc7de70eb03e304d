//! Reading a running process from `/proc`: identity, user, cgroup and executable mappings.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use procfs::process::{MMPermissions, MMapPath, MemoryMaps, Process};
use procfs::{FromBufRead, ProcError};

use super::cgroup::Cgroup;
use super::executable_mappings::{Backing, MappedCode, Mappings};
use super::process_context::{MAX_CONTEXTS, context_mapping};
use super::service_identity::StatedIdentity;
use crate::types::{Avma, FileOffset};

/// Identity, user, arguments and cgroup of a process, as `/proc` had them at one time.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// Start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
    pub comm: String,
    /// Target of `/proc/PID/exe`, as seen in the process's own mount namespace.
    pub executable: Option<PathBuf>,
    /// Pid in its own, innermost pid namespace.
    pub inner_pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    pub parent: u32,
    /// Arguments with spaces between them, cut off after `MAX_CMDLINE_BYTES`; empty for kernel
    /// threads.
    pub cmdline: String,
    /// True if it was read in the middle of an exec: the kernel had not set up the new program's
    /// arguments and environment yet, and both were empty.
    pub is_in_exec: bool,
    /// The cgroup; `None` if it couldn't be read.
    pub cgroup: Option<Cgroup>,
    /// The service that it says it is.
    pub service: StatedIdentity,
}

/// Bytes of a command line that are read: it may be megabytes long. A label of it is cut before
/// that, at 1,024 characters.
pub(crate) const MAX_CMDLINE_BYTES: usize = 4 * 1025;

/// Error of reading a process.
#[derive(Debug, thiserror::Error)]
pub enum ProcfsError {
    #[error("reading /proc/{0}: there is no such process")]
    Gone(u32),
    #[error("reading /proc/{pid}: permission denied: {hint}")]
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

    /// Returns a short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Gone(_) => "gone",
            Self::Denied { .. } => "denied",
            Self::Other { .. } => "unreadable",
        }
    }
}

/// Returns the pids of all processes; none if `/proc` can't be listed.
pub fn pids() -> Vec<u32> {
    let all = procfs::process::all_processes().into_iter().flatten();
    all.filter_map(|process| u32::try_from(process.ok()?.pid).ok()).collect()
}

fn open(pid: u32) -> Result<Process, ProcfsError> {
    let id = i32::try_from(pid).map_err(|_| ProcfsError::Gone(pid))?;
    Process::new(id).map_err(|source| ProcfsError::new(pid, source))
}

/// Reads identity, user, arguments and cgroup of a process.
///
/// # Errors
/// Returns an error if it is gone or may not be read.
pub fn process_info(pid: u32) -> Result<ProcessInfo, ProcfsError> {
    let error = |source| ProcfsError::new(pid, source);
    let process = open(pid)?;
    let stat = process.stat().map_err(error)?;
    let status = ProcStatus::read(&process).map_err(error)?;
    let (executable, arguments) = (process.exe().ok(), arguments(pid));
    Ok(ProcessInfo {
        start_ticks: stat.starttime,
        comm: stat.comm,
        // A program has a name at least, even if it is an empty one; kernel threads are none.
        is_in_exec: executable.is_some() && arguments.as_ref().is_some_and(Vec::is_empty),
        executable,
        inner_pid: status.inner_pid.unwrap_or(pid),
        uid: status.uid,
        gid: status.gid,
        parent: u32::try_from(stat.ppid).unwrap_or(0),
        cmdline: arguments.as_deref().map(joined_arguments).unwrap_or_default(),
        cgroup: Cgroup::read(pid).ok(),
        service: StatedIdentity::read(pid),
    })
}

/// Returns the CPU time that a process has used, of all its threads.
///
/// # Errors
/// Returns an error if it is gone or may not be read.
pub fn cpu_time(pid: u32) -> Result<Duration, ProcfsError> {
    let stat = open(pid)?.stat().map_err(|source| ProcfsError::new(pid, source))?;
    let ticks = stat.utime.saturating_add(stat.stime);
    Ok(Duration::from_millis(ticks.saturating_mul(1000) / procfs::ticks_per_second().max(1)))
}

/// Fields of `/proc/PID/status`, which has sixty lines: parsing all of them took longer than all
/// other reads of a process.
#[derive(Debug, PartialEq, Eq)]
struct ProcStatus {
    /// Pid in its innermost pid namespace; `None` where the kernel has no such namespaces.
    inner_pid: Option<u32>,
    /// Effective user id.
    uid: u32,
    gid: u32,
}

impl ProcStatus {
    fn read(process: &Process) -> Result<Self, ProcError> {
        let mut text = String::new();
        process.open_relative("status")?.read_to_string(&mut text)?;
        Self::parse(&text).ok_or_else(|| ProcError::Other("status has no user and group".to_owned()))
    }

    /// Parses lines of `NAME:` and numbers with tabs between them (man 5 proc_pid_status). A
    /// process's name has no line breaks there.
    fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        let effective = |numbers: &str| numbers.split('\t').nth(1)?.parse().ok();
        Some(Self {
            inner_pid: line("NSpid").and_then(|pids| pids.split('\t').next_back()?.parse().ok()),
            uid: effective(line("Uid")?)?,
            gid: effective(line("Gid")?)?,
        })
    }
}

/// Returns the arguments with a NUL behind each; `None` if they can't be read: the rest is still of
/// use.
fn arguments(pid: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(MAX_CMDLINE_BYTES as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns [`ProcessInfo::cmdline`].
fn joined_arguments(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// Memory for the mappings of one process: some ten thousand. A process may map as much code as it
/// likes, under paths as long as it likes.
pub(super) const MAX_MAPPING_BYTES: usize = 4 << 20;
/// Most bytes of `/proc/PID/maps` that are read.
const MAX_MAPS_BYTES: u64 = 32 << 20;

/// Reads a process's executable mappings, the lowest ones if there are too many: see
/// [`Mappings::is_cut`]. Paths are as the process sees them, below its own root.
///
/// # Errors
/// Returns an error if it is gone, is a zombie without memory, or may not be read.
pub fn mappings(pid: u32) -> Result<Mappings, ProcfsError> {
    mappings_and_contexts(pid).map(|(mappings, _)| mappings)
}

/// Reads a process's executable mappings, as [`mappings`] does, and the addresses of those that may
/// hold its context.
///
/// # Errors
/// As [`mappings`].
pub(super) fn mappings_and_contexts(pid: u32) -> Result<(Mappings, Vec<Avma>), ProcfsError> {
    let error = |source: std::io::Error| ProcfsError::new(pid, ProcError::from(source));
    let mut maps =
        BufReader::new(File::open(format!("/proc/{pid}/maps")).map_err(error)?.take(MAX_MAPS_BYTES));
    let (mut mappings, mut line) = (Mappings::default(), Vec::new());
    let mut last: Arc<str> = "".into();
    let (mut has_memory, mut contexts) = (false, Vec::new());
    let root = root_path(pid);
    loop {
        line.clear();
        // The kernel escapes line breaks of paths.
        if maps.read_until(b'\n', &mut line).map_err(error)? == 0 {
            break;
        }
        has_memory = true;
        if contexts.len() < MAX_CONTEXTS {
            contexts.extend(context_mapping(&line));
        }
        if !is_executable(&line) {
            continue;
        }
        let line = String::from_utf8_lossy(&line);
        let parsed =
            MemoryMaps::from_buf_read(line.as_bytes()).map_err(|source| ProcfsError::new(pid, source))?;
        let Some(map) = parsed.iter().next() else { continue };
        // The kernel executes its calls itself, and no event reports it.
        if map.pathname == MMapPath::Vsyscall {
            continue;
        }
        let path = below_root(path_text(&map.pathname), &root);
        if *path != *last {
            last = path.into();
        }
        let (start, end) = (Avma(map.address.0), Avma(map.address.1));
        mappings.insert(MappedCode {
            start,
            end,
            offset: FileOffset(map.offset),
            backing: Backing::of_path(&last, || maps_program(pid, start, end)),
            path: Arc::clone(&last),
            build_id: None,
        });
        if mappings.bytes() > MAX_MAPPING_BYTES {
            mappings.cut();
            return Ok((mappings, contexts));
        }
    }
    if !has_memory {
        return Err(ProcfsError::Gone(pid));
    }
    if maps.get_ref().limit() == 0 {
        mappings.cut();
    }
    Ok((mappings, contexts))
}

/// Returns the path of a process's root in our mount namespace, without the last slash; empty for
/// our own root. In another mount namespace the kernel gives paths from that namespace's root.
fn root_path(pid: u32) -> String {
    let path = std::fs::read_link(format!("/proc/{pid}/root")).unwrap_or_default();
    path.to_string_lossy().trim_end_matches('/').to_owned()
}

/// Returns a file's path below a process's own root (`chroot`). Paths of files that were mapped
/// before stay as they are.
fn below_root(path: String, root: &str) -> String {
    match path.strip_prefix(root) {
        Some(below) if !root.is_empty() && below.starts_with('/') => below.to_owned(),
        _ => path,
    }
}

/// Returns the link to the file that a process has mapped there, whatever its path leads to now.
///
/// The mapping may end earlier than `end`, which is what the kernel's event said. Where a library's
/// first segment has its code (`ld -z noseparate-code`, the default before binutils 2.31), loaders
/// map it over the addresses of all segments, and then the others over its end (glibc
/// elf/dl-map-segments.h, `_dl_map_segments`), of which there is no event.
pub fn map_files_link(pid: u32, start: Avma, end: Avma) -> PathBuf {
    let folder = PathBuf::from(format!("/proc/{pid}/map_files"));
    let link = folder.join(format!("{:x}-{:x}", start.0, end.0));
    if link.symlink_metadata().is_ok() {
        return link;
    }
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let shorter = entries.map(|entry| entry.file_name()).find(|name| {
        let range = name.to_str().and_then(|name| name.split_once('-'));
        range.is_some_and(|(from, to)| {
            let address = |text| u64::from_str_radix(text, 16);
            address(from) == Ok(start.0) && address(to).is_ok_and(|to| to < end.0)
        })
    });
    shorter.map_or(link, |name| folder.join(name))
}

/// Returns true if the file that a process has mapped there is an x86-64 ELF file, and false if it
/// is gone or may not be opened.
pub fn maps_program(pid: u32, start: Avma, end: Avma) -> bool {
    // Linux include/uapi/linux/elf.h: `e_ident` with 64 bits and little endian, `e_machine`.
    let mut header = [0; 20];
    let path = map_files_link(pid, start, end);
    // Opening a device may start it.
    std::fs::metadata(&path).is_ok_and(|it| it.is_file())
        && File::open(path).and_then(|mut file| file.read_exact(&mut header)).is_ok()
        && header.starts_with(b"\x7fELF\x02\x01")
        && header.ends_with(&[62, 0])
}

/// Returns true if a line of `/proc/PID/maps` is executable:
/// `55d0c0400000-55d0c0401000 r-xp 00000000 fd:01 42    /usr/bin/x`.
fn is_executable(line: &[u8]) -> bool {
    line.split(|byte| *byte == b' ').nth(1).is_some_and(|permissions| permissions.get(2) == Some(&b'x'))
}

/// Returns the address of the first byte of each file that a process has mapped executable.
///
/// # Errors
/// Returns an error if the process is gone or may not be read.
pub fn image_starts(pid: u32) -> Result<Vec<Avma>, ProcfsError> {
    let maps = open(pid)?.maps().map_err(|source| ProcfsError::new(pid, source))?;
    let mut starts = Vec::new();
    let mut last = None;
    for map in maps.into_iter().filter(|map| map.inode != 0) {
        let file = (map.dev, map.inode);
        // Loaders map a file's parts upwards from its first byte on.
        match &mut last {
            Some((known, _, _)) if *known == file && map.offset != 0 => {}
            _ => last = (map.offset == 0).then_some((file, Avma(map.address.0), false)),
        }
        if let Some((_, start, listed)) = &mut last
            && map.perms.contains(MMPermissions::EXECUTE)
            && !*listed
        {
            *listed = true;
            starts.push(*start);
        }
    }
    Ok(starts)
}

/// Returns the end of the file's mapping that begins at an address, and the file's path; `None` if
/// there is none, or the process is gone.
pub fn mapped_file(pid: u32, start: Avma) -> Option<(Avma, String)> {
    let maps = open(pid).ok()?.maps().ok()?;
    let map = maps.into_iter().find(|map| map.address.0 == start.0 && map.inode != 0)?;
    Some((Avma(map.address.1), path_text(&map.pathname)))
}

/// Returns a mapping's path as perf records have it.
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
    fn this_process_is_read() {
        let pid = std::process::id();
        let info = process_info(pid).expect("a process may read itself");
        assert!(info.start_ticks > 0);
        assert!(info.cmdline.starts_with(&*std::env::args().next().expect("a program has a name")));
        assert!(!info.is_in_exec);
        assert_eq!(info.parent, std::os::unix::process::parent_id());
        assert_eq!(info.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(info.gid, nix::unistd::getegid().as_raw());
        assert_eq!(info.inner_pid, pid);
        assert_eq!(info.cgroup, Cgroup::read(pid).ok());
        assert_eq!(info.executable, std::env::current_exe().ok());
        let mappings = mappings(pid).expect("a process may read itself");
        let here =
            mappings.find(Avma(this_process_is_read as *const () as u64)).expect("this code is mapped");
        assert_eq!(here.backing, Backing::File);
        assert!(mappings.iter().any(|mapping| mapping.backing == Backing::Vdso));
        assert!(mappings.iter().all(|mapping| &*mapping.path != "[vsyscall]"));
    }

    #[test]
    fn user_group_and_inner_pid_are_found_among_the_lines_of_a_status() {
        let text = "Name:\tUid:\\n\t7\t8\nUmask:\t0022\nPid:\t4321\nUid:\t0\t1000\t0\t0\n\
            Gid:\t5\t2000\t0\t0\nGroups:\t1 2 3 \nNStgid:\t4321\t12\t1\nNSpid:\t4321\t12\t1\nKthread:\t0\n";
        let status = |text| ProcStatus::parse(text).map(|it| (it.inner_pid, it.uid, it.gid));
        assert_eq!(status(text), Some((Some(1), 1000, 2000)));
        assert_eq!(status("Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"), Some((None, 2, 6)));
        for cut in ["", "Uid:\t1\t2\n", "Uid:\t1\nGid:\t1\t2\n", "Uid:\ta\tb\nGid:\t1\t2\n"] {
            assert_eq!(status(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn a_process_that_does_not_exist_is_distinguished_from_others() {
        for pid in [u32::MAX, 0x3fff_ffff] {
            assert!(matches!(process_info(pid), Err(ProcfsError::Gone(_))), "{pid}");
            assert!(matches!(mappings(pid), Err(ProcfsError::Gone(_))), "{pid}");
        }
    }
}
