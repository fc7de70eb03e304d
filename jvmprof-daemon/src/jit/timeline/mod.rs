//! Generated code through time: the code at an address at a given time.
//!
//! The address space is cut into disjoint *pieces*. Each has its newest version on top and, for as
//! long as a sample may need them, the superseded ones below. A lookup is a search in a B-tree and
//! one among a piece's few versions.

mod memory_limit;
mod name_arena;
mod pieces;
mod source_lines;
mod superseded_versions;
#[cfg(test)]
mod tests;
mod vec_growth;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::jit::code_unwind_rows::CodeUnwindRows;
use crate::types::Avma;
use name_arena::NameArena;
pub use source_lines::CodeLines;
use superseded_versions::SupersededVersions;
use vec_growth::elements_to_reserve;

/// Bytes of a piece in the B-tree: key and value are 24, and nodes that are filled in order are 60
/// % full.
const PIECE_BYTES: usize = 40;
/// Most superseded versions of one piece. It also bounds the work of an entry that lies over many
/// pieces: after this many of them the pieces don't differ any more, and are merged.
const MAX_SUPERSEDED: usize = 64;

/// Time when an entry's code was generated, in nanoseconds of `CLOCK_MONOTONIC`: after `after_ns`,
/// and not later than `since_ns`.
///
/// The two are equal if the writer recorded the time. New lines of a perf map were written between
/// the last two reads. A file is read in the order of its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreationTime {
    pub after_ns: u64,
    pub since_ns: u64,
    /// True if another process may have written the entry: names from it are ambiguous.
    pub is_doubtful: bool,
}

impl CreationTime {
    /// Makes an exact time, as the writer recorded it.
    pub fn exact(time_ns: u64) -> Self {
        Self { after_ns: time_ns, since_ns: time_ns, is_doubtful: false }
    }

    fn is_exact(&self) -> bool {
        self.after_ns == self.since_ns
    }
}

/// Index of an entry of one timeline; valid while [`CodeTimeline::epoch`] stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeEntryId(u32);

/// Result of a lookup: the entry that covers an address at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeMatch<'a> {
    pub id: CodeEntryId,
    /// Name as written.
    pub name: &'a str,
    /// Start of the entry as written, even where a later one overlaps it.
    pub start: Avma,
    /// Size in bytes, as written.
    pub size: u64,
    /// Source lines, if the writer recorded them.
    pub lines: Option<&'a Arc<CodeLines>>,
    /// Unwind rows, if the writer recorded unwinding information.
    pub rows: Option<&'a Arc<CodeUnwindRows>>,
    /// True if another entry may have been there at that time, as far as the times of the entries
    /// are known.
    pub is_ambiguous: bool,
}

/// Result of [`CodeTimeline::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOutcome {
    New,
    /// The same code was there already.
    Unchanged,
    /// The memory limit is reached: the addresses have no name from then on.
    OverLimit,
}

