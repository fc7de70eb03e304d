//! The bytes of a segment.
//!
//! ```text
//! 0     magic (8) | number of the segment (8) | zero (8) | CRC of these and of the sums (4)
//!       | zero (4)
//! 32    250 marks of 16 bytes, one for each record: the only bytes that are ever written twice
//! 4032  samples in all earlier segments: of each event (8)
//! 4096  records, appended: header (108) | body
//! ```
//! All numbers are little-endian. A mark lies within one sector, so that no crash leaves half of
//! it. There is room for the sums of 8 events, in the order of [`EventType::ALL`].
//!
//! Version 1 knew no events: it had one sum, in place of the first zero, 254 marks, and headers of
//! 52 bytes. Its segments are read, as samples of CPU time, and not appended to.

use crc32fast::Hasher;

use crate::event_type::{EventType, SamplesByEvent};

/// Length of what stands before the first record.
pub(super) const HEAD_BYTES: u64 = 4096;
/// Records of a segment that is written.
pub(super) const MAX_RECORDS: u32 = 250;
/// Records that have a mark in version 1.
const OLD_MAX_RECORDS: u32 = 254;
/// Length of a header that is written.
pub(super) const HEADER_BYTES: usize = 44 + SUMS_BYTES;
const OLD_HEADER_BYTES: usize = 52;
/// Bodies are requests, which are far smaller; a longer one is a damaged header.
pub(super) const MAX_BODY_BYTES: u32 = 256 << 20;

const MAGIC: [u8; 8] = *b"JVMPSPL\x02";
const OLD_MAGIC: [u8; 8] = *b"JVMPSPL\x01";
const MARKS_AT: u64 = 32;
pub(super) const MARK_BYTES: usize = 16;
/// The bytes at which a record may begin again after damage; the next one is its version.
pub(super) const MARKER: [u8; 3] = *b"\xf7RE";
const VERSION: u8 = 2;
/// The last letter of the marker of version 1.
const OLD_VERSION: u8 = b'C';
/// Sums of samples that there is room for.
const EVENT_SLOTS: usize = 8;
const SUMS_BYTES: usize = EVENT_SLOTS * 8;
const SUMS_AT: usize = HEAD_BYTES as usize - SUMS_BYTES;

const _: () = assert!(EventType::ALL.len() <= EVENT_SLOTS);
const _: () = assert!(MARKS_AT as usize + MAX_RECORDS as usize * MARK_BYTES <= SUMS_AT);

/// The header in front of a record's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpoolRecordHeader {
    /// Index of the record within its segment.
    pub(super) index: u32,
    pub(super) body_bytes: u32,
    /// Milliseconds since 1970.
    pub(super) created_ms: u64,
    /// The event that all samples were taken of.
    pub(super) event: EventType,
    pub(super) samples: u64,
    pub(super) series: u32,
    pub(super) body_crc: u32,
    /// Samples of all records that were appended before, since the spool was made.
    pub(super) samples_before: SamplesByEvent,
}

impl SpoolRecordHeader {
    pub(super) fn samples_by_event(&self) -> SamplesByEvent {
        SamplesByEvent::of(self.event, self.samples)
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..3].copy_from_slice(&MARKER);
        bytes[3] = VERSION;
        bytes[4..8].copy_from_slice(&self.index.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.created_ms.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.samples.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.series.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[36..40].copy_from_slice(&(self.event.index() as u32).to_le_bytes());
        bytes[40..40 + SUMS_BYTES].copy_from_slice(&encode_sums(self.samples_before));
        let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header at the beginning of these bytes, of any version, and its length; `None` if there
    /// is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        if bytes.get(..3)? != MARKER {
            return None;
        }
        let (length, max_records) = match *bytes.get(3)? {
            VERSION => (HEADER_BYTES, MAX_RECORDS),
            OLD_VERSION => (OLD_HEADER_BYTES, OLD_MAX_RECORDS),
            _ => return None,
        };
        let bytes = bytes.get(..length)?;
        if crc32fast::hash(&bytes[..length - 4]) != u32_at(bytes, length - 4) {
            return None;
        }
        let header = if length == HEADER_BYTES { Self::fields(bytes)? } else { Self::old_fields(bytes) };
        (header.index < max_records && header.body_bytes <= MAX_BODY_BYTES).then_some((header, length))
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            index: u32_at(bytes, 4),
            body_bytes: u32_at(bytes, 8),
            created_ms: u64_at(bytes, 12),
            samples: u64_at(bytes, 20),
            series: u32_at(bytes, 28),
            body_crc: u32_at(bytes, 32),
            event: *EventType::ALL.get(u32_at(bytes, 36) as usize)?,
            samples_before: sums_at(bytes, 40),
        })
    }

    fn old_fields(bytes: &[u8]) -> Self {
        Self {
            index: u32_at(bytes, 4),
            body_bytes: u32_at(bytes, 8),
            created_ms: u64_at(bytes, 12),
            event: EventType::Cpu,
            samples: u64_at(bytes, 20),
            samples_before: SamplesByEvent::of(EventType::Cpu, u64_at(bytes, 28)),
            series: u32_at(bytes, 36),
            body_crc: u32_at(bytes, 40),
        }
    }
}

