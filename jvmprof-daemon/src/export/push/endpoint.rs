//! The endpoint of a backend: its address, TLS, headers and token.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use url::Url;

use super::config_error::{BackendConfigError, SettingsFile};
use super::proxy;

/// A bearer token.
#[derive(Clone)]
pub enum Token {
    Literal(String),
    /// Read for every request: tokens of Kubernetes service accounts are replaced while we run.
    File(PathBuf),
}

impl fmt::Debug for Token {
    /// Tokens don't belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(_) => f.write_str("Literal(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Options of the connection to a backend.
#[derive(Clone)]
pub struct BackendOptions {
    /// `http://host:port`, `https://host:port`, or `host:port`, which means TLS unless `insecure`.
    pub address: String,
    /// Plaintext for an address that says neither http nor https.
    pub insecure: bool,
    pub token: Option<Token>,
    /// Names and values that go with every request, such as `projectid`.
    pub headers: Vec<(String, String)>,
    /// PEM file of certificate authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files of our certificate and its key.
    pub client_identity: Option<(PathBuf, PathBuf)>,
    pub connect_timeout: Duration,
    /// From the first byte of a request to the answer.
    pub request_timeout: Duration,
    /// Compress requests (gzip). The profiles in them are compressed already: this is about labels,
    /// and costs CPU.
    pub compress: bool,
    /// Larger batches are sent in several requests. Parca takes up to 64 MiB.
    pub max_request_bytes: usize,
    /// Send the times of samples, where they are known: to a `jvmprof collector`, which reads them.
    pub sample_times: bool,
}

impl fmt::Debug for BackendOptions {
    /// Values of headers are often secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("BackendOptions")
            .field("address", &self.address)
            .field("insecure", &self.insecure)
            .field("token", &self.token)
            .field("headers", &headers)
            .finish_non_exhaustive()
    }
}

impl BackendOptions {
    /// The defaults for an address.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            insecure: false,
            token: None,
            headers: Vec::new(),
            ca_file: None,
            client_identity: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            compress: false,
            max_request_bytes: 16 << 20,
            sample_times: false,
        }
    }
}

impl BackendOptions {
    /// The backend, by whatever address it is given: `http://a:1`, `http://a:1/` and `a:1` without
    /// TLS are the same.
    ///
    /// # Errors
    /// [`BackendConfigError::Address`].
    pub fn backend(&self) -> Result<String, BackendConfigError> {
        url(self).map(String::from)
    }

    /// The URL of a server that is reached without TLS, directly.
    ///
    /// # Errors
    /// [`BackendConfigError::Address`] or [`BackendConfigError::Proxy`].
    pub(in crate::export) fn plain_url(&self) -> Result<Option<Url>, BackendConfigError> {
        let url = url(self)?;
        let is_direct = url.scheme() == "http" && proxy::for_url(&url)?.is_none();
        Ok(is_direct.then_some(url))
    }
}

fn read(what: SettingsFile, path: &PathBuf) -> Result<Vec<u8>, BackendConfigError> {
    fs::read(path).map_err(|source| BackendConfigError::File { what, path: path.clone(), source })
}

/// An address as messages show it: a user and a password in it are nobody's to see.
fn without_user(address: &str) -> String {
    let begin = address.find("://").map_or(0, |at| at + 3);
    match address.rfind('@') {
        Some(at) if at >= begin => format!("{}...{}", &address[..begin], &address[at..]),
        _ => address.to_owned(),
    }
}

/// The address as a URL with a scheme, a host and nothing behind the port.
fn url(options: &BackendOptions) -> Result<Url, BackendConfigError> {
    let address = options.address.trim();
    let wrong = || BackendConfigError::Address { address: without_user(&options.address) };
    let bare = !address.contains("://");
    let scheme = if options.insecure { "http" } else { "https" };
    let text = if bare { format!("{scheme}://{address}") } else { address.to_owned() };
    let url = Url::parse(&text).map_err(|_| wrong())?;
    let is_plain = matches!(url.scheme(), "http" | "https")
        && url.host_str().is_some_and(|host| !host.is_empty())
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    // Without a scheme the port is what distinguishes an address from any other word; the parser
    // hides a default port.
    let has_port = !bare || address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if is_plain && has_port { Ok(url) } else { Err(wrong()) }
}

