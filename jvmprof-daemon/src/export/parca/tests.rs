//! The client against real servers: good ones, slow ones, broken ones.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Response, Status, Streaming};

use super::*;
use crate::export::collector::{self, Collector};
use crate::export::store::{Store, StoreOptions, TimeRange};
use crate::profile::model::FrameKind;
use crate::profile::testing::{batch, frame, series};
use crate::proto::profilestore::profile_store_service_server::{
    ProfileStoreService, ProfileStoreServiceServer,
};
use crate::proto::profilestore::{
    WriteArrowRequest, WriteArrowResponse, WriteRawRequest, WriteRawResponse, WriteRequest, WriteResponse,
};

/// What a server does with the next request.
#[derive(Clone)]
enum Step {
    Answer(Code, &'static str),
    Hang,
}

/// A server that follows a script and takes everything after its end.
#[derive(Clone, Default)]
struct Scripted {
    steps: Arc<Mutex<VecDeque<Step>>>,
    seen: Arc<Mutex<Vec<(MetadataMap, WriteRawRequest)>>>,
}

impl Scripted {
    fn new(steps: &[Step]) -> Self {
        Self { steps: Arc::new(Mutex::new(steps.iter().cloned().collect())), ..Self::default() }
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

#[tonic::async_trait]
impl ProfileStoreService for Scripted {
    async fn write_raw(
        &self,
        request: tonic::Request<WriteRawRequest>,
    ) -> Result<Response<WriteRawResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        self.seen.lock().unwrap().push((metadata, message));
        let step = self.steps.lock().unwrap().pop_front();
        match step {
            None => Ok(Response::new(WriteRawResponse {})),
            Some(Step::Answer(code, message)) => Err(Status::new(code, message)),
            Some(Step::Hang) => std::future::pending().await,
        }
    }

    type WriteStream = tokio_stream::Empty<Result<WriteResponse, Status>>;

    async fn write(
        &self,
        _: tonic::Request<Streaming<WriteRequest>>,
    ) -> Result<Response<Self::WriteStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn write_arrow(
        &self,
        _: tonic::Request<WriteArrowRequest>,
    ) -> Result<Response<WriteArrowResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

async fn serve(scripted: &Scripted) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = ProfileStoreServiceServer::new(scripted.clone());
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
    );
    address
}

fn options(address: SocketAddr) -> ParcaOptions {
    ParcaOptions {
        attempts: 3,
        first_delay: Duration::from_millis(10),
        request_timeout: Duration::from_millis(300),
        ..ParcaOptions::new(format!("http://{address}"))
    }
}

fn client(address: SocketAddr) -> ParcaClient {
    ParcaClient::new(options(address)).unwrap()
}

fn small_batch() -> Arc<Batch> {
    let stack = |count| vec![(vec![frame(FrameKind::Native, "main")], count)];
    Arc::new(batch(vec![
        series(&[("pid", "1")], stack(3)),
        series(&[("pid", "2")], stack(4)),
        series(&[("pid", "3")], vec![]),
    ]))
}

/// The outcome of the only request, and how often it was tried.
fn only(report: &Report) -> (&Outcome, u32) {
    assert_eq!(report.requests.len(), 1);
    (&report.requests[0].outcome, report.requests[0].attempts)
}

#[tokio::test]
async fn what_is_pushed_is_what_the_collector_stores() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = collector::routes(Arc::new(Collector::new(Arc::clone(&store))));
    tokio::spawn(collector::serve(listener, router, std::future::pending()));

    let report = client(address).push(small_batch()).await;
    assert_eq!(only(&report), (&Outcome::Stored, 1));
    assert_eq!((report.requests[0].series, report.totals().stored_samples), (2, 7));
    let found = store.series(TimeRange::ALL, &[]);
    let found: Vec<_> = found
        .iter()
        .map(|series| (&series.labels["__name__"][..], &series.labels["pid"][..], series.samples))
        .collect();
    assert_eq!(found, [("process_cpu", "1", 3), ("process_cpu", "2", 4)]);
}

#[tokio::test]
async fn a_server_without_room_is_asked_again_until_it_has_some() {
    let scripted = Scripted::new(&[
        Step::Answer(Code::ResourceExhausted, "slow down"),
        Step::Answer(Code::ResourceExhausted, "slow down"),
    ]);
    let report = client(serve(&scripted).await).push(small_batch()).await;
    assert_eq!(only(&report), (&Outcome::Stored, 3));
    assert_eq!(report.totals().retries, 2);
}

#[tokio::test]
async fn asking_again_has_an_end() {
    let scripted = Scripted::new(&vec![Step::Answer(Code::ResourceExhausted, "slow down"); 9]);
    let report = client(serve(&scripted).await).push(small_batch()).await;
    let message = "ResourceExhausted: slow down".to_owned();
    assert_eq!(only(&report), (&Outcome::Unreachable { message }, 3));
    assert_eq!(scripted.requests(), 3);
}

#[tokio::test]
async fn a_refusal_is_not_repeated() {
    let scripted = Scripted::new(&[Step::Answer(Code::InvalidArgument, "bad label")]);
    let report = client(serve(&scripted).await).push(small_batch()).await;
    let refused = Outcome::Refused { code: Code::InvalidArgument, message: "bad label".to_owned() };
    assert_eq!(only(&report), (&refused, 1));
    assert_eq!(scripted.requests(), 1);
}

