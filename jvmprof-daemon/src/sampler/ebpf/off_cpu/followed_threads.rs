//! The threads whose waits are followed, as the kernel programs have them at this instant.

use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{HashMap, Map, MapData};
use jvmprof_common::off_cpu::{FOLLOWED_THREADS, FollowedThread, OVERFLOW_THREADS};
use memmap2::{MmapOptions, MmapRaw};

use crate::sampler::ebpf::object::{PodValue, impl_pod, map_error, take_map};
use crate::sampler::error::SamplerError;

impl_pod!(FollowedThread);

/// The slots, which are read without system calls, and what has none.
pub(super) struct FollowedThreads {
    slots: MmapRaw,
    /// Keeps the map open for programs that are loaded later.
    _map: MapData,
    /// A power of two.
    count: u32,
    overflow: HashMap<MapData, u32, PodValue<FollowedThread>>,
}

impl FollowedThreads {
    /// Maps the slots of a loaded object, of which there are `count`.
    pub(super) fn of(ebpf: &mut aya::Ebpf, count: u32) -> Result<Self, SamplerError> {
        let Some(Map::Array(map)) = ebpf.take_map(FOLLOWED_THREADS) else {
            return Err(SamplerError::Object { kind: "array", name: FOLLOWED_THREADS });
        };
        let bytes = count as usize * size_of::<FollowedThread>();
        let slots = MmapOptions::new().len(bytes).map_raw_read_only(map.fd().as_fd().as_raw_fd());
        let slots = slots.map_err(|error| map_error(FOLLOWED_THREADS)(error.into()))?;
        Ok(Self { slots, _map: map, count, overflow: take_map(ebpf, OVERFLOW_THREADS)? })
    }

    /// Returns a thread, if it is followed.
    pub(super) fn get(&self, tid: u32) -> Option<FollowedThread> {
        let slot = self.slot_of(tid);
        if slot.tid == tid { Some(slot) } else { self.overflow.get(&tid, 0).ok().map(|thread| thread.0) }
    }

    /// Returns all threads that are followed, by their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, FollowedThread)> + '_ {
        let slots = (0..self.count).map(|index| self.slot(index)).filter(|slot| slot.tid != 0);
        let overflow = self.overflow.iter().filter_map(Result::ok).map(|(_, thread)| thread.0);
        // A thread that is in both is the one of its slot.
        let overflow = overflow.filter(|thread| self.slot_of(thread.tid).tid != thread.tid);
        slots.chain(overflow).map(|thread| (thread.tid, thread))
    }

    fn slot_of(&self, tid: u32) -> FollowedThread {
        self.slot(tid & (self.count - 1))
    }

    /// Reads a slot while the kernel programs write to it. A thread that isn't there as a whole is
    /// read again; what changes afterwards is checked by who uses it.
    fn slot(&self, index: u32) -> FollowedThread {
        const ATTEMPTS: u32 = 4;
        let mut read = self.read_slot(index);
        for _ in 1..ATTEMPTS {
            let again = self.read_slot(index);
            if again == read {
                break;
            }
            read = again;
        }
        read
    }

    fn read_slot(&self, index: u32) -> FollowedThread {
        // SAFETY: the mapping has `count` slots, more than `index`, and any bytes are one. Others
        // write to it, whole words, which a volatile read takes as they are.
        unsafe { self.slots.as_ptr().cast::<FollowedThread>().add(index as usize).read_volatile() }
    }
}