/// The entries of one process, live and superseded.
#[derive(Debug, Default)]
pub struct CodeTimeline {
    /// Disjoint pieces by their start address.
    pieces: BTreeMap<u64, TimelinePiece>,
    /// Entries in the order written; some may have no piece any more.
    entries: Vec<CodeEntry>,
    names: NameArena,
    lines: HashMap<u32, Arc<CodeLines>>,
    rows: HashMap<u32, Arc<CodeUnwindRows>>,
    /// Times and start addresses of pieces whose newest version was superseded, oldest first as far
    /// as the writer's times ascend.
    superseded: VecDeque<(u64, u64)>,
    superseded_bytes: usize,
    lines_bytes: usize,
    rows_bytes: usize,
    /// Versions that were superseded before this time are dropped.
    horizon_ns: u64,
    /// Entries that were written or refused since the last compaction.
    since_compaction: usize,
    epoch: u64,
    /// Number of the file's rewrite that is being read: see [`Self::begin_rewrite`].
    rewrite: u16,
    history_over_limit: u64,
    rows_over_limit: u64,
    /// Entries were dropped since the memory limit was reached: an address without an older entry
    /// may have had one.
    has_dropped: bool,
    /// Time of the newest entry that was dropped. Older entries may lie below it.
    dropped_ns: u64,
    /// The last of `entries` was written last.
    is_last_new: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TimelinePiece {
    /// Length in bytes, not zero.
    len: u32,
    /// Index of the newest entry.
    entry: u32,
    superseded: SupersededVersions,
}

/// An entry as it was written.
#[derive(Clone, Copy, Debug)]
struct CodeEntry {
    start: u64,
    since_ns: u64,
    size: u32,
    /// Length of the time before `since_ns` in which it may have been written, in microseconds;
    /// `u32::MAX`: at any time.
    slack_us: u32,
    /// Offset of its name; [`NameArena::NONE`]: no code is here any more.
    name: u32,
    rewrite: u16,
    is_doubtful: bool,
}

impl CodeEntry {
    fn after_ns(&self) -> u64 {
        if self.slack_us == u32::MAX {
            return 0;
        }
        self.since_ns.saturating_sub(u64::from(self.slack_us) * 1000)
    }
}

impl CodeTimeline {
    /// Adds code over everything that was there before. `name` has no line feed, `start + size`
    /// doesn't overflow, and `size` isn't zero. `limit`: most bytes of memory.
    pub fn insert(
        &mut self,
        start: Avma,
        size: u32,
        name: &str,
        since: CreationTime,
        limit: usize,
    ) -> InsertOutcome {
        self.insert_code(start, size, name, None, since, limit)
    }

    /// Adds code that is unwound by `rows`: see [`Self::insert`]. The same code with other rows is
    /// other code. Rows beyond the memory limit are left out.
    pub fn insert_code(
        &mut self,
        start: Avma,
        size: u32,
        name: &str,
        rows: Option<Arc<CodeUnwindRows>>,
        since: CreationTime,
        limit: usize,
    ) -> InsertOutcome {
        let start = start.0;
        self.since_compaction += 1;
        self.is_last_new = false;
        if let Some(unchanged) = self.find_unchanged(start, size, name, rows.as_deref(), since) {
            self.entries[unchanged as usize].rewrite = self.rewrite;
            return InsertOutcome::Unchanged;
        }
        if since.since_ns < self.dropped_ns || !self.reserve_memory(start, size, name.len() + 1, limit) {
            self.drop_range(start, size, since);
            return InsertOutcome::OverLimit;
        }
        let name = self.names.push(name);
        let entry = self.push_entry(start, size, since, name);
        self.cover(start, size, entry);
        self.is_last_new = true;
        match rows {
            Some(rows) if self.size_bytes() + row_bytes(&rows) <= limit => {
                self.rows_bytes += row_bytes(&rows);
                self.rows.insert(entry, rows);
            }
            rows => self.rows_over_limit += u64::from(rows.is_some()),
        }
        InsertOutcome::New
    }

    /// Records that no code is at these addresses any more.
    pub fn remove(&mut self, start: Avma, size: u32, since: CreationTime, limit: usize) {
        let start = start.0;
        if since.since_ns < self.dropped_ns || !self.reserve_memory(start, size, 0, limit) {
            self.drop_range(start, size, since);
            return;
        }
        let entry = self.push_entry(start, size, since, NameArena::NONE);
        self.cover(start, size, entry);
    }

    /// Moves the code at `from` to `to`. Returns `None` if that code is unknown: `to` has no name
    /// then.
    pub fn move_code(
        &mut self,
        from: Avma,
        to: Avma,
        size: u32,
        since: CreationTime,
        limit: usize,
    ) -> Option<InsertOutcome> {
        let Some(found) = self.code_covering(from, size, since.since_ns) else {
            self.remove(from, size, since, limit);
            self.remove(to, size, since, limit);
            return None;
        };
        let (name, lines) = (found.name.to_owned(), found.lines.map(|lines| CodeLines::clone(lines)));
        let rows = found.rows.map(Arc::clone);
        self.remove(from, size, since, limit);
        let done = self.insert_code(to, size, &name, rows, since, limit);
        if let Some(lines) = lines.filter(|_| done == InsertOutcome::New) {
            self.set_lines(to, lines, limit);
        }
        Some(done)
    }

