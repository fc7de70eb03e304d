//! Asking a JVM for a perf map, through the attach protocol, where that was asked for
//! (`--attach-perfmap`).
//!
//! Everything happens in the JVM's own `/tmp` and under its own user, as `jcmd` would do it from
//! inside: HotSpot refuses files and connections of others. Sources: openjdk jdk-17
//! src/hotspot/os/posix/attachListener_posix.cpp and
//! src/jdk.attach/linux/classes/sun/tools/attach/VirtualMachineImpl.java.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::process_map::ProcessMap;
use crate::native::open_file::{OpenError, open_folder_in_root};
use crate::process::{Process, procfs};
use crate::sampler::now_ns;

/// How long a JVM may take to open its socket, and to answer.
const OPENS_WITHIN: Duration = Duration::from_secs(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Whoever waits for a JVM looks so often whether there is still somebody to wait for.
const STEP: Duration = Duration::from_millis(20);
/// Most bytes of an answer that are looked at.
const MAX_ANSWER: u64 = 4096;
/// Protocol version 1, the command with its argument, and two arguments that are empty.
const REQUEST: &[u8] = b"1\0jcmd\0Compiler.perfmap\0\0\0";

/// A JVM didn't write a perf map.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("{call} for the attach protocol with process {pid}: {source}")]
    Call { call: &'static str, pid: u32, source: io::Error },
    #[error("finding the /tmp of process {pid}: {source}")]
    Tmp { pid: u32, source: OpenError },
    #[error(
        "becoming user {uid} of process {pid}, whom alone its JVM answers: {source}; that takes CAP_SETUID and CAP_SETGID"
    )]
    User { pid: u32, uid: u32, source: Errno },
    #[error("what is in the place of the socket of process {pid} is no socket, or another process's")]
    OtherSocket { pid: u32 },
    #[error("process {pid} is another one by now, or gone")]
    Gone { pid: u32 },
    #[error(
        "process {pid} doesn't handle SIGQUIT, which would end it: the JVM runs with -Xrs and can't be attached to"
    )]
    NoHandler { pid: u32 },
    #[error("the JVM of process {pid} opened no socket in {OPENS_WITHIN:?}: attaching may be disabled")]
    NoSocket { pid: u32 },
    #[error("the JVM of process {pid} refused: {answer}")]
    Refused { pid: u32, answer: String },
    #[error("the JVM of process {pid} isn't waited for any longer")]
    GivenUp { pid: u32 },
}

/// The JVM that is asked.
#[derive(Clone, Debug)]
pub struct Target {
    pid: u32,
    inner_pid: u32,
    uid: u32,
    gid: u32,
    start_ticks: u64,
    root: PathBuf,
}

impl Target {
    /// `None` if the process can't be read or maps no `libjvm.so`. Whoever calls knows that this is
    /// HotSpot's: another JVM may take the signal that goes with the request as one for a dump.
    pub fn of(process: &Process) -> Option<Self> {
        if !process.is_jvm() {
            return None;
        }
        Self::of_pid(process.pid)
    }

    /// Whoever calls knows that it is a JVM.
    pub fn of_pid(pid: u32) -> Option<Self> {
        let facts = procfs::facts(pid).ok()?;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let (uid, gid, start_ticks) = (facts.uid, facts.gid, facts.start_ticks);
        Some(Self { pid, inner_pid: facts.inner_pid, uid, gid, start_ticks, root })
    }

    fn failed(&self, call: &'static str) -> impl Fn(Errno) -> AttachError {
        let pid = self.pid;
        move |errno| AttachError::Call { call, pid, source: errno.into() }
    }
}

