//! The uprobes in libjvm by which a JVM's allocations and pauses are seen: loaded once, attached to
//! each file.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeLink, UProbeLinkId, UProbeScope};

use super::object::{load_program, load_tail_calls, program, program_error, run_time};
use crate::own_process::thread_priority;
use crate::sampler::counts::ProgramRunTime;
use crate::sampler::error::SamplerError;
use crate::types::FileOffset;

/// Targets of tail calls, by their index in [`PROGRAMS`].
const TAIL_CALLED: [&str; 3] = ["probe_leaf", "probe_unwind", "probe_frozen"];
const PROGRAMS: &str = "PROBE_PROGRAMS";
const IN_NEW_TLAB: &str = "alloc_in_new_tlab";
const OUTSIDE_TLAB: &str = "alloc_outside_tlab";
const THREAD_END: &str = "alloc_thread_end";
const PAUSE_BEGIN: &str = "pause_begin";
const PAUSE_REACHED: &str = "pause_reached";
const PAUSE_END: &str = "pause_end";

/// Offsets in a libjvm's file of the functions by which its JVMs report allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationFunctions {
    pub in_new_tlab: FileOffset,
    pub outside_tlab: FileOffset,
    /// That by which they forget a thread that ends; `None` if it isn't found.
    pub thread_end: Option<FileOffset>,
}

/// The same of the functions that stop threads and let them go on: see
/// [`jvmprof_common::pause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PauseFunctions {
    /// `None` where the next one has its duration as an argument.
    pub begin: Option<FileOffset>,
    pub reached: FileOffset,
    pub end: FileOffset,
}

/// Functions of one file, and the programs at them: names and offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedFunctions(Vec<(&'static str, FileOffset)>);

#[cfg(test)]
impl ProbedFunctions {
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }
}

impl From<AllocationFunctions> for ProbedFunctions {
    fn from(functions: AllocationFunctions) -> Self {
        let reports = [(IN_NEW_TLAB, functions.in_new_tlab), (OUTSIDE_TLAB, functions.outside_tlab)];
        let thread_end = functions.thread_end.map(|offset| (THREAD_END, offset));
        Self(reports.into_iter().chain(thread_end).collect())
    }
}

impl From<PauseFunctions> for ProbedFunctions {
    fn from(functions: PauseFunctions) -> Self {
        // A pause that is under way isn't seen: what begins one comes last.
        let all = [(PAUSE_END, functions.end), (PAUSE_REACHED, functions.reached)];
        let begin = functions.begin.map(|offset| (PAUSE_BEGIN, offset));
        Self(all.into_iter().chain(begin).collect())
    }
}

/// The loaded programs of allocation.
pub(super) struct AllocationProbes {
    /// Keeps the map of the tail calls' targets alive.
    _targets: ProgramArray<MapData>,
}

