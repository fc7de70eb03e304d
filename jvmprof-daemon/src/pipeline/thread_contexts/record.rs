//! The record of a thread's context, as it was copied.

use jvmprof_common::thread_context::{ATTRIBUTES_SIZE_OFFSET, RECORD_HEADER_BYTES, VALID_OFFSET};

/// A record that was copied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadContextRecord<'a> {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    attributes: &'a [u8],
}

impl<'a> ThreadContextRecord<'a> {
    /// Parses a record; `None` if it isn't valid, or shorter than its header. Attributes that are
    /// not all there are cut off.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
        let size = Self::attributes_size(header)?;
        Some(Self {
            trace_id: *header.first_chunk()?,
            span_id: *header[16..].first_chunk()?,
            attributes: rest.get(..usize::from(size)).unwrap_or(rest),
        })
    }

    /// Returns how many bytes of attributes a header announces; `None` if the record isn't valid.
    pub fn attributes_size(header: &[u8]) -> Option<u16> {
        let header = header.first_chunk::<RECORD_HEADER_BYTES>()?;
        let size = [header[ATTRIBUTES_SIZE_OFFSET], header[ATTRIBUTES_SIZE_OFFSET + 1]];
        (header[VALID_OFFSET] == 1).then_some(u16::from_le_bytes(size))
    }

    /// Returns how many bytes of what was copied are the record.
    pub fn size_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.attributes.len()
    }

    /// Returns true if a span is active: neither of the ids is zero.
    pub fn has_span(&self) -> bool {
        self.trace_id != [0; 16] && self.span_id != [0; 8]
    }

    /// Returns the attributes: index of the key, and value. One that is cut off ends them.
    pub fn attributes(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut rest = self.attributes;
        std::iter::from_fn(move || {
            let [key, length, after @ ..] = rest else { return None };
            let (value, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            Some((*key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(valid: u8, size: u16, attributes: &[u8]) -> Vec<u8> {
        let size = size.to_le_bytes();
        [&[1; 16][..], &[2; 8], &[valid, 0], &size, attributes].concat()
    }

    #[test]
    fn a_record_has_ids_and_attributes() {
        let bytes = record(1, 9, b"\x00\x03GET\x07\x02/a\0\0\0");
        let record = ThreadContextRecord::parse(&bytes).expect("a record");
        assert_eq!((record.trace_id, record.span_id, record.has_span()), ([1; 16], [2; 8], true));
        assert_eq!(record.size_bytes(), bytes.len() - 3, "what was copied beyond it doesn't count");
        assert_eq!(record.attributes().collect::<Vec<_>>(), [(0, &b"GET"[..]), (7, b"/a")]);
    }

    #[test]
    fn attributes_that_are_cut_off_are_left_out() {
        for (size, bytes, expected) in [
            (9, &b"\x00\x03GET\x07\x03/a"[..], 1),
            (600, b"\x00\x03GET\x07", 1),
            (4, b"\x00\x03GET", 0),
            (1, b"\x00", 0),
            (0, b"\x00\x01x", 0),
        ] {
            let bytes = record(1, size, bytes);
            let record = ThreadContextRecord::parse(&bytes).expect("a record");
            assert_eq!(record.attributes().count(), expected, "{size} {}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_is_not_valid_is_no_record() {
        for valid in [0, 2, 255] {
            assert_eq!(ThreadContextRecord::parse(&record(valid, 0, b"")), None);
        }
        assert_eq!(ThreadContextRecord::parse(&[1; 27]), None);
        let mut without_span = record(1, 0, b"");
        without_span[16..24].fill(0);
        assert!(!ThreadContextRecord::parse(&without_span).expect("a record").has_span());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_record_within_them_or_none(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..700),
        ) {
            if let Some(record) = ThreadContextRecord::parse(&bytes) {
                let all: usize = record.attributes().map(|(_, value)| value.len() + 2).sum();
                proptest::prop_assert!(all + RECORD_HEADER_BYTES <= bytes.len());
            }
        }
    }
}
