//! Inspection of threads that wait: kernel programs find where their user code was when it entered
//! kernel, and find those that have waited since before they were followed.

use aya::maps::{Array, MapData};
use aya::programs::ProgramFd;
use jvmprof_common::off_cpu::{ADOPT_PROGRAM, INSPECT_PROGRAM, WAITING, WaitingThread};

use crate::sampler::ebpf::kernel_symbols::run;
use crate::sampler::ebpf::object::{PodValue, impl_pod, load_program, map_error, program_error, take_map};
use crate::sampler::error::SamplerError;

impl_pod!(WaitingThread);

/// The kernel programs, and the map of their argument and result.
pub(super) struct WaitingThreads {
    inspect: ProgramFd,
    adopt: ProgramFd,
    waiting: Array<MapData, PodValue<WaitingThread>>,
}

impl WaitingThreads {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        let waiting = take_map(ebpf, WAITING)?;
        let inspect = load_program(ebpf, INSPECT_PROGRAM)?;
        Ok(Self { inspect, adopt: load_program(ebpf, ADOPT_PROGRAM)?, waiting })
    }

    /// Inspects a thread that is followed; `None` if it doesn't wait.
    pub(super) fn inspect(&mut self, tid: u32) -> Result<Option<WaitingThread>, SamplerError> {
        let named = WaitingThread { tid, ..WaitingThread::default() };
        self.waiting.set(0, PodValue(named), 0).map_err(map_error(WAITING))?;
        run(&self.inspect, 0).map_err(|source| program_error(INSPECT_PROGRAM)(source.into()))?;
        let waiting = self.waiting.get(&0, 0).map_err(map_error(WAITING))?.0;
        Ok((waiting.is_waiting != 0).then_some(waiting))
    }

    /// Begins to follow all threads of a followed one's process that have waited since then,
    /// by the monotonic clock and by that of threads' starts.
    pub(super) fn adopt(&mut self, tid: u32, since_ns: u64, since_boot_ns: u64) -> Result<(), SamplerError> {
        let named =
            WaitingThread { tid, since_ns, process_start_ns: since_boot_ns, ..WaitingThread::default() };
        self.waiting.set(0, PodValue(named), 0).map_err(map_error(WAITING))?;
        run(&self.adopt, 0).map_err(|source| program_error(ADOPT_PROGRAM)(source.into()))
    }
}
