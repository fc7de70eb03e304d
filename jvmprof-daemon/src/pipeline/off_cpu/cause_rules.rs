//! Rules that prove the cause of a wait: names of functions and numbers of system calls.
//!
//! Functions of HotSpot: openjdk src/hotspot/share (runtime/objectMonitor.cpp,
//! runtime/synchronizer.cpp, prims/unsafe.cpp, prims/jvm.cpp, runtime/safepoint.cpp, gc/), JDK 8 to
//! 27. System calls: Linux arch/x86/entry/syscalls/syscall_64.tbl.

use super::cause::{Cause, RuleTarget};

/// A function by which a wait's cause is known: the nearest one to the leaf decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionRule {
    pub(super) kind: RuleTarget,
    /// Its name, or how it begins if this ends in `*`, or ends if this begins with one.
    pub(super) name: &'static str,
    pub(super) cause: Cause,
}

const fn rule(kind: RuleTarget, name: &'static str, cause: Cause) -> FunctionRule {
    FunctionRule { kind, name, cause }
}

/// Functions in which the kernel itself shows the cause, whatever the code above does.
pub(super) const KERNEL: &[FunctionRule] = &[
    rule(RuleTarget::Kernel, "exc_page_fault", Cause::PageFault),
    rule(RuleTarget::Kernel, "asm_exc_page_fault", Cause::PageFault),
    rule(RuleTarget::Kernel, "do_user_addr_fault", Cause::PageFault),
];

/// Functions of the JVM, its stubs, and native methods of Java.
pub(super) const JVM: &[FunctionRule] = &[
    rule(RuleTarget::Jvm, "SafepointSynchronize::block*", Cause::Safepoint),
    rule(RuleTarget::Jvm, "SafepointMechanism::process*", Cause::Safepoint),
    rule(RuleTarget::Jvm, "SafepointMechanism::block*", Cause::Safepoint),
    rule(RuleTarget::Jvm, "ObjectMonitor::enter*", Cause::Monitor),
    rule(RuleTarget::Jvm, "ObjectMonitor::Enter*", Cause::Monitor),
    rule(RuleTarget::Jvm, "ObjectMonitor::reenter*", Cause::Monitor),
    rule(RuleTarget::Jvm, "ObjectMonitor::ReenterI*", Cause::Monitor),
    rule(RuleTarget::Jvm, "ObjectMonitor::wait*", Cause::ObjectWait),
    rule(RuleTarget::Jvm, "Unsafe_Park*", Cause::Park),
    rule(RuleTarget::Jvm, "Parker::park*", Cause::Park),
    rule(RuleTarget::Jvm, "JVM_Sleep*", Cause::Sleep),
    rule(RuleTarget::Jvm, "JavaThread::sleep*", Cause::Sleep),
    rule(RuleTarget::Jvm, "ZPageAllocator::alloc_page_stall*", Cause::Gc),
    rule(RuleTarget::Jvm, "XPageAllocator::alloc_page_stall*", Cause::Gc),
    // A requested collection: gc/z/zDriver*.cpp, gc/x/xDriver.cpp, where the port's functions may
    // be inlined, and gc/shenandoah/shenandoah*ControlThread.cpp.
    rule(RuleTarget::Jvm, "ZDriverPort::send_sync*", Cause::Gc),
    rule(RuleTarget::Jvm, "ZDriver::collect*", Cause::Gc),
    rule(RuleTarget::Jvm, "ZDriverMinor::collect", Cause::Gc),
    rule(RuleTarget::Jvm, "ZDriverMajor::collect", Cause::Gc),
    rule(RuleTarget::Jvm, "ZCollectedHeap::collect*", Cause::Gc),
    rule(RuleTarget::Jvm, "XDriverPort::send_sync*", Cause::Gc),
    rule(RuleTarget::Jvm, "XDriver::collect*", Cause::Gc),
    rule(RuleTarget::Jvm, "XCollectedHeap::collect*", Cause::Gc),
    rule(RuleTarget::Jvm, "ShenandoahControlThread::request_gc*", Cause::Gc),
    rule(RuleTarget::Jvm, "ShenandoahControlThread::handle_requested_gc*", Cause::Gc),
    rule(RuleTarget::Jvm, "ShenandoahGenerationalControlThread::request_gc*", Cause::Gc),
    rule(RuleTarget::Jvm, "ShenandoahGenerationalControlThread::handle_requested_gc*", Cause::Gc),
    rule(RuleTarget::Jvm, "ShenandoahHeap::collect*", Cause::Gc),
    rule(RuleTarget::Jvm, "ShenandoahHeap::allocate_memory*", Cause::Gc),
    rule(RuleTarget::Jvm, "GCLocker::stall_until_clear*", Cause::Gc),
    rule(RuleTarget::Jvm, "GCLocker::block*", Cause::Gc),
    rule(RuleTarget::Jvm, "MemAllocator::allocate*", Cause::Gc),
    rule(RuleTarget::Jvm, "CollectedHeap::collect*", Cause::Gc),
    rule(RuleTarget::Jvm, "G1CollectedHeap::*", Cause::Gc),
    rule(RuleTarget::Jvm, "ParallelScavengeHeap::*", Cause::Gc),
    rule(RuleTarget::Jvm, "SerialHeap::*", Cause::Gc),
    rule(RuleTarget::Jvm, "GenCollectedHeap::*", Cause::Gc),
    // Where libjvm has no symbols, these are the leaves. Stubs by which C1's and C2's code enters a
    // monitor (c1/c1_Runtime1.cpp, opto/runtime.cpp), by their names since JDK 24 and before.
    rule(RuleTarget::Stub, "[monitorenter*", Cause::Monitor),
    rule(RuleTarget::Stub, "[complete_monitor_locking*", Cause::Monitor),
    rule(RuleTarget::Stub, "[_complete_monitor_locking*", Cause::Monitor),
    rule(RuleTarget::Stub, "[polling_page_*", Cause::Safepoint),
    rule(RuleTarget::Stub, "[SafepointBlob*", Cause::Safepoint),
    rule(RuleTarget::Java, "java.lang.Object.wait", Cause::ObjectWait),
    rule(RuleTarget::Java, "java.lang.Object.wait0", Cause::ObjectWait),
    rule(RuleTarget::Java, "jdk.internal.misc.Unsafe.park", Cause::Park),
    rule(RuleTarget::Java, "sun.misc.Unsafe.park", Cause::Park),
    rule(RuleTarget::Java, "java.lang.Thread.sleep", Cause::Sleep),
    rule(RuleTarget::Java, "java.lang.Thread.sleep0", Cause::Sleep),
    rule(RuleTarget::Java, "java.lang.Thread.sleepNanos0", Cause::Sleep),
];