/// A connection that is made when it is needed: directly, or through the proxy that the environment
/// names.
pub(in crate::export) fn channel(options: &BackendOptions) -> Result<Channel, BackendConfigError> {
    let (endpoint, url) = endpoint(options)?;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    // Pushes are seconds apart: a peer that vanished in between is found before a request is lost
    // to it. HTTP/2's own pings wait for a request, because servers of grpc-go take pings on an
    // idle connection for an attack.
    connector.set_keepalive(Some(Duration::from_secs(15)));
    connector.set_keepalive_interval(Some(Duration::from_secs(5)));
    connector.set_keepalive_retries(Some(3));
    match proxy::for_url(&url)? {
        Some(proxy) => {
            tracing::info!(address = %url, proxy = %proxy, "the backend is reached through a proxy");
            Ok(endpoint.connect_with_connector_lazy(proxy.tunnel(connector)))
        }
        None => Ok(endpoint.connect_with_connector_lazy(connector)),
    }
}

/// Returns the endpoint with its timeouts and TLS, and its URL.
fn endpoint(options: &BackendOptions) -> Result<(Endpoint, Url), BackendConfigError> {
    let url = url(options)?;
    let tls_error = |source| BackendConfigError::Tls { address: options.address.clone(), source };
    let endpoint = Endpoint::from_shared(url.as_str().to_owned())
        .and_then(|endpoint| endpoint.user_agent(concat!("jvmprof/", env!("CARGO_PKG_VERSION"))))
        .map_err(|_| BackendConfigError::Address { address: options.address.clone() })?
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10));
    // Without TLS, too: a wrong file is a mistake that nobody should find by chance.
    let authorities = options.ca_file.as_ref().map(certificate_authorities).transpose()?;
    if url.scheme() == "http" {
        warn_of_unencrypted_token(options, &url);
        return Ok((endpoint, url));
    }
    Ok((endpoint.tls_config(tls(options, authorities)?).map_err(tls_error)?, url))
}

/// Reads a file of certificates of authorities, which has at least one: without one every backend
/// would be refused, at the first push.
fn certificate_authorities(path: &PathBuf) -> Result<Certificate, BackendConfigError> {
    let pem = read(SettingsFile::CaCertificates, path)?;
    let has_certificate = CertificateDer::pem_slice_iter(&pem).next().is_some_and(|first| first.is_ok());
    if !has_certificate {
        return Err(BackendConfigError::NoCertificate { path: path.clone() });
    }
    Ok(Certificate::from_pem(pem))
}

fn tls(
    options: &BackendOptions,
    authorities: Option<Certificate>,
) -> Result<ClientTlsConfig, BackendConfigError> {
    let mut tls = ClientTlsConfig::new();
    tls = match authorities {
        Some(authorities) => tls.ca_certificate(authorities),
        None => tls.with_native_roots(),
    };
    if let Some((certificate, key)) = &options.client_identity {
        let certificate = read(SettingsFile::ClientCertificate, certificate)?;
        tls = tls.identity(Identity::from_pem(certificate, read(SettingsFile::ClientKey, key)?));
    }
    Ok(tls)
}

fn warn_of_unencrypted_token(options: &BackendOptions, url: &Url) {
    let is_local = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    if options.token.is_some() && !is_local {
        tracing::warn!(address = %url, "the bearer token is sent without TLS");
    }
}

/// The headers that are the same for every request.
pub(in crate::export) fn headers(options: &BackendOptions) -> Result<MetadataMap, BackendConfigError> {
    let mut headers = MetadataMap::new();
    for (name, value) in &options.headers {
        let (key, value) = header(name, value)?;
        headers.append(key, value);
    }
    Ok(headers)
}

fn header(name: &str, value: &str) -> Result<(MetadataKey<Ascii>, MetadataValue<Ascii>), BackendConfigError> {
    let key = MetadataKey::<Ascii>::from_str(&name.to_ascii_lowercase())
        .map_err(|source| BackendConfigError::HeaderName { name: name.to_owned(), source })?;
    let value = MetadataValue::try_from(value)
        .map_err(|source| BackendConfigError::HeaderValue { name: name.to_owned(), source })?;
    Ok((key, value))
}