/// The progress of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordMark {
    /// Not sent yet, or not stored for certain.
    Waiting,
    /// About to be sent, or sent: without an answer nobody knows.
    Sending,
    /// Over; so many samples were delivered, the rest is lost or was appended again.
    Done { delivered: u32 },
}

impl RecordMark {
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

/// The first bytes of a segment, all marks at [`RecordMark::Waiting`].
pub(super) fn head(number: u64, samples_before: SamplesByEvent) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES as usize];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[SUMS_AT..].copy_from_slice(&encode_sums(samples_before));
    let crc = head_crc(&bytes[..24], &bytes[SUMS_AT..]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Samples in all segments before the one that begins so; `None` if this isn't the beginning of
/// that segment.
pub(super) fn decode_head(bytes: &[u8], number: u64) -> Option<SamplesByEvent> {
    let fields: &[u8; 32] = bytes.first_chunk()?;
    let (crc, is_number) = (u32_at(fields, 24), u64_at(fields, 8) == number);
    if fields[0..8] == OLD_MAGIC {
        let is_whole = is_number && head_crc(&fields[..24], &[]) == crc;
        return is_whole.then(|| SamplesByEvent::of(EventType::Cpu, u64_at(fields, 16)));
    }
    let sums = bytes.get(SUMS_AT..HEAD_BYTES as usize)?;
    let is_whole = fields[0..8] == MAGIC && is_number && head_crc(&fields[..24], sums) == crc;
    is_whole.then(|| sums_at(bytes, SUMS_AT))
}

fn head_crc(fields: &[u8], sums: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(fields);
    hasher.update(sums);
    hasher.finalize()
}

fn encode_sums(samples: SamplesByEvent) -> [u8; SUMS_BYTES] {
    let mut bytes = [0; SUMS_BYTES];
    for (event, samples) in samples.iter() {
        bytes[event.index() * 8..][..8].copy_from_slice(&samples.to_le_bytes());
    }
    bytes
}

fn sums_at(bytes: &[u8], at: usize) -> SamplesByEvent {
    SamplesByEvent::from_fn(|event| u64_at(bytes, at + event.index() * 8))
}

pub(super) fn crc(body: &[u8]) -> u32 {
    crc32fast::hash(body)
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
            event: EventType::Allocation,
            samples: 990,
            samples_before: SamplesByEvent::of(EventType::Cpu, 1 << 40)
                + SamplesByEvent::of(EventType::Allocation, 17),
            series: 12,
            body_crc: 0xdead_beef,
        };
        let bytes = header.encode();
        assert_eq!(SpoolRecordHeader::decode(&bytes), Some((header, HEADER_BYTES)));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SpoolRecordHeader::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_damaged_mark_never_says_that_a_record_is_new_or_over() {
        for mark in [RecordMark::Sending, RecordMark::Done { delivered: 7 }] {
            let bytes = mark.encode();
            assert_eq!(RecordMark::decode(&bytes), mark);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(RecordMark::decode(&flipped), RecordMark::Sending, "bit {bit} of {mark:?}");
            }
        }
        assert_eq!(RecordMark::decode(&RecordMark::Waiting.encode()), RecordMark::Waiting);
    }

    #[test]
    fn a_head_with_any_bit_of_its_sums_flipped_is_no_head() {
        let samples = SamplesByEvent::from_fn(|event| 1000 + event.index() as u64);
        let bytes = head(7, samples);
        assert_eq!((decode_head(&bytes, 7), decode_head(&bytes, 8)), (Some(samples), None));
        let own_bits = (0..28 * 8).chain(SUMS_AT * 8..bytes.len() * 8);
        for bit in own_bits {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_head(&flipped, 7), None, "bit {bit}");
        }
        let mut marked = bytes;
        marked[MARKS_AT as usize..SUMS_AT].fill(0xff);
        assert_eq!(decode_head(&marked, 7), Some(samples), "marks are written later");
    }

    #[test]
    fn the_last_mark_ends_where_what_follows_begins() {
        assert_eq!(RecordMark::offset(MAX_RECORDS - 1) + MARK_BYTES as u64, SUMS_AT as u64);
        assert_eq!(RecordMark::offset(OLD_MAX_RECORDS - 1) + MARK_BYTES as u64, HEAD_BYTES);
    }
}
