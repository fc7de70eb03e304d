//! The kernel programs: attaching them to CPUs that come and go, their ring buffer, counters and
//! filter.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use aya::maps::{MapData, PerCpuArray, ProgramArray, RingBuf};
use aya::programs::perf_event::{
    HardwareEvent, PerfEventConfig, PerfEventLinkId, PerfEventScope, SamplePolicy, SoftwareEvent,
};
use aya::programs::{FEntry, PerfEvent, RawTracePoint};
use aya::sys::{Stats, enable_stats};
use aya::{Ebpf, VerifierLogLevel};
use aya_log::EbpfLogger;
use jvmprof_common::abi::{Counter, CpuCounters, Event, Stop};

use super::loader::{RING, load};
use super::maps::BpfMaps;
use super::object::{load_program, load_tail_calls, program, program_error, run_time, take_map};
use super::off_cpu::programs::OffCpuPrograms;
use super::process_filter::ProfiledProcesses;
use super::uprobes::{self, AllocationProbes, AttachedProbes, ProbedFunctions};
use crate::clock::monotonic_ns;
use crate::event_type::SamplesByEvent;
use crate::sampler::btf::Btf;
use crate::sampler::counts::{EventCounts, ProgramRunTimes, SamplerCounts};
use crate::sampler::error::SamplerError;
use crate::sampler::event::{KernelEvent, KernelEventKind};
use crate::sampler::options::{SampleClock, SamplerOptions};
use crate::sampler::sample::{MalformedSample, RingRecord};
use crate::sampler::sampling_period::FrequencyChange;

const SAMPLE: &str = "sample";
/// Targets of tail calls, by their index in `PROGRAMS`.
const TAIL_CALLED: [&str; 3] = ["leaf", "unwind", "frozen"];
const FORK: &str = "process_fork";
const EXEC: &str = "process_exec";
const NEW_MAPPING: &str = "new_mapping";
/// The kernel's function that [`NEW_MAPPING`] is attached to.
pub(super) const MAPPED: &str = "perf_event_mmap";
/// The program for kernels that don't take that one.
const UNMAPPED_AREA: &str = "unmapped_area";
const COUNTERS: &str = "COUNTERS";
const PROGRAMS: &str = "PROGRAMS";

pub(in crate::sampler) struct KernelPrograms {
    ebpf: Ebpf,
    ring: RingBuf<MapData>,
    counters: PerCpuArray<MapData, CpuCounters>,
    profiled: ProfiledProcesses,
    /// Keeps the map of the tail calls' targets alive.
    _targets: ProgramArray<MapData>,
    /// Those of allocation, where it is profiled.
    probes: Option<AllocationProbes>,
    /// Those of waits, where they are profiled.
    off_cpu: Option<OffCpuPrograms>,
    links: BTreeMap<u32, PerfEventLinkId>,
    clock: SampleClock,
    frequency: u64,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
    /// The kernel measures the run time of all programs of the host while this is open.
    stats: Option<OwnedFd>,
}

impl fmt::Debug for KernelPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelPrograms")
            .field("clock", &self.clock)
            .field("cpus", &self.links.keys())
            .finish()
    }
}

