//! The service behind a real port: what it refuses, and that nothing is left of it.

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::net::TcpListener;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::Debuginfo;
use crate::export::collector::{debuginfo_routes, serve};
use crate::native::elf::ElfFile;
use crate::native::upload::extract_debug_info::extract;
use crate::proto::debuginfo::debuginfo_service_client::DebuginfoServiceClient;
use crate::proto::debuginfo::upload_request::Data;
use crate::proto::debuginfo::{
    DebuginfoType, InitiateUploadRequest, MarkUploadFinishedRequest, ShouldInitiateUploadRequest, UploadInfo,
    UploadRequest,
};
use crate::proto::pprof::{Location, Mapping, Profile};

struct Running {
    dir: tempfile::TempDir,
    debuginfo: Debuginfo,
    client: DebuginfoServiceClient<Channel>,
}

async fn start(limit_bytes: u64) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let debuginfo = Debuginfo::open(dir.path(), limit_bytes).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, debuginfo_routes(debuginfo.clone()), std::future::pending()));
    let client = DebuginfoServiceClient::connect(format!("http://{address}")).await.unwrap();
    Running { dir, debuginfo, client }
}

impl Running {
    async fn is_wanted(&mut self, id: &str) -> Result<bool, Status> {
        let request = ShouldInitiateUploadRequest { build_id: id.to_owned(), ..Default::default() };
        Ok(self.client.should_initiate_upload(request).await?.into_inner().should_initiate_upload)
    }

    async fn initiate(&mut self, id: &str, size: i64) -> Result<String, Status> {
        let request = InitiateUploadRequest {
            build_id: id.to_owned(),
            size,
            hash: "abc".to_owned(),
            ..Default::default()
        };
        let answer = self.client.initiate_upload(request).await?.into_inner();
        Ok(answer.upload_instructions.unwrap().upload_id)
    }

