//! TLS, by clients over real sockets.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use axum::routing::get;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::tls::{ServerCertificate, TlsError, TlsListener};
use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Writes a certificate for localhost and its key.
fn make(dir: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    fs::write(dir.join("tls.crt"), made.cert.pem()).expect("written");
    fs::write(dir.join("tls.key"), made.signing_key.serialize_pem()).expect("written");
}

fn read(dir: &Path) -> Result<ServerCertificate, TlsError> {
    ServerCertificate::read(&dir.join("tls.crt"), &dir.join("tls.key"))
}

async fn start(certificate: Arc<ServerCertificate>, limits: ListenerLimits) -> SocketAddr {
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = tcp.local_addr().expect("bound");
    let listener = TlsListener::new(tcp, certificate).expect("TLS");
    let router = Router::new().route("/", get(|| async { "hello" }));
    tokio::spawn(serve(listener, router, limits, Arc::default(), std::future::pending()));
    address
}

/// Asks a server whose certificate is the one in this folder, and returns its answer.
async fn ask(address: SocketAddr, dir: &Path) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("tls.crt")).expect("PEM")).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(GET).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn who_is_slow_or_speaks_no_tls_holds_nobody_up() {
    let dir = tempfile::tempdir().expect("a folder");
    make(dir.path());
    let certificate = Arc::new(read(dir.path()).expect("a certificate"));
    let header_time = Duration::from_secs(5);
    let idle_time = Duration::from_secs(600);
    let limits = ListenerLimits { header_time, idle_time, ..ListenerLimits::default() };
    let address = start(Arc::clone(&certificate), limits).await;
    let mut silent = TcpStream::connect(address).await.expect("it listens");
    let mut plain = TcpStream::connect(address).await.expect("it listens");
    plain.write_all(GET).await.expect("sent");
    let answer = ask(address, dir.path()).await.expect("an answer");
    assert!(answer.ends_with("hello"), "{answer}");
    let mut nothing = Vec::new();
    let _ = plain.read_to_end(&mut nothing).await;
    assert!(!String::from_utf8_lossy(&nothing).contains("hello"));
    assert_eq!(certificate.take_failed_handshakes(), 1, "who is silent hasn't failed yet");
    // The handshake has the time that headers have.
    let closed = tokio::time::timeout(Duration::from_secs(60), silent.read_to_end(&mut nothing)).await;
    // Closed, or reset.
    let _ = closed.expect("long before its idle time is over");
}

#[tokio::test]
async fn a_renewed_certificate_is_served_and_a_bad_one_is_not() {
    let [old, new] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    make(old.path());
    make(new.path());
    let served = tempfile::tempdir().expect("a folder");
    let put = |from: &Path, names: &[&str]| {
        for name in names {
            fs::copy(from.join(name), served.path().join(name)).expect("copied");
        }
    };
    put(old.path(), &["tls.crt", "tls.key"]);
    let certificate = Arc::new(read(served.path()).expect("a certificate"));
    let address = start(Arc::clone(&certificate), ListenerLimits::default()).await;
    ask(address, old.path()).await.expect("trusted");

    put(new.path(), &["tls.crt"]);
    let error = certificate.reload().expect_err("the key is another's");
    assert!(matches!(error, TlsError::Unfit { .. }), "{error}");
    ask(address, old.path()).await.expect("still the old one");

    put(new.path(), &["tls.key"]);
    certificate.reload().expect("both are new");
    ask(address, new.path()).await.expect("trusted");
    ask(address, old.path()).await.expect_err("another certificate");
}

#[test]
fn files_that_cannot_be_served_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let error = read(dir.path()).expect_err("no files").to_string();
    assert!(error.starts_with("reading the certificate ") && error.contains("tls.crt"), "{error}");
    make(dir.path());
    fs::write(dir.path().join("tls.key"), "no key").expect("written");
    let error = read(dir.path()).expect_err("no key").to_string();
    assert!(error.starts_with("reading the key ") && error.contains("tls.key"), "{error}");
    fs::write(dir.path().join("tls.crt"), "nothing").expect("written");
    assert!(matches!(read(dir.path()), Err(TlsError::NoCertificate { .. })));
}
