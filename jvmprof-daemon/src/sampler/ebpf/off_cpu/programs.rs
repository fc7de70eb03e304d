//! The scheduler's programs by which waits off the CPU are seen: loaded and attached only where
//! that is asked for.

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, RawTracePoint};

use super::switch_interrupts::SwitchInterrupts;
use crate::sampler::btf::Btf;
use crate::sampler::ebpf::object::{load_program, load_tail_calls, program, program_error};
use crate::sampler::error::SamplerError;

/// The program where a wait begins.
const WAIT_BEGIN: &str = "wait_begin";
/// The kernel's tracepoint that [`WAIT_BEGIN`] is attached to.
pub(in crate::sampler::ebpf) const SWITCH: &str = "sched_switch";
/// The program where a thread goes on whose wait is kept: in the interrupt that `wait_begin`
/// raises. Every kernel for x86-64 has this tracepoint (arch/x86/kernel/irq_work.c).
const WAIT_END: &str = "wait_end";
const INTERRUPT: &str = "irq_work_entry";

/// Targets of tail calls, by their index in the map.
const PROGRAMS: &str = "WAIT_PROGRAMS";
const TAIL_CALLED: [&str; 3] = ["wait_leaf", "wait_unwind", "wait_frozen"];

/// The loaded programs.
pub(in crate::sampler) struct OffCpuPrograms {
    /// Keeps the map of the tail calls' targets alive.
    _targets: ProgramArray<MapData>,
    interrupts: SwitchInterrupts,
    /// At the switch, while they are attached.
    switch: Option<BtfTracePointLinkId>,
}

impl OffCpuPrograms {
    pub(in crate::sampler) fn load(ebpf: &mut Ebpf, btf: &Btf) -> Result<Self, SamplerError> {
        let begin: &mut BtfTracePoint = program(ebpf, WAIT_BEGIN)?;
        begin.load(SWITCH, &switch_tracepoint(btf)?).map_err(program_error(WAIT_BEGIN))?;
        load_program(ebpf, WAIT_END)?;
        let targets = load_tail_calls(ebpf, PROGRAMS, TAIL_CALLED)?;
        Ok(Self { _targets: targets, interrupts: SwitchInterrupts::of(ebpf)?, switch: None })
    }

    /// Attaches them: what takes a wait that is kept before what keeps it.
    pub(in crate::sampler) fn attach(&mut self, ebpf: &mut Ebpf, cpus: &[u32]) -> Result<(), SamplerError> {
        self.interrupts.update_cpus(cpus)?;
        let end: &mut RawTracePoint = program(ebpf, WAIT_END)?;
        end.attach(INTERRUPT).map_err(program_error(WAIT_END))?;
        let begin: &mut BtfTracePoint = program(ebpf, WAIT_BEGIN)?;
        self.switch = Some(begin.attach().map_err(program_error(WAIT_BEGIN))?);
        Ok(())
    }

    /// Follows CPUs that come online and go offline.
    ///
    /// # Errors
    /// Returns a CPU on which waits can't be taken.
    pub(in crate::sampler) fn update_cpus(&mut self, cpus: &[u32]) -> Result<(), SamplerError> {
        self.interrupts.update_cpus(cpus)
    }

    /// Ends keeping waits.
    pub(in crate::sampler) fn detach(&mut self, ebpf: &mut Ebpf) {
        let Some(link) = self.switch.take() else { return };
        let detached = program::<&mut BtfTracePoint>(ebpf, WAIT_BEGIN)
            .and_then(|program| program.detach(link).map_err(program_error(WAIT_BEGIN)));
        if let Err(error) = detached {
            tracing::warn!(%error, "the switch's program can't be detached");
        }
    }
}

/// Returns the type information of the tracepoint that [`WAIT_BEGIN`] is attached to, for aya.
pub(in crate::sampler::ebpf) fn switch_tracepoint(btf: &Btf) -> Result<aya::Btf, SamplerError> {
    let tracepoint = btf.of_tracepoint(SWITCH)?;
    let parsed = aya::Btf::parse(&tracepoint, aya::Endianness::Little);
    parsed.map_err(|error| program_error(WAIT_BEGIN)(error.into()))
}
