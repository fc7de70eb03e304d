//! Rules that prove the cause of a wait: names of functions and numbers of system calls.
//!
//! Functions of HotSpot: openjdk src/hotspot/share (runtime/objectMonitor.cpp,
//! runtime/synchronizer.cpp, prims/unsafe.cpp, prims/jvm.cpp, runtime/safepoint.cpp, gc/), JDK 8 to
//! 27. System calls: Linux arch/x86/entry/syscalls/syscall_64.tbl.

use super::cause::{Cause, CodeKind};

/// A function by which a wait's cause is known: the nearest one to the leaf decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionRule {
    pub(super) kind: CodeKind,
    /// Its name, or how it begins if this ends in `*`, or ends if this begins with one.
    pub(super) name: &'static str,
    pub(super) cause: Cause,
}

const fn rule(kind: CodeKind, name: &'static str, cause: Cause) -> FunctionRule {
    FunctionRule { kind, name, cause }
}

/// Functions in which the kernel itself shows the cause, whatever the code above does.
pub(super) const KERNEL: &[FunctionRule] = &[
    rule(CodeKind::Kernel, "exc_page_fault", Cause::PageFault),
    rule(CodeKind::Kernel, "asm_exc_page_fault", Cause::PageFault),
    rule(CodeKind::Kernel, "do_user_addr_fault", Cause::PageFault),
];

/// Functions of the JVM, its stubs, and native methods of Java.
pub(super) const JVM: &[FunctionRule] = &[
    rule(CodeKind::Jvm, "SafepointSynchronize::block*", Cause::Safepoint),
    rule(CodeKind::Jvm, "SafepointMechanism::process*", Cause::Safepoint),
    rule(CodeKind::Jvm, "SafepointMechanism::block*", Cause::Safepoint),
    rule(CodeKind::Jvm, "ObjectMonitor::enter*", Cause::Monitor),
    rule(CodeKind::Jvm, "ObjectMonitor::Enter*", Cause::Monitor),
    rule(CodeKind::Jvm, "ObjectMonitor::reenter*", Cause::Monitor),
    rule(CodeKind::Jvm, "ObjectMonitor::ReenterI*", Cause::Monitor),
    rule(CodeKind::Jvm, "ObjectMonitor::wait*", Cause::ObjectWait),
    rule(CodeKind::Jvm, "Unsafe_Park*", Cause::Park),
    rule(CodeKind::Jvm, "Parker::park*", Cause::Park),
    rule(CodeKind::Jvm, "JVM_Sleep*", Cause::Sleep),
    rule(CodeKind::Jvm, "JavaThread::sleep*", Cause::Sleep),
    rule(CodeKind::Jvm, "ZPageAllocator::alloc_page_stall*", Cause::Gc),
    rule(CodeKind::Jvm, "XPageAllocator::alloc_page_stall*", Cause::Gc),
    // A requested collection: gc/z/zDriver*.cpp, gc/x/xDriver.cpp, where the port's functions may
    // be inlined, and gc/shenandoah/shenandoah*ControlThread.cpp.
    rule(CodeKind::Jvm, "ZDriverPort::send_sync*", Cause::Gc),
    rule(CodeKind::Jvm, "ZDriver::collect*", Cause::Gc),
    rule(CodeKind::Jvm, "ZDriverMinor::collect", Cause::Gc),
    rule(CodeKind::Jvm, "ZDriverMajor::collect", Cause::Gc),
    rule(CodeKind::Jvm, "ZCollectedHeap::collect*", Cause::Gc),
    rule(CodeKind::Jvm, "XDriverPort::send_sync*", Cause::Gc),
    rule(CodeKind::Jvm, "XDriver::collect*", Cause::Gc),
    rule(CodeKind::Jvm, "XCollectedHeap::collect*", Cause::Gc),
    rule(CodeKind::Jvm, "ShenandoahControlThread::request_gc*", Cause::Gc),
    rule(CodeKind::Jvm, "ShenandoahControlThread::handle_requested_gc*", Cause::Gc),
    rule(CodeKind::Jvm, "ShenandoahGenerationalControlThread::request_gc*", Cause::Gc),
    rule(CodeKind::Jvm, "ShenandoahGenerationalControlThread::handle_requested_gc*", Cause::Gc),
    rule(CodeKind::Jvm, "ShenandoahHeap::collect*", Cause::Gc),
    rule(CodeKind::Jvm, "ShenandoahHeap::allocate_memory*", Cause::Gc),
    rule(CodeKind::Jvm, "GCLocker::stall_until_clear*", Cause::Gc),
    rule(CodeKind::Jvm, "GCLocker::block*", Cause::Gc),
    rule(CodeKind::Jvm, "MemAllocator::allocate*", Cause::Gc),
    rule(CodeKind::Jvm, "CollectedHeap::collect*", Cause::Gc),
    rule(CodeKind::Jvm, "G1CollectedHeap::*", Cause::Gc),
    rule(CodeKind::Jvm, "ParallelScavengeHeap::*", Cause::Gc),
    rule(CodeKind::Jvm, "SerialHeap::*", Cause::Gc),
    rule(CodeKind::Jvm, "GenCollectedHeap::*", Cause::Gc),
    // Where libjvm has no symbols, these are the leaves. Stubs by which C1's and C2's code enters a
    // monitor (c1/c1_Runtime1.cpp, opto/runtime.cpp), by their names since JDK 24 and before.
    rule(CodeKind::Stub, "[monitorenter*", Cause::Monitor),
    rule(CodeKind::Stub, "[complete_monitor_locking*", Cause::Monitor),
    rule(CodeKind::Stub, "[_complete_monitor_locking*", Cause::Monitor),
    rule(CodeKind::Stub, "[polling_page_*", Cause::Safepoint),
    rule(CodeKind::Stub, "[SafepointBlob*", Cause::Safepoint),
    rule(CodeKind::Java, "java.lang.Object.wait", Cause::ObjectWait),
    rule(CodeKind::Java, "java.lang.Object.wait0", Cause::ObjectWait),
    rule(CodeKind::Java, "jdk.internal.misc.Unsafe.park", Cause::Park),
    rule(CodeKind::Java, "sun.misc.Unsafe.park", Cause::Park),
    rule(CodeKind::Java, "java.lang.Thread.sleep", Cause::Sleep),
    rule(CodeKind::Java, "java.lang.Thread.sleep0", Cause::Sleep),
    rule(CodeKind::Java, "java.lang.Thread.sleepNanos0", Cause::Sleep),
];

