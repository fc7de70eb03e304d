//! The memory limit of a timeline, and eviction of superseded entries when it is reached.

use std::collections::VecDeque;

use super::name_arena::NameArena;
use super::superseded_versions::SupersededVersions;
use super::vec_growth::{elements_to_reserve, growth};
use super::{CodeEntry, CodeTimeline, CreationTime, PIECE_BYTES};

impl CodeTimeline {
    /// Reserves memory for an entry with a name of `name_bytes`, and drops superseded entries for
    /// it if necessary. Returns false if the entry would exceed `limit` all the same.
    pub(super) fn reserve_memory(&mut self, start: u64, size: u32, name_bytes: usize, limit: usize) -> bool {
        let limit = limit.min(u32::MAX as usize);
        let covered = self.pieces.range(start..start + u64::from(size)).count();
        // The most pieces that the entry leaves: those covered, the gaps, and those split off.
        let left = 2 * covered + 3;
        let exceeds_limit = |it: &Self| {
            // An entry splits one piece in two at each end at most, and their superseded versions
            // with them; each piece that it covers, and each gap between them, becomes a piece.
            let pieces = 2 * (PIECE_BYTES + SupersededVersions::MAX_BYTES)
                + (covered + 1) * (PIECE_BYTES + SupersededVersions::ONE_BYTES);
            let superseded =
                growth(it.superseded.capacity(), it.superseded.len(), left) * size_of::<(u64, u64)>();
            let entries = growth(it.entries.capacity(), it.entries.len(), 1) * size_of::<CodeEntry>();
            it.size_bytes() + pieces + superseded + entries + it.names.growth(name_bytes) > limit
        };
        let is_sparse = self.entries.len() > 2 * self.pieces.len() + self.superseded.len() + 1024;
        if is_sparse && self.since_compaction > self.entries.len() / 8 {
            self.compact();
        }
        // Copying all entries pays only after an eighth of their number was written.
        if exceeds_limit(self) && self.since_compaction > self.entries.len() / 8 {
            self.drop_superseded();
            self.compact();
        }
        if exceeds_limit(self) {
            return false;
        }
        self.superseded.reserve_exact(elements_to_reserve(
            self.superseded.capacity(),
            self.superseded.len(),
            left,
        ));
        true
    }

    /// Drops each piece that touches the addresses, as a whole, so that memory doesn't grow by
    /// splitting.
    pub(super) fn drop_range(&mut self, start: u64, size: u32, since: CreationTime) {
        self.has_dropped = true;
        let inside = self.pieces.range(start..start + u64::from(size)).map(|(_, piece)| piece);
        let touched = inside.chain(self.pieces.range(..start).next_back().map(|(_, piece)| piece));
        let times =
            touched.filter_map(|piece| self.entries.get(piece.entry as usize)).map(|entry| entry.since_ns);
        self.dropped_ns = times.fold(self.dropped_ns.max(since.since_ns), u64::max);
        let before = self.pieces.range(..start).next_back();
        let before = before.filter(|(at, piece)| *at + u64::from(piece.len) > start).map(|(at, _)| *at);
        if let Some(piece) = before.and_then(|before| self.pieces.remove(&before)) {
            self.superseded_bytes -= piece.superseded.size_bytes();
        }
        while let Some((_, piece)) = self.take_first(start, start + u64::from(size)) {
            self.superseded_bytes -= piece.superseded.size_bytes();
        }
    }

    fn drop_superseded(&mut self) {
        for piece in self.pieces.values_mut() {
            self.history_over_limit += piece.superseded.drop_all();
        }
        self.superseded_bytes = self.pieces.values().map(|piece| piece.superseded.size_bytes()).sum();
        self.superseded = VecDeque::new();
    }

    /// Drops the entries that have no piece any more.
    pub(super) fn compact(&mut self) {
        self.since_compaction = 0;
        self.epoch += 1;
        let mut is_used = vec![false; self.entries.len()];
        for piece in self.pieces.values() {
            piece
                .superseded
                .entries()
                .iter()
                .chain([&piece.entry])
                .for_each(|entry| is_used[*entry as usize] = true);
        }
        let kept = is_used.iter().filter(|used| **used).count();
        let (mut entries, mut names) = (Vec::with_capacity(kept), NameArena::default());
        let mut moved_to = vec![u32::MAX; self.entries.len()];
        for (index, entry) in self.entries.iter().enumerate().filter(|(index, _)| is_used[*index]) {
            moved_to[index] = entries.len() as u32;
            let name = self.names.get(entry.name).map_or(NameArena::NONE, |name| names.push(name));
            entries.push(CodeEntry { name, ..*entry });
        }
        names.shrink();
        for piece in self.pieces.values_mut() {
            piece.entry = moved_to[piece.entry as usize];
            piece.superseded.renumber(&moved_to);
        }
        self.lines = std::mem::take(&mut self.lines)
            .into_iter()
            .map(|(entry, lines)| (moved_to[entry as usize], lines))
            .filter(|(entry, _)| *entry != u32::MAX)
            .collect();
        self.lines_bytes = self.lines.values().map(|lines| lines.size_bytes()).sum();
        self.rows = std::mem::take(&mut self.rows)
            .into_iter()
            .map(|(entry, rows)| (moved_to[entry as usize], rows))
            .filter(|(entry, _)| *entry != u32::MAX)
            .collect();
        self.rows_bytes = self.rows.values().map(|rows| super::row_bytes(rows)).sum();
        (self.entries, self.names) = (entries, names);
    }
}
