//! What the kernel program is told of code: keeps its tables filled, within their limits.
//!
//! A file's rows are packed once and shared by all processes that map it; they stay until their room is needed by others.
//! A process's regions are written to fresh entries and switched to at once, so that the kernel program never sees half a
//! process.

mod extents;
mod pack;

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use jvmprof_common::jvm::Jvm;
use jvmprof_common::tables::{CHUNK_ROWS, MAX_REGIONS, NS_PER_TICK, Page, ProcessEntry, Region, Table};

use crate::native::cache::FileKey;
use crate::process::ProcessKey;
use crate::sampler::{KernelTables, SamplerError};
use extents::Extents;
pub use pack::FileRows;
use pack::{PackedRows, Rules};

/// How long the kernel program may still look at entries that were replaced: far longer than a walk takes.
const GRACE: Duration = Duration::from_millis(500);

/// What went into the kernel's tables, and what didn't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Files whose rows are in the tables now.
    pub tables: u64,
    /// Bytes that rows take there now.
    pub row_bytes: u64,
    pub rules: u64,
    /// Tables that left to make room.
    pub evicted: u64,
    /// Files and JVMs whose rows found no room: their frames are walked by the daemon.
    pub no_room: u64,
    /// Processes that could not be told of, by lack of room or a refusal: their samples are walked by the daemon.
    pub untold_processes: u64,
    /// Rows that had to be left out: too many different rules, or too far from the file's first.
    pub refused_rows: u64,
    /// Times that a process was told of.
    pub told: u64,
}

/// One stretch of a process's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRegion {
    pub start: u64,
    pub end: u64,
    pub code: RegionCode,
}

/// Whose rows they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowsKey {
    File(FileKey),
    /// CPython's trampolines in memory like this: see [`crate::jitmap::trampolines::Trampolines::identity`].
    Trampolines(u64),
}

/// How to walk it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionCode {
    /// By the rows of a file; `bias` is what an address has more than the file's own.
    File {
        file: RowsKey,
        bias: u64,
    },
    FramePointer,
    /// By the frame pointer, as long as nothing else is known.
    Generated,
    Hotspot,
    /// Not in the kernel program: the daemon will know more when it sees the sample.
    Later,
}

/// The kernel's tables.
#[derive(Debug)]
pub struct CodeTables {
    kernel: KernelTables,
    regions: Extents,
    numbers: Extents,
    pages: Extents,
    chunks: Extents,
    jvm_slots: Extents,
    rules: Rules,
    files: HashMap<RowsKey, Option<FileTable>>,
    processes: HashMap<ProcessKey, Told>,
    retired: Vec<(Instant, Room)>,
    epoch: u32,
    counts: TableCounts,
}

/// A file's rows in the tables.
#[derive(Debug)]
struct FileTable {
    number: u32,
    room: Room,
    users: u32,
    last_used: Instant,
}

/// Entries of the kernel's arrays.
#[derive(Debug, Default)]
struct Room {
    regions: Range<u32>,
    numbers: Range<u32>,
    pages: Range<u32>,
    chunks: Range<u32>,
    jvms: Range<u32>,
}

/// What was told of a process.
#[derive(Debug)]
struct Told {
    pid: u32,
    regions: Range<u32>,
    files: Vec<RowsKey>,
    jvm: Option<JvmTable>,
}

#[derive(Debug)]
struct JvmTable {
    slot: u32,
    value: Jvm,
    table: Option<FileTable>,
}

impl CodeTables {
    pub fn new(kernel: KernelTables) -> Self {
        let sizes = kernel.sizes();
        Self {
            regions: Extents::new(0..sizes.regions),
            // Table 0 is none.
            numbers: Extents::new(1..sizes.tables),
            pages: Extents::new(0..sizes.pages),
            chunks: Extents::new(0..sizes.rows / CHUNK_ROWS as u32),
            // Slot 0 is none.
            jvm_slots: Extents::new(1..sizes.jvms),
            kernel,
            rules: Rules::default(),
            files: HashMap::new(),
            processes: HashMap::new(),
            retired: Vec::new(),
            epoch: 0,
            counts: TableCounts::default(),
        }
    }

    pub fn counts(&self) -> TableCounts {
        let row_bytes = u64::from(self.chunks.used()) * (CHUNK_ROWS * 4) as u64;
        TableCounts {
            row_bytes,
            rules: self.rules.len() as u64,
            refused_rows: self.rules.refused,
            tables: self.files.values().flatten().count() as u64,
            ..self.counts
        }
    }

