//! Container runtimes with all kinds of answers, over real sockets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::Pin;
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::proto::cri;
use crate::proto::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};

const ID: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const POD: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

/// A runtime with one pod of one container, which it lists once `known` is true.
#[derive(Clone, Default)]
struct FakeRuntime {
    known: Arc<Mutex<bool>>,
    annotation: String,
    hangs: bool,
}

type CriResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> CriResult<cri::ListContainersResponse> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let filter = request.into_inner().filter.unwrap_or_default();
        let is_known = *self.known.lock().expect("nobody panicked") && filter.id == ID;
        let container = cri::Container {
            id: ID.to_owned(),
            pod_sandbox_id: POD.to_owned(),
            metadata: Some(cri::ContainerMetadata { name: "app".to_owned(), attempt: 1 }),
            image: Some(cri::ImageSpec {
                image: "sha256:12".to_owned(),
                user_specified_image: "shop:1".to_owned(),
            }),
            ..cri::Container::default()
        };
        Ok(Response::new(cri::ListContainersResponse {
            containers: is_known.then_some(container).into_iter().collect(),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> CriResult<cri::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let labels = [("app", "cart"), ("app.kubernetes.io/name", "shop"), ("secret", "x")];
        let pod = cri::PodSandbox {
            id: POD.to_owned(),
            metadata: Some(cri::PodSandboxMetadata {
                name: "cart-0".to_owned(),
                uid: "1-2-3".to_owned(),
                namespace: "shop".to_owned(),
                attempt: 0,
            }),
            labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            annotations: [("note".to_owned(), self.annotation.clone())].into(),
        };
        Ok(Response::new(cri::ListPodSandboxResponse {
            items: (filter.id == POD).then_some(pod).into_iter().collect(),
        }))
    }

    async fn version(&self, _: Request<cri::VersionRequest>) -> CriResult<cri::VersionResponse> {
        Err(Status::unimplemented("not asked here"))
    }
    async fn run_pod_sandbox(
        &self,
        _: Request<cri::RunPodSandboxRequest>,
    ) -> CriResult<cri::RunPodSandboxResponse> {
        Err(Status::unimplemented("not asked here"))
    }
    async fn stop_pod_sandbox(
        &self,
        _: Request<cri::StopPodSandboxRequest>,
    ) -> CriResult<cri::StopPodSandboxResponse> {
        Err(Status::unimplemented("not asked here"))
    }
    async fn remove_pod_sandbox(
        &self,
        _: Request<cri::RemovePodSandboxRequest>,
    ) -> CriResult<cri::RemovePodSandboxResponse> {
        Err(Status::unimplemented("not asked here"))
    }
    async fn create_container(
        &self,
        _: Request<cri::CreateContainerRequest>,
    ) -> CriResult<cri::CreateContainerResponse> {
        Err(Status::unimplemented("not asked here"))
    }
    async fn start_container(
        &self,
        _: Request<cri::StartContainerRequest>,
    ) -> CriResult<cri::StartContainerResponse> {
        Err(Status::unimplemented("not asked here"))
    }
    async fn stop_container(
        &self,
        _: Request<cri::StopContainerRequest>,
    ) -> CriResult<cri::StopContainerResponse> {
        Err(Status::unimplemented("not asked here"))
    }
}

/// A server that ends with this value.
struct ServerGuard(Option<oneshot::Sender<()>>, Option<JoinHandle<()>>);

impl Drop for ServerGuard {
    fn drop(&mut self) {
        drop(self.0.take());
        self.1.take().map(JoinHandle::join);
    }
}

fn serve(fake: &FakeRuntime, socket: &Path) -> ServerGuard {
    let listener = UnixListener::bind(socket).expect("the folder is writable");
    listener.set_nonblocking(true).expect("a socket");
    let (end, ended) = oneshot::channel::<()>();
    let service = RuntimeServiceServer::new(fake.clone());
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let incoming =
                UnixListenerStream::new(tokio::net::UnixListener::from_std(listener).expect("a listener"));
            let server =
                tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
            let server: Pin<Box<dyn Future<Output = _>>> = Box::pin(server);
            // Without waiting for calls that hang.
            tokio::select! { _ = server => {}, _ = ended => {} }
        });
    });
    ServerGuard(Some(end), Some(thread))
}

fn options(socket: &Path) -> ContainersOptions {
    ContainersOptions {
        sockets: vec![socket.to_owned()],
        pod_labels: ["app".to_owned(), "app.kubernetes.io/*".to_owned()].into(),
        pod_annotations: ["note".to_owned()].into(),
        // Nothing here depends on it.
        wait: Duration::from_secs(600),
        timeout: Duration::from_secs(60),
    }
}

/// Queries until the answer fits.
fn until(containers: &Containers, id: &str, mut fits: impl FnMut(&MetadataLookup) -> bool) -> MetadataLookup {
    let started = Instant::now();
    loop {
        let lookup = containers.lookup(id, Instant::now());
        if fits(&lookup) {
            return lookup;
        }
        let patience = Duration::from_secs(60);
        assert!(started.elapsed() < patience, "{id}: {lookup:?}, {:?}", containers.counts());
        thread::sleep(Duration::from_millis(5));
    }
}

fn known(containers: &Containers, id: &str) -> Arc<ContainerMetadata> {
    match until(containers, id, |lookup| matches!(lookup, MetadataLookup::Found(_))) {
        MetadataLookup::Found(metadata) => metadata,
        other => panic!("{other:?} is nothing known"),
    }
}

