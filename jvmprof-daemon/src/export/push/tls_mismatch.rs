//! Failures of connections in which one side speaks TLS and the other doesn't, or doesn't take our
//! certificate.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::ClientConnection;
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::Url;

/// Longest time for a server to answer a greeting, by TLS or without.
const GREETING_TIME: Duration = Duration::from_secs(2);
/// Types of TLS records (RFC 8446, section 5.1) that answer a greeting.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// Size of the head of a frame of HTTP/2, and where it has the frame's type (RFC 9113, section
/// 4.1).
const FRAME_HEAD: usize = 9;
const FRAME_TYPE: usize = 3;
/// The type of the frame with which each server of HTTP/2 begins.
const SETTINGS: u8 = 4;
/// The part of a page that is read.
const MAX_PAGE: u64 = 16 << 10;

/// The text of an alert that rustls has received, before its name. HTTP/2 keeps the text alone.
const ALERT_TEXT: &str = "received fatal alert: ";
/// Alerts of servers that don't take a client's certificate, or miss it (RFC 8446, section 6.2).
/// With TLS 1.3 they come after the handshake as we see it, when a request may be under way.
const CERTIFICATE_ALERTS: [AlertDescription; 8] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::CertificateRequired,
];

/// The side that speaks TLS, or is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::export) enum TlsMismatch {
    /// We do; the server answers in plaintext.
    OnlyWe,
    /// The server does.
    OnlyTheServer,
    /// The server does, on a port where it answers plaintext, too.
    TheServerToo,
    /// The server doesn't answer in plaintext HTTP/2, whatever it speaks.
    NoHttp2,
    /// Both do, and the server doesn't take our certificate or misses it: it has read nothing.
    CertificateRefused(AlertDescription),
}

impl fmt::Display for TlsMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyWe => {
                f.write_str("the server doesn't speak TLS: write the address as http://HOST:PORT")
            }
            Self::OnlyTheServer => {
                f.write_str("the server speaks TLS only: write the address as https://HOST:PORT")
            }
            Self::TheServerToo => f.write_str("the server also speaks TLS, as https://HOST:PORT"),
            Self::NoHttp2 => f.write_str(
                "the server doesn't answer in plaintext HTTP/2: if it speaks TLS, write the address as \
                 https://HOST:PORT",
            ),
            Self::CertificateRefused(alert) => {
                write!(f, "the server wants a client certificate that it trusts: {ALERT_TEXT}{alert:?}")
            }
        }
    }
}

/// The protocol of an address without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::export) enum PlaintextProtocol {
    Http1,
    Http2,
}

/// Returns the mismatch of a plaintext address whose server answers TLS's greeting as a server of
/// TLS does. Many of those close a connection that doesn't begin with it, without a word.
pub(super) async fn of_plaintext_address(url: &Url, protocol: PlaintextProtocol) -> Option<TlsMismatch> {
    let first_byte = tokio::time::timeout(GREETING_TIME, greet(url)).await;
    if !matches!(first_byte, Ok(Ok(ALERT | HANDSHAKE))) {
        return None;
    }
    let takes_plaintext = tokio::time::timeout(GREETING_TIME, takes_plaintext(url, protocol)).await;
    let takes_plaintext = matches!(takes_plaintext, Ok(Ok(true)));
    Some(if takes_plaintext { TlsMismatch::TheServerToo } else { TlsMismatch::OnlyTheServer })
}

/// Asks a server without TLS, and returns true if it answers as one that isn't of TLS alone.
async fn takes_plaintext(url: &Url, protocol: PlaintextProtocol) -> io::Result<bool> {
    let (host, port) = host_and_port(url)?;
    let mut stream = TcpStream::connect((host, port)).await?;
    match protocol {
        PlaintextProtocol::Http1 => {
            let question = format!("OPTIONS / HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n");
            stream.write_all(question.as_bytes()).await?;
            let mut page = Vec::new();
            stream.take(MAX_PAGE).read_to_end(&mut page).await?;
            Ok(page.starts_with(b"HTTP/") && of_page(&String::from_utf8_lossy(&page)).is_none())
        }
        PlaintextProtocol::Http2 => {
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
            let mut settings = [0; FRAME_HEAD];
            settings[FRAME_TYPE] = SETTINGS;
            stream.write_all(&settings).await?;
            let mut head = [0; FRAME_HEAD];
            stream.read_exact(&mut head).await?;
            Ok(head[FRAME_TYPE] == SETTINGS)
        }
    }
}