    /// Whether the tables have (or can't have) this file's rows.
    pub fn knows(&self, file: &RowsKey) -> bool {
        self.files.contains_key(file)
    }

    /// Takes in a file's rows.
    pub fn add_file(&mut self, file: RowsKey, rows: FileRows) {
        let table = self.add_table(rows);
        self.files.insert(file, table);
    }

    /// Tells of a JVM's own code: its layout, and the rows of its stubs by their distance from the code cache's begin.
    pub fn add_jvm(&mut self, key: ProcessKey, jvm: &Jvm, rows: FileRows) {
        let old = self.processes.get_mut(&key).and_then(|told| told.jvm.take());
        let slot = old.as_ref().map(|old| old.slot).or_else(|| Some(self.jvm_slots.take(1)?.start));
        let Some(slot) = slot else {
            self.counts.untold_processes += 1;
            return;
        };
        let table = self.add_table(rows);
        let value = Jvm { table: table.as_ref().map_or(0, |table| table.number), ..*jvm };
        if let Err(error) = self.kernel.set_jvm(slot, value) {
            tracing::warn!(%error, "a JVM can't be told to the kernel program");
        }
        if let Some(table) = old.and_then(|old| old.table) {
            self.retire(table.room);
        }
        let told = self.processes.entry(key).or_insert_with(|| Told {
            pid: 0,
            regions: 0..0,
            files: Vec::new(),
            jvm: None,
        });
        told.jvm = Some(JvmTable { slot, value, table });
    }

    /// The JVM's layout as it was told, if it was.
    pub fn jvm(&self, key: ProcessKey) -> Option<&Jvm> {
        Some(&self.processes.get(&key)?.jvm.as_ref()?.value)
    }

    /// Tells of a process: its regions in order of their addresses, without overlaps.
    pub fn tell(&mut self, key: ProcessKey, pid: u32, start_ns: u64, regions: &[CodeRegion]) {
        self.reclaim();
        let count = regions.len() as u32;
        let room = if count < MAX_REGIONS { self.regions.take(count) } else { None };
        let Some(room) = room else {
            self.counts.untold_processes += 1;
            self.kernel.remove_process(pid);
            return;
        };
        let mut files = Vec::new();
        for (index, region) in room.clone().zip(regions) {
            let region = self.region(region, &mut files);
            if let Err(error) = self.kernel.set_region(index, region) {
                tracing::warn!(%error, "a region can't be told to the kernel program");
            }
        }
        let jvm = self.processes.get(&key).and_then(|told| told.jvm.as_ref()).map_or(0, |jvm| jvm.slot);
        let start_ticks = start_ns / NS_PER_TICK;
        self.epoch = self.epoch.wrapping_add(1);
        let epoch = self.epoch;
        let entry = ProcessEntry { start_ticks, first_region: room.start, regions: count, jvm, epoch };
        if let Err(error) = self.kernel.set_process(pid, entry) {
            tracing::debug!(pid, %error, "a process can't be told to the kernel program");
            self.counts.untold_processes += 1;
        }
        self.counts.told += 1;
        let jvm = self.processes.get_mut(&key).and_then(|told| told.jvm.take());
        if let Some(old) = self.processes.insert(key, Told { pid, regions: room, files, jvm }) {
            self.leave(&old.files);
            self.retire(Room { regions: old.regions, ..Room::default() });
        }
    }

    /// Forgets all other processes.
    pub fn retain(&mut self, is_alive: impl Fn(ProcessKey) -> bool) {
        let gone: Vec<_> = self.processes.extract_if(|key, _| !is_alive(*key)).collect();
        for (_, told) in gone {
            let is_taken_over = self.processes.values().any(|other| other.pid == told.pid);
            if !is_taken_over {
                self.kernel.remove_process(told.pid);
            }
            self.leave(&told.files);
            self.retire(Room { regions: told.regions, ..Room::default() });
            if let Some(jvm) = told.jvm {
                self.retire(Room { jvms: jvm.slot..jvm.slot + 1, ..Room::default() });
                if let Some(table) = jvm.table {
                    self.retire(table.room);
                }
            }
        }
    }

