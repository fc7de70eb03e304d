//! Pieces of a timeline: split where an entry begins and ends, and put back.

use super::name_arena::NameArena;
use super::superseded_versions::SupersededVersions;
use super::{CodeTimeline, TimelinePiece};

impl CodeTimeline {
    /// Puts an entry on top of the pieces that it covers.
    pub(super) fn cover(&mut self, start: u64, size: u32, entry: u32) {
        let end = start + u64::from(size);
        self.split_at(start);
        self.split_at(end);
        let mut covered: Vec<(u64, TimelinePiece)> = Vec::with_capacity(1);
        let mut at = start;
        while let Some((inside, mut piece)) = self.take_first(at, end) {
            if inside > at {
                let len = (inside - at) as u32;
                append(
                    &mut covered,
                    at,
                    TimelinePiece { len, entry, superseded: SupersededVersions::default() },
                );
            }
            at = inside + u64::from(piece.len);
            self.superseded_bytes -= piece.superseded.size_bytes();
            self.history_over_limit +=
                u64::from(piece.superseded.push(&mut piece.entry, entry, &self.entries, self.horizon_ns));
            append(&mut covered, inside, piece);
        }
        if at < end {
            append(
                &mut covered,
                at,
                TimelinePiece { len: (end - at) as u32, entry, superseded: SupersededVersions::default() },
            );
        }
        for (start, piece) in covered {
            self.put(start, piece);
        }
    }

    pub(super) fn put(&mut self, start: u64, piece: TimelinePiece) {
        let entry = self.entries.get(piece.entry as usize);
        if !piece.superseded.entries().is_empty() || entry.is_some_and(|entry| entry.name == NameArena::NONE)
        {
            let since_ns = entry.map_or(0, |entry| entry.since_ns);
            self.superseded.push_back((since_ns, start));
        }
        self.superseded_bytes += piece.superseded.size_bytes();
        self.pieces.insert(start, piece);
    }

    pub(super) fn take_first(&mut self, from: u64, end: u64) -> Option<(u64, TimelinePiece)> {
        let start = *self.pieces.range(from..end).next()?.0;
        Some((start, self.pieces.remove(&start)?))
    }

    pub(super) fn split_at(&mut self, address: u64) {
        let Some((start, piece)) = self.pieces.range_mut(..address).next_back() else { return };
        let end = start + u64::from(piece.len);
        if end > address {
            piece.len = (address - start) as u32;
            let right = TimelinePiece { len: (end - address) as u32, ..piece.clone() };
            self.put(address, right);
        }
    }
}

/// Appends a piece; one that differs from the last only in its address is merged with it.
fn append(pieces: &mut Vec<(u64, TimelinePiece)>, start: u64, piece: TimelinePiece) {
    match pieces.last_mut() {
        Some((_, last))
            if last.entry == piece.entry
                && last.superseded.entries() == piece.superseded.entries()
                && last.len.checked_add(piece.len).is_some() =>
        {
            last.len += piece.len;
            last.superseded.merge_dropped(&piece.superseded);
        }
        _ => pieces.push((start, piece)),
    }
}
