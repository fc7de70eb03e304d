//! The kernel programs' maps of single processes: which are sampled, which aren't since relabelling
//! rules drop their samples, and when they started.

use std::path::Path;

use aya::maps::{Array, HashMap, MapData, MapError};
use jvmprof_common::abi::{DROPPED_PIDS, DROPS, EXEC_STARTS, PROFILED_PIDS};

use super::object::{impl_opaque_debug, map_error, take_map};
use crate::sampler::error::SamplerError;

/// The BPF map of those processes.
pub struct DroppedProcesses {
    map: HashMap<MapData, u32, u64>,
    /// 1 if the kernel program has to look processes up.
    is_used: Array<MapData, u32>,
}

impl_opaque_debug!(DroppedProcesses);

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

/// The BPF map of the starts of sampled processes that have begun a program since the kernel
/// programs were loaded.
pub struct ExecStarts(HashMap<MapData, u32, u64>);

impl_opaque_debug!(ExecStarts);

impl ExecStarts {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        Ok(Self(take_map(ebpf, EXEC_STARTS)?))
    }

    /// Returns the start of a process as its samples have it, in ns of `CLOCK_BOOTTIME`; `None` if
    /// it isn't sampled, or has begun its program earlier.
    pub fn get(&self, pid: u32) -> Option<u64> {
        self.0.get(&pid, 0).ok()
    }
}

/// The BPF map of chosen processes and their descendants.
pub(super) struct ProfiledProcesses {
    map: HashMap<MapData, u32, u8>,
    /// Processes that have ended since those in the map were checked.
    ended: u32,
}

/// Ended processes after which the map is searched for them: it has room for four times as many.
const CHECK_AFTER: u32 = 4096;

impl ProfiledProcesses {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        Ok(Self { map: take_map(ebpf, PROFILED_PIDS)?, ended: 0 })
    }

    /// Samples a process, and its children from their forks on.
    ///
    /// # Errors
    /// Returns an error if the kernel refused.
    pub(super) fn insert(&mut self, pid: u32) -> Result<(), SamplerError> {
        self.map.insert(pid, 1, 0).map_err(map_error(PROFILED_PIDS))
    }

    /// Makes room for others, if so many processes of the host have ended that it may be needed.
    pub(super) fn remove_ended(&mut self, ended: u32) {
        self.ended = self.ended.saturating_add(ended);
        if self.ended < CHECK_AFTER {
            return;
        }
        self.ended = 0;
        let is_gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
        let gone: Vec<u32> = self.map.keys().filter_map(Result::ok).filter(is_gone).collect();
        for pid in gone {
            let _ = self.map.remove(&pid);
        }
    }
}
