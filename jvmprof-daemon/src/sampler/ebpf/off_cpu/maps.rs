//! The BPF maps of waits off the CPU: what is wanted, the threads that are followed, and totals.

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, Queue};
use jvmprof_common::blocker::{BLOCKER_LAYOUTS, BlockerLayout};
use jvmprof_common::held_monitor::{CONTENDED_MONITORS, ContendedMonitors};
use jvmprof_common::off_cpu::{
    CpuSwitches, ENDED_THREADS, EndedThread, FOLLOWED_THREADS, FollowedThread, OVERFLOW_THREADS,
    OffCpuSettings, ReportedPart, WaitTotals, WaitingThread,
};

use super::followed_threads::FollowedThreads;
use super::waiting_threads::WaitingThreads;
use crate::sampler::ebpf::object::{PodValue, impl_opaque_debug, impl_pod, map_error, take_map};
use crate::sampler::error::SamplerError;
use crate::sampler::options::SamplerOptions;

const SETTINGS: &str = "OFF_CPU_SETTINGS";
const CPU_SWITCHES: &str = "CPU_SWITCHES";
const REPORTED: &str = "REPORTED_PARTS";
/// Slots that CPUs are about to give to threads.
const CLAIMED_SLOTS: &str = "CLAIMED_SLOTS";
const MAX_CLAIMED_SLOTS: u32 = 1024;

/// Threads that are followed at a time, at most: those that have a slot of their own, a power of
/// two, and all others. With the waits that are reported in parts 8 MiB.
const SLOTS: u32 = 16_384;
const MAX_OVERFLOW_THREADS: u32 = 49_152;
const MAX_REPORTED: u32 = 16_384;
/// Threads that may end between two readings, where their times are kept: 1 MiB.
const MAX_ENDED_THREADS: u32 = 16_384;
/// JVMs whose threads say what they wait for, at most.
pub const MAX_BLOCKER_LAYOUTS: u32 = 8192;

impl_pod!(OffCpuSettings, CpuSwitches, ReportedPart, BlockerLayout, ContendedMonitors, EndedThread);

