//! The kernel programs: a sample per clock tick of each CPU, and the children of profiled processes.
//!
//! `sample` takes a sample's identity, its kernel stack and its user registers and tail-calls `leaf`, which walks the
//! interrupted frame and tail-calls `unwind`, which walks [`jvmprof_common::abi::FRAMES_PER_PROGRAM`] frames and tail-calls
//! itself until the stack ends; then the sample goes to the ring buffer. State between the programs is in memory of the CPU.
#![no_std]
#![no_main]

mod counters;
mod emit;
mod filter;
mod frozen;
mod globals;
mod goroutine;
mod heap;
mod kernel_names;
mod known;
mod mapping;
mod memory;
mod methods;
mod sample;
mod scratch;
mod tables;
mod task;
mod unwind;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends helpers such as `bpf_get_stack` to GPL-compatible programs only; this one is dual-licensed.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
