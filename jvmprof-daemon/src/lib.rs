//! The library of the `jvmprof` daemon: samples all CPUs of a host through eBPF, unwinds and names
//! the stacks of unmodified JVMs and of all other programs, and delivers them as pprof profiles.
//!
//! # Overview
//!
//! The kernel programs (crate `jvmprof-ebpf`) unwind each sample's stack where it was taken, with
//! the step functions of `jvmprof-common` and with tables that this crate fills: unwind rows of
//! native files, and the description of each JVM. What only a reader in user space can do, happens
//! here: to follow processes and what they map, to read those tables from ELF files and from the
//! memory of JVMs, to name frames, to label, count and deliver.
//!
//! Everything that is read of another process or of a file on the host is hostile input: it is
//! bounded, and no value is believed without a check. A frame is never guessed, and each sample
//! that isn't delivered whole is counted with the reason (`docs/losses.md`).
//!
//! The binary (`main.rs`) reads its settings with [`app::settings::Invocation`] and runs a
//! subcommand of [`app`]. `record` and `daemon` share one [`pipeline::Pipeline`].
//!
//! # The way of a sample
//!
//! 1. **Take.** A perf event ticks on each CPU. The kernel program puts the thread's identity, its
//!    registers and its unwound stack into a ring buffer ([`sampler::ebpf`]). A thread of
//!    [`sampler::BackgroundSampler`] reads the rings and merges samples with the kernel's records
//!    of processes, in the order of their times: a [`sampler::KernelEvent`] is a
//!    [`sampler::StackSample`], or an exec, a fork, an exit, a new mapping.
//! 2. **Identify.** [`process::ProcessTable`] applies those records. A sample belongs to a
//!    [`process::Process`], known by its pid, start time and exec, with its executable
//!    [`process::Mappings`]: an [`IdentifiedSample`](symbolize::IdentifiedSample).
//! 3. **Publish.** For a process that is new or has changed, [`symbolize`] reads its files' unwind
//!    rows ([`native::unwind_rows`]) and its JVM ([`hotspot::Hotspot`]), and writes them to the
//!    tables of the kernel programs ([`kernel_tables`]), which unwind its next stacks by
//!    themselves.
//! 4. **Complete.** A stack that the kernel program could not complete is completed from the copied
//!    part of the stack, with the same step functions: a
//!    [`CompletedStack`](symbolize::CompletedStack). A sample that needs rows which are still being
//!    read is pending, up to a [`Deadline`](symbolize::Deadline).
//! 5. **Name.** Each frame gets its function and lines: Java frames from the JVM's memory at once,
//!    while their code is there ([`hotspot`]); generated code by perf maps and jitdumps ([`jit`]);
//!    native frames by ELF symbols and DWARF ([`native`]), deferred and in batches. The result is a
//!    [`SymbolizedStack`](symbolize::SymbolizedStack).
//! 6. **Label.** [`pipeline::labels`] gives the sample the labels of its process, container and
//!    thread and applies the relabelling rules of [`config::relabel`], which may drop it.
//! 7. **Aggregate.** [`profile::aggregate`] counts equal stacks of equal labels. When its window
//!    ends, they become a [`profile::model::Batch`].
//! 8. **Deliver.** [`export::delivery::Delivery`] hands the batch to each sink: a Parca-compatible
//!    backend ([`export::parca`]) with a spool on disk ([`export::spool`]), or the local store
//!    ([`export::store`]), which `jvmprof collector` serves ([`export::collector`]). `record`
//!    writes it to files instead ([`profile`]).
//!
//! # Modules, in the order of their imports
//!
//! A module imports only from those above it in this table, and from `jvmprof-common`. A test holds
//! this order.
//!
//! | module | subject |
//! |---|---|
//! | [`types`] | addresses and other values that all share |
//! | `budget`, [`memory_budget`], `intern` | budgets of time and of memory; shared strings |
//! | `cache_directory` | a folder of files within a limit of bytes |
//! | `generational_cache` | a byte-limited cache with two generations, in place of an exact LRU |
//! | `window_length` | lengths of windows that keep a fleet out of step |
//! | [`event_type`] | the events that samples are taken of: series names, sample types |
//! | [`clock`] | the clocks of the kernel |
//! | [`own_process`] | this process: its threads, allocator, memory limit, CPU used, stderr |
//! | [`proto`] | generated code of `proto/*.proto` |
//! | [`profile`] | the model of a profile, aggregation; pprof, folded stacks, SVG, HTML |
//! | [`process`] | process table, mappings, `/proc`, control groups, containers |
//! | [`sampler`] | kernel programs, ring buffers, events in their order |
//! | [`native`] | ELF, symbols, debug files, lines, debuginfod, unwind rows |
//! | [`hotspot`] | JVMs read from outside: vmStructs, code cache, methods, virtual threads, stubs |
//! | [`jit`] | generated code through time: perf maps, jitdumps |
//! | [`kernel_tables`] | the tables of the kernel programs: rows, regions, JVMs |
//! | [`symbolize`] | publishing to the kernel, completing stacks, naming frames |
//! | [`export`] | delivery, Parca client, spool, local store, collector |
//! | [`config`] | settings of the file, the environment and the flags; relabelling rules |
//! | [`pipeline`] | the stages above, from events to batches |
//! | [`telemetry`] | metrics, health, logs |
//! | [`app`] | the command line and its subcommands |
//!
//! # Where to read on
//!
//! `docs/architecture.md` explains the decisions; `docs/hotspot.md`, `docs/jit.md` and
//! `docs/native.md` the three kinds of code; `docs/delivery.md` and `docs/losses.md` the
//! accounting; `docs/configuration.md` settings and relabelling; `docs/glossary.md` the terms. A
//! good first path through the code is [`pipeline`], then the module of the stage that you are
//! after.

pub mod types;

mod budget;
mod cache_directory;
mod generational_cache;
mod intern;
pub mod memory_budget;
mod window_length;

pub mod clock;
pub mod event_type;

pub mod own_process;

pub mod proto;

pub mod profile;

pub mod process;

pub mod sampler;

pub mod native;

pub mod hotspot;

pub mod jit;

pub mod kernel_tables;

pub mod symbolize;

pub mod export;

pub mod config;

pub mod pipeline;

pub mod telemetry;

pub mod app;
