//! The kernel programs of jvmprof: a sample per clock tick of each CPU, with its user stack.
//!
//! # Overview
//!
//! The way of a sample is a chain of programs of one kind ([`program_kind`]): perf event programs
//! for CPU time, uprobes for allocation, tracepoints for waits. State between them is in scratch
//! memory, a slot for each run that can be under way ([`scratch`]).
//!
//! 1. `sample` ([`programs::sample`]) runs at each tick. It drops what isn't profiled
//!    ([`process_filter`]), takes the sample's identity, its kernel stack and its user registers,
//!    and tail-calls
//! 2. `leaf` ([`walk`]), which walks the interrupted frame and tail-calls
//! 3. `unwind` ([`walk`]), which walks [`jvmprof_common::abi::FRAMES_PER_PROGRAM`] callers and
//!    tail-calls itself until the stack ends;
//! 4. `frozen` ([`walk`]) runs instead for the frames of a virtual thread that lie in the Java
//!    heap.
//! 5. At the end, in whichever program that is, [`emit`] copies what the daemon needs to go on,
//!    also of [`goroutine`]s, appends the thread's context where that is wanted
//!    ([`thread`]), and writes the sample to the ring buffer.
//!
//! The walk's algorithm is [`jvmprof_common::unwind`]; here is what it runs on: the maps that the
//! daemon fills ([`tables`]), memory of the process ([`user_memory`]), a cache of what the last
//! samples found, and the subprograms that the verifier checks by themselves.
//!
//! The other programs are
//!
//! - `process_fork` and `process_exec` ([`process_filter`]): children of profiled processes are
//!   profiled, and the tables forget a program that was replaced;
//! - `new_mapping` and, on kernels that don't take it, `unmapped_area`
//!   ([`programs::mapping_events`]): the tables forget a process that maps a library where another
//!   one was;
//! - `alloc_in_new_tlab` and `alloc_outside_tlab` ([`programs::allocation`]): allocations in the
//!   heaps of JVMs, some of which become samples by `probe_leaf`, `probe_unwind` and
//!   `probe_frozen`;
//! - `wait_begin` and `wait_end` ([`programs::off_cpu`]): the time that threads spend off the CPU;
//!   of the waits that are kept, `wait_leaf`, `wait_unwind` and `wait_frozen` walk the stacks;
//! - `pause_begin`, `pause_reached` and `pause_end` ([`programs::pauses`]): the times in which JVMs
//!   stop their threads;
//! - `inspect_waiting` and `adopt_waiting` ([`programs::waiting_threads`]), which the daemon runs
//!   to see where threads are that don't come back;
//! - `kernel_names` ([`programs::kernel_names`]), which the daemon runs to name addresses of the
//!   kernel.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "the one intrinsic of `atomic`")]

mod atomic;
mod counters;
mod emit;
mod globals;
mod goroutine;
mod memory_copy;
mod process_filter;
mod program_kind;
mod programs;
mod scratch;
mod tables;
mod task;
mod thread;
mod user_memory;
mod walk;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends helpers such as `bpf_get_stack` to GPL-compatible programs only; this one is
/// dual-licensed.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
