//! Processes that the kernel program doesn't sample, since relabelling rules drop their samples.

use aya::maps::{Array, HashMap, MapData, MapError};
use jvmprof_common::abi::{DROPPED_PIDS, DROPS};

use super::object::{map_error, take_map};
use crate::sampler::error::SamplerError;

/// The BPF map of those processes.
pub struct DroppedProcesses {
    map: HashMap<MapData, u32, u64>,
    /// 1 if the kernel program has to look processes up.
    is_used: Array<MapData, u32>,
}

impl std::fmt::Debug for DroppedProcesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DroppedProcesses").finish_non_exhaustive()
    }
}

impl DroppedProcesses {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        Ok(Self { map: take_map(ebpf, DROPPED_PIDS)?, is_used: take_map(ebpf, DROPS)? })
    }

    /// Stops sampling a process, until its next exec. `start_ns`: the start time in its samples.
    ///
    /// # Errors
    /// Returns an error if the map is full (8,192 processes) or the kernel refused.
    pub fn insert(&mut self, pid: u32, start_ns: u64) -> Result<(), SamplerError> {
        self.is_used.set(0, 1, 0).map_err(map_error(DROPS))?;
        self.map.insert(pid, start_ns, 0).map_err(map_error(DROPPED_PIDS))
    }

    /// Samples a process again.
    pub fn remove(&mut self, pid: u32) {
        match self.map.remove(&pid) {
            // Exec may have been faster.
            Ok(()) | Err(MapError::KeyNotFound | MapError::SyscallError(_)) => {}
            Err(error) => tracing::debug!(pid, %error, "a process can't be sampled again"),
        }
    }
}
