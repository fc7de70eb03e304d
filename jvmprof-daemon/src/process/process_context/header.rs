//! The header of a context.

use super::ContextError;
use crate::types::Avma;

/// Largest payload that is read, in bytes. A usual one has some hundred.
const MAX_PAYLOAD: u32 = 64 << 10;

const SIGNATURE: &[u8; 8] = b"OTEL_CTX";
const VERSION: u32 = 2;

/// The header: signature, version, size of the payload, time of publication, payload's address.
/// All numbers are the machine's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextHeader {
    /// In bytes; 1 to 64 KiB.
    pub payload_size: u32,
    /// A number that each publication changes; 0 while the context is written.
    pub published_at: u64,
    pub payload: Avma,
}

impl ContextHeader {
    /// Size in bytes.
    pub const SIZE: usize = 32;

    /// Parses a header.
    ///
    /// # Errors
    /// [`ContextError::NotContext`] if it is none of a version that is known,
    /// [`ContextError::Torn`] if it is being written, [`ContextError::Size`].
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Result<Self, ContextError> {
        let u32_at = |at: usize| bytes[at..].first_chunk().map_or(0, |it| u32::from_le_bytes(*it));
        let u64_at = |at: usize| bytes[at..].first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        if !bytes.starts_with(SIGNATURE) || u32_at(8) != VERSION {
            return Err(ContextError::NotContext);
        }
        let header = Self { payload_size: u32_at(12), published_at: u64_at(16), payload: Avma(u64_at(24)) };
        // The size is of no use while it is written.
        if header.published_at == 0 {
            return Err(ContextError::Torn);
        }
        if header.payload_size == 0 || header.payload_size > MAX_PAYLOAD {
            return Err(ContextError::Size(header.payload_size));
        }
        Ok(header)
    }
}
