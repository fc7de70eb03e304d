//! The BPF maps by which the kernel programs know processes and their code, with typed reads and
//! writes.

use std::ops::RangeInclusive;

use aya::maps::{Array, HashMap, MapData, MapError};
use jvmprof_common::jvm::Jvm;
use jvmprof_common::unwind_tables::{
    CHUNK_ROWS, MAX_RULES, PackedRule, ProcessEntry, Region, RowChunk, RowPage, RowTable,
};

use super::allocation_maps::AllocationMaps;
use super::kernel_symbols::KernelSymbolizer;
use super::object::{PodValue, impl_pod, map_error, take_map};
use super::off_cpu::maps::OffCpuMaps;
use super::pause_maps::PauseMap;
use super::process_filter::{DroppedProcesses, ExecStarts};
use super::thread_context_map::ThreadContextMap;
use crate::sampler::error::SamplerError;
use crate::sampler::options::SamplerOptions;

/// Sizes of the maps, in entries. All but `processes` take their memory when the programs are
/// loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSizes {
    pub processes: u32,
    pub regions: u32,
    pub tables: u32,
    /// Pages of 4 KiB of code.
    pub pages: u32,
    /// Rows, 4 bytes each.
    pub rows: u32,
    pub jvms: u32,
}

impl Default for MapSizes {
    /// Returns sizes of 14 MiB in all: rows for a dozen large programs and their libraries.
    fn default() -> Self {
        Self { processes: 8192, regions: 1 << 15, tables: 2048, pages: 1 << 19, rows: 1 << 21, jvms: 256 }
    }
}

/// Rows take 1/MEMORY_SHARE of the machine's memory, within the bounds in bytes.
const MEMORY_SHARE: u64 = 1024;
const ROW_BYTES: RangeInclusive<u64> = 8 << 20..=64 << 20;

impl MapSizes {
    /// Returns the sizes for this machine. Rows take 1/1,024 of its memory, 8 to 64 MiB; they are
    /// about 0.6 of `.eh_frame`: node's take 1.5 MiB.
    pub fn of_machine() -> Self {
        let memory = memory_bytes().unwrap_or_default();
        let bytes = (memory / MEMORY_SHARE).clamp(*ROW_BYTES.start(), *ROW_BYTES.end());
        let chunks = bytes / size_of::<RowChunk>() as u64;
        Self { rows: (chunks * CHUNK_ROWS as u64) as u32, ..Self::default() }
    }

    pub(super) fn chunks(&self) -> u32 {
        self.rows / CHUNK_ROWS as u32
    }

    /// Returns names and sizes, for the loader.
    pub(super) fn entries(&self) -> [(&'static str, u32); 7] {
        [
            (PROCESSES, self.processes),
            (REGIONS, self.regions),
            (TABLES, self.tables),
            (PAGES, self.pages),
            (ROWS, self.chunks()),
            (RULES, MAX_RULES),
            (JVMS, self.jvms),
        ]
    }
}

/// Returns the machine's memory, in bytes.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

const PROCESSES: &str = "PROCESSES";
const REGIONS: &str = "REGIONS";
const TABLES: &str = "TABLES";
const PAGES: &str = "PAGES";
const ROWS: &str = "ROWS";
const RULES: &str = "RULES";
const JVMS: &str = "JVMS";

impl_pod!(ProcessEntry, Region, RowTable, RowPage, RowChunk, PackedRule, Jvm);

/// The tables of loaded kernel programs. Each of the optional ones is for one owner, who takes it;
/// `None` where what it is of isn't sampled.
pub struct BpfMaps {
    sizes: MapSizes,
    processes: HashMap<MapData, u32, PodValue<ProcessEntry>>,
    regions: Array<MapData, PodValue<Region>>,
    tables: Array<MapData, PodValue<RowTable>>,
    pages: Array<MapData, PodValue<RowPage>>,
    rows: Array<MapData, PodValue<RowChunk>>,
    rules: Array<MapData, PodValue<PackedRule>>,
    jvms: Array<MapData, PodValue<Jvm>>,
    /// Processes that aren't sampled.
    pub dropped_processes: Option<DroppedProcesses>,
    /// Times when processes started.
    pub exec_starts: Option<ExecStarts>,
    pub allocation: Option<AllocationMaps>,
    pub off_cpu: Option<OffCpuMaps>,
    pub pauses: Option<PauseMap>,
    pub thread_contexts: Option<ThreadContextMap>,
    pub kernel_symbolizer: Option<KernelSymbolizer>,
}

impl std::fmt::Debug for BpfMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BpfMaps").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

impl BpfMaps {
    pub(super) fn of(ebpf: &mut aya::Ebpf, options: &SamplerOptions) -> Result<Self, SamplerError> {
        Ok(Self {
            sizes: MapSizes::of_machine(),
            processes: take_map(ebpf, PROCESSES)?,
            regions: take_map(ebpf, REGIONS)?,
            tables: take_map(ebpf, TABLES)?,
            pages: take_map(ebpf, PAGES)?,
            rows: take_map(ebpf, ROWS)?,
            rules: take_map(ebpf, RULES)?,
            jvms: take_map(ebpf, JVMS)?,
            dropped_processes: Some(DroppedProcesses::of(ebpf)?),
            exec_starts: Some(ExecStarts::of(ebpf)?),
            allocation: options.allocation.then(|| AllocationMaps::of(ebpf)).transpose()?,
            off_cpu: options.off_cpu.then(|| OffCpuMaps::of(ebpf, options.thread_ends)).transpose()?,
            pauses: options.pauses.then(|| PauseMap::of(ebpf)).transpose()?,
            thread_contexts: options.thread_context.then(|| ThreadContextMap::of(ebpf)).transpose()?,
            kernel_symbolizer: KernelSymbolizer::of(ebpf)
                .inspect_err(|error| tracing::warn!(%error, "kernel frames have no names"))
                .ok(),
        })
    }