impl KernelPrograms {
    /// Loads and attaches the programs. Between the two, `prepare` gets the maps.
    pub(in crate::sampler) fn start<T>(
        options: &SamplerOptions,
        cpus: &[u32],
        prepare: impl FnOnce(BpfMaps) -> Result<T, SamplerError>,
    ) -> Result<(Self, T), SamplerError> {
        // The verifier's reason without its log, which `doctor --programs` prints.
        let btf = Btf::of_running_kernel()?;
        let mut ebpf = load(options, &btf, VerifierLogLevel::STATS)?;
        // They take a third of what a switch costs where waits are profiled, of every program.
        let stats = if options.off_cpu { None } else { measure_run_times() };
        let logger = options.kernel_log.then(|| EbpfLogger::init(&mut ebpf)).and_then(|logger| {
            logger.inspect_err(|error| tracing::warn!(%error, "no log of the kernel programs")).ok()
        });
        let targets = load_tail_calls(&mut ebpf, PROGRAMS, TAIL_CALLED)?;
        let probes = options.allocation.then(|| AllocationProbes::load(&mut ebpf)).transpose()?;
        if options.pauses {
            uprobes::load_pauses(&mut ebpf)?;
        }
        let profiled = attach_process_events(&mut ebpf, options.pids.as_deref())?;
        let off_cpu = options.off_cpu.then(|| OffCpuPrograms::load(&mut ebpf, &btf)).transpose()?;
        attach_mapping_events(&mut ebpf, &btf);
        drop(btf);
        let tables = BpfMaps::of(&mut ebpf, options)?;
        load_program(&mut ebpf, SAMPLE)?;
        let mut programs = Self {
            ring: take_map(&mut ebpf, RING)?,
            counters: take_map(&mut ebpf, COUNTERS)?,
            profiled,
            _targets: targets,
            probes,
            off_cpu,
            links: BTreeMap::new(),
            clock: SampleClock::Cycles,
            frequency: u64::from(options.frequency),
            logger,
            stats,
            ebpf,
        };
        let prepared = prepare(tables)?;
        programs.attach_all(cpus)?;
        if let Some(off_cpu) = &mut programs.off_cpu {
            off_cpu.attach(&mut programs.ebpf, cpus)?;
        }
        Ok((programs, prepared))
    }

    pub(in crate::sampler) fn clock(&self) -> SampleClock {
        self.clock
    }

    pub(in crate::sampler) fn update_cpus(&mut self, cpus: &[u32]) -> Result<(), SamplerError> {
        let gone: Vec<u32> = self.links.keys().copied().filter(|cpu| !cpus.contains(cpu)).collect();
        for cpu in gone {
            if let Some(link) = self.links.remove(&cpu) {
                self.detach_link(link);
                tracing::info!(cpu, "a CPU went offline");
            }
        }
        for &cpu in cpus {
            if !self.links.contains_key(&cpu) {
                self.attach(cpu)?;
                tracing::info!(cpu, "a CPU came online");
            }
        }
        self.off_cpu.as_mut().map_or(Ok(()), |off_cpu| off_cpu.update_cpus(cpus))
    }

    /// Makes room for further chosen processes. `ended`: processes of the host that have ended
    /// since the last call.
    pub(in crate::sampler) fn remove_ended_processes(&mut self, ended: u32) {
        self.profiled.remove_ended(ended);
    }

    /// Reopens each CPU's event with another frequency. Whether the kernel accepts a frequency or a
    /// period for a running event depends on the clock and on how it is implemented
    /// (kernel/events/core.c, `perf_swevent_init_hrtimer`).
    pub(in crate::sampler) fn set_frequency(
        &mut self,
        frequency: u32,
    ) -> (FrequencyChange, Result<(), SamplerError>) {
        self.frequency = u64::from(frequency);
        let mut change = FrequencyChange { frequency, began_ns: monotonic_ns(), cpus: Default::default() };
        let mut result = Ok(());
        for (cpu, link) in std::mem::take(&mut self.links) {
            self.detach_link(link);
            change.cpus.insert(cpu, monotonic_ns());
            if let Err(error) = self.attach(cpu) {
                result = Err(error);
            }
        }
        (change, result)
    }

    /// Detaches the programs, and returns once none of them runs any more: what they have counted
    /// as taken is in the ring then.
    pub(in crate::sampler) fn detach(&mut self) {
        if let Some(off_cpu) = &mut self.off_cpu {
            off_cpu.detach(&mut self.ebpf);
        }
        let has_one_cpu = self.links.len() == 1;
        for (_, link) in std::mem::take(&mut self.links) {
            self.detach_link(link);
        }
        wait_for_running_programs(has_one_cpu);
    }