    /// Returns the code that begins at `start` and covers all of these addresses, so that its lines
    /// and rows hold elsewhere, too.
    fn code_covering(&self, start: Avma, size: u32, at_ns: u64) -> Option<CodeMatch<'_>> {
        let end = start.0 + u64::from(size);
        let found = self.lookup(start, at_ns).filter(|found| found.start == start)?;
        let mut at = start.0;
        for (next, piece) in self.pieces.range(start.0..end) {
            if *next != at || self.lookup(Avma(at), at_ns)?.id != found.id {
                return None;
            }
            at += u64::from(piece.len);
        }
        (at >= end).then_some(found)
    }

    /// Records that the entry that was written last is newer than `after_ns`.
    pub fn narrow_last_creation(&mut self, after_ns: u64) {
        if let Some(entry) = self.entries.last_mut().filter(|_| self.is_last_new) {
            entry.slack_us = slack_us(after_ns, entry.since_ns);
        }
    }

    /// Sets the source lines of the code at `start` that was written last. Returns false if there
    /// is none, or the memory limit is reached.
    pub fn set_lines(&mut self, start: Avma, lines: CodeLines, limit: usize) -> bool {
        let bytes = lines.size_bytes();
        let entry = if self.is_last_new {
            Some(self.entries.len() as u32 - 1)
        } else {
            self.pieces.get(&start.0).map(|piece| piece.entry)
        };
        let Some(entry) = entry else { return false };
        if self.size_bytes() + bytes > limit {
            return false;
        }
        self.lines_bytes += bytes;
        if let Some(replaced) = self.lines.insert(entry, Arc::new(lines)) {
            self.lines_bytes -= replaced.size_bytes();
        }
        true
    }

