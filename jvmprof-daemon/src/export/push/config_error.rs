//! Errors of the options that say how a backend is reached.

use std::path::PathBuf;
use std::{fmt, io};

use tonic::metadata::errors::{InvalidMetadataKey, InvalidMetadataValue};

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsFile {
    CaCertificates,
    ClientCertificate,
    ClientKey,
    BearerToken,
}

impl fmt::Display for SettingsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CaCertificates => "the CA certificates",
            Self::ClientCertificate => "the client certificate",
            Self::ClientKey => "the client key",
            Self::BearerToken => "the bearer token",
        })
    }
}

/// Options that can't work, or files of theirs that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BackendConfigError {
    #[error("the address {address:?} of the backend is not http://host:port, https://host:port or host:port")]
    Address { address: String },
    #[error("setting up TLS for {address}: {source}")]
    Tls { address: String, source: tonic::transport::Error },
    #[error("reading {what} {}: {source}", path.display())]
    File { what: SettingsFile, path: PathBuf, source: io::Error },
    #[error(
        "reading the CA certificates {}: there is no certificate in it, which begins with \
         -----BEGIN CERTIFICATE----- (PEM)",
        path.display()
    )]
    NoCertificate { path: PathBuf },
    #[error("{name:?} can't be the name of a gRPC header: {source}")]
    HeaderName { name: String, source: InvalidMetadataKey },
    #[error("the value of the gRPC header {name:?} has characters that can't be sent")]
    HeaderValue { name: String, source: InvalidMetadataValue },
    #[error("the bearer token has characters that can't be sent")]
    Token { source: InvalidMetadataValue },
    #[error(
        "the proxy that HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names for {address} is reached by {scheme}: only http:// \
         proxies can be used; NO_PROXY names hosts that need none"
    )]
    Proxy { address: String, scheme: String },
}
