//! gzip, as pprof files have it, with a limit against bombs.

use std::io::{self, Read as _, Write as _};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// Bytes that can't be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum GzipError {
    #[error("decompressing: {0}")]
    Broken(io::Error),
    #[error("decompressing: more than {limit} bytes come out")]
    TooLarge { limit: usize },
}

/// Whether these bytes begin as a gzip file does.
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// Compresses at the fastest level: profiles are small and packed all the time, and higher levels gain little on them.
///
/// # Errors
/// None that writing to memory could have.
pub fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 3), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Unpacks all members of a gzip file.
///
/// # Errors
/// It isn't gzip, is cut short, has something behind it, or unpacks to more than `limit` bytes.
pub fn decompress(bytes: &[u8], limit: usize) -> Result<Vec<u8>, GzipError> {
    let mut unpacked = Vec::new();
    let mut decoder = MultiGzDecoder::new(bytes).take((limit as u64).saturating_add(1));
    decoder.read_to_end(&mut unpacked).map_err(GzipError::Broken)?;
    if unpacked.len() > limit {
        return Err(GzipError::TooLarge { limit });
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_no_more_than_the_limit() {
        let text = vec![b'x'; 100_000];
        let packed = compress(&text).unwrap();
        assert!(is_gzip(&packed) && packed.len() < 1_000);
        assert_eq!(decompress(&packed, text.len()).unwrap(), text);
        assert!(matches!(decompress(&packed, text.len() - 1), Err(GzipError::TooLarge { limit: 99_999 })));
    }

    #[test]
    fn every_cut_is_an_error() {
        let packed = compress(b"a profile of some length").unwrap();
        for end in 0..packed.len() {
            assert!(matches!(decompress(&packed[..end], 1_000), Err(GzipError::Broken(_))), "cut at {end}");
        }
        let mut longer = packed.clone();
        longer.extend_from_slice(b"junk");
        assert!(matches!(decompress(&longer, 1_000), Err(GzipError::Broken(_))));
    }
}
