//! The uploader against servers that follow a script.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use globset::{Glob, GlobSetBuilder};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};

use super::*;
use crate::native::byte_source::RegularFile;
use crate::native::debug_files_to_upload::queue::UploadQueue;
use crate::native::elf::ElfFile;
use crate::proto::debuginfo::debuginfo_service_server::{DebuginfoService, DebuginfoServiceServer};
use crate::proto::debuginfo::upload_instructions::UploadStrategy;
use crate::proto::debuginfo::upload_request::Data;
use crate::proto::debuginfo::{
    InitiateUploadRequest, InitiateUploadResponse, MarkUploadFinishedRequest, MarkUploadFinishedResponse,
    ShouldInitiateUploadRequest, ShouldInitiateUploadResponse, UploadInstructions, UploadRequest,
    UploadResponse,
};
use crate::types::BuildId;

/// Exports symbols and has a build id.
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

/// The server's action in one step; where its script has none left it takes everything.
#[derive(Clone, Debug)]
enum UploadStep {
    NotWanted,
    Fail(Code),
    SignedUrl(String),
    /// Says that less arrived than did.
    Short,
}

#[derive(Clone, Default)]
struct ScriptedDebuginfoService {
    steps: Arc<Mutex<VecDeque<(&'static str, UploadStep)>>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    received: Arc<Mutex<Vec<u8>>>,
    tokens: Arc<Mutex<Vec<bool>>>,
}

impl ScriptedDebuginfoService {
    fn new(steps: &[(&'static str, UploadStep)]) -> Self {
        Self { steps: Arc::new(Mutex::new(steps.iter().cloned().collect())), ..Self::default() }
    }

    fn step<T>(&self, call: &'static str, request: &Request<T>) -> Result<Option<UploadStep>, Status> {
        self.calls.lock().unwrap().push(call);
        self.tokens.lock().unwrap().push(request.metadata().contains_key("authorization"));
        let mut steps = self.steps.lock().unwrap();
        let is_next = steps.front().is_some_and(|(wanted, _)| *wanted == call);
        let step = if is_next { steps.pop_front().map(|(_, step)| step) } else { None };
        match step {
            Some(UploadStep::Fail(code)) => Err(Status::new(code, "as the script says")),
            step => Ok(step),
        }
    }

    fn calls(&self) -> String {
        self.calls.lock().unwrap().join(" ")
    }
}

#[tonic::async_trait]
impl DebuginfoService for ScriptedDebuginfoService {
    async fn should_initiate_upload(
        &self,
        request: Request<ShouldInitiateUploadRequest>,
    ) -> Result<Response<ShouldInitiateUploadResponse>, Status> {
        let step = self.step("should", &request)?;
        let should_initiate_upload = !matches!(step, Some(UploadStep::NotWanted));
        Ok(Response::new(ShouldInitiateUploadResponse { should_initiate_upload, reason: "so".to_owned() }))
    }

    async fn initiate_upload(
        &self,
        request: Request<InitiateUploadRequest>,
    ) -> Result<Response<InitiateUploadResponse>, Status> {
        let step = self.step("initiate", &request)?;
        let request = request.into_inner();
        assert!(request.size > 0 && request.hash.len() == 64 && !request.force);
        let mut instructions = UploadInstructions {
            build_id: request.build_id,
            upload_id: "one".to_owned(),
            upload_strategy: UploadStrategy::Grpc as i32,
            ..UploadInstructions::default()
        };
        if let Some(UploadStep::SignedUrl(url)) = step {
            instructions.upload_strategy = UploadStrategy::SignedUrl as i32;
            instructions.signed_url = url;
        }
        Ok(Response::new(InitiateUploadResponse { upload_instructions: Some(instructions) }))
    }

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<UploadResponse>, Status> {
        let step = self.step("upload", &request)?;
        let mut stream = request.into_inner();
        let Some(Some(Data::Info(info))) = stream.message().await?.map(|message| message.data) else {
            return Err(Status::invalid_argument("no info"));
        };
        assert_eq!(info.upload_id, "one");
        let mut received = Vec::new();
        while let Some(message) = stream.message().await? {
            let Some(Data::ChunkData(bytes)) = message.data else {
                return Err(Status::invalid_argument("no data"));
            };
            received.extend_from_slice(&bytes);
        }
        let size = received.len() as u64 - u64::from(matches!(step, Some(UploadStep::Short)));
        *self.received.lock().unwrap() = received;
        Ok(Response::new(UploadResponse { build_id: info.build_id, size }))
    }

    async fn mark_upload_finished(
        &self,
        request: Request<MarkUploadFinishedRequest>,
    ) -> Result<Response<MarkUploadFinishedResponse>, Status> {
        self.step("finish", &request)?;
        assert_eq!(request.into_inner().upload_id, "one");
        Ok(Response::new(MarkUploadFinishedResponse {}))
    }
}

async fn start(scripted: &ScriptedDebuginfoService) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = DebuginfoServiceServer::new(scripted.clone());
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
    );
    address
}

fn options() -> UploadOptions {
    UploadOptions {
        exported_symbols: true,
        first_delay: Duration::from_millis(5),
        retry_after: Duration::from_millis(50),
        rounds: 3,
        ..UploadOptions::default()
    }
}

fn build_id(file: &File) -> BuildId {
    ElfFile::parse(RegularFile::new(file).unwrap()).unwrap().build_id().unwrap()
}

fn offer(path: &str) -> UploadCandidate {
    let file = File::open(path).unwrap();
    UploadCandidate { build_id: build_id(&file), path: path.into(), file, debug: None }
}

async fn upload(address: SocketAddr, options: UploadOptions, offered: Vec<UploadCandidate>) -> UploadCounts {
    let token = Some(crate::export::push::Token::Literal("secret".to_owned()));
    let server = BackendOptions { token, ..BackendOptions::new(format!("http://{address}")) };
    let uploader = Uploader::new(server, options).unwrap();
    let (offers, queue) = UploadQueue::new();
    for offer in offered {
        offers.offer(offer.build_id, || Some(offer));
    }
    drop(offers);
    uploader.clone().run(queue).await;
    uploader.counts()
}

/// Uploads libc, and returns its end and the calls that it took.
async fn scripted(steps: &[(&'static str, UploadStep)]) -> (UploadCounts, String) {
    let server = ScriptedDebuginfoService::new(steps);
    let counts = upload(start(&server).await, options(), vec![offer(LIBC)]).await;
    assert!(server.tokens.lock().unwrap().iter().all(|has_token| *has_token));
    (UploadCounts { uploaded_bytes: 0, ..counts }, server.calls())
}

const ONE: UploadCounts = UploadCounts {
    offered: 1,
    uploaded: 0,
    uploaded_bytes: 0,
    not_wanted: 0,
    excluded: 0,
    without_symbols: 0,
    refused: 0,
    failed: 0,
    put_off: 0,
};

#[tokio::test]
async fn a_file_is_sent_in_four_steps_and_is_an_elf_file_with_the_same_build_id() {
    let server = ScriptedDebuginfoService::default();
    let counts = upload(start(&server).await, options(), vec![offer(LIBC)]).await;
    assert_eq!(server.calls(), "should initiate upload finish");
    let received = server.received.lock().unwrap().clone();
    assert_eq!(counts, UploadCounts { uploaded: 1, uploaded_bytes: received.len() as u64, ..ONE });
    let sent = ElfFile::parse(&*received).unwrap();
    assert_eq!(sent.build_id(), Some(build_id(&File::open(LIBC).unwrap())));
    assert!((received.len() as u64) < std::fs::metadata(LIBC).unwrap().len() / 4, "no code is sent");
}

#[tokio::test]
async fn what_the_server_has_or_refuses_is_never_sent() {
    let (counts, calls) = scripted(&[("should", UploadStep::NotWanted)]).await;
    assert_eq!((counts, &*calls), (UploadCounts { not_wanted: 1, ..ONE }, "should"));
    for code in [Code::AlreadyExists, Code::InvalidArgument, Code::Unimplemented, Code::Unauthenticated] {
        let (counts, calls) = scripted(&[("initiate", UploadStep::Fail(code))]).await;
        assert_eq!((counts, &*calls), (UploadCounts { refused: 1, ..ONE }, "should initiate"), "{code:?}");
    }
}

#[tokio::test]
async fn a_failed_precondition_is_tried_again_later_and_not_for_ever() {
    let later = ("should", UploadStep::Fail(Code::FailedPrecondition));
    let (counts, calls) = scripted(std::slice::from_ref(&later)).await;
    assert_eq!(counts, UploadCounts { uploaded: 1, put_off: 1, ..ONE });
    assert_eq!(calls, "should should initiate upload finish");
    let (counts, calls) = scripted(&[later.clone(), later.clone(), later]).await;
    assert_eq!((counts, &*calls), (UploadCounts { failed: 1, put_off: 2, ..ONE }, "should should should"));
}

#[tokio::test]
async fn another_server_gets_what_was_put_off_and_every_file_anew() {
    let refusing: Vec<_> = (0..2).map(|_| ("should", UploadStep::Fail(Code::FailedPrecondition))).collect();
    let (first, second) = (ScriptedDebuginfoService::new(&refusing), ScriptedDebuginfoService::default());
    let server = |address: SocketAddr| BackendOptions::new(format!("http://{address}"));
    let options = UploadOptions { retry_after: Duration::from_secs(1), rounds: 1000, ..options() };
    let uploader = Uploader::new(server(start(&first).await), options).unwrap();
    let (offers, queue) = UploadQueue::new();
    let running = tokio::spawn(uploader.clone().run(queue));
    let id = offer(LIBC).build_id;
    offers.offer(id, || Some(offer(LIBC)));
    let until = async |reached: &dyn Fn(UploadCounts) -> bool| {
        while !reached(uploader.counts()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until(&|counts| counts.put_off > 0).await;
    assert!(uploader.change_server(BackendOptions::new("no address")).is_err());
    uploader.change_server(server(start(&second).await)).unwrap();
    until(&|counts| counts.uploaded == 1).await;
    assert_eq!(second.calls(), "should initiate upload finish");
    assert!(first.calls().split(' ').all(|call| call == "should"), "{}", first.calls());
    offers.offer(id, || panic!("it was offered"));
    offers.reset();
    offers.offer(id, || Some(offer(LIBC)));
    drop(offers);
    running.await.unwrap();
    assert_eq!(uploader.counts().uploaded, 2);
}

#[tokio::test]
async fn what_broke_is_tried_again_at_once() {
    for step in ["should", "initiate", "upload", "finish"] {
        for failure in
            [UploadStep::Fail(Code::Unavailable), UploadStep::Fail(Code::Internal), UploadStep::Short]
        {
            if step != "upload" && matches!(failure, UploadStep::Short) {
                continue;
            }
            let server = ScriptedDebuginfoService::new(&[(step, failure.clone())]);
            let counts = upload(start(&server).await, options(), vec![offer(LIBC)]).await;
            assert_eq!((counts.uploaded, counts.put_off), (1, 0), "{step}: {failure:?}");
            assert!(server.calls().ends_with("should initiate upload finish"), "{step}: {failure:?}");
        }
    }
}

#[tokio::test]
async fn signed_urls_get_the_file_by_put() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/bucket/key?signature=x", listener.local_addr().unwrap());
    let taken = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        (head, body)
    });
    let (counts, calls) = scripted(&[("initiate", UploadStep::SignedUrl(url))]).await;
    assert_eq!((counts, &*calls), (UploadCounts { uploaded: 1, ..ONE }, "should initiate finish"));
    let (head, body) = taken.join().unwrap();
    assert!(
        head.starts_with("put /bucket/key?signature=x http/1.1") && !head.contains("authorization"),
        "{head}"
    );
    assert!(ElfFile::parse(&*body).unwrap().build_id().is_some());
}

#[tokio::test]
async fn excluded_files_and_files_without_use_are_not_even_asked_about_or_sent() {
    let server = ScriptedDebuginfoService::default();
    let address = start(&server).await;
    let exclude = GlobSetBuilder::new().add(Glob::new("/lib/**").unwrap()).build().unwrap();
    let excluded = UploadOptions { exclude, ..options() };
    assert_eq!(upload(address, excluded, vec![offer(LIBC)]).await, UploadCounts { excluded: 1, ..ONE });
    assert_eq!(server.calls(), "");
    let own_names = UploadOptions { exported_symbols: false, ..options() };
    let counts = upload(address, own_names, vec![offer("/bin/ls")]).await;
    assert_eq!((counts, &*server.calls()), (UploadCounts { without_symbols: 1, ..ONE }, "should"));
    let small = UploadOptions { max_bytes: 1000, ..options() };
    assert_eq!(upload(address, small, vec![offer(LIBC)]).await, UploadCounts { failed: 1, ..ONE });
}

#[tokio::test]
async fn uploads_keep_to_their_bandwidth() {
    let server = ScriptedDebuginfoService::default();
    let slow = UploadOptions { bytes_per_second: 100_000, ..options() };
    let began = Instant::now();
    let counts = upload(start(&server).await, slow, vec![offer("/bin/ls")]).await;
    let least = counts.uploaded_bytes.saturating_sub(1 << 20) as f64 / 100_000.0;
    assert_eq!(counts.uploaded, 1);
    assert!(began.elapsed().as_secs_f64() >= least);
}

#[tokio::test]
async fn sparse_files_devices_and_texts_are_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("sparse");
    let file = File::create_new(&path).unwrap();
    (&file).write_all(b"\x7fELF\x02\x01\x01").unwrap();
    file.set_len(4 << 30).unwrap();
    let id = BuildId::new(&[1; 20]).unwrap();
    let offers =
        [path, PathBuf::from("/dev/zero"), PathBuf::from("/etc/passwd")].map(|path| UploadCandidate {
            build_id: id,
            path: path.to_string_lossy().into(),
            file: File::open(&path).unwrap(),
            debug: None,
        });
    for offer in offers {
        let server = ScriptedDebuginfoService::default();
        let counts = upload(start(&server).await, options(), vec![offer]).await;
        assert_eq!((counts, &*server.calls()), (UploadCounts { failed: 1, ..ONE }, "should"));
    }
}

#[tokio::test]
async fn a_file_of_another_build_than_the_one_it_is_offered_by_is_not_sent() {
    let offer = UploadCandidate { build_id: BuildId::new(&[1; 20]).unwrap(), ..offer(LIBC) };
    let server = ScriptedDebuginfoService::default();
    let counts = upload(start(&server).await, options(), vec![offer]).await;
    assert_eq!((counts, &*server.calls()), (UploadCounts { failed: 1, ..ONE }, "should"));
}
