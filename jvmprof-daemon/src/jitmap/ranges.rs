//! Named ranges of addresses of which later ones win: the bytes of code where other code was before.

use std::collections::BTreeMap;

use crate::types::Avma;

/// Bytes that an entry of the map takes: key and value are 16, doubled for nodes that aren't full (an estimate).
const PIECE_BYTES: usize = 32;

/// An entry that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    pub(super) start: Avma,
    pub(super) size: u64,
}

/// Entries and what is left visible of each.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// What covers the addresses from the key on. Disjoint.
    pieces: BTreeMap<u64, Piece>,
    /// In the order written; some may have no piece any more.
    entries: Vec<Entry>,
    /// All names, each ended by a line feed.
    names: String,
    /// Entries written, or refused, since what is invisible was last dropped.
    since_compaction: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    len: u32,
    entry: u32,
}

/// What was written. A timeline would put the time here at which it was first seen.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    size: u32,
    name: u32,
}

impl Ranges {
    /// Adds an entry over everything that was there before. `name` has no line feed; `start + size` doesn't overflow.
    /// False if it would take more than `limit` bytes: then its addresses are unknown, since what they were called
    /// before isn't there any more.
    pub(super) fn insert(&mut self, start: u64, size: u32, name: &str, limit: usize) -> bool {
        let limit = limit.min(u32::MAX as usize);
        self.since_compaction += 1;
        let no_room = |ranges: &Self| ranges.size_bytes() + ranges.growth(name.len() + 1) > limit;
        // Copying everything pays only after as much was written again as an eighth of it.
        let worth_it = self.since_compaction > self.entries.len() / 8;
        if (no_room(self) && worth_it) || self.entries.len() > 2 * self.pieces.len() + 1024 {
            self.compact();
        }
        if no_room(self) {
            self.forget(start, size);
            return false;
        }
        self.uncover(start, size);
        let entry = self.entries.len() as u32;
        self.entries.reserve_exact(reserve(self.entries.capacity(), self.entries.len(), 1));
        self.entries.push(Entry { start, size, name: self.names.len() as u32 });
        self.pieces.insert(start, Piece { len: size, entry });
        self.names.reserve_exact(reserve(self.names.capacity(), self.names.len(), name.len() + 1));
        self.names.push_str(name);
        self.names.push('\n');
        true
    }

    pub(super) fn lookup(&self, address: Avma) -> Option<Found<'_>> {
        let (start, piece) = self.pieces.range(..=address.0).next_back()?;
        if address.0 - start >= u64::from(piece.len) {
            return None;
        }
        let entry = self.entries.get(piece.entry as usize)?;
        let (name, _) = self.names.get(entry.name as usize..)?.split_once('\n')?;
        Some(Found { name, start: Avma(entry.start), size: u64::from(entry.size) })
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.pieces.len() * PIECE_BYTES + self.entries.capacity() * size_of::<Entry>() + self.names.capacity()
    }

    /// By how many bytes an entry with a name of `name_bytes` lets memory grow at most.
    fn growth(&self, name_bytes: usize) -> usize {
        let grown = |capacity: usize, len, more| match reserve(capacity, len, more) {
            0 => 0,
            reserved => len + reserved - capacity,
        };
        2 * PIECE_BYTES
            + grown(self.entries.capacity(), self.entries.len(), 1) * size_of::<Entry>()
            + grown(self.names.capacity(), self.names.len(), name_bytes)
    }

    /// Takes the addresses away from what covers them.
    fn uncover(&mut self, start: u64, size: u32) {
        let end = start + u64::from(size);
        let mut behind = None;
        if let Some((before, piece)) = self.pieces.range_mut(..start).next_back() {
            let piece_end = before + u64::from(piece.len);
            if piece_end > start {
                piece.len = (start - before) as u32;
                behind = Some((piece_end, piece.entry));
            }
        }
        while let Some((inside, piece)) = self.pieces.range(start..end).next() {
            let inside = *inside;
            behind = Some((inside + u64::from(piece.len), piece.entry));
            self.pieces.remove(&inside);
        }
        if let Some((piece_end, entry)) = behind.filter(|(piece_end, _)| *piece_end > end) {
            self.pieces.insert(end, Piece { len: (piece_end - end) as u32, entry });
        }
    }

    /// Takes away whatever touches the addresses, as a whole, so that memory doesn't grow by splitting.
    fn forget(&mut self, start: u64, size: u32) {
        let before = self.pieces.range(..start).next_back();
        let before = before.filter(|(at, piece)| *at + u64::from(piece.len) > start).map(|(at, _)| *at);
        if let Some(before) = before {
            self.pieces.remove(&before);
        }
        while let Some((inside, _)) = self.pieces.range(start..start + u64::from(size)).next() {
            let inside = *inside;
            self.pieces.remove(&inside);
        }
    }

    /// Drops the entries of which nothing is visible.
    fn compact(&mut self) {
        self.since_compaction = 0;
        let mut visible = vec![false; self.entries.len()];
        for piece in self.pieces.values() {
            visible[piece.entry as usize] = true;
        }
        let kept = visible.iter().filter(|visible| **visible).count();
        let (mut entries, mut names) = (Vec::with_capacity(kept), String::new());
        let mut moved_to = vec![u32::MAX; self.entries.len()];
        for (index, entry) in self.entries.iter().enumerate().filter(|(index, _)| visible[*index]) {
            moved_to[index] = entries.len() as u32;
            entries.push(Entry { name: names.len() as u32, ..*entry });
            let text = self.names.get(entry.name as usize..).unwrap_or_default();
            names.push_str(text.split_once('\n').map_or(text, |(name, _)| name));
            names.push('\n');
        }
        names.shrink_to_fit();
        for piece in self.pieces.values_mut() {
            piece.entry = moved_to[piece.entry as usize];
        }
        (self.entries, self.names) = (entries, names);
    }
}

