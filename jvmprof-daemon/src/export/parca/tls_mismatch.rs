//! Failures of connections in which one side speaks TLS and the other doesn't.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::ClientConnection;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::Url;

/// Longest time for a server to answer a greeting.
const GREETING_TIME: Duration = Duration::from_secs(2);
/// Types of TLS records (RFC 8446, section 5.1) that answer a greeting.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// Who speaks TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMismatch {
    /// We do; the server answers in plaintext.
    OnlyWe,
    /// The server does.
    OnlyTheServer,
    /// The server doesn't answer in plaintext HTTP/2, whatever it speaks.
    NoHttp2,
}

impl fmt::Display for TlsMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnlyWe => {
                "the server doesn't speak TLS: write the address as http://HOST:PORT, or set \
                 --remote-store-insecure"
            }
            Self::OnlyTheServer => {
                "the server speaks TLS only: write the address as https://HOST:PORT, or as HOST:PORT without \
                 --remote-store-insecure"
            }
            Self::NoHttp2 => {
                "the server doesn't answer in plaintext HTTP/2: if it speaks TLS, write the address as \
                 https://HOST:PORT, or as HOST:PORT without --remote-store-insecure"
            }
        })
    }
}

/// Returns true if a server of a plaintext address answers TLS's greeting as a server of TLS does.
/// Many of those close a connection that doesn't begin with it, without a word.
pub(super) async fn speaks_tls(url: &Url) -> bool {
    matches!(tokio::time::timeout(GREETING_TIME, greet(url)).await, Ok(Ok(ALERT | HANDSHAKE)))
}

/// Sends the greeting, and returns the first byte of the answer.
async fn greet(url: &Url) -> io::Result<u8> {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = host.to_owned().try_into().map_err(io::Error::other)?;
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut greeting = Vec::new();
    connection.write_tls(&mut greeting)?;
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(&greeting).await?;
    stream.read_u8().await
}

/// Returns the mismatch that an error and its causes show.
pub(super) fn of_cause(error: &(dyn Error + 'static)) -> Option<TlsMismatch> {
    anyhow::Chain::new(error).find_map(|error| {
        // What an I/O error wraps isn't among its sources.
        of_one(error).or_else(|| of_one(error.downcast_ref::<io::Error>()?.get_ref()?))
    })
}

fn of_one(error: &(dyn Error + 'static)) -> Option<TlsMismatch> {
    // The first byte of the answer is none of a TLS record.
    let is_no_record = error.downcast_ref::<rustls::Error>().is_some_and(|error| {
        matches!(error, rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType))
    });
    if is_no_record {
        return Some(TlsMismatch::OnlyWe);
    }
    // A TLS alert and an answer of HTTP/1 both read as a frame of more than a megabyte.
    let http2 = error.downcast_ref::<h2::Error>()?;
    let is_no_frame = http2.is_library() && http2.reason() == Some(h2::Reason::FRAME_SIZE_ERROR);
    is_no_frame.then_some(TlsMismatch::NoHttp2)
}
