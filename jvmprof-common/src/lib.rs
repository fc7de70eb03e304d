//! Code that the kernel programs and the daemon of jvmprof share: the ABI of their maps and
//! records, and the unwinder.
//!
//! # Overview
//!
//! - [`abi`]: the sample as it stands in the ring buffer, counters, limits, and the reasons why a
//!   walk ended; [`frame`]: the words by which it identifies each frame of a user stack.
//! - [`unwind_tables`]: what the daemon publishes of processes and their code, and [`jvm`]: of a
//!   JVM; [`rows`]: unwind rows.
//! - [`allocation`] and [`off_cpu`]: what the programs of these events keep of threads and
//!   processes, and what their samples say beside the stack; [`off_cpu::switch_clock`]: the time of
//!   a switch.
//! - [`pause`]: the times in which a JVM stops its threads.
//! - [`blocker`]: what a JVM's thread waits for, and [`held_monitor`]: who has it.
//! - [`thread_context`]: what a process publishes of the request that a thread works on.
//! - [`thread_local`]: where a thread has a thread-local variable.
//! - [`unwind`]: the steppers, which find a frame's caller by these.
//! - [`address`]: addresses of the profiled process, none of which is a bare number.
//!
//! # The way of a sample
//!
//! The kernel program (`jvmprof-ebpf`) puts an [`unwind::Cursor`] on the interrupted registers. For
//! each frame it finds what code the pc lies in, by the [`unwind_tables::Region`]s of the process,
//! and takes a step:
//!
//! - by the [`unwind_tables::PackedRule`] of the pc, found with [`unwind_tables::find_rule`],
//!   through [`unwind::row_stepper`];
//! - by the frame pointer, through [`unwind::frame_pointer_stepper`];
//! - in a JVM's code cache by what the JVM itself says of the pc, through [`unwind::hotspot`],
//!   which also goes on in the Java heap for the frames of a virtual thread
//!   ([`unwind::hotspot::continuation`]).
//!
//! It appends the frame's words and goes on with its caller, until an [`abi::Stop`]. An
//! [`abi::SampleHeader`] with these words, and with some of the stack where the tables knew too
//! little, goes through the ring buffer to the daemon, which decodes [`frame::UserFrame`]s and,
//! where it has to, walks on with the same steppers over the copied stack.
//!
//! # Design constraints
//!
//! `no_std`, no allocation, no panicking paths, and code that the eBPF verifier accepts;
//! [`verifier`] says how. Structures that lie in maps are `repr(C)` without padding.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

pub mod abi;
pub mod address;
pub mod allocation;
pub mod blocker;
pub mod frame;
pub mod held_monitor;
pub mod jvm;
pub mod off_cpu;
pub mod pause;
pub mod rows;
pub mod thread_context;
pub mod thread_local;
pub mod unwind;
pub mod unwind_tables;
pub mod verifier;