fn host_and_port(url: &Url) -> io::Result<(&str, u16)> {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
}

/// Sends TLS's greeting, and returns the first byte of the answer.
async fn greet(url: &Url) -> io::Result<u8> {
    let (host, port) = host_and_port(url)?;
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

/// Returns the mismatch that a page says, with which a server of TLS answers plaintext.
pub(in crate::export) fn of_page(page: &str) -> Option<TlsMismatch> {
    const TEXTS: &[&str] = &[
        // Go `net/http/server.go`
        "Client sent an HTTP request to an HTTPS server",
        // nginx `ngx_http_special_response.c`
        "The plain HTTP request was sent to HTTPS port",
        // Apache `modules/ssl/ssl_engine_kernel.c`
        "speaking plain HTTP to an SSL-enabled server port",
        // Tomcat `org/apache/tomcat/util/net/LocalStrings.properties`
        "This combination of host and port requires TLS",
    ];
    TEXTS.iter().any(|text| page.contains(text)).then_some(TlsMismatch::OnlyTheServer)
}

/// Returns true if a page says that the client's certificate is missing, or isn't trusted: servers
/// that ask for it after the handshake refuse the request itself.
pub(in crate::export) fn wants_certificate(page: &str) -> bool {
    // nginx `ngx_http_special_response.c`
    const TEXTS: [&str; 2] = ["No required SSL certificate was sent", "The SSL certificate error"];
    TEXTS.iter().any(|text| page.contains(text))
}

/// Returns the mismatch that an error and its causes show.
pub(in crate::export) fn of_cause(error: &(dyn Error + 'static)) -> Option<TlsMismatch> {
    anyhow::Chain::new(error).find_map(of_one)
}

fn of_one(error: &(dyn Error + 'static)) -> Option<TlsMismatch> {
    // The first byte of the answer is none of a TLS record.
    let is_no_record = error.downcast_ref::<rustls::Error>().is_some_and(|error| {
        matches!(error, rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType))
    });
    if is_no_record {
        return Some(TlsMismatch::OnlyWe);
    }
    if let Some(alert) = refusing_alert(&error.to_string()) {
        return Some(TlsMismatch::CertificateRefused(alert));
    }
    // What an I/O error wraps isn't among its sources.
    if let Some(wrapped) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return of_one(wrapped);
    }
    // A TLS alert and an answer of HTTP/1 both read as a frame of more than a megabyte.
    let http2 = error.downcast_ref::<h2::Error>()?;
    let is_no_frame = http2.is_library() && http2.reason() == Some(h2::Reason::FRAME_SIZE_ERROR);
    is_no_frame.then_some(TlsMismatch::NoHttp2)
}

fn refusing_alert(text: &str) -> Option<AlertDescription> {
    let (_, alert) = text.split_once(ALERT_TEXT)?;
    CERTIFICATE_ALERTS.into_iter().find(|refusing| alert == format!("{refusing:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_told_by_the_texts_that_rustls_has_however_they_are_wrapped() {
        for alert in CERTIFICATE_ALERTS {
            let refused = Some(TlsMismatch::CertificateRefused(alert));
            let received = rustls::Error::AlertReceived(alert);
            // As HTTP/2 has it.
            let text = io::Error::new(io::ErrorKind::InvalidData, received.to_string());
            assert_eq!(of_cause(&text), refused);
            assert_eq!(of_cause(&io::Error::other(io::Error::other(received))), refused);
        }
        // The other side may have failed at any time.
        let other = rustls::Error::AlertReceived(AlertDescription::InternalError);
        assert_eq!(of_cause(&io::Error::other(other)), None);
        let no_record = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let no_record = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, no_record));
        assert_eq!(of_cause(&no_record), Some(TlsMismatch::OnlyWe));
    }
}
