//! The kernel program's own counters, read from beside the daemon.
//!
//! A map lives as long as somebody holds it: what is held here can be read after the daemon was
//! killed, when nothing counts any more.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use aya::maps::{Map, MapData, MapInfo, PerCpuArray};
use jvmprof_common::abi::{Counter, CpuCounters, Event};

use super::events::EVENTS;
use super::ledger::SamplesByEvent;

/// The name that the kernel programs give it.
const MAP: &str = "COUNTERS";
/// The time that the daemon may take to load its programs.
const START: Duration = Duration::from_secs(120);

/// The counters of one daemon's programs.
pub(super) struct KernelCounts(PerCpuArray<MapData, CpuCounters>);

impl KernelCounts {
    /// Waits until the daemon has loaded its programs.
    pub(super) fn of(daemon: u32) -> anyhow::Result<Self> {
        let started = Instant::now();
        while started.elapsed() < START {
            if let Some(id) = map_of(daemon)? {
                let data = MapData::from_id(id).context("opening the kernel program's counters")?;
                let map = PerCpuArray::try_from(Map::PerCpuArray(data));
                return Ok(Self(map.context("the kernel program's counters are no array")?));
            }
            sleep(Duration::from_millis(20));
        }
        bail!("the daemon has loaded no kernel programs after {START:?}");
    }

    /// Returns the number of samples of each event that were taken so far.
    pub(super) fn taken(&self) -> anyhow::Result<SamplesByEvent> {
        let of_cpus = self.0.get(&0, 0).context("reading the kernel program's counters")?;
        let of_event = |event: Event| {
            let index = event.first_counter() as usize + Counter::Taken as usize;
            of_cpus.iter().map(|counters| counters[index]).sum::<u64>()
        };
        let of_kernel = EVENTS.iter().filter_map(|event| Some((event.name, of_event(event.kernel?))));
        Ok(of_kernel.collect())
    }
}

/// The map's id, by what the kernel says of the daemon's descriptors.
fn map_of(daemon: u32) -> anyhow::Result<Option<u32>> {
    let folder = format!("/proc/{daemon}/fdinfo");
    for file in fs::read_dir(&folder).with_context(|| format!("the daemon has ended: no {folder}"))? {
        // Descriptors come and go.
        let Ok(text) = file.and_then(|file| fs::read_to_string(file.path())) else { continue };
        let id =
            text.lines().find_map(|line| line.strip_prefix("map_id:")).and_then(|id| id.trim().parse().ok());
        let info = id.and_then(|id: u32| MapInfo::from_id(id).ok());
        if let Some(info) = info.filter(|info| info.name_as_str() == Some(MAP)) {
            return Ok(Some(info.id()));
        }
    }
    Ok(None)
}