/// Asks one JVM at a time, on a thread of its own. When this is dropped, what is under way is given
/// up and cleaned up.
#[derive(Debug, Default)]
pub struct PerfMapRequests {
    is_running: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PerfMapRequests {
    /// Asks for a map and has it read. False if another JVM is being asked.
    pub fn request(&self, target: Target, map: Arc<Mutex<ProcessMap>>) -> bool {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return false;
        }
        let (is_running, is_over) = (Arc::clone(&self.is_running), Arc::clone(&self.is_over));
        let work = move || {
            match request(&target, &map, &is_over) {
                Ok(()) => tracing::info!(pid = target.pid, "a JVM wrote a perf map"),
                // Nothing is wrong with the JVM: who asked has ended.
                Err(error @ AttachError::GivenUp { .. }) => tracing::debug!(%error, "no perf map"),
                Err(error) => tracing::warn!(pid = target.pid, %error, "a JVM wrote no perf map"),
            }
            is_running.store(false, Ordering::Release);
        };
        let Ok(started) = std::thread::Builder::new().name("jvm-attach".to_owned()).spawn(work) else {
            self.is_running.store(false, Ordering::Release);
            return false;
        };
        // The one before has ended, or is about to.
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        true
    }
}

impl Drop for PerfMapRequests {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic there has told itself.
            let _ = thread.join();
        }
    }
}

