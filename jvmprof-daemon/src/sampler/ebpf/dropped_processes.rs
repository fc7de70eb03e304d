//! Processes that the kernel program doesn't sample, since nobody wants their samples.

use aya::maps::{Array, HashMap, MapData, MapError};
use jvmprof_common::abi::{DROPPED_PIDS, DROPS};

use super::object::{map_error, take};
use crate::sampler::error::SamplerError;

/// The kernel's table of them.
pub struct DroppedProcesses {
    map: HashMap<MapData, u32, u64>,
    /// Whether the kernel program looks into it.
    is_used: Array<MapData, u32>,
}

impl std::fmt::Debug for DroppedProcesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DroppedProcesses").finish_non_exhaustive()
    }
}

impl DroppedProcesses {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        Ok(Self { map: take(ebpf, DROPPED_PIDS)?, is_used: take(ebpf, DROPS)? })
    }

    /// Samples of this process aren't taken any more, until it replaces its program. `start_ns`: as
    /// its samples tell it.
    ///
    /// # Errors
    /// The table is full (8,192 processes), or the kernel refused.
    pub fn insert(&mut self, pid: u32, start_ns: u64) -> Result<(), SamplerError> {
        self.is_used.set(0, 1, 0).map_err(map_error(DROPS))?;
        self.map.insert(pid, start_ns, 0).map_err(map_error(DROPPED_PIDS))
    }

    /// It is sampled again.
    pub fn remove(&mut self, pid: u32) {
        match self.map.remove(&pid) {
            // Exec may have been faster.
            Ok(()) | Err(MapError::KeyNotFound | MapError::SyscallError(_)) => {}
            Err(error) => tracing::debug!(pid, %error, "a process can't be sampled again"),
        }
    }
}