    /// Returns the entry that was live at `address` at the time `at_ns`.
    ///
    /// An entry holds from the time when it was first seen. One that may already have been there
    /// makes the result ambiguous, and is the result if nothing older is known.
    pub fn lookup(&self, address: Avma, at_ns: u64) -> Option<CodeMatch<'_>> {
        let (start, piece) = self.pieces.range(..=address.0).next_back()?;
        if address.0 - start >= u64::from(piece.len) {
            return None;
        }
        let superseded = piece.superseded.entries();
        let version = |index: usize| superseded.get(index).copied().unwrap_or(piece.entry);
        let entry = |index| self.entries.get(version(index) as usize);
        let seen =
            (0..=superseded.len()).rev().find(|index| entry(*index).is_some_and(|it| it.since_ns <= at_ns));
        let maybe = (seen.map_or(0, |seen| seen + 1)..=superseded.len())
            .filter(|index| entry(*index).is_some_and(|it| it.after_ns() < at_ns));
        let (chosen, is_ambiguous) = match seen {
            Some(seen) => (seen, maybe.count() > 0),
            // The entry before has been dropped.
            None if piece.superseded.is_dropped() || self.has_dropped => return None,
            None => {
                let (count, last) = maybe.fold((0, None), |(count, _), index| (count + 1, Some(index)));
                (last?, count > 1)
            }
        };
        let (id, entry) = (CodeEntryId(version(chosen)), entry(chosen)?);
        Some(CodeMatch {
            id,
            name: self.names.get(entry.name)?,
            start: Avma(entry.start),
            size: u64::from(entry.size),
            lines: self.lines.get(&id.0),
            rows: self.rows.get(&id.0),
            is_ambiguous: is_ambiguous || entry.is_doubtful,
        })
    }

    /// Begins a rewrite of the whole file: entries that aren't inserted again before
    /// [`Self::end_rewrite`] end.
    pub fn begin_rewrite(&mut self) {
        self.rewrite = self.rewrite.wrapping_add(1);
    }

    /// Ends the entries that weren't inserted again. Returns true if there were any.
    pub fn end_rewrite(&mut self, since: CreationTime, limit: usize) -> bool {
        let gone: Vec<(Avma, u32)> = self
            .pieces
            .iter()
            .filter(|(_, piece)| {
                let entry = self.entries.get(piece.entry as usize);
                entry.is_some_and(|entry| entry.rewrite != self.rewrite && entry.name != NameArena::NONE)
            })
            .map(|(start, piece)| (Avma(*start), piece.len))
            .collect();
        for (start, size) in &gone {
            self.remove(*start, *size, since, limit);
        }
        !gone.is_empty()
    }

    /// Drops versions that were superseded before `horizon_ns`.
    pub fn expire(&mut self, horizon_ns: u64) {
        self.horizon_ns = self.horizon_ns.max(horizon_ns);
        while let Some((_, start)) = self.superseded.front().copied().filter(|(at, _)| *at <= self.horizon_ns)
        {
            self.superseded.pop_front();
            let Some((start, piece)) = self.pieces.range_mut(..=start).next_back() else { continue };
            self.superseded_bytes -= piece.superseded.size_bytes();
            piece.superseded.expire(piece.entry, &self.entries, self.horizon_ns);
            let is_empty = piece.superseded.entries().is_empty()
                && self.entries.get(piece.entry as usize).is_some_and(|entry| entry.name == NameArena::NONE);
            if is_empty {
                let start = *start;
                self.pieces.remove(&start);
            } else {
                self.superseded_bytes += piece.superseded.size_bytes();
            }
        }
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            has_dropped: true,
            rows_over_limit: self.rows_over_limit,
            ..Self::default()
        };
    }

    /// Returns the number of address ranges that a lookup distinguishes.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns a number that changes when [`CodeEntryId`]s become invalid.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of versions that were dropped early, since the memory limit was reached.
    pub fn history_over_limit(&self) -> u64 {
        self.history_over_limit
    }

    /// Returns the number of entries whose rows were left out, since the memory limit was reached.
    pub fn rows_over_limit(&self) -> u64 {
        self.rows_over_limit
    }

    /// Returns the bytes of memory in use.
    pub fn size_bytes(&self) -> usize {
        self.pieces.len() * PIECE_BYTES
            + self.entries.capacity() * size_of::<CodeEntry>()
            + self.names.size_bytes()
            + self.superseded.capacity() * size_of::<(u64, u64)>()
            + self.superseded_bytes
            + self.lines_bytes
            + self.rows_bytes
    }

    /// Returns the entry of the same code if it is the newest one on all of its addresses. With an
    /// exact time there is none: a record of other code in between may still follow.
    fn find_unchanged(
        &self,
        start: u64,
        size: u32,
        name: &str,
        rows: Option<&CodeUnwindRows>,
        since: CreationTime,
    ) -> Option<u32> {
        let piece = self.pieces.get(&start).filter(|piece| piece.len == size && !since.is_exact())?;
        let entry = self.entries.get(piece.entry as usize)?;
        let is_same = (entry.start, entry.size) == (start, size)
            && self.names.get(entry.name) == Some(name)
            && self.rows.get(&piece.entry).map(|rows| &**rows) == rows
            && (since.is_doubtful || !entry.is_doubtful);
        is_same.then_some(piece.entry)
    }

    fn push_entry(&mut self, start: u64, size: u32, since: CreationTime, name: u32) -> u32 {
        let CreationTime { after_ns, since_ns, is_doubtful } = since;
        let slack_us = slack_us(after_ns, since_ns);
        let entry = self.entries.len() as u32;
        self.entries.reserve_exact(elements_to_reserve(self.entries.capacity(), self.entries.len(), 1));
        let rewrite = self.rewrite;
        self.entries.push(CodeEntry { start, since_ns, size, slack_us, name, rewrite, is_doubtful });
        entry
    }
}

/// Returns the memory of an entry's rows, with their entry in the map.
fn row_bytes(rows: &CodeUnwindRows) -> usize {
    rows.size_bytes() + 2 * size_of::<(u32, usize)>()
}

fn slack_us(after_ns: u64, since_ns: u64) -> u32 {
    match after_ns {
        0 => u32::MAX,
        after => since_ns.saturating_sub(after).div_ceil(1000).try_into().unwrap_or(u32::MAX),
    }
}