#[tokio::test]
async fn an_answer_that_leaves_it_open_is_not_repeated() {
    for code in [Code::Unknown, Code::Unavailable, Code::Internal, Code::DeadlineExceeded] {
        let scripted = Scripted::new(&[Step::Answer(code, "storage")]);
        let report = client(serve(&scripted).await).push(small_batch()).await;
        let lost = Outcome::PossiblyLost { code, message: "storage".to_owned() };
        assert_eq!(only(&report), (&lost, 1));
        assert_eq!((scripted.requests(), report.totals().possibly_lost_samples), (1, 7));
    }
}

#[tokio::test]
async fn no_answer_in_time_is_possibly_lost() {
    let scripted = Scripted::new(&[Step::Hang]);
    let client = client(serve(&scripted).await);
    let report = client.push(small_batch()).await;
    assert!(matches!(only(&report), (Outcome::PossiblyLost { .. }, 1)), "{report:?}");
    assert_eq!(scripted.requests(), 1);
    assert!(client.push(small_batch()).await.is_stored(), "the next batch goes through");
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
            // An empty SETTINGS frame makes us an HTTP/2 server; then the request comes, and the end.
            tokio::io::AsyncWriteExt::write_all(&mut stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut buffer = vec![0; 1 << 16];
            let _ = stream.read(&mut buffer).await;
        }
    });
    let report = client(address).push(small_batch()).await;
    assert!(matches!(only(&report), (Outcome::PossiblyLost { .. }, 1)), "{report:?}");
    assert_eq!(*connections.lock().unwrap(), 1, "not sent again");
}

#[tokio::test]
async fn nobody_at_the_address_is_unreachable_and_says_why() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let report = client(address).push(small_batch()).await;
    let (Outcome::Unreachable { message }, 3) = only(&report) else { panic!("{report:?}") };
    assert!(message.contains("Connection refused"), "{message}");
    assert_eq!(report.totals().unreachable_samples, 7);

    // And when somebody is there, the same client finds it.
    let listener = TcpListener::bind(address).await.unwrap();
    let service = ProfileStoreServiceServer::new(Scripted::default());
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let client = client(address);
    assert!(client.push(small_batch()).await.is_stored());
}

#[tokio::test]
async fn after_an_unreachable_request_the_rest_of_the_batch_is_not_tried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let one_each = ParcaOptions { max_request_bytes: 1, ..options(address) };
    let report = ParcaClient::new(one_each).unwrap().push(small_batch()).await;
    let attempts: Vec<_> = report.requests.iter().map(|sent| sent.attempts).collect();
    assert_eq!(attempts, [3, 0]);
    assert_eq!(report.totals().unreachable_samples, 7);
}

#[tokio::test]
async fn a_large_batch_is_sent_in_parts() {
    let scripted = Scripted::default();
    let frames =
        |pid: u32| (0..50).map(|at| frame(FrameKind::Native, &format!("function_{at}_of_{pid}"))).collect();
    let all = (0..100).map(|pid| series(&[("pid", &pid.to_string())], vec![(frames(pid), 1)])).collect();
    let options = ParcaOptions { max_request_bytes: 20_000, ..options(serve(&scripted).await) };
    let report = ParcaClient::new(options).unwrap().push(Arc::new(batch(all))).await;
    assert!(report.is_stored());
    assert!(
        report.requests.len() > 1 && report.requests.iter().all(|sent| sent.bytes <= 20_000),
        "{report:?}"
    );
    assert_eq!(report.totals().stored_samples, 100);
    let pids = scripted.seen.lock().unwrap().iter().map(|(_, message)| message.series.len()).sum::<usize>();
    assert_eq!(pids, 100);
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

    let scripted = Scripted::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
    let service = ProfileStoreServiceServer::new(scripted.clone());
    let mut server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
    tokio::spawn(server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));

    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("ca.pem");
    std::fs::write(&ca_file, ca_pem).unwrap();
    let trusting = ParcaOptions {
        ca_file: Some(ca_file),
        token: Some(Token::Literal("secret".to_owned())),
        headers: vec![("projectid".to_owned(), "42".to_owned())],
        attempts: 1,
        request_timeout: Duration::from_secs(5),
        ..ParcaOptions::new(format!("localhost:{port}"))
    };
    let report = ParcaClient::new(trusting.clone()).unwrap().push(small_batch()).await;
    assert!(report.is_stored(), "{report:?}");
    let (metadata, _) = scripted.seen.lock().unwrap().remove(0);
    assert_eq!(metadata.get("authorization").unwrap(), "Bearer secret");
    assert_eq!(metadata.get("projectid").unwrap(), "42");
    assert!(metadata.get("user-agent").unwrap().to_str().unwrap().starts_with("jvmprof/"));

    let distrusting = ParcaOptions { ca_file: None, ..trusting };
    let report = ParcaClient::new(distrusting).unwrap().push(small_batch()).await;
    let (Outcome::Unreachable { message }, 1) = only(&report) else { panic!("{report:?}") };
    assert!(message.contains("certificate"), "{message}");
}

#[tokio::test]
async fn options_that_cannot_work_are_errors_before_anything_is_sent() {
    let missing = ParcaOptions { ca_file: Some("/nowhere/ca.pem".into()), ..ParcaOptions::new("a:443") };
    let error = ParcaClient::new(missing).unwrap_err().to_string();
    assert!(error.starts_with("reading the CA certificates /nowhere/ca.pem: "), "{error}");
    assert!(ParcaClient::new(ParcaOptions::new("nonsense")).is_err());
}

#[tokio::test]
async fn a_dead_address_costs_no_more_than_its_timeout() {
    // A listener whose queue is never taken from: connecting works, nothing else happens.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let started = Instant::now();
    let report = client(listener.local_addr().unwrap()).push(small_batch()).await;
    assert!(!report.is_stored());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?} {report:?}", started.elapsed());
}
