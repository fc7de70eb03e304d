//! The sample source: loads and attaches the kernel programs and brings what they and the kernel's
//! own process records say into one order.
//!
//! Samples come through the BPF ring buffer. Process events (exec, exit, fork, new executable
//! mappings, names) come as perf records of a dummy event on each CPU: the kernel writes them with
//! path and build id at the time of the event, without tracefs, and for a process that is gone a
//! moment later. Both carry `CLOCK_MONOTONIC` times.

mod background;
pub mod btf;
mod cpus;
mod dropped;
pub mod event;
pub mod kernel_names;
mod order;
mod periods;
mod programs;
mod records;
mod tables;
pub mod verifier;
mod waker;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jvmprof_common::abi::{Counter, Stop};
use nix::time::{ClockId, clock_gettime};

pub use background::{BackgroundSampler, QueueLimits};
pub use dropped::DroppedProcesses;
pub use event::{Event, EventKind, Sample};
pub use kernel_names::{KernelNames, KernelSymbol};
use order::EventOrder;
pub use periods::{FrequencyChange, Periods, period_ns};
use programs::Programs;
use records::Records;
pub use tables::{KernelTables, TableSizes};
use waker::Waker;

/// What to sample and how often.
#[derive(Clone, Debug)]
pub struct SamplerOptions {
    /// Samples per second and CPU, in 1..=20,000.
    pub frequency: u32,
    /// `Some`: only these processes (thread group ids) and, as they fork, their children.
    pub pids: Option<Vec<u32>>,
    /// Bytes of the ring buffer; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// The kernel programs log to `tracing` through aya-log.
    pub kernel_log: bool,
}

/// Why sampling could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    #[error("reading kernel type information: {0}")]
    Btf(#[from] btf::BtfError),
    #[error("loading the kernel programs: {0}")]
    Load(#[from] aya::EbpfError),
    #[error("loading kernel program {program}: {source}")]
    Program {
        program: &'static str,
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    #[error(
        "the eBPF object has no {kind} {name}: it is older than this program, rebuild it with `cargo xtask ebpf`"
    )]
    Object { kind: &'static str, name: &'static str },
    #[error("using kernel map {map}: {source}")]
    Map {
        map: &'static str,
        #[source]
        source: aya::maps::MapError,
    },
    #[error("opening a {event} perf event on CPU {cpu}: {source}{}", paranoia(source))]
    PerfEvent { event: &'static str, cpu: u32, source: io::Error },
    #[error("starting the thread that empties the rings: {source}")]
    Thread { source: io::Error },
    #[error("reading {path}: {source}")]
    Cpus { path: &'static str, source: io::Error },
}

/// Why capabilities weren't enough, where it is for a patch that Debian and Ubuntu carry: from 3 on
/// (the default of both) their kernels ask for CAP_SYS_ADMIN.
fn paranoia(refusal: &io::Error) -> String {
    let level =
        || std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse::<i32>().ok();
    match level() {
        Some(level @ 3..) if refusal.kind() == io::ErrorKind::PermissionDenied => format!(
            "; kernel.perf_event_paranoid is {level}, at which this kernel wants CAP_SYS_ADMIN: set it to 2 or less"
        ),
        _ => String::new(),
    }
}

/// The clock that ticks the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Hardware cycles.
    Cycles,
    /// The kernel's cpu-clock: where the hardware has no counter to lend, as in most virtual
    /// machines.
    CpuClock,
}

impl Clock {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }
}

/// Counters of the kernel programs and of the way from there to here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplerCounts {
    /// By [`Counter`], in the order of [`Counter::ALL`].
    pub counters: [u64; Counter::ALL.len()],
    /// Walks of user stacks by [`Stop`], in the order of [`Stop::ALL`].
    pub stops: [u64; Stop::ALL.len()],
    /// Ring buffer records that were no samples of this version.
    pub malformed: u64,
    /// Process records that were dropped since their ring was full, or the queue behind it.
    pub records_lost: u64,
    /// Process records that could not be parsed.
    pub malformed_records: u64,
    /// Events that arrived after later ones had been handed on.
    pub late: u64,
    /// Samples that were dropped since too many waited to be named.
    pub shed: u64,
}

