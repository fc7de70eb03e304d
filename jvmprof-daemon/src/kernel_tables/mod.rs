//! The tables of the kernel programs: unwind rows of files and stubs, code regions of processes,
//! layouts of JVMs, kept filled within their limits.
//!
//! [`CodeTables::publish`] writes a process's regions, [`CodeTables::add_file`] a file's rows (made
//! by [`FileRows`]), [`CodeTables::add_jvm`] a JVM. [`CodeTables::row`] reads a row back for a walk
//! in user space.
//!
//! A file's rows are packed once and shared by all processes that map it. They stay until their
//! space is needed: first those are evicted that no process maps, then those of processes that
//! aren't sampled. A process's regions are written to fresh entries and switched to at once, so
//! that the kernel program never sees half a process.

mod eviction;
mod free_extents;
mod packed_rows;
mod row_readback;
mod rows_on_disk;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use jvmprof_common::jvm::Jvm;
use jvmprof_common::thread_local::ThreadLocalVariable;
use jvmprof_common::unwind_tables::{
    CHUNK_ROWS, MAX_REGIONS, MAX_RULES, NO_RULE, NS_PER_TICK, PackedRule, ProcessEntry, Region, RowPage,
    RowTable,
};

use crate::native::file_identity::FileKey;
use crate::process::ProcessKey;
use crate::sampler::{BpfMaps, MapSizes, SamplerError};
use crate::types::{Avma, LoadBias};
use free_extents::FreeExtents;
pub use packed_rows::FileRows;
use packed_rows::{PackedRows, RuleTable};
pub use rows_on_disk::RowsOnDisk;

/// The time for which the kernel program may still read entries that were replaced: far longer than
/// a walk takes.
const GRACE: Duration = Duration::from_millis(500);

/// The time after which rows that were refused for lack of space are tried again, if nothing was
/// evicted for them.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// The time without samples after which a process may be evicted.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// The time after which rows that hardly ever fit are tried again.
const RETRY_TOO_LARGE_AFTER: Duration = Duration::from_secs(3600);

/// Counters of the kernel's tables, and of rows that they have no space for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Files whose rows are in the tables now.
    pub tables: u64,
    pub rules: u64,
    /// Tables that were evicted.
    pub evicted: u64,
    /// Files and JVMs whose rows were refused for lack of space: their frames are walked by the
    /// daemon.
    pub no_room: u64,
    /// Processes that could not be published, by lack of space or a refusal: their samples are
    /// walked by the daemon.
    pub unpublished_processes: u64,
    /// Rows, or functions with theirs, that were left out: too far from the file's first, or too
    /// long to evaluate.
    pub refused_rows: u64,
    /// Times that a process was published.
    pub published: u64,
}

/// One region of a process's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRegion {
    pub start: Avma,
    pub end: Avma,
    pub code: RegionCode,
}

/// The owner of rows: a file, or trampolines in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowsKey {
    File(FileKey),
    /// CPython's trampolines in memory with this hash: see
    /// [`crate::jit::cpython_trampolines::Trampolines::identity`].
    Trampolines(u64),
}

/// The way to unwind a region of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionCode {
    /// Rows of a file.
    File {
        file: RowsKey,
        bias: LoadBias,
    },
    FramePointer,
    /// Frame pointers, until other rules are published.
    Generated,
    Hotspot,
    /// The daemon: the kernel program leaves samples here to it.
    Deferred,
}

/// The kernel's tables.
#[derive(Debug)]
pub struct CodeTables {
    kernel: BpfMaps,
    regions: FreeExtents,
    numbers: FreeExtents,
    pages: FreeExtents,
    chunks: FreeExtents,
    jvm_slots: FreeExtents,
    rules: RuleTable,
    files: HashMap<RowsKey, FileTable>,
    /// Rows that were refused for lack of space, and when to try again.
    refused: HashMap<RowsKey, Instant>,
    retry_after: Duration,
    /// Processes whose regions were evicted: they are published again when they are sampled.
    evicted: HashSet<ProcessKey>,
    idle_after: Duration,
    processes: HashMap<ProcessKey, PublishedProcess>,
    /// Where processes have the variable of their threads' contexts.
    context_variables: HashMap<ProcessKey, ThreadLocalVariable>,
    retired: Vec<(Instant, TableExtents)>,
    epoch: u32,
    counts: TableCounts,
}