/// Sizes of the maps, for the loader: of one entry each where waits, the owners of monitors, or the
/// times of threads that end aren't wanted.
pub(in crate::sampler) fn sizes(options: &SamplerOptions) -> [(&'static str, u32); 7] {
    let size = |is_used, entries| if is_used { entries } else { 1 };
    let waits = options.off_cpu;
    [
        (FOLLOWED_THREADS, slots(waits)),
        (OVERFLOW_THREADS, size(waits, MAX_OVERFLOW_THREADS)),
        (CLAIMED_SLOTS, size(waits, MAX_CLAIMED_SLOTS)),
        (REPORTED, size(waits, MAX_REPORTED)),
        (BLOCKER_LAYOUTS, size(waits, MAX_BLOCKER_LAYOUTS)),
        (CONTENDED_MONITORS, size(options.monitor_owners, MAX_BLOCKER_LAYOUTS)),
        (ENDED_THREADS, size(options.thread_ends, MAX_ENDED_THREADS)),
    ]
}

/// Returns the number of slots of threads.
pub(in crate::sampler) const fn slots(waits: bool) -> u32 {
    if waits { SLOTS } else { 1 }
}

/// The maps of waits.
pub struct OffCpuMaps {
    settings: Array<MapData, PodValue<OffCpuSettings>>,
    switches: PerCpuArray<MapData, PodValue<CpuSwitches>>,
    threads: FollowedThreads,
    reported: HashMap<MapData, u32, PodValue<ReportedPart>>,
    blockers: HashMap<MapData, u32, PodValue<BlockerLayout>>,
    contended: HashMap<MapData, u32, PodValue<ContendedMonitors>>,
    /// `None`: the times of threads that end aren't kept.
    ended: Option<Queue<MapData, PodValue<EndedThread>>>,
    /// `None`: the kernel refused the program.
    waiting: Option<WaitingThreads>,
}

impl_opaque_debug!(OffCpuMaps);

impl OffCpuMaps {
    /// `has_ends`: the times of threads that end are kept.
    pub(in crate::sampler) fn of(ebpf: &mut aya::Ebpf, has_ends: bool) -> Result<Self, SamplerError> {
        Ok(Self {
            settings: take_map(ebpf, SETTINGS)?,
            switches: take_map(ebpf, CPU_SWITCHES)?,
            threads: FollowedThreads::of(ebpf, SLOTS)?,
            reported: take_map(ebpf, REPORTED)?,
            blockers: take_map(ebpf, BLOCKER_LAYOUTS)?,
            contended: take_map(ebpf, CONTENDED_MONITORS)?,
            ended: has_ends.then(|| take_map(ebpf, ENDED_THREADS)).transpose()?,
            waiting: WaitingThreads::of(ebpf)
                .inspect_err(|error| tracing::warn!(%error, "waits are reported when they end only"))
                .ok(),
        })
    }

    /// Sets which waits are kept from now on.
    ///
    /// # Errors
    /// Returns an error if the kernel refused.
    pub fn set(&mut self, settings: OffCpuSettings) -> Result<(), SamplerError> {
        self.settings.set(0, PodValue(settings), 0).map_err(map_error(SETTINGS))
    }

    /// Has what a JVM's threads wait for read from now on, until its next exec.
    ///
    /// # Errors
    /// Returns an error if the map is full or the kernel refused.
    pub fn set_blocker_layout(&mut self, pid: u32, layout: BlockerLayout) -> Result<(), SamplerError> {
        self.blockers.insert(pid, PodValue(layout), 0).map_err(map_error(BLOCKER_LAYOUTS))
    }

    /// Has its threads say which of its monitors they have that others wait for, as long.
    ///
    /// # Errors
    /// As [`Self::set_blocker_layout`].
    pub fn follow_monitors(&mut self, pid: u32) -> Result<(), SamplerError> {
        let none = PodValue(ContendedMonitors::default());
        self.contended.insert(pid, none, 0).map_err(map_error(CONTENDED_MONITORS))
    }

    /// Returns the monitors of a process for which threads have waited lately.
    pub fn contended_monitors(&self, pid: u32) -> Option<ContendedMonitors> {
        self.contended.get(&pid, 0).ok().map(|contended| contended.0)
    }

    /// Ends both.
    pub fn remove_blocker_layout(&mut self, pid: u32) {
        for removed in [self.blockers.remove(&pid), self.contended.remove(&pid)] {
            match removed {
                // Exec may have been faster.
                Ok(()) | Err(MapError::KeyNotFound | MapError::SyscallError(_)) => {}
                Err(error) => tracing::debug!(pid, %error, "its threads' blockers are still read"),
            }
        }
    }

    /// Returns the waits that have ended since the start.
    pub fn totals(&self) -> WaitTotals {
        let mut sum = WaitTotals::default();
        let Ok(of_cpus) = self.switches.get(&0, 0) else { return sum };
        for PodValue(CpuSwitches { totals: of_cpu, .. }) in of_cpus.iter() {
            sum.long_waits += of_cpu.long_waits;
            sum.long_ns += of_cpu.long_ns;
            sum.short_waits += of_cpu.short_waits;
            sum.short_ns += of_cpu.short_ns;
            sum.unfollowed_switches += of_cpu.unfollowed_switches;
            sum.lost_waits += of_cpu.lost_waits;
        }
        sum
    }

    /// Returns the threads that are followed, by their ids.
    pub fn threads(&self) -> impl Iterator<Item = (u32, FollowedThread)> + '_ {
        self.threads.iter()
    }

    pub fn thread(&self, tid: u32) -> Option<FollowedThread> {
        self.threads.get(tid)
    }

    /// Takes the threads that have ended since they were taken last, the first one first.
    pub fn ended_threads(&mut self) -> impl Iterator<Item = EndedThread> + '_ {
        // An error says that there is none.
        std::iter::from_fn(move || Some(self.ended.as_mut()?.pop(0).ok()?.0))
    }

    /// Inspects a thread that is followed; `None` if it doesn't wait, or can't be inspected.
    pub fn inspect(&mut self, tid: u32) -> Option<WaitingThread> {
        let waiting = self.waiting.as_mut()?.inspect(tid);
        waiting.inspect_err(|error| tracing::debug!(tid, %error, "a thread can't be inspected")).ok()?
    }

    /// Begins to follow the threads of a followed one's process that weren't switched since
    /// `since_ns`, and are older: `since_boot_ns` is the same by their clock.
    pub fn adopt(&mut self, tid: u32, since_ns: u64, since_boot_ns: u64) {
        let adopted = self.waiting.as_mut().map(|waiting| waiting.adopt(tid, since_ns, since_boot_ns));
        if let Some(Err(error)) = adopted {
            tracing::debug!(tid, %error, "threads that wait for long aren't seen");
        }
    }

    /// Marks a part of a wait that goes on as reported; returns false if that isn't possible.
    pub fn set_reported(&mut self, tid: u32, part: ReportedPart) -> bool {
        self.reported.insert(tid, PodValue(part), 0).is_ok()
    }

    /// Removes what was reported of a thread.
    pub fn remove_reported(&mut self, tid: u32) {
        // What isn't there needs no removal.
        let _ = self.reported.remove(&tid);
    }
}
