//! The perf events by which `wait_begin` raises an interrupt after a switch, one of each CPU.
//!
//! Nobody reads them. A program that writes to such an event makes the kernel wake its readers,
//! which it does from an interrupt of its own (`irq_work`), as soon as the CPU allows interrupts.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

use aya::Ebpf;
use aya::maps::{Array, Map, MapData};
use memmap2::{MmapOptions, MmapRaw};
use perf_event::events::Software;
use perf_event::{Builder, Counter, SampleFlag};

use crate::sampler::ebpf::object::map_error;
use crate::sampler::error::SamplerError;

const MAP: &str = "SWITCH_INTERRUPTS";

/// Bytes of a ring: a page for its head and one of data, the least that there is.
const RING_BYTES: usize = 2 * 4096;

/// The events of the CPUs that are online.
pub(super) struct SwitchInterrupts {
    map: Array<MapData, RawFd>,
    events: BTreeMap<u32, SwitchInterrupt>,
}

/// The event of a CPU.
struct SwitchInterrupt {
    _event: Counter,
    /// Without a ring, nothing is written, and nobody is woken.
    _ring: MmapRaw,
}

impl SwitchInterrupts {
    pub(super) fn of(ebpf: &mut Ebpf) -> Result<Self, SamplerError> {
        let map = ebpf.take_map(MAP).ok_or(SamplerError::Object { kind: "map", name: MAP })?;
        let Map::PerfEventArray(data) = map else {
            return Err(SamplerError::Object { kind: "perf event array", name: MAP });
        };
        // For the kernel it is an array of descriptors. aya's own type opens events and writable
        // rings itself, which stop waking once they are full.
        let map = Map::Array(data).try_into().map_err(map_error(MAP))?;
        Ok(Self { map, events: BTreeMap::new() })
    }

    /// Opens events of CPUs that came online, and closes those of CPUs that went offline: such an
    /// event is dead for good, also when the CPU comes back.
    ///
    /// # Errors
    /// Returns a CPU whose event the kernel refused.
    pub(super) fn update_cpus(&mut self, cpus: &[u32]) -> Result<(), SamplerError> {
        self.events.retain(|cpu, _| cpus.contains(cpu));
        for &cpu in cpus {
            if self.events.contains_key(&cpu) {
                continue;
            }
            let failed = |source| SamplerError::PerfEvent { event: "bpf-output", cpu, source };
            let event = open(cpu).map_err(failed)?;
            let ring = map_ring(&event).map_err(failed)?;
            self.map.set(cpu, event.as_raw_fd(), 0).map_err(map_error(MAP))?;
            self.events.insert(cpu, SwitchInterrupt { _event: event, _ring: ring });
        }
        Ok(())
    }
}

/// Opens the event of a CPU, which wakes at each write.
fn open(cpu: u32) -> io::Result<Counter> {
    Builder::new(Software::BPF_OUTPUT)
        .any_pid()
        .one_cpu(cpu as usize)
        .include_kernel()
        .sample(SampleFlag::RAW)
        .sample_period(1)
        .wakeup_events(1)
        .enabled(true)
        .build()
}

/// Maps the ring read-only, by which the kernel knows that old records may be overwritten.
fn map_ring(event: &Counter) -> io::Result<MmapRaw> {
    MmapOptions::new().len(RING_BYTES).map_raw_read_only(event.as_raw_fd())
}