/// A file's rows in the tables.
#[derive(Debug)]
struct FileTable {
    number: u32,
    /// Number of the first page of its code.
    first_page: u64,
    allocation: TableExtents,
    users: u32,
    last_used: Instant,
}

/// Entries of the kernel's arrays.
#[derive(Debug, Default)]
struct TableExtents {
    regions: Range<u32>,
    numbers: Range<u32>,
    pages: Range<u32>,
    chunks: Range<u32>,
    jvms: Range<u32>,
    rules: Box<[PackedRule]>,
}

/// A process as it was published.
#[derive(Debug)]
struct PublishedProcess {
    pid: u32,
    entry: ProcessEntry,
    regions: Range<u32>,
    files: Vec<RowsKey>,
    /// Files without rows when it was published.
    missing: Vec<RowsKey>,
    jvm: Option<JvmSlot>,
    sampled: Instant,
}

#[derive(Debug)]
struct JvmSlot {
    slot: u32,
    table: Option<FileTable>,
}

impl CodeTables {
    pub fn new(kernel: BpfMaps) -> Self {
        let sizes = kernel.sizes();
        Self::with_limits(kernel, sizes)
    }

    /// Makes tables that use no more than these entries of the kernel's.
    pub fn with_limits(kernel: BpfMaps, sizes: MapSizes) -> Self {
        Self {
            regions: FreeExtents::new(0..sizes.regions),
            // RowTable 0 is none.
            numbers: FreeExtents::new(1..sizes.tables),
            pages: FreeExtents::new(0..sizes.pages),
            chunks: FreeExtents::new(0..sizes.rows / CHUNK_ROWS as u32),
            // Slot 0 is none.
            jvm_slots: FreeExtents::new(1..sizes.jvms),
            kernel,
            rules: RuleTable::new(u32::from(NO_RULE) + 1..MAX_RULES),
            files: HashMap::new(),
            refused: HashMap::new(),
            retry_after: RETRY_AFTER,
            evicted: HashSet::new(),
            idle_after: IDLE_AFTER,
            processes: HashMap::new(),
            context_variables: HashMap::new(),
            retired: Vec::new(),
            epoch: 0,
            counts: TableCounts::default(),
        }
    }

    pub fn counts(&self) -> TableCounts {
        TableCounts { rules: self.rules.len() as u64, tables: self.files.len() as u64, ..self.counts }
    }

    /// Returns true if the tables have this file's rows, or can't take them for now.
    pub fn has_or_refuses_rows(&self, file: &RowsKey) -> bool {
        let may_fit = || self.refused.get(file).is_none_or(|until| *until <= Instant::now());
        self.files.contains_key(file) || !may_fit()
    }

    /// Adds a file's rows.
    pub fn add_file(&mut self, file: RowsKey, rows: FileRows) {
        if self.files.contains_key(&file) {
            return;
        }
        let (is_too_large, chunks) = (rows.has_too_many_rules(), rows.len().div_ceil(CHUNK_ROWS));
        if let Some(table) = self.write_table(rows) {
            self.refused.remove(&file);
            self.files.insert(file, table);
            return;
        }
        let retry_after = if is_too_large {
            RETRY_TOO_LARGE_AFTER
        } else if self.evict_idle_processes(chunks as u32) {
            2 * GRACE
        } else {
            self.retry_after
        };
        let is_known = self.refused.insert(file, Instant::now() + retry_after).is_some();
        self.counts.no_room += u64::from(!is_known);
    }

    /// Records that a process was sampled. Returns true if it was evicted, and is to be published
    /// again.
    pub fn touch(&mut self, key: ProcessKey) -> bool {
        if let Some(process) = self.processes.get_mut(&key) {
            process.sampled = Instant::now();
        }
        !self.evicted.is_empty() && self.evicted.remove(&key)
    }