/// Probes in one file. They stay until [`detach`].
#[derive(Debug)]
pub struct AttachedProbes(Vec<(&'static str, UProbeLinkId)>);

impl AttachedProbes {
    /// Returns true if all of these functions have theirs: the end of threads may lack it.
    pub(crate) const fn are_complete(&self, functions: &ProbedFunctions) -> bool {
        self.0.len() == functions.0.len()
    }

    #[cfg(test)]
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }
}

impl AllocationProbes {
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self, SamplerError> {
        let targets = load_tail_calls(ebpf, PROGRAMS, TAIL_CALLED)?;
        for name in [IN_NEW_TLAB, OUTSIDE_TLAB, THREAD_END] {
            load_program(ebpf, name)?;
        }
        Ok(Self { _targets: targets })
    }

    pub(super) fn run_time(&self, ebpf: &Ebpf) -> Option<ProgramRunTime> {
        run_time(ebpf, &[IN_NEW_TLAB, OUTSIDE_TLAB, THREAD_END])
    }
}

/// Loads the programs of pauses.
pub(super) fn load_pauses(ebpf: &mut Ebpf) -> Result<(), SamplerError> {
    [PAUSE_BEGIN, PAUSE_REACHED, PAUSE_END]
        .into_iter()
        .try_for_each(|name| load_program(ebpf, name).map(drop))
}

/// Returns the run time of the programs of pauses; `None` where they aren't loaded.
pub(super) fn pause_run_time(ebpf: &Ebpf) -> Option<ProgramRunTime> {
    run_time(ebpf, &[PAUSE_BEGIN, PAUSE_REACHED, PAUSE_END])
}

/// Words of the attributes of a perf event that the kernel is given, of its flags, and of the path
/// of an uprobe's file.
const ATTRIBUTE_WORDS: usize = 14;
const FLAGS_WORD: usize = 5;
const PATH_WORD: usize = 7;
/// The flag of an event that doesn't count.
const DISABLED: u64 = 1;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: u64 = 8;

/// Opens an uprobe's event that is off, of this process alone, and closes it at once.
///
/// # Errors
/// Returns what the kernel answers. For want of a capability it denies the permission: before any
/// other process is touched, and for this one as for all.
pub fn try_uprobe() -> io::Result<()> {
    let text = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let event_type: u64 = text.trim().parse().map_err(io::Error::other)?;
    // `perf_event_attr` of `uapi/linux/perf_event.h`, up to the file's offset, which is that of the
    // ELF header: the breakpoint comes into the pages of this process, on or off, and nobody runs
    // these bytes.
    let mut attributes = [0_u64; ATTRIBUTE_WORDS];
    attributes[0] = (size_of_val(&attributes) as u64) << 32 | event_type;
    attributes[FLAGS_WORD] = DISABLED;
    attributes[PATH_WORD] = c"/proc/self/exe".as_ptr().expose_provenance() as u64;
    let (own_process, any_cpu, no_group) = (0, -1, -1);
    // SAFETY: the attributes have the size that they state, and point to a string that stays.
    let result = unsafe {
        let attributes = attributes.as_ptr();
        libc::syscall(libc::SYS_perf_event_open, attributes, own_process, any_cpu, no_group, CLOSE_ON_EXEC)
    };
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just opened it for this call.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Attaches to all of these functions of the file, for every process that maps it. Their programs
/// are loaded.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    file: &Path,
    functions: &ProbedFunctions,
) -> Result<AttachedProbes, SamplerError> {
    let mut attached = Vec::new();
    for &(name, offset) in &functions.0 {
        match attach_one(ebpf, name, file, offset) {
            Ok(link) => attached.push((name, link)),
            // Without it the last buffers of threads aren't counted, and all else is.
            Err(error) if name == THREAD_END => {
                tracing::warn!(%error, file = %file.display(), "ends of threads aren't seen");
            }
            Err(error) => {
                detach(ebpf, AttachedProbes(attached));
                return Err(error);
            }
        }
    }
    Ok(AttachedProbes(attached))
}

pub(super) fn detach(ebpf: &mut Ebpf, probes: AttachedProbes) {
    close_links(probes.0.into_iter().filter_map(|(name, link)| take_link(ebpf, name, link)).collect());
}

fn attach_one(
    ebpf: &mut Ebpf,
    name: &'static str,
    file: &Path,
    offset: FileOffset,
) -> Result<UProbeLinkId, SamplerError> {
    let program: &mut UProbe = program(ebpf, name)?;
    program
        .attach(UProbeAttachLocation::AbsoluteOffset(offset.0), file, UProbeScope::AllProcesses)
        .map_err(program_error(name))
}

fn take_link(ebpf: &mut Ebpf, name: &'static str, link: UProbeLinkId) -> Option<UProbeLink> {
    let taken = program::<&mut UProbe>(ebpf, name)
        .and_then(|program| program.take_link(link).map_err(program_error(name)));
    taken.inspect_err(|error| tracing::warn!(%error, "an uprobe can't be detached")).ok()
}

/// Detaches probes on a thread of its own: the kernel takes a tenth of a second for each, in which
/// the ring buffer has to be read.
fn close_links(links: Vec<UProbeLink>) {
    let detach = move || {
        thread_priority::default_priority();
        drop(links);
    };
    // Without a thread they are dropped here.
    let _ = std::thread::Builder::new().name("uprobe-detach".to_owned()).spawn(detach);
}
