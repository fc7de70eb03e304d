//! TLS in front of a listener. The certificate is read again while it is served: authorities of
//! clusters replace theirs every few weeks.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// A certificate and a key that can't be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading the certificate {}: {source}", path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("{} has no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("reading the key {}: {source}", path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("serving the certificate {} with the key {}: {source}", certificate.display(), key.display())]
    Unfit { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("setting up TLS: {0}")]
    Setup(rustls::Error),
}

/// A certificate with its chain, and its key, from PEM files.
pub struct ServerCertificate {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    failed_handshakes: AtomicU64,
}

impl ServerCertificate {
    /// Reads both files.
    ///
    /// # Errors
    /// A file can't be read, or the key isn't the certificate's.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(read(certificate, key)?));
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self { certificate, key, current, failed_handshakes: AtomicU64::new(0) })
    }

    /// Reads both files again. Connections from now on get what is there.
    ///
    /// # Errors
    /// As [`ServerCertificate::read`]; what was there before is served on.
    pub fn reload(&self) -> Result<(), TlsError> {
        let new = Arc::new(read(&self.certificate, &self.key)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Returns the handshakes that failed since the last call: clients that don't trust the
    /// certificate, that don't speak TLS, or that speak other versions of it. Who only looks
    /// whether the port is open doesn't count.
    pub fn take_failed_handshakes(&self) -> u64 {
        self.failed_handshakes.swap(0, Ordering::Relaxed)
    }
}

impl fmt::Debug for ServerCertificate {
    /// Keys don't belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificate").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let unreadable = |source| TlsError::Certificate { path: certificate.to_owned(), source };
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect).map_err(unreadable)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: certificate.to_owned() });
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Key { path: key.to_owned(), source })?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|source| TlsError::Unfit {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })
}

fn provider() -> CryptoProvider {
    ring::default_provider()
}

/// Accepts connections that speak TLS 1.2 or 1.3.
pub struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    certificate: Arc<ServerCertificate>,
}

impl TlsListener {
    /// # Errors
    /// rustls refuses its own defaults.
    pub fn new(tcp: TcpListener, certificate: Arc<ServerCertificate>) -> Result<Self, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<ServerCertificate>::clone(&certificate));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { tcp, acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl Listener for TlsListener {
    type Io = TlsConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TlsConnection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.tcp).await;
        let certificate = Arc::clone(&self.certificate);
        (TlsConnection::Handshake(Box::new(self.acceptor.accept(stream)), certificate), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// A connection that makes its handshake when it is first read: by its own task, so that a client
/// that takes its time for it holds nobody up, and within the limits of any connection.
pub enum TlsConnection {
    Handshake(Box<Accept<TcpStream>>, Arc<ServerCertificate>),
    Open(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Failed,
}

impl fmt::Debug for TlsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handshake(..) => "Handshake",
            Self::Open(_) => "Open",
            Self::Failed => "Failed",
        })
    }
}

impl TlsConnection {
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let Self::Handshake(accept, certificate) = self {
            let accepted = ready!(Pin::new(accept.as_mut()).poll(context));
            if accepted.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::UnexpectedEof) {
                certificate.failed_handshakes.fetch_add(1, Ordering::Relaxed);
            }
            *self = Self::Failed;
            *self = Self::Open(Box::new(accepted?));
        }
        match self {
            Self::Open(stream) => Poll::Ready(Ok(Pin::new(stream.as_mut()))),
            Self::Handshake(..) | Self::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.as_mut().get_mut() {
            // Nothing was said yet that had to be ended.
            Self::Handshake(..) | Self::Failed => Poll::Ready(Ok(())),
            Self::Open(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