    /// Returns the ring's descriptor, which is readable when a sample woke the reader.
    pub(in crate::sampler) fn ring_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Calls `handle` with the samples in the ring buffer, and returns the number of malformed
    /// records.
    pub(in crate::sampler) fn drain(&mut self, handle: &mut impl FnMut(KernelEvent)) -> SamplesByEvent {
        let mut malformed = SamplesByEvent::NONE;
        while let Some(record) = self.ring.next() {
            match RingRecord::parse(&record) {
                Ok(RingRecord::Sample(sample)) => handle(KernelEvent {
                    time_ns: sample.header.time_ns,
                    kind: KernelEventKind::Sample(sample),
                }),
                Ok(RingRecord::Tlab(tlab)) => {
                    handle(KernelEvent { time_ns: tlab.time_ns, kind: KernelEventKind::Tlab(tlab) });
                }
                Ok(RingRecord::Pause(pause)) => {
                    handle(KernelEvent { time_ns: pause.time_ns, kind: KernelEventKind::Pause(pause) });
                }
                Err(MalformedSample { event }) => malformed += SamplesByEvent::of(event, 1),
            }
        }
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
        malformed
    }

    pub(in crate::sampler) fn read_counters(&self, counts: &mut SamplerCounts) {
        let of_cpus = match self.counters.get(&0, 0) {
            Ok(of_cpus) => of_cpus,
            Err(error) => {
                tracing::warn!(%error, "the kernel's counters can't be read");
                return;
            }
        };
        let sum = |index: u32| of_cpus.iter().map(|counters| counters[index as usize]).sum();
        counts.events = Event::ALL.map(|event| {
            let first = event.first_counter();
            EventCounts {
                counters: Counter::ALL.map(|counter| sum(first + counter as u32)),
                stops: Stop::ALL.map(|stop| sum(first + Counter::StopBase as u32 + stop as u32)),
            }
        });
    }

    /// Attaches uprobes to a libjvm.
    pub(in crate::sampler) fn attach_probes(
        &mut self,
        file: &Path,
        functions: &ProbedFunctions,
    ) -> Result<AttachedProbes, SamplerError> {
        uprobes::attach(&mut self.ebpf, file, functions)
    }

    pub(in crate::sampler) fn detach_probes(&mut self, attached: AttachedProbes) {
        uprobes::detach(&mut self.ebpf, attached);
    }

    pub(in crate::sampler) fn run_times(&self) -> ProgramRunTimes {
        if self.stats.is_none() {
            return ProgramRunTimes::default();
        }
        ProgramRunTimes {
            // A tail-called program's time is billed to the program that was entered.
            clock: run_time(&self.ebpf, &[SAMPLE]),
            allocation: self.probes.as_ref().and_then(|probes| probes.run_time(&self.ebpf)),
            pauses: uprobes::pause_run_time(&self.ebpf),
        }
    }

    /// Attaches to all CPUs. The first one shows which clock this machine has.
    fn attach_all(&mut self, cpus: &[u32]) -> Result<(), SamplerError> {
        let Some((&first, rest)) = cpus.split_first() else { return Ok(()) };
        if let Err(error) = self.attach(first) {
            tracing::debug!(%error, "no hardware cycles, taking cpu-clock");
            self.clock = SampleClock::CpuClock;
            self.attach(first)?;
        }
        rest.iter().try_for_each(|cpu| self.attach(*cpu))
    }

    fn attach(&mut self, cpu: u32) -> Result<(), SamplerError> {
        let config = match self.clock {
            SampleClock::Cycles => PerfEventConfig::Hardware(HardwareEvent::CpuCycles),
            SampleClock::CpuClock => PerfEventConfig::Software(SoftwareEvent::CpuClock),
        };
        let program: &mut PerfEvent = program(&mut self.ebpf, SAMPLE)?;
        let link = program
            .attach(
                config,
                PerfEventScope::AllProcessesOneCpu { cpu },
                SamplePolicy::Frequency(self.frequency),
                false,
            )
            .map_err(|error| SamplerError::PerfEvent {
                event: self.clock.as_str(),
                cpu,
                source: std::io::Error::other(error),
            })?;
        self.links.insert(cpu, link);
        Ok(())
    }