    /// Returns the processes that lack the rows of a file for which there is space or may be by
    /// now: to be published again.
    pub fn processes_lacking_rows(&self) -> impl Iterator<Item = ProcessKey> {
        let may_be_there = |file: &RowsKey| self.files.contains_key(file) || !self.has_or_refuses_rows(file);
        let lacks = move |process: &PublishedProcess| process.missing.iter().any(may_be_there);
        self.processes.iter().filter(move |(_, process)| lacks(process)).map(|(key, _)| *key)
    }

    /// Publishes a JVM's own code: its layout, and the rows of its stubs by their distance from the
    /// code cache's start.
    pub fn add_jvm(&mut self, key: ProcessKey, jvm: &Jvm, rows: FileRows) {
        let old = self.processes.get_mut(&key).and_then(|process| process.jvm.take());
        let slot = old.as_ref().map(|old| old.slot).or_else(|| Some(self.jvm_slots.take(1)?.start));
        let Some(slot) = slot else {
            self.counts.unpublished_processes += 1;
            return;
        };
        let table = self.write_table(rows);
        self.counts.no_room += u64::from(table.is_none());
        let value = Jvm { table: table.as_ref().map_or(0, |table| table.number), ..*jvm };
        if let Err(error) = self.kernel.set_jvm(slot, value) {
            tracing::warn!(%error, "a JVM can't be published to the kernel program");
        }
        if let Some(table) = old.and_then(|old| old.table) {
            self.retire(table.allocation);
        }
        let process = self.processes.entry(key).or_insert_with(|| PublishedProcess {
            pid: 0,
            entry: ProcessEntry::default(),
            regions: 0..0,
            files: Vec::new(),
            missing: Vec::new(),
            jvm: None,
            sampled: Instant::now(),
        });
        process.jvm = Some(JvmSlot { slot, table });
    }

    /// Publishes a process: its regions in order of their addresses, without overlaps.
    pub fn publish(&mut self, key: ProcessKey, pid: u32, start_ns: u64, regions: &[CodeRegion]) {
        self.reclaim();
        let count = regions.len() as u32;
        let allocation = if count < MAX_REGIONS { self.regions.take(count) } else { None };
        let Some(allocation) = allocation else {
            self.counts.unpublished_processes += 1;
            self.kernel.remove_process(pid);
            return;
        };
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        for (index, region) in allocation.clone().zip(regions) {
            let region = self.region(region, &mut files, &mut missing);
            if let Err(error) = self.kernel.set_region(index, region) {
                tracing::warn!(%error, "a region can't be published to the kernel program");
            }
        }
        let jvm = self.processes.get(&key).and_then(|process| process.jvm.as_ref()).map_or(0, |jvm| jvm.slot);
        let start_ticks = start_ns / NS_PER_TICK;
        self.epoch = self.epoch.wrapping_add(1);
        let epoch = self.epoch;
        let first_region = allocation.start;
        let mut entry =
            ProcessEntry { start_ticks, first_region, regions: count, jvm, epoch, ..ProcessEntry::default() };
        entry.set_context_variable(self.context_variables.get(&key).copied());
        if let Err(error) = self.kernel.set_process(pid, entry) {
            tracing::debug!(pid, %error, "a process can't be published to the kernel program");
            self.counts.unpublished_processes += 1;
        }
        self.counts.published += 1;
        let jvm = self.processes.get_mut(&key).and_then(|process| process.jvm.take());
        if let Some(old) = self.processes.insert(
            key,
            PublishedProcess {
                pid,
                entry,
                regions: allocation,
                files,
                missing,
                jvm,
                sampled: Instant::now(),
            },
        ) {
            self.remove_user_of(&old.files);
            self.retire(TableExtents { regions: old.regions, ..TableExtents::default() });
        }
    }

    /// Publishes where a process has the variable of its threads' contexts, now and whenever it is
    /// published again; `None`: it has none.
    pub fn set_context_variable(&mut self, key: ProcessKey, variable: Option<ThreadLocalVariable>) {
        match variable {
            Some(variable) => self.context_variables.insert(key, variable),
            None => self.context_variables.remove(&key),
        };
        if let Some(process) = self.processes.get_mut(&key) {
            process.entry.set_context_variable(variable);
            self.kernel.replace_process(process.pid, process.entry);
        }
    }

