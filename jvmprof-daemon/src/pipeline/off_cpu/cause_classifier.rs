//! The cause of a wait, as far as its evidence proves one: frames of its stack, the system call,
//! and the thread's state.

use std::fs;
use std::sync::Arc;

use jvmprof_common::off_cpu::WaitRecord;

use super::cause::{Cause, RuleTarget};
use super::cause_rules::{BLOCK_DEVICE, DESCRIPTOR, FunctionRule, JVM, KERNEL, SYSTEM_CALLS};
use crate::profile::model::{Frame, FrameKind};

/// The kernel's functions by which a thread leaves its CPU: the frames up to the last of them say
/// nothing of the wait.
const SCHEDULER: [&str; 6] = [
    "__schedule",
    "schedule",
    "schedule_idle",
    "schedule_preempt_disabled",
    "preempt_schedule_common",
    "preempt_schedule_irq",
];
/// Frames from the leaf on that may be the scheduler's.
const SCHEDULER_FRAMES: usize = 16;

/// The evidence of a wait's cause beside its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Evidence {
    /// The thread could run.
    Runnable,
    /// It could, but for the CPU quota of its control group.
    OutOfQuota,
    /// It was in the system call of this number.
    SystemCall(u32),
    /// It was in none: an exception or an interrupt.
    NoSystemCall,
    /// It read or wrote a descriptor of this kind.
    Descriptor(DescriptorKind),
}

/// The kind of what a descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DescriptorKind {
    Socket,
    /// A file or a pipe.
    File,
}

impl DescriptorKind {
    /// Returns the cause of waits for such a descriptor.
    pub(super) const fn cause(self) -> Cause {
        match self {
            Self::Socket => Cause::Socket,
            Self::File => Cause::File,
        }
    }

    /// Returns the kind of a waiting thread's descriptor, if it is in a system call that waits for
    /// what the descriptor is of; `None` if that decides nothing, or can't be read. `pid`: its
    /// process.
    pub(super) fn of_call(pid: u32, system_call: u64, descriptor: u64) -> Option<Self> {
        // read, write, readv, writev
        const CALLS: [u64; 4] = [0, 1, 19, 20];
        let descriptor = u32::try_from(descriptor).ok().filter(|_| CALLS.contains(&system_call))?;
        // The link alone: asking the file itself would wait for a file system that hangs.
        let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
        let link = link.as_os_str().as_encoded_bytes();
        let is_file = link.starts_with(b"pipe:") || link.starts_with(b"/") && !link.starts_with(b"/dev/");
        match link.starts_with(b"socket:") {
            true => Some(Self::Socket),
            false => is_file.then_some(Self::File),
        }
    }
}

impl Evidence {
    /// Returns true if the thread waited for nothing but a CPU.
    pub(super) const fn is_runnable(self) -> bool {
        matches!(self, Self::Runnable | Self::OutOfQuota)
    }
}

/// Values of [`WaitRecord::system_call`] that no call has: the thread reads or writes a descriptor
/// of this kind, which the daemon has found.
const ON_SOCKET: u64 = 1 << 32;
const ON_FILE: u64 = 2 << 32;

/// Returns the value of [`WaitRecord::system_call`] of a call that waits for such a descriptor.
pub(super) const fn call_on_descriptor(kind: DescriptorKind) -> u64 {
    match kind {
        DescriptorKind::Socket => ON_SOCKET,
        DescriptorKind::File => ON_FILE,
    }
}

/// Returns what a record says of the cause, of a thread that waited for something.
pub(super) fn evidence(record: &WaitRecord) -> Evidence {
    match record.system_call {
        ON_SOCKET => Evidence::Descriptor(DescriptorKind::Socket),
        ON_FILE => Evidence::Descriptor(DescriptorKind::File),
        // Numbers of other kinds of calls have a bit above these.
        number @ 0..0x1_0000 => Evidence::SystemCall(number as u32),
        _ => Evidence::NoSystemCall,
    }
}

/// Returns the frames without those by which the thread left its CPU.
pub(super) fn without_scheduler(frames: &[Arc<Frame>]) -> &[Arc<Frame>] {
    let is_scheduler = |frame: &Arc<Frame>| {
        frame.kind == FrameKind::Kernel && frame.lines.iter().any(|line| SCHEDULER.contains(&&*line.name))
    };
    let last = frames.iter().take(SCHEDULER_FRAMES).rposition(is_scheduler);
    last.map_or(frames, |last| &frames[last + 1..])
}

