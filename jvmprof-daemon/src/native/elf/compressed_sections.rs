//! Compressed data of untrusted files, expanded within limits.
//!
//! The size in a header is only a claim: memory grows with the bytes that really come out, and
//! never above the limit.

use std::io::Read;

use lzma_rust2::XzReader;
use object::LittleEndian as Le;
use object::elf::{self, CompressionHeader64};
use object::pod;
use ruzstd::decoding::StreamingDecoder;

use crate::native::elf::ElfError;

/// Memory that xz may take beside its output, in KiB. Packages' debug information is compressed by
/// `xz` without a level, which needs 9 MiB.
const XZ_MEMORY_KIB: u32 = 20 << 10;
/// Largest window of zstd, in bytes: that of its highest level without `--long`.
const ZSTD_WINDOW: u64 = 8 << 20;

/// Expands a section with `SHF_COMPRESSED`: a compression header (gABI, chapter 4), then zlib or
/// zstd data.
///
/// # Errors
/// [`ElfError::TooLarge`] if it states more than `limit` bytes, [`ElfError::Malformed`] for data
/// that can't be expanded, or to another size than stated.
pub(crate) fn expand_section(name: &str, mut bytes: impl Read, limit: u64) -> Result<Vec<u8>, ElfError> {
    let mut header = [0; size_of::<CompressionHeader64<Le>>()];
    let is_there = bytes.read_exact(&mut header).is_ok();
    let header = is_there.then(|| pod::from_bytes::<CompressionHeader64<Le>>(&header).ok()).flatten();
    let (header, _) = header
        .ok_or_else(|| ElfError::malformed(name, "compressed, but too short for a compression header"))?;
    let size = header.ch_size.get(Le);
    if size > limit {
        return Err(ElfError::TooLarge { what: name.into(), size, limit });
    }
    let expanded = match header.ch_type.get(Le) {
        elf::ELFCOMPRESS_ZLIB => read_up_to(flate2::read::ZlibDecoder::new(bytes), size),
        elf::ELFCOMPRESS_ZSTD => StreamingDecoder::new_with_max_window_size(bytes, ZSTD_WINDOW)
            .ok()
            .and_then(|decoder| read_up_to(decoder, size)),
        _ => return Err(ElfError::malformed(name, "compressed by another method than zlib and zstd")),
    };
    match expanded {
        Some(expanded) if expanded.len() as u64 == size => Ok(expanded),
        Some(_) => Err(ElfError::malformed(name, "expands to less than it states")),
        None => Err(ElfError::malformed(name, "its data can't be expanded")),
    }
}

/// Expands xz data, as `.gnu_debugdata` holds.
///
/// # Errors
/// [`ElfError::TooLarge`] if more than `limit` bytes come out, [`ElfError::Malformed`] for data
/// that can't be expanded.
pub(crate) fn expand_xz(name: &str, bytes: impl Read, limit: u64) -> Result<Vec<u8>, ElfError> {
    // One more than allowed, to distinguish a full buffer from an end.
    let expanded = read_up_to(XzReader::new_mem_limit(bytes, true, XZ_MEMORY_KIB), limit.saturating_add(1));
    let expanded = expanded.ok_or_else(|| ElfError::malformed(name, "its xz data can't be expanded"))?;
    if expanded.len() as u64 > limit {
        return Err(ElfError::TooLarge { what: name.into(), size: expanded.len() as u64, limit });
    }
    Ok(expanded)
}

fn read_up_to(reader: impl Read, size: u64) -> Option<Vec<u8>> {
    let mut expanded = Vec::new();
    reader.take(size).read_to_end(&mut expanded).ok()?;
    Some(expanded)
}
