//! The scheduler's programs by which waits off the CPU are seen: loaded and attached only where
//! that is asked for.

use std::fs::File;
use std::io::{BufRead, BufReader};

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::raw_trace_point::RawTracePointLinkId;
use aya::programs::{KProbe, RawTracePoint};

use super::btf::Btf;
use super::object::{load_program, load_tail_calls, program, program_error};
use crate::sampler::error::SamplerError;

const WAIT_BEGIN: &str = "wait_begin";
const SWITCH: &str = "sched_switch";

/// Where a thread that waited goes on, by tracepoint and by function.
const WAIT_END: &str = "wait_end";
const SWITCHED: &str = "sched_exit_tp";
const WAIT_END_PROBE: &str = "wait_end_probe";
const SWITCHED_FUNCTION: &str = "finish_task_switch";

/// Targets of tail calls, by their index in the map.
const PROGRAMS: &str = "WAIT_PROGRAMS";
const TAIL_CALLED: [&str; 3] = ["wait_leaf", "wait_unwind", "wait_frozen"];
const PROBE_PROGRAMS: &str = "WAIT_PROBE_PROGRAMS";
const TAIL_CALLED_PROBES: [&str; 3] = ["wait_probe_leaf", "wait_probe_unwind", "wait_probe_frozen"];

const KALLSYMS: &str = "/proc/kallsyms";

/// The loaded programs.
pub(super) struct OffCpuPrograms {
    /// Keeps the map of the tail calls' targets alive.
    _targets: ProgramArray<MapData>,
    /// The program at the end of a wait.
    end: &'static str,
    /// At the switch, while they are attached.
    switch: Option<RawTracePointLinkId>,
}

impl OffCpuPrograms {
    /// Loads the programs that this kernel needs.
    pub(super) fn load(ebpf: &mut Ebpf, btf: &Btf) -> Result<Self, SamplerError> {
        load_program(ebpf, WAIT_BEGIN)?;
        if btf.has_tracepoint(SWITCHED) {
            load_program(ebpf, WAIT_END)?;
            let targets = load_tail_calls(ebpf, PROGRAMS, TAIL_CALLED)?;
            return Ok(Self { _targets: targets, end: WAIT_END, switch: None });
        }
        load_program(ebpf, WAIT_END_PROBE)?;
        let targets = load_tail_calls(ebpf, PROBE_PROGRAMS, TAIL_CALLED_PROBES)?;
        Ok(Self { _targets: targets, end: WAIT_END_PROBE, switch: None })
    }

    /// Attaches them: what takes a wait that is kept before what keeps it.
    pub(super) fn attach(&mut self, ebpf: &mut Ebpf) -> Result<(), SamplerError> {
        if self.end == WAIT_END {
            attach_tracepoint(ebpf, WAIT_END, SWITCHED)?;
        } else {
            let function = switched_function()?;
            let end: &mut KProbe = program(ebpf, WAIT_END_PROBE)?;
            end.attach(function, 0).map_err(program_error(WAIT_END_PROBE))?;
        }
        self.switch = Some(attach_tracepoint(ebpf, WAIT_BEGIN, SWITCH)?);
        Ok(())
    }

    /// Ends keeping waits.
    pub(super) fn detach(&mut self, ebpf: &mut Ebpf) {
        let Some(link) = self.switch.take() else { return };
        let detached = program::<&mut RawTracePoint>(ebpf, WAIT_BEGIN)
            .and_then(|program| program.detach(link).map_err(program_error(WAIT_BEGIN)));
        if let Err(error) = detached {
            tracing::warn!(%error, "the switch's program can't be detached");
        }
    }

    /// Returns run time in nanoseconds, stacks included, and number of switches.
    pub(super) fn run_time(&self, ebpf: &Ebpf) -> Option<(u64, u64)> {
        let begin = ebpf.program(WAIT_BEGIN)?.info().ok()?;
        let end = ebpf.program(self.end)?.info().ok()?;
        let time = begin.run_time() + end.run_time();
        Some((time.as_nanos() as u64, begin.run_count()))
    }
}

fn attach_tracepoint(
    ebpf: &mut Ebpf,
    name: &'static str,
    tracepoint: &'static str,
) -> Result<RawTracePointLinkId, SamplerError> {
    let loaded: &mut RawTracePoint = program(ebpf, name)?;
    loaded.attach(tracepoint).map_err(program_error(name))
}

/// Returns the name of the function that each thread runs after a switch: compilers add to it.
fn switched_function() -> Result<String, SamplerError> {
    let error = |source| SamplerError::KernelFunction { function: SWITCHED_FUNCTION, source };
    let symbols = BufReader::new(File::open(KALLSYMS).map_err(error)?);
    for line in symbols.lines() {
        let line = line.map_err(error)?;
        if let Some(name) = line.split(' ').nth(2).and_then(|name| name.split('\t').next())
            && is_switched_function(name)
        {
            return Ok(name.to_owned());
        }
    }
    Err(error(std::io::ErrorKind::NotFound.into()))
}

fn is_switched_function(name: &str) -> bool {
    let Some(added) = name.strip_prefix(SWITCHED_FUNCTION) else { return false };
    added.is_empty() || (added.starts_with('.') && !added.contains(".cold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_after_a_switch_has_several_names() {
        for name in ["finish_task_switch", "finish_task_switch.isra.0", "finish_task_switch.constprop.0"] {
            assert!(is_switched_function(name), "{name}");
        }
        for name in ["finish_task_switch.isra.0.cold", "__pfx_finish_task_switch", "finish_task", "x"] {
            assert!(!is_switched_function(name), "{name}");
        }
    }
}
