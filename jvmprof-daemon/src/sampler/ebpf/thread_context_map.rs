//! The BPF map of the processes whose threads publish contexts.

use aya::maps::{HashMap, MapData, MapError};
use jvmprof_common::thread_context::THREAD_CONTEXT_VARIABLES;
use jvmprof_common::thread_local::ThreadLocalVariable;

use super::object::{PodValue, impl_opaque_debug, impl_pod, map_error, take_map};
use crate::sampler::error::SamplerError;

/// Processes, at most.
const MAX_PROCESSES: u32 = 8192;

impl_pod!(ThreadLocalVariable);

/// Returns the map's size, for the loader: of one entry where contexts aren't read.
pub(super) fn size(is_used: bool) -> (&'static str, u32) {
    (THREAD_CONTEXT_VARIABLES, if is_used { MAX_PROCESSES } else { 1 })
}

/// The map of where the processes that publish contexts have the variable that points to them.
pub struct ThreadContextMap {
    map: HashMap<MapData, u32, PodValue<ThreadLocalVariable>>,
}

impl_opaque_debug!(ThreadContextMap);

impl ThreadContextMap {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        Ok(Self { map: take_map(ebpf, THREAD_CONTEXT_VARIABLES)? })
    }

    /// Has the contexts of a process's threads read from now on, until its next exec.
    ///
    /// # Errors
    /// Returns an error if the map is full or the kernel refused.
    pub fn insert(&mut self, pid: u32, variable: ThreadLocalVariable) -> Result<(), SamplerError> {
        self.map.insert(pid, PodValue(variable), 0).map_err(map_error(THREAD_CONTEXT_VARIABLES))
    }

    /// Ends that.
    pub fn remove(&mut self, pid: u32) {
        match self.map.remove(&pid) {
            // Exec may have been faster.
            Ok(()) | Err(MapError::KeyNotFound | MapError::SyscallError(_)) => {}
            Err(error) => tracing::debug!(pid, %error, "its thread contexts are still read"),
        }
    }
}