/// Returns the cause of a wait. `frames`: leaf first, without those of the scheduler.
pub(super) fn cause_of<'a>(evidence: Evidence, frames: impl Iterator<Item = &'a Frame> + Clone) -> Cause {
    let system_call = match evidence {
        Evidence::Runnable => return Cause::Runnable,
        Evidence::OutOfQuota => return Cause::CpuQuota,
        Evidence::Descriptor(kind) => return kind.cause(),
        Evidence::SystemCall(number) => Some(number),
        Evidence::NoSystemCall => None,
    };
    if let Some(cause) = nearest(KERNEL, frames.clone()) {
        return cause;
    }
    let by_call = system_call.and_then(by_system_call);
    // The JVM's own waits, and those of its locks, are futexes; other code below its functions does
    // what its own calls say.
    if matches!(by_call, Some(Cause::Futex | Cause::Sleep))
        && let Some(cause) = nearest(JVM, frames.clone())
    {
        return cause;
    }
    match by_call {
        Some(cause) if cause != Cause::File => cause,
        // A file that is on a block device waits for the file.
        by_call => nearest(DESCRIPTOR, frames.clone())
            .or(by_call)
            .or_else(|| nearest(BLOCK_DEVICE, frames))
            .unwrap_or(Cause::Other),
    }
}

fn by_system_call(number: u32) -> Option<Cause> {
    SYSTEM_CALLS.iter().find(|(_, numbers)| numbers.contains(&number)).map(|(cause, _)| *cause)
}

/// Returns the cause by the frame nearest to the leaf that a rule speaks of.
fn nearest<'a>(rules: &[FunctionRule], frames: impl Iterator<Item = &'a Frame>) -> Option<Cause> {
    let mut names =
        frames.flat_map(|frame| frame.lines.iter().map(move |line| (code_kind(frame), &*line.name)));
    names.find_map(|(kind, name)| {
        let kind = kind?;
        rules.iter().find(|rule| rule.kind == kind && is_named(name, rule.name)).map(|rule| rule.cause)
    })
}

fn code_kind(frame: &Frame) -> Option<RuleTarget> {
    match frame.kind {
        FrameKind::Kernel => Some(RuleTarget::Kernel),
        FrameKind::Native => frame.mapping.as_ref()?.is_libjvm().then_some(RuleTarget::Jvm),
        // Names of perf maps have no mode.
        FrameKind::Java => frame.lines.iter().any(|line| line.mode.is_some()).then_some(RuleTarget::Java),
        FrameKind::Stub => Some(RuleTarget::Stub),
        FrameKind::Jit | FrameKind::Class | FrameKind::Marker => None,
    }
}

