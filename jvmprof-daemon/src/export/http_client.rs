//! Requests to backends over HTTP/1.1: addresses, TLS, credentials, proxies, and what a broken
//! exchange means.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::{Client, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout_at};
use tonic::Code;
use url::Url;

use crate::export::push::push_outcome::was_never_processed;
use crate::export::push::tls_mismatch::PlaintextProtocol;
use crate::export::push::{
    BackendConfigError, BackendOptions, PushOutcome, SettingsFile, proxy, tls_mismatch,
};
use crate::export::retry_after;

/// The part of an answer's body that is read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The credentials of a request. Files are read for every request.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// A file with `user:password`.
    Basic(PathBuf),
    /// A file with a token.
    Bearer(PathBuf),
}

/// Options of the connection to a backend.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// `http://host:port`, `https://host:port`, or `host:port`, which means TLS.
    pub address: String,
    pub credentials: Option<Credentials>,
    /// PEM file of certificate authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files of our certificate and its key.
    pub client_identity: Option<(PathBuf, PathBuf)>,
    pub connect_timeout: Duration,
    /// From the first byte of a request to the answer.
    pub request_timeout: Duration,
}

impl HttpOptions {
    /// The defaults for an address.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            credentials: None,
            ca_file: None,
            client_identity: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
        }
    }

    /// The backend, by whatever address it is given; it ends in a slash.
    ///
    /// # Errors
    /// [`HttpConfigError::Connection`].
    pub fn backend(&self) -> Result<String, HttpConfigError> {
        Ok(BackendOptions::new(&self.address).backend()?)
    }
}

/// Options that can't work, or files of theirs that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum HttpConfigError {
    /// As for any backend.
    #[error(transparent)]
    Connection(#[from] BackendConfigError),
    #[error("reading {what} {}: {source}", path.display())]
    Pem { what: SettingsFile, path: PathBuf, source: PemError },
    #[error("setting up TLS for {address}: {source}")]
    Tls { address: String, source: rustls::Error },
    #[error("reading the CA certificates {}: {source}", path.display())]
    Authority { path: PathBuf, source: rustls::Error },
    #[error("reading the system's certificate authorities: {source}")]
    SystemRoots { source: io::Error },
    #[error("the {what} {value:?} has characters that can't be sent")]
    Header { what: &'static str, value: String },
    #[error("the credentials in {} have characters that can't be sent", path.display())]
    Credentials { path: PathBuf },
    #[error("{} doesn't hold user:password", path.display())]
    NoPassword { path: PathBuf },
    #[error("reading the credentials {}: {source}", path.display())]
    CredentialsFile { path: PathBuf, source: io::Error },
}

/// The connections to one backend, made when they are needed and again when they broke.
#[derive(Debug)]
pub(in crate::export) struct HttpClient {
    options: HttpOptions,
    connector: Connector,
    /// Of a server that is reached without TLS and without a proxy.
    plain_url: Option<Url>,
}

/// The answer of a backend, or of a proxy before it.
#[derive(Debug)]
pub(in crate::export) struct HttpAnswer {
    pub(in crate::export) status: StatusCode,
    /// The body, at most 64 KiB: of one that broke off or is longer its begin.
    pub(in crate::export) body: Bytes,
    /// Whether that is all of it.
    pub(in crate::export) is_whole: bool,
    /// The header `retry-after`.
    pub(in crate::export) retry_after: Option<Duration>,
}

impl HttpClient {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    pub(in crate::export) fn new(options: HttpOptions) -> Result<Self, HttpConfigError> {
        let connector = Connector::new(&options)?;
        let plain_url = BackendOptions::new(&options.address).plain_url()?;
        authorization(&options)?;
        Ok(Self { options, connector, plain_url })
    }

    pub(in crate::export) fn options(&self) -> &HttpOptions {
        &self.options
    }

    /// Posts a body, once. An exchange that broke off is an outcome by itself.
    pub(in crate::export) async fn post(
        &self,
        url: &str,
        content_type: &'static str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<HttpAnswer, PushOutcome> {
        // A file of credentials may be there the next time.
        let request = self.request(url, content_type, headers, body).map_err(PushOutcome::not_stored)?;
        let timeout = self.options.request_timeout;
        let until = Instant::now() + timeout;
        let response = timeout_at(until, self.connector.request(request)).await.map_err(|_| {
            PushOutcome::possibly_lost(Code::DeadlineExceeded, format!("no answer after {timeout:?}"))
        })?;
        let response = response.map_err(|error| {
            let message = describe(&error);
            if error.is_connect() || was_never_processed(&error) {
                PushOutcome::not_stored(message)
            } else {
                PushOutcome::possibly_lost(Code::Unavailable, message)
            }
        })?;
        let (status, retry_after) = (response.status(), retry_after::of_headers(response.headers()));
        // The status is an answer, also if the body doesn't arrive.
        let (body, is_whole) = read(response.into_body(), until).await;
        Ok(HttpAnswer { status, body, is_whole, retry_after })
    }

    /// The outcome of a request without profiles, which says so if the server speaks TLS.
    pub(in crate::export) async fn of_probe(&self, outcome: PushOutcome) -> PushOutcome {
        match outcome {
            PushOutcome::PossiblyLost { .. } => {
                outcome.unless_server_speaks_tls(self.plain_url.as_ref(), PlaintextProtocol::Http1).await
            }
            // It was answered by HTTP, or nobody is there.
            _ => outcome,
        }
    }

    fn request(
        &self,
        url: &str,
        content_type: &'static str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::post(url)
            .header(CONTENT_TYPE, content_type)
            .header(USER_AGENT, concat!("jvmprof/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = authorization(&self.options).map_err(|error| error.to_string())? {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(body)).map_err(|error| error.to_string())
    }
}

/// Returns a header that is the same for every request.
///
/// # Errors
/// [`HttpConfigError::Header`] for a name or value that can't be sent. `what` it is, for messages.
pub(in crate::export) fn header(
    what: &'static str,
    name: &str,
    value: &str,
) -> Result<(HeaderName, HeaderValue), HttpConfigError> {
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| HttpConfigError::Header { what, value: name.to_owned() })?;
    let value = HeaderValue::from_str(value)
        .map_err(|_| HttpConfigError::Header { what, value: value.to_owned() })?;
    Ok((name, value))
}

/// Reads a body, as much as arrives of it until then and is kept. Returns true if that is all.
async fn read(mut body: Incoming, until: Instant) -> (Bytes, bool) {
    let mut bytes = BytesMut::new();
    loop {
        // A server that refuses what it hasn't read may reset the connection behind its answer.
        let frame = match timeout_at(until, body.frame()).await {
            Ok(None) => return (bytes.freeze(), true),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) | Err(_) => return (bytes.freeze(), false),
        };
        let Ok(data) = frame.into_data() else { continue };
        let room = MAX_ANSWER_BYTES - bytes.len();
        bytes.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return (bytes.freeze(), false);
        }
    }
}

