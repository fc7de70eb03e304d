//! The client against real servers: good ones, slow ones, broken ones.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};

use super::scripted_server::{ScriptedAnswer, ScriptedServer, serve};
use super::*;
use crate::export::collector::{self, CollectorService};
use crate::export::push::Token;
use crate::export::push::push_request::requests;
use crate::export::store::{Store, StoreOptions, TimeRange};
use crate::profile::model::{Batch, FrameKind};
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::testing::{batch, frame, series};
use crate::proto::profilestore::profile_store_service_server::ProfileStoreServiceServer;

fn options(address: SocketAddr) -> BackendOptions {
    BackendOptions::new(format!("http://{address}"))
}

fn client(address: SocketAddr) -> ParcaClient {
    ParcaClient::new(options(address)).unwrap()
}

/// A client that waits no longer than this for an answer.
fn impatient(address: SocketAddr, request_timeout: Duration) -> ParcaClient {
    ParcaClient::new(BackendOptions { request_timeout, ..options(address) }).unwrap()
}

/// Sends each request of a batch, and returns the outcomes.
async fn push(client: &ParcaClient, batch: &Batch) -> Vec<PushOutcome> {
    let mut outcomes = Vec::new();
    for request in client.requests(batch).unwrap() {
        outcomes.push(client.send(&request).await);
    }
    outcomes
}

fn small_batch() -> Batch {
    let stack = |count| vec![(vec![frame(FrameKind::Native, "main")], count)];
    batch(vec![
        series(&[("pid", "1")], stack(3)),
        series(&[("pid", "2")], stack(4)),
        series(&[("pid", "3")], vec![]),
    ])
}

#[tokio::test]
async fn what_is_pushed_is_what_the_collector_stores() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = collector::routes(Arc::new(CollectorService::new(Arc::clone(&store))));
    tokio::spawn(collector::serve(listener, router, std::future::pending()));

    for compress in [false, true] {
        let client = ParcaClient::new(BackendOptions { compress, ..options(address) }).unwrap();
        assert_eq!(push(&client, &small_batch()).await, [PushOutcome::Stored], "compress: {compress}");
    }
    let found = store.series(TimeRange::ALL, &[]);
    let found: Vec<_> = found
        .iter()
        .map(|series| (&series.labels["__name__"][..], &series.labels["pid"][..], series.samples))
        .collect();
    assert_eq!(found, [("process_cpu", "1", 6), ("process_cpu", "2", 8)], "each of the two requests");
}

#[tokio::test]
async fn no_answer_in_time_is_possibly_lost() {
    let scripted = ScriptedServer::new(&[ScriptedAnswer::Hang]);
    // Long enough for the answer to the second.
    let client = impatient(serve(&scripted).await, Duration::from_secs(2));
    let outcomes = push(&client, &small_batch()).await;
    assert!(matches!(outcomes[..], [PushOutcome::PossiblyLost { .. }]), "{outcomes:?}");
    assert_eq!(scripted.requests(), 1);
    assert_eq!(push(&client, &small_batch()).await, [PushOutcome::Stored], "the next batch goes through");
}

/// Reads what a client of HTTP/2 sends until it has sent data: a request.
async fn read_request(stream: &mut TcpStream) {
    /// `PRI * HTTP/2.0` and what belongs to it.
    const PREFACE_BYTES: usize = 24;
    const FRAME_HEAD_BYTES: usize = 9;
    const DATA: u8 = 0;
    let (mut received, mut at) = (Vec::<u8>::new(), PREFACE_BYTES);
    loop {
        while let Some(head) = received.get(at..at + FRAME_HEAD_BYTES) {
            if head[3] == DATA {
                return;
            }
            at += FRAME_HEAD_BYTES + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        }
        let more = stream.read_buf(&mut received).await.unwrap();
        assert_ne!(more, 0, "the client hung up before it sent data: {received:?}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_with_the_request_on_it_is_possibly_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            *counted.lock().unwrap() += 1;
            // An empty SETTINGS frame makes us an HTTP/2 server; then the request comes, and the
            // end.
            tokio::io::AsyncWriteExt::write_all(&mut stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            read_request(&mut stream).await;
        }
    });
    let outcomes = push(&client(address), &small_batch()).await;
    assert!(matches!(outcomes[..], [PushOutcome::PossiblyLost { .. }]), "{outcomes:?}");
    assert_eq!(*connections.lock().unwrap(), 1, "not sent again");
}

#[tokio::test]
async fn nobody_at_the_address_is_certain_and_says_why() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = client(address);
    let outcomes = push(&client, &small_batch()).await;
    let [PushOutcome::NotStored { message, .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(message.contains("Connection refused"), "{message}");

    // And when somebody is there, the same client finds it.
    let listener = TcpListener::bind(address).await.unwrap();
    let service = ProfileStoreServiceServer::new(ScriptedServer::default());
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
    );
    assert_eq!(client.probe().await, PushOutcome::Stored);
    assert_eq!(push(&client, &small_batch()).await, [PushOutcome::Stored]);
}

