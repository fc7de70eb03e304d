//! The BPF map of JVMs whose pauses are followed.

use aya::maps::{HashMap, MapData};
use jvmprof_common::pause::JvmPauseState;

use super::object::{PodValue, impl_opaque_debug, impl_pod, map_error, take_map};
use crate::sampler::error::SamplerError;

const JVMS: &str = "PAUSED_JVMS";

/// JVMs that are followed at a time, at most: 150 KiB.
const MAX_JVMS: u32 = 1024;

impl_pod!(JvmPauseState);

/// The size of the map, for the loader: one entry where pauses aren't followed.
pub(super) fn size(is_used: bool) -> (&'static str, u32) {
    (JVMS, if is_used { MAX_JVMS } else { 1 })
}

/// The map of JVMs.
pub struct PauseMap(HashMap<MapData, u32, PodValue<JvmPauseState>>);

impl_opaque_debug!(PauseMap);

impl PauseMap {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        Ok(Self(take_map(ebpf, JVMS)?))
    }

    /// Begins to follow a JVM.
    ///
    /// # Errors
    /// Returns an error if 1,024 JVMs are followed, or the kernel refused.
    pub fn insert(&mut self, pid: u32, jvm: JvmPauseState) -> Result<(), SamplerError> {
        self.0.insert(pid, PodValue(jvm), 0).map_err(map_error(JVMS))
    }

    /// Returns what is known of a JVM.
    pub fn get(&self, pid: u32) -> Option<JvmPauseState> {
        self.0.get(&pid, 0).ok().map(|jvm| jvm.0)
    }

    /// Ends following a JVM.
    pub fn remove(&mut self, pid: u32) {
        // What isn't there needs no removal.
        let _ = self.0.remove(&pid);
    }
}