impl SamplerCounts {
    pub fn get(&self, counter: Counter) -> u64 {
        Counter::ALL.iter().position(|it| *it == counter).map_or(0, |index| self.counters[index])
    }
}

/// Kernel programs that run, and the rings they fill.
#[derive(Debug)]
pub struct Sampler {
    programs: Programs,
    records: Records,
    order: EventOrder,
    counts: SamplerCounts,
    waker: Arc<Waker>,
}

/// An event's record is complete this long after its time stamp: writers run with preemption off,
/// but a hypervisor may still stop a CPU between the two.
pub const SETTLE: Duration = Duration::from_millis(2);

impl Sampler {
    /// Loads the programs and attaches them to every online CPU. Between the two `prepare` gets the
    /// tables, to tell of what runs already.
    ///
    /// # Errors
    /// Each names the kernel facility that refused.
    pub fn start(options: &SamplerOptions, prepare: impl FnOnce(KernelTables)) -> Result<Self, SamplerError> {
        let cpus = cpus::online()?;
        let waker = Arc::new(Waker::new().map_err(|source| SamplerError::Thread { source })?);
        let (programs, records) = Programs::start(options, &cpus, |tables| {
            // Before the first sample: its process is known that way.
            let records = Records::open(&cpus, Arc::clone(&waker))?;
            prepare(tables);
            Ok(records)
        })?;
        waker.add_samples(programs.ring_fd()).map_err(|source| SamplerError::Thread { source })?;
        let order = EventOrder::default();
        Ok(Self { programs, records, order, counts: SamplerCounts::default(), waker })
    }

    pub fn clock(&self) -> Clock {
        self.programs.clock()
    }

    /// What the rings are waited on with.
    fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Follows CPUs that came or went.
    ///
    /// # Errors
    /// A CPU that is online but can't be sampled; the others go on.
    pub fn follow_cpus(&mut self) -> Result<(), SamplerError> {
        let cpus = cpus::online()?;
        self.records.follow(&cpus)?;
        self.programs.follow(&cpus)
    }

    /// Samples each CPU so often from now on.
    ///
    /// # Errors
    /// A CPU that can't be sampled; [`Self::follow_cpus`] tries again, and the others go on.
    pub fn set_frequency(&mut self, frequency: u32) -> (FrequencyChange, Result<(), SamplerError>) {
        self.programs.set_frequency(frequency)
    }

    /// Hands on what has happened since the last call, in order of time, up to a moment ago.
    pub fn poll(&mut self, handle: &mut impl FnMut(Event)) {
        let settled = now_ns().saturating_sub(SETTLE.as_nanos() as u64);
        self.drain();
        self.order.drain(settled, handle);
    }

    /// Stops sampling and hands on the rest.
    pub fn stop(&mut self, handle: &mut impl FnMut(Event)) {
        self.programs.detach();
        self.drain();
        self.order.drain(u64::MAX, handle);
    }

    /// Counters since the start.
    pub fn counts(&mut self) -> SamplerCounts {
        self.programs.read_counters(&mut self.counts);
        self.counts.late = self.order.late();
        self.counts.clone()
    }

    /// (nanoseconds, runs) of the kernel programs, from the kernel's own statistics; `None` unless
    /// they are enabled.
    pub fn run_time(&self) -> Option<(u64, u64)> {
        self.programs.run_time()
    }

    fn drain(&mut self) {
        let order = &mut self.order;
        let drained = self.records.drain(&mut |event| order.push(event));
        self.counts.records_lost += drained.lost;
        self.counts.malformed_records += drained.malformed;
        self.counts.malformed += self.programs.drain(&mut |event| order.push(event));
    }
}

/// `CLOCK_MONOTONIC`, ns: the clock of all events.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}