/// Functions of the kernel by which a descriptor's kind is known: the nearest one to the leaf
/// decides.
pub(super) const DESCRIPTOR: &[FunctionRule] = &[
    rule(CodeKind::Kernel, "sock_read_iter", Cause::Socket),
    rule(CodeKind::Kernel, "sock_write_iter", Cause::Socket),
    rule(CodeKind::Kernel, "sock_recvmsg", Cause::Socket),
    rule(CodeKind::Kernel, "sock_sendmsg", Cause::Socket),
    rule(CodeKind::Kernel, "tcp_*", Cause::Socket),
    rule(CodeKind::Kernel, "unix_stream_*", Cause::Socket),
    rule(CodeKind::Kernel, "unix_dgram_*", Cause::Socket),
    rule(CodeKind::Kernel, "udp_*", Cause::Socket),
    rule(CodeKind::Kernel, "inet_*", Cause::Socket),
    rule(CodeKind::Kernel, "vfs_fsync*", Cause::File),
    rule(CodeKind::Kernel, "filemap_read", Cause::File),
    // `struct file_operations` of file systems (fs/*/file.c) and of block devices (block/fops.c).
    rule(CodeKind::Kernel, "*_file_read_iter", Cause::File),
    rule(CodeKind::Kernel, "*_file_write_iter", Cause::File),
    rule(CodeKind::Kernel, "nfs_file_read", Cause::File),
    rule(CodeKind::Kernel, "nfs_file_write", Cause::File),
    rule(CodeKind::Kernel, "ceph_read_iter", Cause::File),
    rule(CodeKind::Kernel, "ceph_write_iter", Cause::File),
    rule(CodeKind::Kernel, "ovl_read_iter", Cause::File),
    rule(CodeKind::Kernel, "ovl_write_iter", Cause::File),
    rule(CodeKind::Kernel, "blkdev_read_iter", Cause::File),
    rule(CodeKind::Kernel, "blkdev_write_iter", Cause::File),
    rule(CodeKind::Kernel, "pipe_read", Cause::File),
    rule(CodeKind::Kernel, "pipe_write", Cause::File),
    rule(CodeKind::Kernel, "anon_pipe_read", Cause::File),
    rule(CodeKind::Kernel, "anon_pipe_write", Cause::File),
];

/// Functions that wait for a block device, where nothing else is known of the descriptor.
pub(super) const BLOCK_DEVICE: &[FunctionRule] = &[rule(CodeKind::Kernel, "io_schedule*", Cause::Io)];

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
