//! Options of a connection to Pyroscope, and the HTTP client that they make.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::{Client, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use url::Url;

use crate::export::parca::{ParcaConfigError, ParcaOptions, SettingsFile, proxy};

/// What a request is allowed by. Files are read for every request.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// A file with `user:password`.
    Basic(PathBuf),
    /// A file with a token.
    Bearer(PathBuf),
}

/// Options of the connection to a Pyroscope.
#[derive(Clone, Debug)]
pub struct PyroscopeOptions {
    /// `http://host:port`, `https://host:port`, or `host:port`, which means TLS.
    pub address: String,
    /// The tenant that profiles belong to (`X-Scope-OrgID`).
    pub tenant: Option<String>,
    pub credentials: Option<Credentials>,
    /// PEM file of certificate authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files of our certificate and its key.
    pub client_identity: Option<(PathBuf, PathBuf)>,
    pub connect_timeout: Duration,
    /// From the first byte of a request to the answer.
    pub request_timeout: Duration,
    /// Age of profiles from which on the server refuses them.
    pub max_age: Duration,
}

impl PyroscopeOptions {
    /// The defaults for an address.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            tenant: None,
            credentials: None,
            ca_file: None,
            client_identity: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            max_age: Duration::from_secs(3600),
        }
    }

    /// The backend, by whatever address it is given.
    ///
    /// # Errors
    /// [`PyroscopeConfigError::Connection`].
    pub fn backend(&self) -> Result<String, PyroscopeConfigError> {
        Ok(ParcaOptions::new(&self.address).backend()?)
    }
}

/// Options that can't work, or files of theirs that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum PyroscopeConfigError {
    /// As for any backend.
    #[error(transparent)]
    Connection(#[from] ParcaConfigError),
    #[error("reading {what} {}: {source}", path.display())]
    Pem { what: SettingsFile, path: PathBuf, source: PemError },
    #[error("setting up TLS for {address}: {source}")]
    Tls { address: String, source: rustls::Error },
    #[error("reading the system's certificate authorities: {source}")]
    SystemRoots { source: io::Error },
    #[error("the tenant {tenant:?} has characters that can't be sent")]
    Tenant { tenant: String },
    #[error("the credentials in {} have characters that can't be sent", path.display())]
    Credentials { path: PathBuf },
    #[error("{} doesn't hold user:password", path.display())]
    NoPassword { path: PathBuf },
    #[error("reading the credentials {}: {source}", path.display())]
    CredentialsFile { path: PathBuf, source: io::Error },
}

/// A client of HTTP, directly or through the proxy that the environment names.
#[derive(Clone, Debug)]
pub(super) enum HttpClient {
    Direct(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
    Tunnel(Client<HttpsConnector<Tunnel<HttpConnector>>, Full<Bytes>>),
}

impl HttpClient {
    /// Doesn't connect yet.
    pub(super) fn new(options: &PyroscopeOptions) -> Result<Self, PyroscopeConfigError> {
        let address = options.backend()?;
        let wrong = || ParcaConfigError::Address { address: options.address.clone() };
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

    pub(super) async fn request(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, HttpError> {
        match self {
            Self::Direct(client) => client.request(request).await,
            Self::Tunnel(client) => client.request(request).await,
        }
    }
}

fn tls(options: &PyroscopeOptions, url: &Url) -> Result<ClientConfig, PyroscopeConfigError> {
    let tls_error = |source| PyroscopeConfigError::Tls { address: options.address.clone(), source };
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(tls_error)?;
    let builder = match &options.ca_file {
        Some(path) => builder.with_root_certificates(roots(path).map_err(|error| match error {
            RootsError::Pem(source) => pem_error(SettingsFile::CaCertificates, path)(source),
            RootsError::Tls(source) => tls_error(source),
        })?),
        // Nobody needs the system's without TLS.
        None if url.scheme() == "http" => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.with_native_roots().map_err(|source| PyroscopeConfigError::SystemRoots { source })?,
    };
    let Some((certificate, key)) = &options.client_identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(certificate).map_err(pem_error(SettingsFile::ClientCertificate, certificate))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(pem_error(SettingsFile::ClientKey, key))?;
    builder.with_client_auth_cert(chain, key).map_err(tls_error)
}

enum RootsError {
    Pem(PemError),
    Tls(rustls::Error),
}

fn roots(path: &Path) -> Result<RootCertStore, RootsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path).map_err(RootsError::Pem)? {
        roots.add(certificate).map_err(RootsError::Tls)?;
    }
    Ok(roots)
}

/// All certificates of a file, which has at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let all = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() { Err(PemError::NoItemsFound) } else { Ok(all) }
}

fn pem_error(what: SettingsFile, path: &Path) -> impl FnOnce(PemError) -> PyroscopeConfigError {
    let path = path.to_owned();
    move |source| PyroscopeConfigError::Pem { what, path, source }
}

/// The header of the tenant.
pub(super) fn tenant(options: &PyroscopeOptions) -> Result<Option<HeaderValue>, PyroscopeConfigError> {
    let Some(tenant) = &options.tenant else { return Ok(None) };
    match HeaderValue::from_str(tenant) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(PyroscopeConfigError::Tenant { tenant: tenant.clone() }),
    }
}

/// The `authorization` header as of now.
pub(super) fn authorization(options: &PyroscopeOptions) -> Result<Option<HeaderValue>, PyroscopeConfigError> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .map_err(|source| PyroscopeConfigError::CredentialsFile { path: path.clone(), source })
    };
    let (path, text) = match &options.credentials {
        None => return Ok(None),
        Some(Credentials::Bearer(path)) => (path, format!("Bearer {}", read(path)?)),
        Some(Credentials::Basic(path)) => {
            let text = read(path)?;
            if !text.contains(':') {
                return Err(PyroscopeConfigError::NoPassword { path: path.clone() });
            }
            (path, format!("Basic {}", BASE64_STANDARD.encode(text)))
        }
    };
    let mut value =
        HeaderValue::from_str(&text).map_err(|_| PyroscopeConfigError::Credentials { path: path.clone() })?;
    value.set_sensitive(true);
    Ok(Some(value))
}
