//! Bodies of requests by HTTP: their type, and what is in a compressed one.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, header};
use tonic::Status;

use super::MAX_OTHER_MESSAGE_BYTES;
use crate::profile::gzip::{self, GzipError};

/// Returns the message in a body.
///
/// # Errors
/// `UNIMPLEMENTED` for another type or compression, `RESOURCE_EXHAUSTED` for a message beyond
/// [`MAX_OTHER_MESSAGE_BYTES`], `INVALID_ARGUMENT` for bytes that aren't gzip.
pub(super) fn decoded(headers: &HeaderMap, content_type: &str, body: Bytes) -> Result<Bytes, Status> {
    let found = text(headers, &header::CONTENT_TYPE);
    if found.split(';').next().map(str::trim) != Some(content_type) {
        return Err(Status::unimplemented(format!("a body of type {found:?}: only {content_type} is taken")));
    }
    uncompressed(headers, body)
}

/// Returns what is in a body of whatever type.
///
/// # Errors
/// As [`decoded`].
pub(super) fn uncompressed(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Status> {
    match text(headers, &header::CONTENT_ENCODING) {
        "" | "identity" => Ok(body),
        "gzip" => match gzip::decompress(&body, MAX_OTHER_MESSAGE_BYTES) {
            Ok(bytes) => Ok(bytes.into()),
            // Clients know by grpc-go's text that it is no matter of sending it again later.
            Err(error @ GzipError::TooLarge { .. }) => {
                Err(Status::resource_exhausted(format!("received message larger than max ({error})")))
            }
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        },
        other => {
            Err(Status::unimplemented(format!("a body compressed by {other:?}: gzip is taken, or none")))
        }
    }
}

/// Returns the value of a header that is text, else an empty one.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