/// Asks for a map, has it read, and removes it unless there was one before.
///
/// The calling thread runs as the JVM's user afterwards: it should end. `is_over`: the JVM isn't
/// waited for any longer.
///
/// # Errors
/// The JVM is gone, can't be asked, or refuses; or `is_over` before it has answered.
pub fn request(target: &Target, map: &Mutex<ProcessMap>, is_over: &AtomicBool) -> Result<(), AttachError> {
    let pidfd = pidfd_open(target.pid).map_err(target.failed("pidfd_open"))?;
    let is_same = || procfs::facts(target.pid).is_ok_and(|facts| facts.start_ticks == target.start_ticks);
    if !is_same() {
        return Err(AttachError::Gone { pid: target.pid });
    }
    let pid = target.pid;
    let tmp = open_folder_in_root(&target.root, Path::new("/tmp"));
    let tmp = tmp.map_err(|source| AttachError::Tmp { pid, source })?;
    become_user(target).map_err(|source| AttachError::User { pid, uid: target.uid, source })?;
    let map_name = format!("perf-{}.map", target.inner_pid);
    let was_there = fstatat(&tmp, map_name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
    let stream = match connect(target, &tmp) {
        Ok(stream) => stream,
        // No JVM has opened it: an old one, or none.
        Err(AttachError::NoSocket { .. } | AttachError::Call { .. }) => wake(target, &pidfd, &tmp, is_over)?,
        Err(error) => return Err(error),
    };
    let answered = ask(target, stream, is_over);
    if answered.is_ok() {
        // It is read on when it is gone, by the one that reads all maps.
        let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
        map.open_now();
        map.check(now_ns());
    }
    if !was_there {
        // It may not have been written.
        let _ = unlinkat(&tmp, map_name.as_str(), UnlinkatFlags::NoRemoveDir);
    }
    answered
}

fn ask(target: &Target, mut stream: UnixStream, is_over: &AtomicBool) -> Result<(), AttachError> {
    let pid = target.pid;
    let failed = |call| move |source| AttachError::Call { call, pid, source };
    stream.set_read_timeout(Some(STEP)).map_err(failed("setting a timeout"))?;
    stream.set_write_timeout(Some(ANSWERS_WITHIN)).map_err(failed("setting a timeout"))?;
    stream.write_all(REQUEST).map_err(failed("writing"))?;
    let (mut stream, mut answer) = (stream.take(MAX_ANSWER), Vec::new());
    let end = Instant::now() + ANSWERS_WITHIN;
    // What has come before a timeout is kept.
    while let Err(error) = stream.read_to_end(&mut answer) {
        if error.kind() != io::ErrorKind::WouldBlock || Instant::now() >= end {
            return Err(failed("reading the answer")(error));
        }
        if is_over.load(Ordering::Acquire) {
            return Err(AttachError::GivenUp { pid });
        }
    }
    if answer.starts_with(b"0\n") || answer == b"0" {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&answer).chars().filter(|c| !c.is_control()).take(200).collect();
    Err(AttachError::Refused { pid, answer })
}

/// Has the JVM open its socket: a file of its user tells that SIGQUIT isn't meant to print all
/// stacks.
fn wake(
    target: &Target,
    pidfd: &OwnedFd,
    tmp: &OwnedFd,
    is_over: &AtomicBool,
) -> Result<UnixStream, AttachError> {
    let pid = target.pid;
    if !handles_sigquit(pid) {
        return Err(AttachError::NoHandler { pid });
    }
    if is_over.load(Ordering::Acquire) {
        return Err(AttachError::GivenUp { pid });
    }
    let name = format!(".attach_pid{}", target.inner_pid);
    let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(tmp, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
    drop(file.map_err(target.failed("creating .attach_pid"))?);
    let sent = send_sigquit(pidfd).map_err(target.failed("pidfd_send_signal"));
    let end = Instant::now() + OPENS_WITHIN;
    let opened = sent.and_then(|()| {
        loop {
            match connect(target, tmp) {
                // One of a JVM that is gone may still be there.
                Err(AttachError::NoSocket { .. } | AttachError::Call { .. }) if Instant::now() < end => {
                    if is_over.load(Ordering::Acquire) {
                        break Err(AttachError::GivenUp { pid });
                    }
                    std::thread::sleep(STEP);
                }
                done => break done,
            }
        }
    });
    // The JVM may have removed it.
    let _ = unlinkat(tmp, name.as_str(), UnlinkatFlags::NoRemoveDir);
    opened
}

/// Connects to what the JVM itself listens at. What is in the socket's place may be put there by
/// anybody who may write to that `/tmp`: a link could lead to any socket of the host.
fn connect(target: &Target, tmp: &OwnedFd) -> Result<UnixStream, AttachError> {
    let pid = target.pid;
    let name = format!(".java_pid{}", target.inner_pid);
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let found = match openat(tmp, name.as_str(), flags, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::ENOENT) => return Err(AttachError::NoSocket { pid }),
        Err(errno) => return Err(target.failed("opening its socket")(errno)),
    };
    let mode = fstat(&found).map_err(target.failed("fstat of its socket"))?.st_mode;
    if SFlag::from_bits_truncate(mode) & SFlag::S_IFMT != SFlag::S_IFSOCK {
        return Err(AttachError::OtherSocket { pid });
    }
    let stream = UnixStream::connect(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let stream = stream.map_err(|source| AttachError::Call { call: "connecting", pid, source })?;
    let peer = getsockopt(&stream, PeerCredentials).map_err(target.failed("SO_PEERCRED"))?;
    if (u32::try_from(peer.pid()), peer.uid()) != (Ok(pid), target.uid) {
        return Err(AttachError::OtherSocket { pid });
    }
    Ok(stream)
}

fn handles_sigquit(pid: u32) -> bool {
    let mut status = String::new();
    let read = File::open(format!("/proc/{pid}/status"))
        .and_then(|file| file.take(64 << 10).read_to_string(&mut status));
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    read.is_ok() && caught.is_some_and(|mask| mask & 1 << (nix::libc::SIGQUIT - 1) != 0)
}

/// This thread, and no other, becomes the JVM's user, without any group but that user's: the C
/// library's functions would change all threads.
fn become_user(target: &Target) -> nix::Result<()> {
    if target.uid == nix::unistd::geteuid().as_raw() && target.gid == nix::unistd::getegid().as_raw() {
        return Ok(());
    }
    let (keep, none) = (-1i64, 0i64);
    // SAFETY: with no groups there is no memory to read.
    Errno::result(unsafe { nix::libc::syscall(nix::libc::SYS_setgroups, none, none) })?;
    for (call, id) in [(nix::libc::SYS_setresgid, target.gid), (nix::libc::SYS_setresuid, target.uid)] {
        // SAFETY: the system calls take three numbers and touch no memory.
        Errno::result(unsafe { nix::libc::syscall(call, keep, i64::from(id), keep) })?;
    }
    Ok(())
}

fn pidfd_open(pid: u32) -> nix::Result<OwnedFd> {
    // SAFETY: the system call takes two numbers and touches no memory.
    let fd = Errno::result(unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, i64::from(pid), 0i64) })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn send_sigquit(pidfd: &OwnedFd) -> nix::Result<()> {
    let (fd, signal) = (i64::from(pidfd.as_raw_fd()), i64::from(nix::libc::SIGQUIT));
    // SAFETY: without a siginfo, which may be null, the system call touches no memory.
    let sent = unsafe {
        nix::libc::syscall(nix::libc::SYS_pidfd_send_signal, fd, signal, std::ptr::null::<u8>(), 0i64)
    };
    Errno::result(sent).map(drop)
}