    async fn upload(&mut self, id: &str, upload_id: &str, pieces: &[&[u8]]) -> Result<u64, Status> {
        let info = UploadInfo { build_id: id.to_owned(), upload_id: upload_id.to_owned(), r#type: 0 };
        let pieces = pieces.iter().map(|piece| Data::ChunkData(Bytes::copy_from_slice(piece)));
        self.send(std::iter::once(Data::Info(info)).chain(pieces).collect()).await
    }

    async fn send(&mut self, data: Vec<Data>) -> Result<u64, Status> {
        let messages: Vec<_> = data.into_iter().map(|data| UploadRequest { data: Some(data) }).collect();
        Ok(self.client.upload(tokio_stream::iter(messages)).await?.into_inner().size)
    }

    async fn finish(&mut self, id: &str, upload_id: &str) -> Result<(), Status> {
        let (build_id, upload_id) = (id.to_owned(), upload_id.to_owned());
        let request = MarkUploadFinishedRequest { build_id, upload_id, r#type: 0 };
        self.client.mark_upload_finished(request).await.map(|_| ())
    }

    fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.path().join("debuginfo")).unwrap().flatten();
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// The symbols of libc, and its build id.
fn libc() -> (Vec<u8>, String) {
    let bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
    let elf = ElfFile::parse(&*bytes).unwrap();
    let mut out = Vec::new();
    extract(&elf, &elf, u64::MAX, &mut out).unwrap();
    (out, elf.build_id().unwrap().to_string())
}

#[tokio::test]
async fn build_ids_that_are_paths_or_of_go_are_refused_everywhere() {
    let mut running = start(1 << 20).await;
    for id in
        ["", "ab", "../../../etc/passwd", "abcd/../..", "abc", "ab cd", "a/b/c/d", &"ab".repeat(21), "ab\0d"]
    {
        assert_eq!(running.is_wanted(id).await.unwrap_err().code(), Code::InvalidArgument, "{id}");
        assert_eq!(running.initiate(id, 1).await.unwrap_err().code(), Code::InvalidArgument, "{id}");
        assert_eq!(running.upload(id, "x", &[]).await.unwrap_err().code(), Code::InvalidArgument, "{id}");
        assert_eq!(running.finish(id, "x").await.unwrap_err().code(), Code::InvalidArgument, "{id}");
    }
    assert_eq!(running.files(), [""; 0]);
}

#[tokio::test]
async fn sizes_kinds_and_steps_out_of_order_are_refused() {
    let mut running = start(1 << 20).await;
    let id = "abcdef";
    for size in [0, -1, 1 << 19 | 1, i64::MAX] {
        assert_eq!(running.initiate(id, size).await.unwrap_err().code(), Code::InvalidArgument, "{size}");
    }
    let no_hash = InitiateUploadRequest { build_id: id.to_owned(), size: 1, ..Default::default() };
    assert_eq!(running.client.initiate_upload(no_hash).await.unwrap_err().code(), Code::InvalidArgument);
    let kind = DebuginfoType::Executable as i32;
    let executable =
        ShouldInitiateUploadRequest { build_id: id.to_owned(), r#type: kind, ..Default::default() };
    let answer = running.client.should_initiate_upload(executable).await.unwrap().into_inner();
    assert!(!answer.should_initiate_upload);
    assert_eq!(running.upload(id, "unknown", &[b"x"]).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(running.finish(id, "unknown").await.unwrap_err().code(), Code::FailedPrecondition);
    let upload_id = running.initiate(id, 10).await.unwrap();
    assert!(!running.is_wanted(id).await.unwrap(), "one upload of a build id at a time");
    assert_eq!(running.initiate(id, 10).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(running.finish(id, &upload_id).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(running.upload("abcdee", &upload_id, &[]).await.unwrap_err().code(), Code::FailedPrecondition);
    let data_first = vec![Data::ChunkData(Bytes::from_static(b"x"))];
    assert_eq!(running.send(data_first).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(running.files(), [""; 0]);
}

#[tokio::test]
async fn more_or_fewer_bytes_than_announced_and_other_files_leave_nothing() {
    let mut running = start(64 << 20).await;
    let (file, libc_id) = libc();
    let size = file.len() as i64;
    let cases: [(&str, i64, Vec<&[u8]>, Code); 4] = [
        ("abcdef", 10, vec![&[0; 11]], Code::InvalidArgument),
        ("abcdef", 10, vec![&[0; 4], &[0; 5]], Code::InvalidArgument),
        ("abcdef", 10, vec![b"0123456789"], Code::InvalidArgument),
        ("abcdef", size, vec![&file], Code::InvalidArgument),
    ];
    for (id, size, pieces, code) in cases {
        let upload_id = running.initiate(id, size).await.unwrap();
        let result = match running.upload(id, &upload_id, &pieces).await {
            Ok(_) => running.finish(id, &upload_id).await,
            Err(status) => Err(status),
        };
        assert_eq!(result.unwrap_err().code(), code);
        assert_eq!(running.files(), [""; 0]);
        assert!(running.is_wanted(id).await.unwrap(), "it may be tried again at once");
    }
    let upload_id = running.initiate(&libc_id, size).await.unwrap();
    let (first, second) = file.split_at(1000);
    assert_eq!(running.upload(&libc_id, &upload_id, &[first, second]).await.unwrap(), size as u64);
    assert!(running.finish("abcdef", &upload_id).await.is_err());
    running.finish(&libc_id, &upload_id).await.unwrap();
    assert!(running.finish(&libc_id, &upload_id).await.is_err(), "once only");
    assert_eq!(running.files(), [format!("{libc_id}.debug")]);
    assert!(!running.is_wanted(&libc_id.to_uppercase()).await.unwrap());
}

/// `/bin/true` with DWARF in which functions are inlined so many levels deep.
fn with_nested_dwarf(depth: usize) -> (Vec<u8>, String) {
    let scratch = tempfile::tempdir().unwrap();
    let file = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    // A unit, a function, an inlined one: none with attributes.
    let abbreviations = [1, 0x11, 1, 0, 0, 2, 0x2e, 1, 0, 0, 3, 0x1d, 1, 0, 0, 0];
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1, 2];
    unit.resize(unit.len() + depth, 3);
    unit.resize(unit.len() + depth + 2, 0);
    let length = u32::try_from(unit.len()).unwrap();
    std::fs::write(file("abbrev"), abbreviations).unwrap();
    std::fs::write(file("info"), [&length.to_le_bytes()[..], &unit].concat()).unwrap();
    let add = |name: &str| format!(".debug_{name}={}", file(name));
    let status = std::process::Command::new("objcopy")
        .args(["--add-section", &add("abbrev"), "--add-section", &add("info"), "/bin/true", &file("out")])
        .status();
    assert!(status.expect("this test runs objcopy").success());
    let bytes = std::fs::read(file("out")).unwrap();
    let id = ElfFile::parse(&*bytes).unwrap().build_id().unwrap().to_string();
    (bytes, id)
}

#[tokio::test]
async fn dwarf_that_would_exhaust_the_stack_is_not_kept() {
    let mut running = start(64 << 20).await;
    for (depth, is_kept) in [(1_000_000, false), (100, true)] {
        let (file, id) = with_nested_dwarf(depth);
        let upload_id = running.initiate(&id, file.len() as i64).await.unwrap();
        let pieces: Vec<&[u8]> = file.chunks(1 << 20).collect();
        running.upload(&id, &upload_id, &pieces).await.unwrap();
        let finished = running.finish(&id, &upload_id).await;
        assert_eq!(
            finished.map_err(|status| status.code()),
            is_kept.then_some(()).ok_or(Code::InvalidArgument)
        );
        assert_eq!(running.files().len(), usize::from(is_kept));
    }
}

#[tokio::test]
async fn uploads_at_a_time_are_bounded() {
    let mut running = start(1 << 20).await;
    let mut refused = 0;
    for n in 0..80 {
        if let Err(status) = running.initiate(&format!("abcd{n:02x}"), 1).await {
            assert_eq!(status.code(), Code::ResourceExhausted);
            refused += 1;
        }
    }
    assert_eq!(refused, 80 - 64);
    let mut running = start(1 << 20).await;
    running.initiate("abcd00", 400_000).await.unwrap();
    assert_eq!(running.initiate("abcd01", 400_000).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn frames_without_names_get_those_of_uploaded_files() {
    let mut running = start(64 << 20).await;
    let (file, id) = libc();
    let elf = ElfFile::parse(&*file).unwrap();
    let text = elf.header().segments.iter().find(|segment| segment.executable).unwrap();
    let table = crate::native::symbols::SymbolTable::load(&elf).unwrap();
    let code = text.address.0..text.address.0 + text.file_size;
    let found = code.map(crate::types::Svma).find_map(|at| table.lookup(at)).unwrap();
    let name = table.name(found, elf.source()).unwrap().unwrap();
    let start = 0x7f00_0000_0000;
    let profile = || Profile {
        string_table: vec![String::new(), id.clone(), "/lib/libc.so.6".to_owned()],
        mapping: vec![Mapping {
            id: 1,
            memory_start: start,
            memory_limit: start + text.file_size,
            file_offset: text.offset.0,
            filename: 2,
            build_id: 1,
            ..Mapping::default()
        }],
        location: vec![
            Location {
                id: 1,
                mapping_id: 1,
                address: start + found.start.0 - text.address.0,
                ..Default::default()
            },
            Location { id: 2, mapping_id: 1, address: u64::MAX, ..Default::default() },
            Location { id: 3, mapping_id: 1, address: 0, ..Default::default() },
            Location { id: 4, mapping_id: 9, address: 1, ..Default::default() },
        ],
        ..Profile::default()
    };
    let mut without = profile();
    running.debuginfo.name(&mut without);
    assert_eq!(without, profile(), "nothing was uploaded yet");
    let upload_id = running.initiate(&id, file.len() as i64).await.unwrap();
    running.upload(&id, &upload_id, &[&file]).await.unwrap();
    running.finish(&id, &upload_id).await.unwrap();
    for _ in 0..2 {
        let mut named = profile();
        running.debuginfo.name(&mut named);
        let function = &named.function[0];
        assert_eq!(named.string_table[function.name as usize], name);
        assert_eq!(named.location[0].line[0].function_id, function.id);
        assert!(named.location[1..].iter().all(|location| location.line.is_empty()));
    }
}