    fn region(&mut self, region: &CodeRegion, files: &mut Vec<RowsKey>) -> Region {
        let (kind, table, bias) = match region.code {
            RegionCode::Hotspot => (Region::HOTSPOT, 0, 0),
            RegionCode::FramePointer => (Region::FRAME_POINTER, 0, 0),
            RegionCode::Generated => (Region::GENERATED, 0, 0),
            RegionCode::Later => (Region::ROWS_MISSING, 0, 0),
            RegionCode::File { file, bias } => match self.files.get_mut(&file) {
                Some(Some(table)) => {
                    table.users += 1;
                    table.last_used = Instant::now();
                    files.push(file);
                    (Region::ROWS, table.number, bias)
                }
                _ => (Region::ROWS_MISSING, 0, bias),
            },
        };
        Region { start: region.start, end: region.end, bias, table, kind }
    }

    fn add_table(&mut self, rows: FileRows) -> Option<FileTable> {
        let packed = rows.renumbered(&mut self.rules);
        let table = self.write_table(&packed);
        if table.is_none() {
            self.counts.no_room += 1;
        }
        table
    }

    fn write_table(&mut self, packed: &PackedRows) -> Option<FileTable> {
        let chunks = packed.rows.len().div_ceil(CHUNK_ROWS) as u32;
        let room = self.room(packed.pages.len() as u32, chunks)?;
        let number = room.numbers.start;
        let written = self.write(packed, &room);
        if let Err(error) = written {
            tracing::warn!(%error, "unwind rows can't be told to the kernel program");
            self.retire(room);
            return None;
        }
        Some(FileTable { number, room, users: 0, last_used: Instant::now() })
    }

    fn write(&mut self, packed: &PackedRows, room: &Room) -> Result<(), SamplerError> {
        for (number, rule) in std::mem::take(&mut self.rules.new) {
            self.kernel.set_rule(number, rule)?;
        }
        for (index, rows) in room.chunks.clone().zip(packed.rows.chunks(CHUNK_ROWS)) {
            let mut chunk = [0; CHUNK_ROWS];
            chunk[..rows.len()].copy_from_slice(rows);
            self.kernel.set_chunk(index, chunk)?;
        }
        let first_row = room.chunks.start * CHUNK_ROWS as u32;
        let ends = packed.pages.iter().skip(1).copied().chain([packed.rows.len() as u32]);
        for ((index, first), end) in room.pages.clone().zip(&packed.pages).zip(ends) {
            self.kernel.set_page(index, Page { first: first_row + first, rows: end - first })?;
        }
        let table = Table {
            first_page: packed.first_page,
            pages: packed.pages.len() as u32,
            index: room.pages.start,
        };
        self.kernel.set_table(room.numbers.start, table)
    }

    /// Room for a table, made by the tables that were used least recently and aren't in use now.
    fn room(&mut self, pages: u32, chunks: u32) -> Option<Room> {
        self.reclaim();
        loop {
            let numbers = self.numbers.take(1);
            let page_room = self.pages.take(pages);
            let chunk_room = self.chunks.take(chunks);
            match (numbers, page_room, chunk_room) {
                (Some(numbers), Some(pages), Some(chunks)) => {
                    return Some(Room { numbers, pages, chunks, ..Room::default() });
                }
                (numbers, pages, chunks) => {
                    self.numbers.release(numbers.unwrap_or_default());
                    self.pages.release(pages.unwrap_or_default());
                    self.chunks.release(chunks.unwrap_or_default());
                }
            }
            let tables = self.files.iter().filter_map(|(key, table)| Some((key, table.as_ref()?)));
            let unused = tables.filter(|(_, table)| table.users == 0 && table.last_used.elapsed() >= GRACE);
            let oldest = unused.min_by_key(|(_, table)| table.last_used);
            let key = *oldest?.0;
            if let Some(Some(table)) = self.files.remove(&key) {
                self.counts.evicted += 1;
                // No process's regions have led there for a grace period.
                self.release(table.room);
            }
        }
    }

    fn leave(&mut self, files: &[RowsKey]) {
        for file in files {
            if let Some(Some(table)) = self.files.get_mut(file) {
                table.users -= 1;
                table.last_used = Instant::now();
            }
        }
    }

    fn retire(&mut self, room: Room) {
        self.retired.push((Instant::now(), room));
    }

    /// Frees what was replaced long enough ago.
    fn reclaim(&mut self) {
        let now = Instant::now();
        let old: Vec<Room> = self
            .retired
            .extract_if(.., |(at, _)| now.duration_since(*at) >= GRACE)
            .map(|(_, room)| room)
            .collect();
        for room in old {
            self.release(room);
        }
    }

    fn release(&mut self, room: Room) {
        self.regions.release(room.regions);
        self.numbers.release(room.numbers);
        self.pages.release(room.pages);
        self.chunks.release(room.chunks);
        self.jvm_slots.release(room.jvms);
    }
}
