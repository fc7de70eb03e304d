//! Functions with their names, compressed in blocks.
//!
//! A kernel has 60,000 to 200,000 functions, of which a profile names some hundred. Names of neighbours are alike, so that
//! blocks of some hundred take a third of their size, and one is unpacked within some ten microseconds.

use std::borrow::Borrow;
use std::io::{self, Read as _};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use flate2::read::DeflateDecoder;
use flate2::{Compress, Compression, FlushCompress, Status};

/// Functions of a block.
const IN_A_BLOCK: usize = 256;
/// Where a function is, before the names.
const BOUNDS_BYTES: usize = 8;

/// Disjoint ranges and a text for each, sorted by start.
#[derive(Debug, Default)]
pub(super) struct Packed {
    blocks: Box<[Block]>,
    bytes: Box<[u8]>,
    /// How many ranges there are.
    len: usize,
    /// The block that was unpacked last: a stack's functions are often neighbours.
    last: Mutex<Option<(usize, Vec<u8>)>>,
}

/// Up to [`IN_A_BLOCK`] ranges: how far each one begins behind the one before it, and its length, four bytes each; then the length
/// of each text, two bytes; then the texts.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Of its first range.
    start: u32,
    /// Of its ranges.
    count: u32,
    /// Where it ends among the compressed bytes; it begins where the one before it ends.
    end: u32,
}

/// A range and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) range: Range<u32>,
    pub(super) text: Vec<u8>,
}

impl Packed {
    /// `entries`: disjoint, sorted. Of a text the first 65,535 bytes are kept.
    ///
    /// # Errors
    /// What is compressed has more than 4 GiB.
    pub(super) fn new<T: Borrow<[u8]>>(entries: &[(Range<u32>, T)]) -> io::Result<Self> {
        let (mut blocks, mut bytes, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        let mut compressor = Compress::new(Compression::fast(), false);
        for chunk in entries.chunks(IN_A_BLOCK) {
            let start = chunk.first().map_or(0, |(range, _)| range.start);
            let mut position = start;
            plain.clear();
            let text = |text: &T| u16::try_from(text.borrow().len()).unwrap_or(u16::MAX);
            for (range, _) in chunk {
                plain.extend(range.start.wrapping_sub(position).to_le_bytes());
                plain.extend(range.end.wrapping_sub(range.start).to_le_bytes());
                position = range.end;
            }
            for (_, name) in chunk {
                plain.extend(text(name).to_le_bytes());
            }
            for (_, name) in chunk {
                plain.extend(name.borrow().get(..text(name).into()).unwrap_or_default());
            }
            // Making a compressor costs more than what it does here.
            compressor.reset();
            bytes.reserve(plain.len() + plain.len() / 2 + 64);
            let status = compressor.compress_vec(&plain, &mut bytes, FlushCompress::Finish)?;
            if status != Status::StreamEnd {
                return Err(io::Error::other("the compressor didn't end"));
            }
            let end = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
            blocks.push(Block { start, count: chunk.len() as u32, end });
        }
        let (blocks, bytes) = (blocks.into(), bytes.into());
        Ok(Self { blocks, bytes, len: entries.len(), last: Mutex::default() })
    }

    /// What contains `at`.
    pub(super) fn find(&self, at: u32) -> Option<Entry> {
        let index = self.blocks.partition_point(|block| block.start <= at).checked_sub(1)?;
        let block = self.blocks.get(index)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(known, _)| *known != index) {
            *last = Some((index, self.unpack(index)?));
        }
        let (_, bytes) = last.as_ref()?;
        let mut entries = entries(*block, bytes);
        entries
            .find(|(range, _)| range.contains(&at))
            .map(|(range, text)| Entry { range, text: text.to_vec() })
    }

    /// Hands on every range with its text.
    pub(super) fn for_each(&self, mut handle: impl FnMut(Range<u32>, &[u8])) {
        for (index, block) in self.blocks.iter().enumerate() {
            let bytes = self.unpack(index).unwrap_or_default();
            entries(*block, &bytes).for_each(|(range, text)| handle(range, text));
        }
    }

    fn unpack(&self, index: usize) -> Option<Vec<u8>> {
        let start =
            index.checked_sub(1).and_then(|before| self.blocks.get(before)).map_or(0, |block| block.end);
        let packed = self.bytes.get(start as usize..self.blocks.get(index)?.end as usize)?;
        let mut bytes = Vec::new();
        DeflateDecoder::new(packed).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory held.
    pub(super) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.blocks) + self.bytes.len()
    }
}

fn entries(block: Block, bytes: &[u8]) -> impl Iterator<Item = (Range<u32>, &[u8])> {
    let (count, mut position) = (block.count as usize, block.start);
    let (bounds, behind) = bytes.split_at_checked(count * BOUNDS_BYTES).unwrap_or_default();
    let (lengths, mut texts) = behind.split_at_checked(count * 2).unwrap_or_default();
    let words = bounds.as_chunks::<4>().0.as_chunks::<2>().0.iter();
    words.zip(lengths.as_chunks::<2>().0).map_while(move |([gap, bytes], length)| {
        let (text, rest) = texts.split_at_checked(u16::from_le_bytes(*length).into())?;
        texts = rest;
        let start = position.wrapping_add(u32::from_le_bytes(*gap));
        position = start.wrapping_add(u32::from_le_bytes(*bytes));
        Some((start..position, text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_found_with_its_text_and_nothing_in_between() {
        let entries: Vec<(Range<u32>, Vec<u8>)> = (0..1000u32)
            .map(|number| (number * 16 + 8..number * 16 + 15, format!("function_{number}").into_bytes()))
            .collect();
        let packed = Packed::new(&entries).expect("it fits");
        assert_eq!(packed.len(), 1000);
        for (range, text) in &entries {
            let entry = Entry { range: range.clone(), text: text.clone() };
            assert_eq!(packed.find(range.start), Some(entry.clone()));
            assert_eq!(packed.find(range.end - 1), Some(entry));
            assert_eq!(packed.find(range.start - 1), None);
            assert_eq!(packed.find(range.end), None);
        }
        let mut all = Vec::new();
        packed.for_each(|range, text| all.push((range, text.to_vec())));
        assert_eq!(all, entries);
        let plain: usize = entries.iter().map(|(_, text)| text.len() + 8).sum();
        assert!(packed.size_bytes() * 2 < plain, "{} of {plain} bytes", packed.size_bytes());
    }

    #[test]
    fn of_nothing_there_is_nothing_and_of_a_long_text_its_begin() {
        let none = Packed::new::<Vec<u8>>(&[]).expect("it fits");
        assert_eq!((none.find(0), none.len()), (None, 0));
        let long = Packed::new(&[(0..1, vec![b'x'; 70_000]), (1..2, b"y".to_vec())]).expect("it fits");
        assert_eq!(long.find(0).map(|entry| entry.text.len()), Some(65_535));
        assert_eq!(long.find(1).map(|entry| entry.text), Some(b"y".to_vec()));
    }
}
