//! gzip, as pprof files have it, with a limit against bombs.

use std::io::{self, Read as _};

use flate2::read::MultiGzDecoder;
use flate2::{Compress, Compression, FlushCompress, Status};

/// Bytes that can't be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum GzipError {
    #[error("decompressing: {0}")]
    Broken(io::Error),
    #[error("decompressing: more than {limit} bytes come out")]
    TooLarge { limit: usize },
}

/// Returns true if these bytes begin as a gzip file does.
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// Compresses one after the other: its tables take a third of a megabyte, and for a small profile
/// most of the time is what they take to be made.
#[derive(Debug)]
pub struct GzipCompressor(Compress);

impl Default for GzipCompressor {
    /// Makes a compressor of the fastest level: profiles are small and packed all the time, and
    /// higher levels gain little on them.
    fn default() -> Self {
        // 32 KiB to look back into, as much as the format has.
        Self(Compress::new_gzip(Compression::fast(), 15))
    }
}

impl GzipCompressor {
    /// A gzip file of these bytes.
    ///
    /// # Errors
    /// None that writing to memory could have.
    pub fn compress(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut packed = Vec::with_capacity(bytes.len() / 3 + 64);
        self.0.reset();
        loop {
            let taken = usize::try_from(self.0.total_in()).unwrap_or(usize::MAX);
            let rest = bytes.get(taken..).unwrap_or_default();
            match self.0.compress_vec(rest, &mut packed, FlushCompress::Finish).map_err(io::Error::other)? {
                Status::StreamEnd => return Ok(packed),
                Status::Ok | Status::BufError => packed.reserve(rest.len() / 2 + 64),
            }
        }
    }
}

/// Compresses one file as well as gzip can, for what is written once.
///
/// # Errors
/// None that writing to memory could have.
pub fn compress_well(bytes: &[u8]) -> io::Result<Vec<u8>> {
    GzipCompressor(Compress::new_gzip(Compression::best(), 15)).compress(bytes)
}

/// Compresses one file.
///
/// # Errors
/// None that writing to memory could have.
pub fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    GzipCompressor::default().compress(bytes)
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
        let well = compress_well(&text).unwrap();
        assert!(well.len() <= packed.len() && decompress(&well, text.len()).unwrap() == text);
        assert!(matches!(decompress(&packed, text.len() - 1), Err(GzipError::TooLarge { limit: 99_999 })));
    }

    #[test]
    fn one_file_after_the_other_is_whole_and_knows_nothing_of_the_others() {
        // Noise, which grows when it is packed.
        let noise: Vec<u8> = (0..70_000u32)
            .map(|at| (at.wrapping_mul(2_654_435_761).rotate_left(at % 32) >> 24) as u8)
            .collect();
        let mut compressor = GzipCompressor::default();
        for bytes in [&noise[..], b"", b"a profile", &noise[..1000], &[7; 200_000]] {
            let packed = compressor.compress(bytes).unwrap();
            assert_eq!(decompress(&packed, bytes.len()).unwrap(), bytes);
            assert_eq!(packed, compress(bytes).unwrap());
        }
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