/// Returns true if this can be a header of a request.
///
/// # Errors
/// [`BackendConfigError::HeaderName`] or [`BackendConfigError::HeaderValue`].
pub fn check_header(name: &str, value: &str) -> Result<(), BackendConfigError> {
    header(name, value).map(|_| ())
}

/// The `authorization` header as of now.
pub(in crate::export) fn token(
    options: &BackendOptions,
) -> Result<Option<MetadataValue<Ascii>>, BackendConfigError> {
    let token =
        match &options.token {
            None => return Ok(None),
            Some(Token::Literal(token)) => token.clone(),
            Some(Token::File(path)) => fs::read_to_string(path).map_err(|source| {
                BackendConfigError::File { what: SettingsFile::BearerToken, path: path.clone(), source }
            })?,
        };
    let mut value = MetadataValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|source| BackendConfigError::Token { source })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(address: &str, insecure: bool) -> Result<String, String> {
        let options = BackendOptions { insecure, ..BackendOptions::new(address) };
        url(&options).map(|url| url.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_are_urls_or_host_and_port() {
        for (given, insecure, meant) in [
            ("http://127.0.0.1:7070", false, "http://127.0.0.1:7070/"),
            ("http://parca", false, "http://parca/"),
            ("https://grpc.example.com:443", true, "https://grpc.example.com/"),
            ("grpc.example.com:443", false, "https://grpc.example.com/"),
            ("parca.parca.svc:7070", true, "http://parca.parca.svc:7070/"),
            ("[::1]:7070", true, "http://[::1]:7070/"),
            (" 127.0.0.1:7070 ", true, "http://127.0.0.1:7070/"),
        ] {
            assert_eq!(address(given, insecure).as_deref(), Ok(meant));
        }
    }

    #[test]
    fn a_password_is_refused_and_not_shown() {
        for wrong in ["http://me:secret@parca:7070", "me:secret@parca:7070"] {
            let said = address(wrong, false).expect_err(wrong);
            assert!(!said.contains("secret") && said.contains("...@parca:7070"), "{said}");
        }
    }

    #[test]
    fn other_addresses_are_refused_with_their_text() {
        for given in
            ["", "parca", "ftp://parca:1", "http://", "http://a:70000", "http://a:1/api", "a:b:c", ":7070"]
        {
            let error = address(given, true).unwrap_err();
            assert!(error.contains(&format!("{given:?}")), "{given}: {error}");
        }
    }

    #[test]
    fn headers_that_cannot_be_sent_are_named() {
        let with = |name: &str, value: &str| {
            let mut options = BackendOptions::new("http://a:1");
            options.headers.push((name.to_owned(), value.to_owned()));
            headers(&options).map_err(|error| error.to_string())
        };
        assert_eq!(with("ProjectID", "42").unwrap().get("projectid").unwrap(), "42");
        assert!(with("a b", "42").unwrap_err().contains("\"a b\""));
        assert!(with("key", "secret\n").unwrap_err().contains("\"key\""));
        assert!(!with("key", "secret\n").unwrap_err().contains("secret"));
    }

    #[test]
    fn a_token_is_taken_from_its_file_as_it_is_now_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options =
            BackendOptions { token: Some(Token::File(file.path().to_owned())), ..BackendOptions::new("a:1") };
        for text in ["first\n", "second"] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(token(&options).unwrap().unwrap(), format!("Bearer {}", text.trim()).as_str());
        }
        let options = BackendOptions {
            token: Some(Token::Literal("hunter2".to_owned())),
            headers: vec![("projectid".to_owned(), "hunter2".to_owned())],
            ..BackendOptions::new("a:1")
        };
        assert!(!format!("{options:?}").contains("hunter2"));
        let missing =
            BackendOptions { token: Some(Token::File("/nowhere".into())), ..BackendOptions::new("a:1") };
        assert!(token(&missing).unwrap_err().to_string().starts_with("reading the bearer token /nowhere: "));
    }
}
