//! Sending a file to a signed URL, as object stores take it. Blocking: for `spawn_blocking`.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use ureq::SendBody;

use super::UploaderState;
use super::upload_error::UploadError;
use crate::native::http_client;

/// Bytes that are sent at once.
const PIECE: usize = 256 << 10;

/// Puts a file of so many bytes to a URL.
pub(super) fn put(inner: &Arc<UploaderState>, url: &str, file: File, size: u64) -> Result<(), UploadError> {
    let failed = |error| UploadError::Put(Box::new(error));
    let agent = http_client::agent(inner.options.upload_timeout, inner.options.upload_timeout);
    let body = RateLimitedReader { file, inner: Arc::clone(inner) };
    agent
        .put(url)
        .header("content-length", size.to_string())
        .header("content-type", "application/octet-stream")
        .send(SendBody::from_owned_reader(body))
        .map_err(failed)?;
    Ok(())
}

/// Reads as fast as the options allow sending.
struct RateLimitedReader {
    file: File,
    inner: Arc<UploaderState>,
}

impl Read for RateLimitedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(PIECE);
        let read = self.file.read(&mut buffer[..len])?;
        std::thread::sleep(self.inner.bandwidth.delay(read as u64));
        Ok(read)
    }
}