/// How many elements to reserve for `more` ones: none while there is room, else an eighth of what is there instead of as
/// much again, whose unused half would count against the limit.
fn reserve(capacity: usize, len: usize, more: usize) -> usize {
    if capacity - len >= more { 0 } else { more + len / 8 + 64 }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SPACE: u64 = 200;

    fn name_at(ranges: &Ranges, address: u64) -> Option<String> {
        ranges.lookup(Avma(address)).map(|found| {
            assert!(found.start.0 <= address && address < found.start.0 + found.size);
            found.name.to_owned()
        })
    }

    proptest! {
        #[test]
        fn the_last_entry_written_over_an_address_names_it(
            writes in vec((0..SPACE, 1..60u32), 0..300),
        ) {
            let mut ranges = Ranges::default();
            let mut naive = vec![None; SPACE as usize + 64];
            for (index, (start, size)) in writes.iter().enumerate() {
                let name = format!("f{index}");
                assert!(ranges.insert(*start, *size, &name, usize::MAX));
                naive[*start as usize..][..*size as usize].fill(Some(name));
                if index % 50 == 49 {
                    ranges.compact();
                }
            }
            for (address, expected) in naive.iter().enumerate() {
                prop_assert_eq!(&name_at(&ranges, address as u64), expected);
            }
        }

        #[test]
        fn at_the_limit_addresses_lose_their_names_but_never_get_a_wrong_one(
            writes in vec((0..SPACE, 1..60u32), 0..600),
            limit in 500..4000usize,
        ) {
            let mut ranges = Ranges::default();
            let mut naive = vec![None; SPACE as usize + 64];
            for (index, (start, size)) in writes.iter().enumerate() {
                let name = format!("function number {index}");
                let taken = ranges.insert(*start, *size, &name, limit);
                naive[*start as usize..][..*size as usize].fill(taken.then_some(name));
                prop_assert!(ranges.size_bytes() <= limit);
            }
            for (address, expected) in naive.iter().enumerate() {
                let found = name_at(&ranges, address as u64);
                prop_assert!(found.is_none() || found == *expected, "{address}: {found:?}, {expected:?}");
            }
        }
    }

    #[test]
    fn code_that_is_overwritten_for_ever_takes_no_more_memory() {
        let mut ranges = Ranges::default();
        for round in 0..20_000u64 {
            assert!(ranges.insert(0x1000 + round % 10 * 64, 64, &format!("round {round}"), usize::MAX));
        }
        assert!(ranges.size_bytes() < 200_000, "{}", ranges.size_bytes());
        assert_eq!(name_at(&ranges, 0x1000 + 9 * 64).as_deref(), Some("round 19999"));
    }
}
