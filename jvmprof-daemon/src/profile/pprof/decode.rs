//! Reading pprof bytes that somebody else wrote, within limits.

use std::borrow::Cow;

use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::profile::gzip::{self, GzipError};
use crate::proto::pprof::Profile;

/// Limits of a profile that is accepted.
#[derive(Clone, Copy, Debug)]
pub struct DecodeLimits {
    /// Bytes after decompression.
    pub max_bytes: usize,
    /// Entries of all tables together. In memory an entry takes up to 36 times the bytes that it
    /// takes on the wire, so a limit of bytes alone doesn't bound memory.
    pub max_entries: usize,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self { max_bytes: 64 << 20, max_entries: 4_000_000 }
    }
}

/// Bytes that aren't a pprof profile, or one that is too large.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error(transparent)]
    Gzip(#[from] GzipError),
    #[error("parsing pprof: {0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error("parsing pprof: its tables have more than {limit} entries")]
    TooManyEntries { limit: usize },
}

/// Parses a profile, gzipped or not. Its ids and indices aren't checked.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode(bytes: &[u8], limits: DecodeLimits) -> Result<Profile, DecodeError> {
    parse(&unpack(bytes, limits.max_bytes)?, limits)
}

/// Returns the bytes of a profile without the compression, if it has any.
///
/// # Errors
/// It isn't whole, or these bytes are more than `max_bytes`.
pub fn unpack(bytes: &[u8], max_bytes: usize) -> Result<Cow<'_, [u8]>, GzipError> {
    if gzip::is_gzip(bytes) {
        return Ok(gzip::decompress(bytes, max_bytes)?.into());
    }
    if bytes.len() > max_bytes {
        return Err(GzipError::TooLarge { limit: max_bytes });
    }
    Ok(bytes.into())
}

/// Parses a profile without compression. Its ids and indices aren't checked.
///
/// # Errors
/// See [`DecodeError`].
pub fn parse(bytes: &[u8], limits: DecodeLimits) -> Result<Profile, DecodeError> {
    let limit = limits.max_entries;
    if count_entries(bytes, limit)? > limit {
        return Err(DecodeError::TooManyEntries { limit });
    }
    Ok(Profile::decode(bytes)?)
}

/// Counts the length-delimited fields on the top level without keeping any; stops above `limit`.
fn count_entries(mut bytes: &[u8], limit: usize) -> Result<usize, prost::DecodeError> {
    let mut entries = 0;
    while !bytes.is_empty() && entries <= limit {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        if wire_type == WireType::LengthDelimited {
            entries += 1;
            let length = decode_varint(&mut bytes)?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            // A field that is cut short ends the count; decoding says what is wrong with it.
            bytes = bytes.get(length..).unwrap_or_default();
        } else {
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pprof::Sample;

    fn small() -> Profile {
        Profile { string_table: vec![String::new(), "cpu".to_owned()], period: 5, ..Profile::default() }
    }

    #[test]
    fn gzipped_and_plain_profiles_are_read() {
        let plain = small().encode_to_vec();
        let packed = gzip::compress(&plain).unwrap();
        for bytes in [plain, packed] {
            assert_eq!(decode(&bytes, DecodeLimits::default()).unwrap(), small());
        }
    }

    #[test]
    fn many_tiny_entries_are_refused_before_they_take_memory() {
        let profile = Profile { sample: vec![Sample::default(); 1_000], ..Profile::default() };
        let bytes = profile.encode_to_vec();
        assert_eq!(bytes.len(), 2_000);
        let limits = |max_entries| DecodeLimits { max_entries, ..DecodeLimits::default() };
        assert!(decode(&bytes, limits(1_000)).is_ok());
        assert!(matches!(decode(&bytes, limits(999)), Err(DecodeError::TooManyEntries { limit: 999 })));
    }

    #[test]
    fn sizes_are_limited_before_and_after_decompression() {
        let bytes = Profile { string_table: vec!["x".repeat(10_000)], ..Profile::default() }.encode_to_vec();
        let limits = DecodeLimits { max_bytes: 9_999, ..DecodeLimits::default() };
        for bytes in [gzip::compress(&bytes).unwrap(), bytes] {
            assert!(matches!(decode(&bytes, limits), Err(DecodeError::Gzip(GzipError::TooLarge { .. }))));
        }
    }

    #[test]
    fn every_cut_is_an_error_or_a_profile_and_never_a_panic() {
        let bytes = small().encode_to_vec();
        for end in 0..bytes.len() {
            let _ = decode(&bytes[..end], DecodeLimits::default());
        }
        assert!(decode(&[0xff; 40], DecodeLimits::default()).is_err());
    }
}
