//! Looks at threads that wait: a kernel program tells where their user code was when it entered the
//! kernel.

use aya::maps::{Array, MapData};
use aya::programs::{ProgramFd, RawTracePoint};
use jvmprof_common::off_cpu::{LOOK_PROGRAM, WAITING, WaitingThread};

use super::kernel_symbols::run;
use super::object::{PodValue, impl_pod, map_error, program, program_error, take_map};
use crate::sampler::error::SamplerError;

impl_pod!(WaitingThread);

/// The kernel program, and the map of its argument and result.
pub(super) struct WaitingThreads {
    program: ProgramFd,
    waiting: Array<MapData, PodValue<WaitingThread>>,
}

impl WaitingThreads {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        let waiting = take_map(ebpf, WAITING)?;
        let program: &mut RawTracePoint = program(ebpf, LOOK_PROGRAM)?;
        let error = program_error(LOOK_PROGRAM);
        program.load().map_err(&error)?;
        let program = program.fd().map_err(&error)?.try_clone().map_err(|source| error(source.into()))?;
        Ok(Self { program, waiting })
    }

    /// Looks at a thread that is followed; `None` if it doesn't wait.
    pub(super) fn look(&mut self, tid: u32) -> Result<Option<WaitingThread>, SamplerError> {
        let named = WaitingThread { tid, ..WaitingThread::default() };
        self.waiting.set(0, PodValue(named), 0).map_err(map_error(WAITING))?;
        run(&self.program, 0).map_err(|source| program_error(LOOK_PROGRAM)(source.into()))?;
        let waiting = self.waiting.get(&0, 0).map_err(map_error(WAITING))?.0;
        Ok((waiting.is_waiting != 0).then_some(waiting))
    }
}