/// Functions of the kernel by which a descriptor's kind is known: the nearest one to the leaf
/// decides.
pub(super) const DESCRIPTOR: &[FunctionRule] = &[
    rule(RuleTarget::Kernel, "sock_read_iter", Cause::Socket),
    rule(RuleTarget::Kernel, "sock_write_iter", Cause::Socket),
    rule(RuleTarget::Kernel, "sock_recvmsg", Cause::Socket),
    rule(RuleTarget::Kernel, "sock_sendmsg", Cause::Socket),
    rule(RuleTarget::Kernel, "tcp_*", Cause::Socket),
    rule(RuleTarget::Kernel, "unix_stream_*", Cause::Socket),
    rule(RuleTarget::Kernel, "unix_dgram_*", Cause::Socket),
    rule(RuleTarget::Kernel, "udp_*", Cause::Socket),
    rule(RuleTarget::Kernel, "inet_*", Cause::Socket),
    rule(RuleTarget::Kernel, "vfs_fsync*", Cause::File),
    rule(RuleTarget::Kernel, "filemap_read", Cause::File),
    // `struct file_operations` of file systems (fs/*/file.c) and of block devices (block/fops.c).
    rule(RuleTarget::Kernel, "*_file_read_iter", Cause::File),
    rule(RuleTarget::Kernel, "*_file_write_iter", Cause::File),
    rule(RuleTarget::Kernel, "nfs_file_read", Cause::File),
    rule(RuleTarget::Kernel, "nfs_file_write", Cause::File),
    rule(RuleTarget::Kernel, "ceph_read_iter", Cause::File),
    rule(RuleTarget::Kernel, "ceph_write_iter", Cause::File),
    rule(RuleTarget::Kernel, "ovl_read_iter", Cause::File),
    rule(RuleTarget::Kernel, "ovl_write_iter", Cause::File),
    rule(RuleTarget::Kernel, "blkdev_read_iter", Cause::File),
    rule(RuleTarget::Kernel, "blkdev_write_iter", Cause::File),
    rule(RuleTarget::Kernel, "pipe_read", Cause::File),
    rule(RuleTarget::Kernel, "pipe_write", Cause::File),
    rule(RuleTarget::Kernel, "anon_pipe_read", Cause::File),
    rule(RuleTarget::Kernel, "anon_pipe_write", Cause::File),
];

/// Functions that wait for a block device, where nothing else is known of the descriptor.
pub(super) const BLOCK_DEVICE: &[FunctionRule] = &[rule(RuleTarget::Kernel, "io_schedule*", Cause::Io)];

/// System calls whose number alone proves the cause, and those whose descriptor has to be a file if
/// the kernel's frames don't say that it is something else.
pub(super) const SYSTEM_CALLS: &[(Cause, &[u32])] = &[
    // nanosleep, clock_nanosleep
    (Cause::Sleep, &[35, 230]),
    // poll, select, epoll_wait, pselect6, ppoll, epoll_pwait, epoll_pwait2
    (Cause::Poll, &[7, 23, 232, 270, 271, 281, 441]),
    // futex, futex_waitv, futex_wait
    (Cause::Futex, &[202, 449, 455]),
    // connect, accept, sendto, recvfrom, sendmsg, recvmsg, accept4, recvmmsg, sendmmsg
    (Cause::Socket, &[42, 43, 44, 45, 46, 47, 288, 299, 307]),
    // open, lseek, fsync, fdatasync, truncate, ftruncate, getdents, rename, mkdir, rmdir, unlink,
    // getdents64, openat, mkdirat, unlinkat, renameat, fallocate, sync_file_range, renameat2,
    // statx, stat, fstat, lstat, newfstatat, pread64, pwrite64, preadv, pwritev, sync, syncfs,
    // flock, fcntl (which waits for locks of files), msync
    (
        Cause::File,
        &[
            2, 8, 74, 75, 76, 77, 78, 82, 83, 84, 87, 217, 257, 258, 263, 264, 285, 277, 316, 332, 4, 5, 6,
            262, 17, 18, 295, 296, 162, 306, 73, 72, 26,
        ],
    ),
];
