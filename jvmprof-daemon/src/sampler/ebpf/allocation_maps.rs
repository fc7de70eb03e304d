//! The BPF maps of allocation: what is wanted of which JVM, and what each has allocated.

use aya::maps::{HashMap, MapData, MapError};
use jvmprof_common::allocation::{
    AllocatedTotals, AllocatingThread, AllocationTarget, CountedKey, ObjectTotals,
};

use super::object::{PodValue, impl_opaque_debug, impl_pod, map_error, take_map};
use crate::sampler::error::SamplerError;

const TARGETS: &str = "ALLOCATION_TARGETS";
const THREADS: &str = "ALLOCATING_THREADS";
const TOTALS: &str = "ALLOCATED";
const COUNTED: &str = "COUNTED";

/// Processes, threads and classes that are followed at a time, at most: 4 MiB in all.
const MAX_TARGETS: u32 = 1024;
const MAX_THREADS: u32 = 16_384;
const MAX_COUNTED: u32 = 16_384;

impl_pod!(AllocatedTotals, AllocatingThread, AllocationTarget, ObjectTotals, CountedKey);

/// Sizes of the maps, for the loader: of one entry each where allocation isn't profiled.
pub(super) fn sizes(is_used: bool) -> [(&'static str, u32); 4] {
    let size = |entries| if is_used { entries } else { 1 };
    [
        (TARGETS, size(MAX_TARGETS)),
        (TOTALS, size(MAX_TARGETS)),
        (THREADS, size(MAX_THREADS)),
        (COUNTED, size(MAX_COUNTED)),
    ]
}

/// The maps of allocation.
pub struct AllocationMaps {
    targets: HashMap<MapData, u32, PodValue<AllocationTarget>>,
    threads: HashMap<MapData, u32, PodValue<AllocatingThread>>,
    totals: HashMap<MapData, u32, PodValue<AllocatedTotals>>,
    counted: HashMap<MapData, PodValue<CountedKey>, PodValue<ObjectTotals>>,
}

impl_opaque_debug!(AllocationMaps);

impl AllocationMaps {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        Ok(Self {
            targets: take_map(ebpf, TARGETS)?,
            threads: take_map(ebpf, THREADS)?,
            totals: take_map(ebpf, TOTALS)?,
            counted: take_map(ebpf, COUNTED)?,
        })
    }

    /// Makes a process a target, or changes what is wanted of it.
    ///
    /// # Errors
    /// Returns an error if 1,024 processes are targets, or the kernel refused.
    pub fn set_target(&mut self, pid: u32, target: AllocationTarget) -> Result<(), SamplerError> {
        let totals = PodValue(AllocatedTotals::default());
        // Only if it has none yet (`BPF_NOEXIST`).
        match self.totals.insert(pid, totals, 1) {
            Ok(()) | Err(MapError::SyscallError(_)) => {}
            Err(error) => return Err(map_error(TOTALS)(error)),
        }
        self.targets.insert(pid, PodValue(target), 0).map_err(map_error(TARGETS))
    }

    /// Ends the events of a process; its totals stay.
    pub fn end_events(&mut self, pid: u32) {
        // What isn't there needs no removal.
        let _ = self.targets.remove(&pid);
    }

    /// Ends following a process, which began at `start_ns` (`CLOCK_BOOTTIME`).
    pub fn remove_target(&mut self, pid: u32, start_ns: u64) {
        self.end_events(pid);
        let _ = self.totals.remove(&pid);
        let keys: Vec<PodValue<CountedKey>> =
            self.counted.keys().filter_map(Result::ok).filter(|key| key.0.pid == pid).collect();
        for key in keys {
            let _ = self.counted.remove(&key);
        }
        // Those whose end no event has reported.
        let threads = self.threads.iter().filter_map(Result::ok);
        let tids: Vec<u32> =
            threads.filter(|(_, thread)| thread.0.start_ns == start_ns).map(|(tid, _)| tid).collect();
        tids.into_iter().for_each(|tid| self.remove_thread(tid));
    }

    /// Forgets a thread that has ended.
    pub fn remove_thread(&mut self, tid: u32) {
        let _ = self.threads.remove(&tid);
    }

    /// Returns what a process has allocated since it became a target.
    pub fn totals(&self, pid: u32) -> Option<AllocatedTotals> {
        self.totals.get(&pid, 0).ok().map(|totals| totals.0)
    }

    /// Returns the objects that are each an event, since their processes became targets.
    pub fn counted(&self) -> impl Iterator<Item = (CountedKey, ObjectTotals)> + '_ {
        self.counted.iter().filter_map(Result::ok).map(|(key, totals)| (key.0, totals.0))
    }
}
