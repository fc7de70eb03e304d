//! The tables that tell the kernel programs of processes and their code: typed writing and reading,
//! one map each.

use std::ops::RangeInclusive;

use aya::maps::{Array, HashMap, MapData, MapError};
use jvmprof_common::jvm::Jvm;
use jvmprof_common::tables::{
    CHUNK_ROWS, MAX_RULES, PackedRule, ProcessEntry, Region, RowChunk, RowPage, RowTable,
};

use super::dropped_processes::DroppedProcesses;
use super::kernel_symbols::KernelNames;
use super::object::{Plain, map_error, plain, take};
use crate::sampler::error::SamplerError;

/// Sizes of the tables, in entries. All but processes take their memory when the programs are
/// loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSizes {
    pub processes: u32,
    pub regions: u32,
    pub tables: u32,
    /// Pages of 4 KiB of code.
    pub pages: u32,
    /// Rows, 4 bytes each.
    pub rows: u32,
    pub jvms: u32,
}

impl Default for TableSizes {
    /// 14 MiB in all: rows for a dozen large programs and their libraries.
    fn default() -> Self {
        Self { processes: 8192, regions: 1 << 15, tables: 2048, pages: 1 << 19, rows: 1 << 21, jvms: 256 }
    }
}

/// Of the machine's memory, rows take this part, between these bounds in bytes.
const MEMORY_PART: u64 = 1024;
const ROW_BYTES: RangeInclusive<u64> = 8 << 20..=64 << 20;

impl TableSizes {
    /// Rows take a thousandth of the machine's memory, 8 to 64 MiB. They are about 0.6 of
    /// `.eh_frame`: node's take 1.5 MiB.
    pub fn of_machine() -> Self {
        let memory = memory_bytes().unwrap_or_default();
        let bytes = (memory / MEMORY_PART).clamp(*ROW_BYTES.start(), *ROW_BYTES.end());
        let chunks = bytes / size_of::<RowChunk>() as u64;
        Self { rows: (chunks * CHUNK_ROWS as u64) as u32, ..Self::default() }
    }

    pub(super) fn chunks(&self) -> u32 {
        self.rows / CHUNK_ROWS as u32
    }

    /// Names and sizes, for the loader.
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

/// The machine's memory.
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

plain!(ProcessEntry, Region, RowTable, RowPage, RowChunk, PackedRule, Jvm);

/// The tables of loaded kernel programs.
pub struct KernelTables {
    sizes: TableSizes,
    processes: HashMap<MapData, u32, Plain<ProcessEntry>>,
    regions: Array<MapData, Plain<Region>>,
    tables: Array<MapData, Plain<RowTable>>,
    pages: Array<MapData, Plain<RowPage>>,
    rows: Array<MapData, Plain<RowChunk>>,
    rules: Array<MapData, Plain<PackedRule>>,
    jvms: Array<MapData, Plain<Jvm>>,
    dropped: Option<DroppedProcesses>,
    names: Option<KernelNames>,
}

impl std::fmt::Debug for KernelTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelTables").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

impl KernelTables {
    pub(super) fn of(ebpf: &mut aya::Ebpf, sizes: TableSizes) -> Result<Self, SamplerError> {
        Ok(Self {
            sizes,
            processes: take(ebpf, PROCESSES)?,
            regions: take(ebpf, REGIONS)?,
            tables: take(ebpf, TABLES)?,
            pages: take(ebpf, PAGES)?,
            rows: take(ebpf, ROWS)?,
            rules: take(ebpf, RULES)?,
            jvms: take(ebpf, JVMS)?,
            dropped: Some(DroppedProcesses::of(ebpf)?),
            names: KernelNames::of(ebpf)
                .inspect_err(|error| tracing::warn!(%error, "kernel frames have no names"))
                .ok(),
        })
    }

    /// The table of processes that aren't sampled, for whom it concerns; `None` the second time.
    pub fn take_dropped(&mut self) -> Option<DroppedProcesses> {
        self.dropped.take()
    }

    /// Who names the kernel's code; `None` the second time.
    pub fn take_names(&mut self) -> Option<KernelNames> {
        self.names.take()
    }

    pub fn sizes(&self) -> TableSizes {
        self.sizes
    }

    /// Tells of a process, in place of what was told before.
    ///
    /// # Errors
    /// The map is full, or the kernel refused.
    pub fn set_process(&mut self, pid: u32, entry: ProcessEntry) -> Result<(), SamplerError> {
        self.processes.insert(pid, Plain(entry), 0).map_err(map_error(PROCESSES))
    }

    /// Forgets a process.
    pub fn remove_process(&mut self, pid: u32) {
        match self.processes.remove(&pid) {
            Ok(()) | Err(MapError::KeyNotFound | MapError::SyscallError(_)) => {}
            Err(error) => tracing::debug!(pid, %error, "a process can't be removed from the kernel's table"),
        }
    }

    /// # Errors
    /// The index is out of bounds, or the kernel refused; as for all that follow.
    pub fn set_region(&mut self, index: u32, region: Region) -> Result<(), SamplerError> {
        self.regions.set(index, Plain(region), 0).map_err(map_error(REGIONS))
    }

    /// # Errors
    /// As [`Self::set_region`].
    pub fn set_table(&mut self, index: u32, table: RowTable) -> Result<(), SamplerError> {
        self.tables.set(index, Plain(table), 0).map_err(map_error(TABLES))
    }

    /// # Errors
    /// As [`Self::set_region`].
    pub fn set_page(&mut self, index: u32, page: RowPage) -> Result<(), SamplerError> {
        self.pages.set(index, Plain(page), 0).map_err(map_error(PAGES))
    }

    /// # Errors
    /// As [`Self::set_region`].
    pub fn set_chunk(&mut self, index: u32, rows: RowChunk) -> Result<(), SamplerError> {
        self.rows.set(index, Plain(rows), 0).map_err(map_error(ROWS))
    }

    /// # Errors
    /// As [`Self::set_region`].
    pub fn set_rule(&mut self, index: u32, rule: PackedRule) -> Result<(), SamplerError> {
        self.rules.set(index, Plain(rule), 0).map_err(map_error(RULES))
    }

    /// A page as it was set.
    ///
    /// # Errors
    /// As [`Self::set_region`].
    pub fn page(&self, index: u32) -> Result<RowPage, SamplerError> {
        self.pages.get(&index, 0).map(|page| page.0).map_err(map_error(PAGES))
    }

    /// A chunk as it was set.
    ///
    /// # Errors
    /// As [`Self::set_region`].
    pub fn chunk(&self, index: u32) -> Result<RowChunk, SamplerError> {
        self.rows.get(&index, 0).map(|rows| rows.0).map_err(map_error(ROWS))
    }

    /// A rule as it was set.
    ///
    /// # Errors
    /// As [`Self::set_region`].
    pub fn rule(&self, index: u32) -> Result<PackedRule, SamplerError> {
        self.rules.get(&index, 0).map(|rule| rule.0).map_err(map_error(RULES))
    }

    /// # Errors
    /// As [`Self::set_region`].
    pub fn set_jvm(&mut self, index: u32, jvm: Jvm) -> Result<(), SamplerError> {
        self.jvms.set(index, Plain(jvm), 0).map_err(map_error(JVMS))
    }
}
