//! What a timeline's memory is bounded by, and what is dropped when it runs short.

use std::collections::VecDeque;

use super::name_arena::Names;
use super::superseded_versions::Older;
use super::vec_growth::{growth, reserve};
use super::{Entry, PIECE_BYTES, Since, Timeline};

impl Timeline {
    /// False if an entry with a name of so many bytes would take more than `limit`, also without
    /// what can be dropped. Else there is room for what is retired as it is put there.
    pub(super) fn make_room(&mut self, start: u64, size: u32, name_bytes: usize, limit: usize) -> bool {
        let limit = limit.min(u32::MAX as usize);
        let covered = self.pieces.range(start..start + u64::from(size)).count();
        // So many pieces are put there at most: those covered, the gaps, and what splitting leaves.
        let left = 2 * covered + 3;
        let no_room = |it: &Self| {
            // An entry splits one piece in two at each end at most, and their histories with them;
            // each piece that it covers, and each gap between them, becomes one of its own.
            let pieces =
                2 * (PIECE_BYTES + Older::MAX_BYTES) + (covered + 1) * (PIECE_BYTES + Older::ONE_BYTES);
            let retired = growth(it.retired.capacity(), it.retired.len(), left) * size_of::<(u64, u64)>();
            let entries = growth(it.entries.capacity(), it.entries.len(), 1) * size_of::<Entry>();
            it.size_bytes() + pieces + retired + entries + it.names.growth(name_bytes) > limit
        };
        let is_sparse = self.entries.len() > 2 * self.pieces.len() + self.retired.len() + 1024;
        if is_sparse && self.since_compaction > self.entries.len() / 8 {
            self.compact();
        }
        // Copying everything pays only after as much was written again as an eighth of it.
        if no_room(self) && self.since_compaction > self.entries.len() / 8 {
            self.drop_history();
            self.compact();
        }
        if no_room(self) {
            return false;
        }
        self.retired.reserve_exact(reserve(self.retired.capacity(), self.retired.len(), left));
        true
    }

    /// Takes away whatever touches the addresses, as a whole, so that memory doesn't grow by
    /// splitting.
    pub(super) fn forget(&mut self, start: u64, size: u32, since: Since) {
        self.has_forgotten = true;
        let inside = self.pieces.range(start..start + u64::from(size)).map(|(_, piece)| piece);
        let touched = inside.chain(self.pieces.range(..start).next_back().map(|(_, piece)| piece));
        let times =
            touched.filter_map(|piece| self.entries.get(piece.entry as usize)).map(|entry| entry.since_ns);
        self.forgotten_ns = times.fold(self.forgotten_ns.max(since.since_ns), u64::max);
        let before = self.pieces.range(..start).next_back();
        let before = before.filter(|(at, piece)| *at + u64::from(piece.len) > start).map(|(at, _)| *at);
        if let Some(piece) = before.and_then(|before| self.pieces.remove(&before)) {
            self.older_bytes -= piece.older.size_bytes();
        }
        while let Some((_, piece)) = self.take_first(start, start + u64::from(size)) {
            self.older_bytes -= piece.older.size_bytes();
        }
    }

    fn drop_history(&mut self) {
        for piece in self.pieces.values_mut() {
            self.history_over_limit += piece.older.drop_all();
        }
        self.older_bytes = self.pieces.values().map(|piece| piece.older.size_bytes()).sum();
        self.retired = VecDeque::new();
    }

    /// Drops the entries of which nothing is left.
    pub(super) fn compact(&mut self) {
        self.since_compaction = 0;
        self.epoch += 1;
        let mut is_used = vec![false; self.entries.len()];
        for piece in self.pieces.values() {
            piece
                .older
                .entries()
                .iter()
                .chain([&piece.entry])
                .for_each(|entry| is_used[*entry as usize] = true);
        }
        let kept = is_used.iter().filter(|used| **used).count();
        let (mut entries, mut names) = (Vec::with_capacity(kept), Names::default());
        let mut moved_to = vec![u32::MAX; self.entries.len()];
        for (index, entry) in self.entries.iter().enumerate().filter(|(index, _)| is_used[*index]) {
            moved_to[index] = entries.len() as u32;
            let name = self.names.get(entry.name).map_or(Names::NONE, |name| names.push(name));
            entries.push(Entry { name, ..*entry });
        }
        names.shrink();
        for piece in self.pieces.values_mut() {
            piece.entry = moved_to[piece.entry as usize];
            piece.older.renumber(&moved_to);
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
