//! The bytes of a segment.
//!
//! ```text
//! 0     magic (8) | number of the segment (8) | samples in all earlier segments (8) | CRC of these (4) | zero (4)
//! 32    254 marks of 16 bytes, one for each record: the only bytes that are ever written twice
//! 4096  records, appended: header (52) | body
//! ```
//! All numbers are little-endian. A mark lies within one sector, so that no crash leaves half of
//! it.

use crc32fast::Hasher;

/// Length of what stands before the first record.
pub(super) const HEAD_BYTES: u64 = 4096;
/// Records that have a mark.
pub(super) const MAX_RECORDS: u32 = 254;
pub(super) const HEADER_BYTES: usize = 52;
/// Bodies are requests, which are far smaller; a longer one is a damaged header.
pub(super) const MAX_BODY_BYTES: u32 = 256 << 20;

const MAGIC: [u8; 8] = *b"JVMPSPL\x01";
const MARKS_AT: u64 = 32;
pub(super) const MARK_BYTES: usize = 16;
/// The bytes at which a record may begin again after damage.
pub(super) const MARKER: [u8; 4] = *b"\xf7REC";

/// The header in front of a record's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpoolRecordHeader {
    /// Index of the record within its segment.
    pub(super) index: u32,
    pub(super) body_bytes: u32,
    /// Milliseconds since 1970.
    pub(super) created_ms: u64,
    pub(super) samples: u64,
    /// Samples of all records that were appended before, since the spool was made.
    pub(super) samples_before: u64,
    pub(super) series: u32,
    pub(super) body_crc: u32,
}

impl SpoolRecordHeader {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MARKER);
        bytes[4..8].copy_from_slice(&self.index.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.created_ms.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.samples.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.samples_before.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.series.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..48]);
        bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` if these aren't the bytes of a header.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let is_whole = bytes[0..4] == MARKER && crc32fast::hash(&bytes[..48]) == u32_at(bytes, 48);
        let header = Self {
            index: u32_at(bytes, 4),
            body_bytes: u32_at(bytes, 8),
            created_ms: u64_at(bytes, 12),
            samples: u64_at(bytes, 20),
            samples_before: u64_at(bytes, 28),
            series: u32_at(bytes, 36),
            body_crc: u32_at(bytes, 40),
        };
        (is_whole && header.index < MAX_RECORDS && header.body_bytes <= MAX_BODY_BYTES).then_some(header)
    }
}

/// The progress of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Not sent yet, or not stored for certain.
    Waiting,
    /// About to be sent, or sent: without an answer nobody knows.
    Sending,
    /// Over; so many samples were delivered, the rest is lost or was appended again.
    Done { delivered: u32 },
}

impl Mark {
    pub(super) fn encode(self) -> [u8; MARK_BYTES] {
        let (state, delivered) = match self {
            Self::Waiting => return [0; MARK_BYTES],
            Self::Sending => (1_u32, 0),
            Self::Done { delivered } => (2, delivered),
        };
        let mut bytes = [0; MARK_BYTES];
        bytes[0..4].copy_from_slice(&state.to_le_bytes());
        bytes[4..8].copy_from_slice(&delivered.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..12]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// A damaged mark says that nobody knows.
    pub(super) fn decode(bytes: &[u8; MARK_BYTES]) -> Self {
        if *bytes == [0; MARK_BYTES] {
            return Self::Waiting;
        }
        let is_whole = crc32fast::hash(&bytes[..12]) == u32_at(bytes, 12);
        match u32_at(bytes, 0) {
            2 if is_whole => Self::Done { delivered: u32_at(bytes, 4) },
            _ => Self::Sending,
        }
    }

    /// Returns the offset of a record's mark.
    pub(super) fn offset(index: u32) -> u64 {
        MARKS_AT + u64::from(index) * MARK_BYTES as u64
    }
}

/// The first bytes of a segment, all marks at [`Mark::Waiting`].
pub(super) fn head(number: u64, samples_before: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES as usize];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&samples_before.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Samples in all segments before the one that begins so; `None` if this isn't the beginning of
/// that segment.
pub(super) fn decode_head(bytes: &[u8], number: u64) -> Option<u64> {
    let bytes: &[u8; 32] = bytes.first_chunk()?;
    let is_whole = bytes[0..8] == MAGIC
        && u64_at(bytes, 8) == number
        && crc32fast::hash(&bytes[..24]) == u32_at(bytes, 24);
    is_whole.then(|| u64_at(bytes, 16))
}

pub(super) fn crc(body: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(body);
    hasher.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_any_bit_flipped_is_no_header() {
        let header = SpoolRecordHeader {
            index: 3,
            body_bytes: 70_000,
            created_ms: 1_732_195_500_000,
            samples: 990,
            samples_before: 1 << 40,
            series: 12,
            body_crc: 0xdead_beef,
        };
        let bytes = header.encode();
        assert_eq!(SpoolRecordHeader::decode(&bytes), Some(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SpoolRecordHeader::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_damaged_mark_never_says_that_a_record_is_new_or_over() {
        for mark in [Mark::Sending, Mark::Done { delivered: 7 }] {
            let bytes = mark.encode();
            assert_eq!(Mark::decode(&bytes), mark);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Mark::decode(&flipped), Mark::Sending, "bit {bit} of {mark:?}");
            }
        }
        assert_eq!(Mark::decode(&Mark::Waiting.encode()), Mark::Waiting);
    }

    #[test]
    fn the_last_mark_ends_where_the_records_begin() {
        assert_eq!(Mark::offset(MAX_RECORDS - 1) + MARK_BYTES as u64, HEAD_BYTES);
    }
}
