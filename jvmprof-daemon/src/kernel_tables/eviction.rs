//! Allocation of space in the kernel's tables, and eviction.

use std::time::Instant;

use jvmprof_common::unwind_tables::CHUNK_ROWS;

use super::{CodeTables, FileRows, FileTable, GRACE, PublishedProcess, RowsKey, TableExtents};

impl CodeTables {
    /// Allocates space for a table, after evicting those that no process uses if necessary. Returns
    /// `None` if there is none, which may be so for a moment only: see
    /// [`Self::evict_idle_processes`].
    pub(super) fn allocate(&mut self, rows: &FileRows) -> Option<TableExtents> {
        self.reclaim();
        loop {
            let allocation = self.allocate_free(rows);
            if allocation.is_some() || !self.evict() {
                return allocation;
            }
        }
    }

    fn allocate_free(&mut self, rows: &FileRows) -> Option<TableExtents> {
        let numbers = self.numbers.take(1);
        let pages = self.pages.take(rows.rows.pages.len() as u32);
        let chunks = self.chunks.take(rows.len().div_ceil(CHUNK_ROWS) as u32);
        if let (Some(numbers), Some(pages), Some(chunks)) = (&numbers, &pages, &chunks)
            && self.rules.take(rows.rules())
        {
            let (numbers, pages, chunks) = (numbers.clone(), pages.clone(), chunks.clone());
            return Some(TableExtents {
                numbers,
                pages,
                chunks,
                rules: rows.rules().into(),
                ..TableExtents::default()
            });
        }
        self.numbers.release(numbers.unwrap_or_default());
        self.pages.release(pages.unwrap_or_default());
        self.chunks.release(chunks.unwrap_or_default());
        None
    }

    /// Evicts the table that no process uses for the longest time; returns false if there is none.
    fn evict(&mut self) -> bool {
        // For a grace period the kernel program may still read what was published before.
        let unused = |table: &FileTable| table.users == 0 && table.last_used.elapsed() >= GRACE;
        let unused = self.files.iter().filter(|(_, table)| unused(table));
        let Some(key) = unused.min_by_key(|(_, table)| table.last_used).map(|(key, _)| *key) else {
            return false;
        };
        if let Some(table) = self.files.remove(&key) {
            self.counts.evicted += 1;
            self.release(table.allocation);
        }
        true
    }

    /// Evicts processes that weren't sampled for a while, the least recently sampled first, until
    /// their tables leave space for this many chunks. They are published again when they are
    /// sampled next. Returns true if there will be space in a moment.
    pub(super) fn evict_idle_processes(&mut self, chunks: u32) -> bool {
        loop {
            let unused = self.files.values().filter(|table| table.users == 0);
            if unused.map(|table| table.allocation.chunks.len() as u32).sum::<u32>() >= chunks.max(1) {
                return true;
            }
            let is_idle = |process: &PublishedProcess| {
                !process.files.is_empty() && process.sampled.elapsed() >= self.idle_after
            };
            let idle = self.processes.iter().filter(|(_, process)| is_idle(process));
            let Some(key) = idle.min_by_key(|(_, process)| process.sampled).map(|(key, _)| *key) else {
                return false;
            };
            let Some(process) = self.processes.get_mut(&key) else { return false };
            let (files, regions) = (std::mem::take(&mut process.files), std::mem::take(&mut process.regions));
            process.missing.clear();
            let pid = process.pid;
            self.kernel.remove_process(pid);
            self.remove_user_of(&files);
            self.retire(TableExtents { regions, ..TableExtents::default() });
            self.evicted.insert(key);
        }
    }

    /// Removes one user of each of these files.
    pub(super) fn remove_user_of(&mut self, files: &[RowsKey]) {
        for file in files {
            if let Some(table) = self.files.get_mut(file) {
                table.users -= 1;
                table.last_used = Instant::now();
            }
        }
    }

    pub(super) fn retire(&mut self, allocation: TableExtents) {
        self.retired.push((Instant::now(), allocation));
    }

    /// Frees entries that were replaced long enough ago.
    pub(super) fn reclaim(&mut self) {
        let now = Instant::now();
        let old: Vec<TableExtents> = self
            .retired
            .extract_if(.., |(at, _)| now.duration_since(*at) >= GRACE)
            .map(|(_, allocation)| allocation)
            .collect();
        for allocation in old {
            self.release(allocation);
        }
    }

    fn release(&mut self, allocation: TableExtents) {
        self.regions.release(allocation.regions);
        self.numbers.release(allocation.numbers);
        self.pages.release(allocation.pages);
        self.chunks.release(allocation.chunks);
        self.jvm_slots.release(allocation.jvms);
        self.rules.release(&allocation.rules);
    }
}