    /// Removes all other processes.
    pub fn retain(&mut self, is_alive: impl Fn(ProcessKey) -> bool) {
        let gone: Vec<_> = self.processes.extract_if(|key, _| !is_alive(*key)).collect();
        for (_, process) in gone {
            let is_taken_over = self.processes.values().any(|other| other.pid == process.pid);
            if !is_taken_over {
                self.kernel.remove_process(process.pid);
            }
            self.remove_user_of(&process.files);
            self.retire(TableExtents { regions: process.regions, ..TableExtents::default() });
            if let Some(jvm) = process.jvm {
                self.retire(TableExtents { jvms: jvm.slot..jvm.slot + 1, ..TableExtents::default() });
                if let Some(table) = jvm.table {
                    self.retire(table.allocation);
                }
            }
        }
        self.context_variables.retain(|key, _| is_alive(*key));
        self.evicted.retain(|key| self.processes.contains_key(key));
        let is_lacked =
            |file: &RowsKey| self.processes.values().any(|process| process.missing.contains(file));
        let now = Instant::now();
        self.refused.retain(|file, until| *until > now || is_lacked(file));
    }

    fn region(
        &mut self,
        region: &CodeRegion,
        files: &mut Vec<RowsKey>,
        missing: &mut Vec<RowsKey>,
    ) -> Region {
        const NO_BIAS: LoadBias = LoadBias(0);
        let (kind, table, bias) = match region.code {
            RegionCode::Hotspot => (Region::HOTSPOT, 0, NO_BIAS),
            RegionCode::FramePointer => (Region::FRAME_POINTER, 0, NO_BIAS),
            RegionCode::Generated => (Region::GENERATED, 0, NO_BIAS),
            RegionCode::Deferred => (Region::ROWS_MISSING, 0, NO_BIAS),
            RegionCode::File { file, bias } => match self.files.get_mut(&file) {
                Some(table) => {
                    table.users += 1;
                    table.last_used = Instant::now();
                    files.push(file);
                    (Region::ROWS, table.number, bias)
                }
                None => {
                    if self.refused.contains_key(&file) {
                        missing.push(file);
                    }
                    (Region::ROWS_MISSING, 0, bias)
                }
            },
        };
        Region { start: region.start.0, end: region.end.0, bias: bias.0, table, kind }
    }

    /// Writes a file's rows; `None` if there is no space.
    fn write_table(&mut self, rows: FileRows) -> Option<FileTable> {
        if rows.has_too_many_rules() {
            return None;
        }
        let allocation = self.allocate(&rows)?;
        let (number, refused) = (allocation.numbers.start, rows.refused());
        let packed = rows.renumbered(&self.rules);
        let first_page = packed.first_page;
        if let Err(error) = self.write(&packed, &allocation) {
            tracing::warn!(%error, "unwind rows can't be published to the kernel program");
            self.retire(allocation);
            return None;
        }
        self.counts.refused_rows += refused;
        Some(FileTable { number, first_page, allocation, users: 0, last_used: Instant::now() })
    }

    fn write(&mut self, packed: &PackedRows, allocation: &TableExtents) -> Result<(), SamplerError> {
        while let Some((number, rule)) = self.rules.new.last() {
            self.kernel.set_rule(*number, *rule)?;
            self.rules.new.pop();
        }
        for (index, rows) in allocation.chunks.clone().zip(packed.rows.chunks(CHUNK_ROWS)) {
            let mut chunk = [0; CHUNK_ROWS];
            chunk[..rows.len()].copy_from_slice(rows);
            self.kernel.set_chunk(index, chunk)?;
        }
        let first_row = allocation.chunks.start * CHUNK_ROWS as u32;
        let ends = packed.pages.iter().skip(1).copied().chain([packed.rows.len() as u32]);
        for ((index, first), end) in allocation.pages.clone().zip(&packed.pages).zip(ends) {
            self.kernel.set_page(index, RowPage { first: first_row + first, rows: end - first })?;
        }
        let table = RowTable {
            first_page: packed.first_page,
            pages: packed.pages.len() as u32,
            index: allocation.pages.start,
        };
        self.kernel.set_table(allocation.numbers.start, table)
    }
}
