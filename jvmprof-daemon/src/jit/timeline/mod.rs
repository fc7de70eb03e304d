//! Generated code through time: which code was at an address at a given moment.
//!
//! The address space is cut into disjoint *pieces*. Each has its newest version on top and, for as
//! long as a sample may ask for them, the older ones below. A lookup is a search in a B-tree and
//! one among a piece's few versions.

mod memory_limit;
mod name_arena;
mod source_lines;
mod superseded_versions;
#[cfg(test)]
mod tests;
mod vec_growth;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::jit::code_unwind_rows::CodeRows;
use crate::types::Avma;
use name_arena::Names;
pub use source_lines::CodeLines;
use superseded_versions::Older;
use vec_growth::reserve;

/// Bytes that a piece takes in the B-tree: key and value are 24, and nodes that are filled in order
/// are 60 % full.
const PIECE_BYTES: usize = 40;
/// Versions of one piece that are remembered below the newest. Also bounds the work of an entry
/// that lies over many pieces: after so many of them, the pieces have nothing left that tells them
/// apart, and are merged.
const MAX_OLDER: usize = 64;

/// When an entry's code came to be, in nanoseconds of `CLOCK_MONOTONIC`: after `after_ns`, and not
/// later than `since_ns`.
///
/// The two are equal where the writer told the time. A file that is read now and then only tells
/// that its new lines were written since the last look; it is read in the order of its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    pub after_ns: u64,
    pub since_ns: u64,
    /// Another process may have written it: whatever it names is ambiguous.
    pub is_doubtful: bool,
}

impl Since {
    /// A time that the writer told.
    pub fn exact(time_ns: u64) -> Self {
        Self { after_ns: time_ns, since_ns: time_ns, is_doubtful: false }
    }

    fn is_exact(&self) -> bool {
        self.after_ns == self.since_ns
    }
}

/// Which entry of one timeline; valid while [`Timeline::epoch`] stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId(u32);

/// An entry that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    pub id: EntryId,
    /// The writer's text.
    pub name: &'a str,
    /// Start of the entry as written, even where a later one overlaps it.
    pub start: Avma,
    /// In bytes, as written.
    pub size: u64,
    /// What else is known of its source.
    pub lines: Option<&'a Arc<CodeLines>>,
    /// How to unwind it, if that was told.
    pub rows: Option<&'a Arc<CodeRows>>,
    /// Another entry may have been there at that time: what the writer told can't tell them apart.
    pub is_ambiguous: bool,
}

/// What [`Timeline::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    New,
    /// The same code is there already.
    Known,
    /// It would take too much memory: its addresses have no name from then on.
    NoRoom,
}

/// The entries of one process, live and past.
#[derive(Debug, Default)]
pub struct Timeline {
    /// What covers the addresses from the key on. Disjoint.
    pieces: BTreeMap<u64, Piece>,
    /// In the order written; some may have no piece any more.
    entries: Vec<Entry>,
    names: Names,
    lines: HashMap<u32, Arc<CodeLines>>,
    rows: HashMap<u32, Arc<CodeRows>>,
    /// Where and when a version left the top of a piece, oldest first as far as the writer's times
    /// ascend.
    retired: VecDeque<(u64, u64)>,
    older_bytes: usize,
    lines_bytes: usize,
    rows_bytes: usize,
    /// What was superseded before this time is forgotten.
    horizon_ns: u64,
    /// Entries written, or refused, since what is invisible was last dropped.
    since_compaction: usize,
    epoch: u64,
    /// Which writing of the file is being read: see [`Self::begin_rewrite`].
    writing: u16,
    history_over_limit: u64,
    rows_over_limit: u64,
    /// Some addresses have lost their names for lack of room: where nothing older is known, there
    /// may have been something.
    has_forgotten: bool,
    /// The latest code among that. What came earlier may lie below it.
    forgotten_ns: u64,
    /// The last of `entries` is what was written last.
    is_last_new: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    /// In bytes, not zero.
    len: u32,
    /// The newest entry.
    entry: u32,
    older: Older,
}