    fn detach_link(&mut self, link: PerfEventLinkId) {
        let detached = program::<&mut PerfEvent>(&mut self.ebpf, SAMPLE)
            .and_then(|program| program.detach(link).map_err(program_error(SAMPLE)));
        if let Err(error) = detached {
            tracing::warn!(%error, "a CPU's perf event can't be detached");
        }
    }
}

/// Waits for the end of each kernel program that runs now, those of uprobes included, which are
/// detached later. Programs run in a read-side section of RCU, and this call waits until all of
/// these that have begun are over (`kernel/sched/membarrier.c`), but where there is one CPU, and
/// where some have no ticks of the clock: there programs get some time.
fn wait_for_running_programs(has_one_cpu: bool) {
    const ENOUGH: Duration = Duration::from_millis(50);
    // SAFETY: the call gets numbers alone.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 || has_one_cpu {
        std::thread::sleep(ENOUGH);
    }
}

/// Has the kernel measure the run time of its programs, as long as the result is open.
fn measure_run_times() -> Option<OwnedFd> {
    enable_stats(Stats::RunTime)
        .inspect_err(|error| tracing::debug!(%error, "the kernel doesn't measure its programs' run time"))
        .ok()
}

/// Attaches the programs that follow forks and execs, and chooses the processes that are sampled.
fn attach_process_events(ebpf: &mut Ebpf, pids: Option<&[u32]>) -> Result<ProfiledProcesses, SamplerError> {
    let mut profiled = ProfiledProcesses::of(ebpf)?;
    for pid in pids.into_iter().flatten() {
        profiled.insert(*pid)?;
    }
    if pids.is_some() {
        attach_raw_tracepoint(ebpf, FORK, "sched_process_fork")?;
    }
    attach_raw_tracepoint(ebpf, EXEC, "sched_process_exec")?;
    Ok(profiled)
}

fn attach_raw_tracepoint(ebpf: &mut Ebpf, name: &'static str, tracepoint: &str) -> Result<(), SamplerError> {
    load_program(ebpf, name)?;
    let program: &mut RawTracePoint = program(ebpf, name)?;
    program.attach(tracepoint).map_err(program_error(name))?;
    Ok(())
}

/// The consequence where the kernel doesn't take [`NEW_MAPPING`]: before 5.16, and where it was
/// built without what fentry programs need.
const NO_FENTRY: &str = "where a process maps code over other code without unmapping that first, stacks of the next second end there: this kernel takes no fentry program";
/// The consequence where it doesn't take [`UNMAPPED_AREA`] either.
const NO_MAPPING_PROGRAM: &str = "where a process loads a library in the place of another one, stacks of the next second end there: this kernel takes no fentry program";

/// Attaches the program that sees new mappings, of the two that the kernel takes.
fn attach_mapping_events(ebpf: &mut Ebpf, btf: &Btf) {
    let Err(error) = attach_new_mapping(ebpf, btf) else { return };
    tracing::debug!(%error, "new mappings aren't watched");
    match attach_raw_tracepoint(ebpf, UNMAPPED_AREA, "vm_unmapped_area") {
        Ok(()) => tracing::info!("{NO_FENTRY}"),
        Err(error) => tracing::warn!(%error, "{NO_MAPPING_PROGRAM}"),
    }
}

/// Attaches the program that invalidates a process's entry when code of files replaces other code.
fn attach_new_mapping(ebpf: &mut Ebpf, btf: &Btf) -> Result<(), SamplerError> {
    let function = mapped_function(btf)?;
    let program: &mut FEntry = program(ebpf, NEW_MAPPING)?;
    program.load(MAPPED, &function).map_err(program_error(NEW_MAPPING))?;
    program.attach().map_err(program_error(NEW_MAPPING))?;
    Ok(())
}

/// Returns the type information of the function that [`NEW_MAPPING`] is attached to, for aya.
pub(super) fn mapped_function(btf: &Btf) -> Result<aya::Btf, SamplerError> {
    let function = btf.of_function(MAPPED)?;
    let parsed = aya::Btf::parse(&function, aya::Endianness::Little);
    parsed.map_err(|error| program_error(NEW_MAPPING)(error.into()))
}