#[tokio::test]
async fn a_large_batch_is_sent_in_parts() {
    let scripted = ScriptedServer::default();
    let frames =
        |pid: u32| (0..50).map(|at| frame(FrameKind::Native, &format!("function_{at}_of_{pid}"))).collect();
    let all = (0..100).map(|pid| series(&[("pid", &pid.to_string())], vec![(frames(pid), 1)])).collect();
    let made = requests(&batch(all), 20_000).unwrap();
    assert!(made.len() > 1 && made.iter().all(|request| request.bytes() <= 20_000));
    assert_eq!(made.iter().map(|request| request.samples).sum::<u64>(), 100);
    let client = client(serve(&scripted).await);
    for request in &made {
        assert_eq!(client.send(request).await, PushOutcome::Stored);
    }
    let pids = scripted.seen.lock().unwrap().iter().map(|(_, message)| message.series.len()).sum::<usize>();
    assert_eq!(pids, 100);
}

#[tokio::test]
async fn times_of_samples_go_only_to_who_reads_them() {
    let mut batch = small_batch();
    batch.series[0].samples[0].times = vec![20];
    let comments = |sample_times| {
        let options = BackendOptions { sample_times, insecure: true, ..BackendOptions::new("127.0.0.1:1") };
        let requests = ParcaClient::new(options).unwrap().requests(&batch).unwrap();
        let profile = &requests[0].all_series()[0].samples[0].raw_profile;
        decode(profile, DecodeLimits::default()).unwrap().comment.len()
    };
    assert_eq!([false, true].map(comments), [0, 1]);
}

/// A server with a certificate that nobody knows.
fn tls_identity() -> Identity {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    Identity::from_pem(made.cert.pem(), made.signing_key.serialize_pem())
}

#[tokio::test]
async fn who_speaks_tls_alone_is_told_what_to_write() {
    let plain = ScriptedServer::default();
    let address = serve(&plain).await;
    let client_of = |address: String| ParcaClient::new(BackendOptions::new(address)).unwrap();
    let PushOutcome::NotStored { message, .. } = client_of(address.to_string()).probe().await else {
        panic!("a server without TLS stored something");
    };
    assert!(message.contains("the server doesn't speak TLS: write the address as http://"), "{message}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = ProfileStoreServiceServer::new(ScriptedServer::default());
    let mut server = Server::builder().tls_config(ServerTlsConfig::new().identity(tls_identity())).unwrap();
    tokio::spawn(server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
    let outcome = client_of(format!("http://localhost:{port}")).probe().await;
    let PushOutcome::NotStored { message, .. } = outcome else { panic!("{outcome:?}") };
    assert!(message.contains("the server speaks TLS only: write the address as https://"), "{message}");
}

#[tokio::test]
async fn token_and_headers_go_with_every_request_over_tls_that_trusts_the_given_ca() {
    let mut ca_params = rcgen::CertificateParams::new(vec![]).unwrap();
    ca_params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca_pem = ca_params.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca_params, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();

    let scripted = ScriptedServer::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
    let service = ProfileStoreServiceServer::new(scripted.clone());
    let mut server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
    tokio::spawn(server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));

    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("ca.pem");
    std::fs::write(&ca_file, ca_pem).unwrap();
    let trusting = BackendOptions {
        ca_file: Some(ca_file),
        token: Some(Token::Literal("secret".to_owned())),
        headers: vec![("projectid".to_owned(), "42".to_owned())],
        request_timeout: Duration::from_secs(5),
        ..BackendOptions::new(format!("localhost:{port}"))
    };
    let client = ParcaClient::new(trusting.clone()).unwrap();
    assert_eq!(push(&client, &small_batch()).await, [PushOutcome::Stored]);
    let (metadata, _) = scripted.seen.lock().unwrap().remove(0);
    assert_eq!(metadata.get("authorization").unwrap(), "Bearer secret");
    assert_eq!(metadata.get("projectid").unwrap(), "42");
    assert!(metadata.get("user-agent").unwrap().to_str().unwrap().starts_with("jvmprof/"));

    let distrusting = BackendOptions { ca_file: None, ..trusting };
    let outcomes = push(&ParcaClient::new(distrusting).unwrap(), &small_batch()).await;
    let [PushOutcome::NotStored { message, .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(message.contains("certificate"), "{message}");
}

#[tokio::test]
async fn options_that_cannot_work_are_errors_before_anything_is_sent() {
    let missing = BackendOptions { ca_file: Some("/nowhere/ca.pem".into()), ..BackendOptions::new("a:443") };
    let error = ParcaClient::new(missing).unwrap_err().to_string();
    assert!(error.starts_with("reading the CA certificates /nowhere/ca.pem: "), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "no certificate").unwrap();
    for address in ["a:443", "http://a:80"] {
        let empty = BackendOptions { ca_file: Some(file.path().to_owned()), ..BackendOptions::new(address) };
        let error = ParcaClient::new(empty).unwrap_err().to_string();
        let named = format!("reading the CA certificates {}: there is no certificate", file.path().display());
        assert!(error.starts_with(&named), "{error}");
    }
    assert!(ParcaClient::new(BackendOptions::new("nonsense")).is_err());
}

#[tokio::test]
async fn a_dead_address_costs_no_more_than_its_timeout() {
    // A listener whose queue is never taken from: connecting works, nothing else happens.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let started = Instant::now();
    let client = impatient(listener.local_addr().unwrap(), Duration::from_millis(300));
    let outcomes = push(&client, &small_batch()).await;
    assert!(!matches!(outcomes[..], [PushOutcome::Stored]));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?} {outcomes:?}", started.elapsed());
}
