//! Connections and requests by gRPC, whatever the service.

use tonic::Request;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use super::config_error::BackendConfigError;
use super::endpoint::{self, BackendOptions};

/// Returns a connection that is made when it is needed, and the headers of every request.
///
/// # Errors
/// Options that can't work: see [`BackendConfigError`].
pub(in crate::export) fn connection(
    options: &BackendOptions,
) -> Result<(Channel, MetadataMap), BackendConfigError> {
    let channel = endpoint::channel(options)?;
    let headers = endpoint::headers(options)?;
    endpoint::token(options)?;
    Ok((channel, headers))
}

/// Returns a request with its headers, the token as of now, and its deadline.
///
/// # Errors
/// The token's file can't be read.
pub(in crate::export) fn request<T>(
    message: T,
    headers: &MetadataMap,
    options: &BackendOptions,
) -> Result<Request<T>, BackendConfigError> {
    let mut request = Request::new(message);
    *request.metadata_mut() = headers.clone();
    if let Some(token) = endpoint::token(options)? {
        request.metadata_mut().insert("authorization", token);
    }
    // The server learns the deadline as well, and may save itself the work.
    request.set_timeout(options.request_timeout);
    Ok(request)
}
