//! The uprobes in libjvm by which a JVM's allocations are seen: loaded once, attached to each file.

use std::path::Path;

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeLink, UProbeLinkId, UProbeScope};
use aya::programs::{ProgramError, UProbe};

use super::object::{map_error, program, program_error, take_map};
use crate::sampler::error::SamplerError;

/// Targets of tail calls, by their index in [`PROGRAMS`].
const TAIL_CALLED: [&str; 3] = ["probe_leaf", "probe_unwind", "probe_frozen"];
const PROGRAMS: &str = "PROBE_PROGRAMS";
const IN_NEW_TLAB: &str = "alloc_in_new_tlab";
const OUTSIDE_TLAB: &str = "alloc_outside_tlab";

/// Offsets in a libjvm's file of the functions that the probes are at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationFunctions {
    pub in_new_tlab: u64,
    pub outside_tlab: u64,
}

/// The loaded programs.
pub(super) struct AllocationProbes {
    /// Keeps the map of the tail calls' targets alive.
    _targets: ProgramArray<MapData>,
}

/// Probes in one file. They stay until [`AllocationProbes::detach`].
#[derive(Debug)]
pub struct AttachedProbes {
    in_new_tlab: UProbeLinkId,
    outside_tlab: UProbeLinkId,
}

impl AllocationProbes {
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self, SamplerError> {
        let mut targets: ProgramArray<_> = take_map(ebpf, PROGRAMS)?;
        for (index, name) in (0..).zip(TAIL_CALLED) {
            let target: &mut UProbe = program(ebpf, name)?;
            target.load().map_err(program_error(name))?;
            let target = target.fd().map_err(program_error(name))?.try_clone().map_err(|source| {
                SamplerError::Program { program: name, source: Box::new(ProgramError::IOError(source)) }
            })?;
            targets.set(index, &target, 0).map_err(map_error(PROGRAMS))?;
        }
        for name in [IN_NEW_TLAB, OUTSIDE_TLAB] {
            program::<&mut UProbe>(ebpf, name)?.load().map_err(program_error(name))?;
        }
        Ok(Self { _targets: targets })
    }

    /// Attaches to both functions of the file, for every process that maps it.
    pub(super) fn attach(
        &self,
        ebpf: &mut Ebpf,
        file: &Path,
        functions: AllocationFunctions,
    ) -> Result<AttachedProbes, SamplerError> {
        let in_new_tlab = attach_one(ebpf, IN_NEW_TLAB, file, functions.in_new_tlab)?;
        match attach_one(ebpf, OUTSIDE_TLAB, file, functions.outside_tlab) {
            Ok(outside_tlab) => Ok(AttachedProbes { in_new_tlab, outside_tlab }),
            Err(error) => {
                close_links(take_link(ebpf, IN_NEW_TLAB, in_new_tlab));
                Err(error)
            }
        }
    }

    /// Returns run time in nanoseconds, stacks included, and number of runs.
    pub(super) fn run_time(&self, ebpf: &Ebpf) -> Option<(u64, u64)> {
        let mut sums = (0, 0);
        for name in [IN_NEW_TLAB, OUTSIDE_TLAB] {
            let info = ebpf.program(name)?.info().ok()?;
            sums.0 += info.run_time().as_nanos() as u64;
            sums.1 += info.run_count();
        }
        Some(sums)
    }

    pub(super) fn detach(&self, ebpf: &mut Ebpf, probes: AttachedProbes) {
        let in_new_tlab = take_link(ebpf, IN_NEW_TLAB, probes.in_new_tlab);
        let outside_tlab = take_link(ebpf, OUTSIDE_TLAB, probes.outside_tlab);
        close_links(in_new_tlab.into_iter().chain(outside_tlab));
    }
}

fn attach_one(
    ebpf: &mut Ebpf,
    name: &'static str,
    file: &Path,
    offset: u64,
) -> Result<UProbeLinkId, SamplerError> {
    let program: &mut UProbe = program(ebpf, name)?;
    program
        .attach(UProbeAttachLocation::AbsoluteOffset(offset), file, UProbeScope::AllProcesses)
        .map_err(program_error(name))
}

fn take_link(ebpf: &mut Ebpf, name: &'static str, link: UProbeLinkId) -> Option<UProbeLink> {
    let taken = program::<&mut UProbe>(ebpf, name)
        .and_then(|program| program.take_link(link).map_err(program_error(name)));
    taken.inspect_err(|error| tracing::warn!(%error, "an uprobe can't be detached")).ok()
}

/// Detaches probes on a thread of its own: the kernel takes a tenth of a second for each, in which
/// the ring buffer has to be read.
fn close_links(links: impl IntoIterator<Item = UProbeLink>) {
    let links: Vec<UProbeLink> = links.into_iter().collect();
    // Without a thread they are dropped here.
    let _ = std::thread::Builder::new().name("uprobe-detach".to_owned()).spawn(move || drop(links));
}