#[test]
fn a_container_that_a_runtime_lists_late_becomes_known_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let fake = FakeRuntime { annotation: "é".repeat(MAX_VALUE_BYTES), ..FakeRuntime::default() };
    let _served = serve(&fake, &socket);
    let containers = Containers::start(options(&socket)).expect("a thread");
    assert_eq!(containers.lookup(ID, Instant::now()), MetadataLookup::Pending);
    // It is queried, and queried again.
    until(&containers, ID, |_| containers.counts().not_found >= 2);
    assert_eq!(containers.lookup(ID, Instant::now()), MetadataLookup::Pending);
    let before = containers.generation();
    *fake.known.lock().expect("nobody panicked") = true;
    let metadata = known(&containers, ID);
    assert!(containers.generation() > before);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    assert_eq!(text(&metadata.namespace), "shop");
    assert_eq!(text(&metadata.pod), "cart-0");
    assert_eq!(text(&metadata.pod_uid), "1-2-3");
    assert_eq!(text(&metadata.container), "app");
    assert_eq!(text(&metadata.image), "shop:1");
    let labels: Vec<_> = metadata.pod_labels.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(labels, [("app", "cart"), ("app.kubernetes.io/name", "shop")]);
    assert_eq!(metadata.pod_annotations["note"], "é".repeat(MAX_VALUE_BYTES / 2));
    assert_eq!(containers.counts().found, 1);
}

#[test]
fn the_container_that_holds_a_pods_namespaces_is_of_that_pod() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let _served = serve(&FakeRuntime::default(), &socket);
    let containers = Containers::start(options(&socket)).expect("a thread");
    let metadata = known(&containers, POD);
    assert_eq!((metadata.pod.as_deref(), metadata.container.as_deref()), (Some("cart-0"), None));
}

#[test]
fn a_runtime_that_is_away_is_queried_again_when_it_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let fake = FakeRuntime { known: Arc::new(Mutex::new(true)), ..FakeRuntime::default() };
    // The file is there, and nobody listens.
    drop(UnixListener::bind(&socket).expect("the folder is writable"));
    let containers = Containers::start(options(&socket)).expect("a thread");
    until(&containers, ID, |_| containers.counts().failed >= 2);
    std::fs::remove_file(&socket).expect("it was made");
    let served = serve(&fake, &socket);
    known(&containers, ID);
    // A restart, and a container that came with it.
    drop(served);
    containers.retain(|_| false);
    let failed = containers.counts().failed;
    until(&containers, ID, |_| containers.counts().failed > failed);
    std::fs::remove_file(&socket).expect("it was made");
    let _served = serve(&fake, &socket);
    known(&containers, ID);
}

#[test]
fn an_answer_that_never_comes_or_is_too_long_is_a_failure_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let known = Arc::new(Mutex::new(true));
    for (name, fake) in [
        ("hangs", FakeRuntime { hangs: true, ..FakeRuntime::default() }),
        ("long", FakeRuntime { known, annotation: "x".repeat(3 << 20), ..FakeRuntime::default() }),
    ] {
        let socket = folder.path().join(name);
        let _served = serve(&fake, &socket);
        let options = ContainersOptions { timeout: Duration::from_millis(200), ..options(&socket) };
        let containers = Containers::start(options).expect("a thread");
        until(&containers, ID, |_| containers.counts().failed >= 2);
        assert_eq!(containers.lookup(ID, Instant::now()), MetadataLookup::Pending, "{name}");
    }
}

#[test]
fn nothing_waits_longer_than_it_should() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let _served = serve(&FakeRuntime::default(), &socket);
    let containers = Containers::start(options(&socket)).expect("a thread");
    assert_eq!(containers.lookup(ID, Instant::now()), MetadataLookup::Pending);
    let later = Instant::now() + Duration::from_secs(601);
    assert_eq!(containers.lookup(ID, later), MetadataLookup::NotFound);

    // Nobody is there at all: that is no reason to wait once it is known.
    let none = ContainersOptions { sockets: vec![folder.path().join("none")], ..options(&socket) };
    let containers = Containers::start(none).expect("a thread");
    until(&containers, ID, |_| containers.counts().failed >= 1);
    let other = "f".repeat(64);
    assert_eq!(containers.lookup(&other, Instant::now()), MetadataLookup::Pending);
    assert_eq!(
        containers.lookup(&"e".repeat(64), later),
        MetadataLookup::NotFound,
        "silent for longer than anyone waits"
    );
}

#[test]
fn docker_is_queried_over_http() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).expect("the folder is writable");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = [0; 1024];
        let read = stream.read(&mut request).expect("a request");
        let body = r#"{"Id":"00","Name":"/quirky_hopper","Config":{"Image":"shop:1","Labels":{"app":"cart","x":"y"}}}"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("an answer");
        String::from_utf8_lossy(&request[..read]).into_owned()
    });
    let containers = Containers::start(options(&socket)).expect("a thread");
    let metadata = known(&containers, ID);
    assert_eq!(
        (metadata.container.as_deref(), metadata.image.as_deref()),
        (Some("quirky_hopper"), Some("shop:1"))
    );
    assert_eq!((&metadata.pod, &metadata.pod_labels["app"]), (&None, &"cart".to_owned()));
    let request = server.join().expect("it ended");
    assert!(request.starts_with(&format!("GET /containers/{ID}/json HTTP/1.1\r\n")), "{request}");
}