/// Returns true if a rule means this function. Names of native code may have their parameters.
fn is_named(name: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (None, Some(begin)) => name.starts_with(begin),
        (None, None) => name.split('(').next() == Some(pattern),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{ExecutionMode, Line, Mapping};
    use crate::types::{Avma, FileOffset};

    const FUTEX: Evidence = Evidence::SystemCall(202);
    const READ: Evidence = Evidence::SystemCall(0);

    fn frame(kind: FrameKind, name: &str, path: &str) -> Frame {
        let mapping = Mapping {
            start: Avma(0),
            limit: Avma(1),
            offset: FileOffset(0),
            path: path.into(),
            build_id: None,
        };
        let mode = (kind == FrameKind::Java).then_some(ExecutionMode::C2);
        let lines = vec![Line { mode, ..Line::named(name) }];
        Frame { kind, address: None, mapping: Some(Arc::new(mapping)), lines }
    }

    fn kernel(name: &str) -> Frame {
        frame(FrameKind::Kernel, name, "[kernel.kallsyms]")
    }

    fn jvm(name: &str) -> Frame {
        frame(FrameKind::Native, name, "/usr/lib/jvm/17/lib/server/libjvm.so")
    }

    fn java(name: &str) -> Frame {
        frame(FrameKind::Java, name, "jvm")
    }

    fn cause(evidence: Evidence, frames: &[Frame]) -> Cause {
        cause_of(evidence, frames.iter())
    }

    #[test]
    fn a_descriptor_says_what_a_read_waits_for() {
        use std::os::fd::AsRawFd as _;
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        let file = tempfile::tempfile().expect("a file");
        let null = fs::File::open("/dev/null").expect("it is there");
        let kind = |system_call, descriptor: i32| {
            DescriptorKind::of_call(std::process::id(), system_call, descriptor as u64)
        };
        assert_eq!(kind(0, socket.as_raw_fd()), Some(DescriptorKind::Socket));
        assert_eq!(kind(20, pipe.as_raw_fd()), Some(DescriptorKind::File));
        assert_eq!(kind(1, file.as_raw_fd()), Some(DescriptorKind::File));
        assert_eq!(kind(0, null.as_raw_fd()), None, "another device");
        assert_eq!(kind(202, socket.as_raw_fd()), None, "a futex has none");
        assert_eq!(kind(0, -1), None);
        let socket = Evidence::Descriptor(DescriptorKind::Socket);
        assert_eq!(cause(socket, &[java("sun.nio.ch.SocketDispatcher.read0")]), Cause::Socket);
    }

    #[test]
    fn each_cause_of_a_jvm_is_proved_by_its_functions() {
        let table: &[(&str, Cause)] = &[
            ("ObjectMonitor::enter_internal(JavaThread*)", Cause::Monitor),
            ("ObjectMonitor::EnterI(JavaThread*)", Cause::Monitor),
            ("ObjectMonitor::ReenterI(JavaThread*, ObjectWaiter*)", Cause::Monitor),
            ("ObjectMonitor::wait(long, bool, JavaThread*)", Cause::ObjectWait),
            ("Unsafe_Park", Cause::Park),
            ("Parker::park(bool, long)", Cause::Park),
            ("JVM_SleepNanos", Cause::Sleep),
            ("SafepointSynchronize::block(JavaThread*)", Cause::Safepoint),
            ("SafepointMechanism::process(JavaThread*, bool, bool)", Cause::Safepoint),
            ("G1CollectedHeap::attempt_allocation_slow(unsigned long)", Cause::Gc),
            ("ZPageAllocator::alloc_page_stall(ZPageAllocation*)", Cause::Gc),
            ("ZDriverPort::send_sync(ZDriverRequest const&)", Cause::Gc),
            ("ZDriverMajor::collect(ZDriverRequest const&)", Cause::Gc),
            ("ZDriverMajor::collect_old()", Cause::Futex),
            ("XDriver::collect(XDriverRequest const&)", Cause::Gc),
            ("XCollectedHeap::collect(GCCause::Cause)", Cause::Gc),
            ("ShenandoahControlThread::handle_requested_gc(GCCause::Cause)", Cause::Gc),
            ("ShenandoahGenerationalControlThread::handle_requested_gc(GCCause::Cause)", Cause::Gc),
            ("ShenandoahHeap::collect(GCCause::Cause)", Cause::Gc),
        ];
        for (name, expected) in table {
            let frames = [kernel("futex_wait"), jvm("PlatformEvent::park()"), jvm(name), java("A.f")];
            assert_eq!(cause(FUTEX, &frames), *expected, "{name}");
        }
    }

    #[test]
    fn the_function_nearest_to_the_leaf_decides() {
        let stopped = jvm("SafepointMechanism::process(JavaThread*, bool, bool)");
        let entered = jvm("ObjectMonitor::enter(JavaThread*)");
        assert_eq!(cause(FUTEX, &[stopped.clone(), entered.clone()]), Cause::Safepoint);
        assert_eq!(cause(FUTEX, &[entered, stopped]), Cause::Monitor);
    }

    #[test]
    fn native_methods_and_stubs_prove_it_where_the_jvm_has_no_symbols() {
        let unknown = Frame { lines: Vec::new(), ..jvm("") };
        for (name, expected) in [
            ("jdk.internal.misc.Unsafe.park", Cause::Park),
            ("sun.misc.Unsafe.park", Cause::Park),
            ("java.lang.Object.wait", Cause::ObjectWait),
            ("java.lang.Thread.sleep", Cause::Sleep),
            ("com.acme.Unsafe.park", Cause::Futex),
        ] {
            assert_eq!(cause(FUTEX, &[unknown.clone(), java(name)]), expected, "{name}");
        }
        for (name, expected) in [
            ("[monitorenter_nofpu Runtime1 stub]", Cause::Monitor),
            ("[monitorenter_nofpu_blob (C1 runtime)]", Cause::Monitor),
            ("[_complete_monitor_locking_Java]", Cause::Monitor),
            ("[complete_monitor_locking_blob (C2 runtime)]", Cause::Monitor),
            ("[polling_page_safepoint_handler_blob (shared runtime)]", Cause::Safepoint),
            ("[SafepointBlob]", Cause::Safepoint),
            ("[monitorexit_nofpu Runtime1 stub]", Cause::Futex),
        ] {
            let frames = [unknown.clone(), frame(FrameKind::Stub, name, "jvm"), java("A.f")];
            assert_eq!(cause(FUTEX, &frames), expected, "{name}");
            let named = jvm("SafepointSynchronize::block(JavaThread*)");
            assert_eq!(cause(FUTEX, &[&[named], &frames[..]].concat()), Cause::Safepoint, "{name}");
        }
    }

    #[test]
    fn names_in_other_files_prove_nothing() {
        let fake = frame(FrameKind::Native, "ObjectMonitor::enter(JavaThread*)", "/tmp/libfake.so");
        assert_eq!(cause(FUTEX, &[fake]), Cause::Futex);
        let of_perf_map = Frame {
            lines: vec![Line::named("jdk.internal.misc.Unsafe.park")],
            ..java("jdk.internal.misc.Unsafe.park")
        };
        assert_eq!(cause(FUTEX, &[of_perf_map]), Cause::Futex);
    }

    #[test]
    fn system_calls_prove_what_they_wait_for() {
        let table: &[(u32, Cause)] = &[
            (230, Cause::Sleep),
            (7, Cause::Poll),
            (232, Cause::Poll),
            (202, Cause::Futex),
            (43, Cause::Socket),
            (45, Cause::Socket),
            (74, Cause::File),
            (257, Cause::File),
            (72, Cause::File),
            (26, Cause::File),
            // wait4
            (61, Cause::Other),
            (9999, Cause::Other),
        ];
        for (number, expected) in table {
            let frames = [java("A.f"), java("jdk.internal.misc.Unsafe.parkers")];
            assert_eq!(cause(Evidence::SystemCall(*number), &frames), *expected, "{number}");
        }
    }

    #[test]
    fn a_read_waits_for_what_its_descriptor_is() {
        let socket = [kernel("wait_woken"), kernel("sk_wait_data"), kernel("tcp_recvmsg")];
        assert_eq!(cause(READ, &socket), Cause::Socket);
        assert_eq!(cause(READ, &[kernel("anon_pipe_read")]), Cause::File);
        assert_eq!(cause(READ, &[kernel("io_schedule"), kernel("filemap_read")]), Cause::File);
        assert_eq!(cause(READ, &[kernel("io_schedule"), kernel("vfs_read")]), Cause::Io);
        let fuse = [kernel("request_wait_answer"), kernel("fuse_file_read_iter"), kernel("vfs_read")];
        assert_eq!(cause(READ, &fuse), Cause::File);
        assert_eq!(cause(READ, &[kernel("n_tty_read")]), Cause::Other);
        let write_back = [kernel("io_schedule"), kernel("folio_wait_writeback"), kernel("vfs_fsync_range")];
        assert_eq!(cause(Evidence::SystemCall(74), &write_back), Cause::File);
    }

    #[test]
    fn a_page_fault_is_one_wherever_it_happens() {
        let frames = [kernel("io_schedule"), kernel("asm_exc_page_fault"), jvm("ObjectMonitor::enter(x)")];
        assert_eq!(cause(Evidence::NoSystemCall, &frames), Cause::PageFault);
        assert_eq!(cause(FUTEX, &frames), Cause::PageFault);
        assert_eq!(cause(Evidence::NoSystemCall, &[kernel("irqentry_exit")]), Cause::Other);
    }

    #[test]
    fn a_thread_that_could_run_waits_for_a_cpu() {
        assert_eq!(cause(Evidence::Runnable, &[jvm("ObjectMonitor::enter(x)")]), Cause::Runnable);
    }
}