    pub fn sizes(&self) -> MapSizes {
        self.sizes
    }

    /// Sets the entry of a process.
    ///
    /// # Errors
    /// Returns an error if the map is full, or the kernel refused.
    pub fn set_process(&mut self, pid: u32, entry: ProcessEntry) -> Result<(), SamplerError> {
        self.processes.insert(pid, PodValue(entry), 0).map_err(map_error(PROCESSES))
    }

    /// Sets the entry of a process, unless it was removed, by the kernel program, too.
    pub fn replace_process(&mut self, pid: u32, entry: ProcessEntry) {
        /// The flag of include/uapi/linux/bpf.h that an entry must exist.
        const BPF_EXIST: u64 = 2;
        if let Err(error) = self.processes.insert(pid, PodValue(entry), BPF_EXIST) {
            tracing::debug!(pid, %error, "a process's entry isn't replaced");
        }
    }

    /// Returns the entry of a process.
    #[cfg(test)]
    pub(crate) fn process(&self, pid: u32) -> Option<ProcessEntry> {
        self.processes.get(&pid, 0).ok().map(|entry| entry.0)
    }

    /// Removes a process.
    pub fn remove_process(&mut self, pid: u32) {
        match self.processes.remove(&pid) {
            Ok(()) | Err(MapError::KeyNotFound | MapError::SyscallError(_)) => {}
            Err(error) => tracing::debug!(pid, %error, "a process can't be removed from the kernel's table"),
        }
    }

    /// Sets a region.
    ///
    /// # Errors
    /// Returns an error if the index is out of bounds or the kernel refused, as all that follow.
    pub fn set_region(&mut self, index: u32, region: Region) -> Result<(), SamplerError> {
        self.regions.set(index, PodValue(region), 0).map_err(map_error(REGIONS))
    }

    /// Sets a table.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn set_table(&mut self, index: u32, table: RowTable) -> Result<(), SamplerError> {
        self.tables.set(index, PodValue(table), 0).map_err(map_error(TABLES))
    }

    /// Sets a page.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn set_page(&mut self, index: u32, page: RowPage) -> Result<(), SamplerError> {
        self.pages.set(index, PodValue(page), 0).map_err(map_error(PAGES))
    }

    /// Sets a chunk of rows.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn set_chunk(&mut self, index: u32, rows: RowChunk) -> Result<(), SamplerError> {
        self.rows.set(index, PodValue(rows), 0).map_err(map_error(ROWS))
    }

    /// Sets a rule.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn set_rule(&mut self, index: u32, rule: PackedRule) -> Result<(), SamplerError> {
        self.rules.set(index, PodValue(rule), 0).map_err(map_error(RULES))
    }

    /// Returns a page as it was set.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn page(&self, index: u32) -> Result<RowPage, SamplerError> {
        self.pages.get(&index, 0).map(|page| page.0).map_err(map_error(PAGES))
    }

    /// Returns a chunk as it was set.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn chunk(&self, index: u32) -> Result<RowChunk, SamplerError> {
        self.rows.get(&index, 0).map(|rows| rows.0).map_err(map_error(ROWS))
    }

    /// Returns a rule as it was set.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn rule(&self, index: u32) -> Result<PackedRule, SamplerError> {
        self.rules.get(&index, 0).map(|rule| rule.0).map_err(map_error(RULES))
    }

    /// Sets a JVM's layout.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set_region`].
    pub fn set_jvm(&mut self, index: u32, jvm: Jvm) -> Result<(), SamplerError> {
        self.jvms.set(index, PodValue(jvm), 0).map_err(map_error(JVMS))
    }
}