/// What was written.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    since_ns: u64,
    size: u32,
    /// How much earlier it may have come, in microseconds; `u32::MAX` is any time.
    slack_us: u32,
    /// `Names::NONE`: no code is here any more.
    name: u32,
    writing: u16,
    is_doubtful: bool,
}

impl Entry {
    fn after_ns(&self) -> u64 {
        if self.slack_us == u32::MAX {
            return 0;
        }
        self.since_ns.saturating_sub(u64::from(self.slack_us) * 1000)
    }
}

impl Timeline {
    /// Adds code over everything that was there before. `name` has no line feed; `start + size`
    /// doesn't overflow, and `size` isn't zero. `limit`: most bytes of memory.
    pub fn insert(&mut self, start: u64, size: u32, name: &str, since: Since, limit: usize) -> Inserted {
        self.insert_code(start, size, name, None, since, limit)
    }

    /// As [`Self::insert`], of code that is unwound by `rows`. The same code with other rows is
    /// other code. Rows that there is no room for are left out.
    pub fn insert_code(
        &mut self,
        start: u64,
        size: u32,
        name: &str,
        rows: Option<Arc<CodeRows>>,
        since: Since,
        limit: usize,
    ) -> Inserted {
        self.since_compaction += 1;
        self.is_last_new = false;
        if let Some(known) = self.same(start, size, name, rows.as_deref(), since) {
            self.entries[known as usize].writing = self.writing;
            return Inserted::Known;
        }
        if since.since_ns < self.forgotten_ns || !self.make_room(start, size, name.len() + 1, limit) {
            self.forget(start, size, since);
            return Inserted::NoRoom;
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
        Inserted::New
    }

    /// No code is at these addresses any more.
    pub fn remove(&mut self, start: u64, size: u32, since: Since, limit: usize) {
        if since.since_ns < self.forgotten_ns || !self.make_room(start, size, 0, limit) {
            self.forget(start, size, since);
            return;
        }
        let entry = self.push_entry(start, size, since, Names::NONE);
        self.cover(start, size, entry);
    }

    /// The code at `from` is now at `to`. `None` if it isn't known which code that was: `to` has no
    /// name then.
    pub fn move_code(
        &mut self,
        from: u64,
        to: u64,
        size: u32,
        since: Since,
        limit: usize,
    ) -> Option<Inserted> {
        let Some(found) = self.code_all_over(from, size, since.since_ns) else {
            self.remove(from, size, since, limit);
            self.remove(to, size, since, limit);
            return None;
        };
        let (name, lines) = (found.name.to_owned(), found.lines.map(|lines| CodeLines::clone(lines)));
        let rows = found.rows.map(Arc::clone);
        self.remove(from, size, since, limit);
        let done = self.insert_code(to, size, &name, rows, since, limit);
        if let Some(lines) = lines.filter(|_| done == Inserted::New) {
            self.set_lines(to, lines, limit);
        }
        Some(done)
    }

    /// The code that began at `start` and was all over these addresses: its lines and rows are as
    /// true elsewhere.
    fn code_all_over(&self, start: u64, size: u32, at_ns: u64) -> Option<Found<'_>> {
        let end = start + u64::from(size);
        let found = self.lookup(Avma(start), at_ns).filter(|found| found.start.0 == start)?;
        let mut at = start;
        for (next, piece) in self.pieces.range(start..end) {
            if *next != at || self.lookup(Avma(at), at_ns)?.id != found.id {
                return None;
            }
            at += u64::from(piece.len);
        }
        (at >= end).then_some(found)
    }

    /// The entry that was written last can't have been there before `after_ns`.
    pub fn last_not_before(&mut self, after_ns: u64) {
        if let Some(entry) = self.entries.last_mut().filter(|_| self.is_last_new) {
            entry.slack_us = slack_us(after_ns, entry.since_ns);
        }
    }

