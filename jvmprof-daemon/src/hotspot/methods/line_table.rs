//! Source lines by bytecode index: openjdk src/hotspot/share/oops/method.hpp,
//! `CompressedLineNumberReadStream`, and method.cpp, `line_number_from_bci`.

use crate::hotspot::code_cache::unsigned5::{Unsigned5Encoding, Unsigned5Reader};

/// Entries of one table: a method has at most 65,535 bytes of code.
const MAX_ENTRIES: usize = 65_536;
/// Escapes an entry that doesn't fit one byte.
const ESCAPE: u8 = 0xff;

/// A method's line number table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LineNumberTable {
    /// Bytecode index and line, in the class file's order, which needn't be sorted.
    entries: Box<[(u16, u16)]>,
}

impl LineNumberTable {
    /// Decodes a compressed table. `None` if it isn't one: it doesn't end within `bytes`, or speaks
    /// of code that the method hasn't got.
    pub fn decode(bytes: &[u8], code_size: u16, encoding: Unsigned5Encoding) -> Option<Self> {
        let mut reader = Unsigned5Reader::new(bytes, 0, encoding);
        let (mut bci, mut line) = (0i32, 0i32);
        let mut entries = Vec::new();
        loop {
            match reader.byte()? {
                0 => return Some(Self { entries: entries.into() }),
                ESCAPE => {
                    bci = bci.wrapping_add(reader.signed()?);
                    line = line.wrapping_add(reader.signed()?);
                }
                both => {
                    bci = bci.wrapping_add(i32::from(both >> 3));
                    line = line.wrapping_add(i32::from(both & 7));
                }
            }
            let at = u16::try_from(bci).ok().filter(|bci| *bci < code_size)?;
            if entries.len() == MAX_ENTRIES {
                return None;
            }
            entries.push((at, u16::try_from(line).ok()?));
        }
    }

    /// The line of a bytecode index: of the first entry for exactly this index, else of the last
    /// one with the greatest smaller index. The index -1, a frame on its way into its method, has
    /// the line of index 0. `None` if no entry holds the index.
    pub fn line(&self, bci: i32) -> Option<u32> {
        let bci = u16::try_from(if bci == -1 { 0 } else { bci }).ok()?;
        let mut best: Option<(u16, u16)> = None;
        for (at, line) in &self.entries {
            if *at == bci {
                return Some(u32::from(*line));
            }
            if *at < bci && best.is_none_or(|(known, _)| *at >= known) {
                best = Some((*at, *line));
            }
        }
        best.map(|(_, line)| u32::from(line))
    }

    /// Index and line of all entries.
    pub fn entries(&self) -> &[(u16, u16)] {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: Unsigned5Encoding = Unsigned5Encoding::WithoutZero;

    #[test]
    fn short_and_long_entries_are_decoded() {
        // (0, 5), (3, 7) in one byte each; then +40, +1000 escaped; then back by 2 lines.
        let bytes = [5, 3 << 3 | 2, 0xff, 81, 209, 29, 0xff, 9, 4, 0];
        let table = LineNumberTable::decode(&bytes, 100, E).expect("a whole table");
        assert_eq!(table.entries()[..2], [(0, 5), (3, 7)]);
        assert_eq!(table.entries()[2].0, 43);
        assert_eq!(table.entries()[3], (47, table.entries()[2].1 - 2));
    }

    #[test]
    fn lines_are_found_as_hotspot_finds_them() {
        let table = LineNumberTable { entries: [(0, 10), (8, 12), (4, 11), (8, 99), (12, 10)].into() };
        for (bci, line) in [(-1, 10), (0, 10), (3, 10), (4, 11), (7, 11), (8, 12), (11, 99), (30, 10)] {
            assert_eq!(table.line(bci), Some(line), "{bci}");
        }
        assert_eq!(table.line(-2), None);
        assert_eq!(
            LineNumberTable { entries: [(4, 1)].into() }.line(3),
            None,
            "nothing is invented before the first"
        );
    }

    #[test]
    fn what_is_not_a_table_is_refused() {
        assert_eq!(LineNumberTable::decode(&[5, 26], 100, E), None, "no end");
        assert_eq!(LineNumberTable::decode(&[5, 26, 0], 3, E), None, "an index behind the code");
        assert_eq!(LineNumberTable::decode(&[0xff, 2, 1, 0], 100, E), None, "a negative index or line");
        assert_eq!(LineNumberTable::decode(&[], 100, E), None);
        assert_eq!(LineNumberTable::decode(&[0], 100, E), Some(LineNumberTable::default()));
    }
}