/// Describes an error: what it means if that is clear, else the error with its causes.
fn describe(error: &(dyn Error + 'static)) -> String {
    if let Some(mismatch) = tls_mismatch::of_cause(error) {
        return mismatch.to_string();
    }
    anyhow::Chain::new(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A client of HTTP, directly or through the proxy that the environment names.
#[derive(Clone, Debug)]
enum Connector {
    Direct(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
    Tunnel(Client<HttpsConnector<Tunnel<HttpConnector>>, Full<Bytes>>),
}

impl Connector {
    fn new(options: &HttpOptions) -> Result<Self, HttpConfigError> {
        let address = options.backend()?;
        let wrong = || BackendConfigError::Address { address: options.address.clone() };
        let url = Url::parse(&address).map_err(|_| wrong())?;
        let tls = tls(options, &url)?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(options.connect_timeout));
        // A peer that vanished between two pushes is found before a request is lost to it.
        connector.set_keepalive(Some(Duration::from_secs(15)));
        connector.set_keepalive_interval(Some(Duration::from_secs(5)));
        connector.set_keepalive_retries(Some(3));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let mut client = Client::builder(TokioExecutor::new());
        // Servers and proxies close connections that are idle: rather we than they, because a
        // request that is sent as its connection ends may be lost.
        client.pool_idle_timeout(Duration::from_secs(20)).pool_timer(hyper_util::rt::TokioTimer::new());
        Ok(match proxy::for_url(&url)? {
            Some(proxy) => {
                tracing::info!(address = %url, proxy = %proxy, "the backend is reached through a proxy");
                Self::Tunnel(client.build(https.wrap_connector(proxy.tunnel(connector))))
            }
            None => Self::Direct(client.build(https.wrap_connector(connector))),
        })
    }

    async fn request(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, HttpError> {
        match self {
            Self::Direct(client) => client.request(request).await,
            Self::Tunnel(client) => client.request(request).await,
        }
    }
}

fn tls(options: &HttpOptions, url: &Url) -> Result<ClientConfig, HttpConfigError> {
    let tls_error = |source| HttpConfigError::Tls { address: options.address.clone(), source };
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(tls_error)?;
    let builder = match &options.ca_file {
        Some(path) => builder.with_root_certificates(roots(path).map_err(|error| match error {
            RootsError::Pem(source) => pem_error(SettingsFile::CaCertificates, path)(source),
            RootsError::Authority(source) => HttpConfigError::Authority { path: path.clone(), source },
        })?),
        // Nobody needs the system's without TLS.
        None if url.scheme() == "http" => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.with_native_roots().map_err(|source| HttpConfigError::SystemRoots { source })?,
    };
    let Some((certificate, key)) = &options.client_identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(certificate).map_err(pem_error(SettingsFile::ClientCertificate, certificate))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(pem_error(SettingsFile::ClientKey, key))?;
    builder.with_client_auth_cert(chain, key).map_err(tls_error)
}

enum RootsError {
    Pem(PemError),
    Authority(rustls::Error),
}

fn roots(path: &Path) -> Result<RootCertStore, RootsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path).map_err(RootsError::Pem)? {
        roots.add(certificate).map_err(RootsError::Authority)?;
    }
    Ok(roots)
}

/// All certificates of a file, which has at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let all = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() { Err(PemError::NoItemsFound) } else { Ok(all) }
}

fn pem_error(what: SettingsFile, path: &Path) -> impl FnOnce(PemError) -> HttpConfigError {
    let path = path.to_owned();
    move |source| HttpConfigError::Pem { what, path, source }
}

/// The `authorization` header as of now.
fn authorization(options: &HttpOptions) -> Result<Option<HeaderValue>, HttpConfigError> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .map_err(|source| HttpConfigError::CredentialsFile { path: path.clone(), source })
    };
    let (path, text) = match &options.credentials {
        None => return Ok(None),
        Some(Credentials::Bearer(path)) => (path, format!("Bearer {}", read(path)?)),
        Some(Credentials::Basic(path)) => {
            let text = read(path)?;
            if !text.contains(':') {
                return Err(HttpConfigError::NoPassword { path: path.clone() });
            }
            (path, format!("Basic {}", BASE64_STANDARD.encode(text)))
        }
    };
    let mut value =
        HeaderValue::from_str(&text).map_err(|_| HttpConfigError::Credentials { path: path.clone() })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Posts to a server that answers with these bytes, and then closes the connection or says
    /// nothing more.
    async fn answer(bytes: Vec<u8>, closes: bool) -> HttpAnswer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            if !closes {
                std::future::pending::<()>().await;
            }
        });
        let options =
            HttpOptions { request_timeout: Duration::from_secs(3), ..HttpOptions::new(url.clone()) };
        let client = HttpClient::new(options).unwrap();
        let answer = client.post(&url, "text/plain", &HeaderMap::new(), Bytes::from_static(b"x")).await;
        server.abort();
        answer.unwrap()
    }

    #[tokio::test]
    async fn a_status_is_an_answer_also_without_the_whole_body() {
        let head = |status: &str, length: usize| {
            format!("HTTP/1.1 {status}\r\nretry-after: 7\r\ncontent-length: {length}\r\n\r\n").into_bytes()
        };
        let whole = answer([head("200 OK", 2), b"ok".to_vec()].concat(), true).await;
        assert_eq!((whole.is_whole, &*whole.body), (true, &b"ok"[..]));
        for closes in [true, false] {
            let cut =
                answer([head("503 Service Unavailable", 100), b"begin".to_vec()].concat(), closes).await;
            assert_eq!((cut.status, cut.is_whole), (StatusCode::SERVICE_UNAVAILABLE, false));
            assert_eq!((&*cut.body, cut.retry_after), (&b"begin"[..], Some(Duration::from_secs(7))));
        }
        let long = MAX_ANSWER_BYTES + 1;
        let long = answer([head("200 OK", long), vec![b'x'; long]].concat(), true).await;
        assert_eq!((long.status, long.is_whole), (StatusCode::OK, false));
        assert_eq!(long.body.len(), MAX_ANSWER_BYTES);
    }
}