    /// Source lines for the code at `start` that was written last, unless they take too much
    /// memory.
    pub fn set_lines(&mut self, start: u64, lines: CodeLines, limit: usize) -> bool {
        let bytes = lines.size_bytes();
        let entry = if self.is_last_new {
            Some(self.entries.len() as u32 - 1)
        } else {
            self.pieces.get(&start).map(|piece| piece.entry)
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

    /// The entry that was live at `address` at the time `at_ns`.
    ///
    /// An entry counts from the time when it was first seen. One that may already have been there
    /// makes the answer ambiguous, and is the answer if nothing older is known.
    pub fn lookup(&self, address: Avma, at_ns: u64) -> Option<Found<'_>> {
        let (start, piece) = self.pieces.range(..=address.0).next_back()?;
        if address.0 - start >= u64::from(piece.len) {
            return None;
        }
        let older = piece.older.entries();
        let version = |index: usize| older.get(index).copied().unwrap_or(piece.entry);
        let entry = |index| self.entries.get(version(index) as usize);
        let seen = (0..=older.len()).rev().find(|index| entry(*index).is_some_and(|it| it.since_ns <= at_ns));
        let maybe = (seen.map_or(0, |seen| seen + 1)..=older.len())
            .filter(|index| entry(*index).is_some_and(|it| it.after_ns() < at_ns));
        let (chosen, is_ambiguous) = match seen {
            Some(seen) => (seen, maybe.count() > 0),
            // What was there before isn't known any more.
            None if piece.older.is_dropped() || self.has_forgotten => return None,
            None => {
                let (count, last) = maybe.fold((0, None), |(count, _), index| (count + 1, Some(index)));
                (last?, count > 1)
            }
        };
        let (id, entry) = (EntryId(version(chosen)), entry(chosen)?);
        Some(Found {
            id,
            name: self.names.get(entry.name)?,
            start: Avma(entry.start),
            size: u64::from(entry.size),
            lines: self.lines.get(&id.0),
            rows: self.rows.get(&id.0),
            is_ambiguous: is_ambiguous || entry.is_doubtful,
        })
    }

    /// The whole file is being written anew: entries that don't come again until
    /// [`Self::end_rewrite`] are gone.
    pub fn begin_rewrite(&mut self) {
        self.writing = self.writing.wrapping_add(1);
    }

    /// Takes away what didn't come again. True if something was.
    pub fn end_rewrite(&mut self, since: Since, limit: usize) -> bool {
        let gone: Vec<(u64, u32)> = self
            .pieces
            .iter()
            .filter(|(_, piece)| {
                let entry = self.entries.get(piece.entry as usize);
                entry.is_some_and(|entry| entry.writing != self.writing && entry.name != Names::NONE)
            })
            .map(|(start, piece)| (*start, piece.len))
            .collect();
        for (start, size) in &gone {
            self.remove(*start, *size, since, limit);
        }
        !gone.is_empty()
    }

    /// Forgets what was superseded before `horizon_ns`.
    pub fn expire(&mut self, horizon_ns: u64) {
        self.horizon_ns = self.horizon_ns.max(horizon_ns);
        while let Some((_, start)) = self.retired.front().copied().filter(|(at, _)| *at <= self.horizon_ns) {
            self.retired.pop_front();
            let Some((start, piece)) = self.pieces.range_mut(..=start).next_back() else { continue };
            self.older_bytes -= piece.older.size_bytes();
            piece.older.expire(piece.entry, &self.entries, self.horizon_ns);
            let is_nothing = piece.older.entries().is_empty()
                && self.entries.get(piece.entry as usize).is_some_and(|entry| entry.name == Names::NONE);
            if is_nothing {
                let start = *start;
                self.pieces.remove(&start);
            } else {
                self.older_bytes += piece.older.size_bytes();
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            has_forgotten: true,
            rows_over_limit: self.rows_over_limit,
            ..Self::default()
        };
    }

    /// How many ranges a lookup can tell apart.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Changes when [`EntryId`]s have lost their meaning.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Versions that were forgotten before their time, for lack of room.
    pub fn history_over_limit(&self) -> u64 {
        self.history_over_limit
    }

    /// Entries that have lost their rows for lack of room.
    pub fn rows_over_limit(&self) -> u64 {
        self.rows_over_limit
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.pieces.len() * PIECE_BYTES
            + self.entries.capacity() * size_of::<Entry>()
            + self.names.size_bytes()
            + self.retired.capacity() * size_of::<(u64, u64)>()
            + self.older_bytes
            + self.lines_bytes
            + self.rows_bytes
    }

    /// The entry that is this code, if it is the newest all over its addresses, and this tells
    /// nothing more of it: where the time was told, other code may still be told to have been there
    /// before it came again.
    fn same(&self, start: u64, size: u32, name: &str, rows: Option<&CodeRows>, since: Since) -> Option<u32> {
        let piece = self.pieces.get(&start).filter(|piece| piece.len == size && !since.is_exact())?;
        let entry = self.entries.get(piece.entry as usize)?;
        let is_same = (entry.start, entry.size) == (start, size)
            && self.names.get(entry.name) == Some(name)
            && self.rows.get(&piece.entry).map(|known| &**known) == rows
            && (since.is_doubtful || !entry.is_doubtful);
        is_same.then_some(piece.entry)
    }

    fn push_entry(&mut self, start: u64, size: u32, since: Since, name: u32) -> u32 {
        let Since { after_ns, since_ns, is_doubtful } = since;
        let slack_us = slack_us(after_ns, since_ns);
        let entry = self.entries.len() as u32;
        self.entries.reserve_exact(reserve(self.entries.capacity(), self.entries.len(), 1));
        let writing = self.writing;
        self.entries.push(Entry { start, since_ns, size, slack_us, name, writing, is_doubtful });
        entry
    }

    /// Puts an entry on top of what covers its addresses.
    fn cover(&mut self, start: u64, size: u32, entry: u32) {
        let end = start + u64::from(size);
        self.split_at(start);
        self.split_at(end);
        let mut covered: Vec<(u64, Piece)> = Vec::with_capacity(1);
        let mut at = start;
        while let Some((inside, mut piece)) = self.take_first(at, end) {
            if inside > at {
                let len = (inside - at) as u32;
                append(&mut covered, at, Piece { len, entry, older: Older::default() });
            }
            at = inside + u64::from(piece.len);
            self.older_bytes -= piece.older.size_bytes();
            self.history_over_limit +=
                u64::from(piece.older.push(&mut piece.entry, entry, &self.entries, self.horizon_ns));
            append(&mut covered, inside, piece);
        }
        if at < end {
            append(&mut covered, at, Piece { len: (end - at) as u32, entry, older: Older::default() });
        }
        for (start, piece) in covered {
            self.put(start, piece);
        }
    }

    fn put(&mut self, start: u64, piece: Piece) {
        let entry = self.entries.get(piece.entry as usize);
        if !piece.older.entries().is_empty() || entry.is_some_and(|entry| entry.name == Names::NONE) {
            let since_ns = entry.map_or(0, |entry| entry.since_ns);
            self.retired.push_back((since_ns, start));
        }
        self.older_bytes += piece.older.size_bytes();
        self.pieces.insert(start, piece);
    }

    fn take_first(&mut self, from: u64, end: u64) -> Option<(u64, Piece)> {
        let start = *self.pieces.range(from..end).next()?.0;
        Some((start, self.pieces.remove(&start)?))
    }

    fn split_at(&mut self, address: u64) {
        let Some((start, piece)) = self.pieces.range_mut(..address).next_back() else { return };
        let end = start + u64::from(piece.len);
        if end > address {
            piece.len = (address - start) as u32;
            let right = Piece { len: (end - address) as u32, ..piece.clone() };
            self.put(address, right);
        }
    }
}

/// Memory for an entry's rows, with their place in the map.
fn row_bytes(rows: &CodeRows) -> usize {
    rows.size_bytes() + 2 * size_of::<(u32, usize)>()
}

fn slack_us(after_ns: u64, since_ns: u64) -> u32 {
    match after_ns {
        0 => u32::MAX,
        after => since_ns.saturating_sub(after).div_ceil(1000).try_into().unwrap_or(u32::MAX),
    }
}

/// Adds a piece behind others; one that differs in nothing but its place becomes a part of the
/// last.
fn append(pieces: &mut Vec<(u64, Piece)>, start: u64, piece: Piece) {
    match pieces.last_mut() {
        Some((_, last))
            if last.entry == piece.entry
                && last.older.entries() == piece.older.entries()
                && last.len.checked_add(piece.len).is_some() =>
        {
            last.len += piece.len;
            last.older.merge_dropped(&piece.older);
        }
        _ => pieces.push((start, piece)),
    }
}
