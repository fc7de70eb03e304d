//! A server that keeps profiles as the embedded collector does, and takes debug files as Parca
//! does.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jvmprof_daemon::export::collector::{CollectorService, routes, serve};
use jvmprof_daemon::export::store::{Matcher, Store, StoreOptions, TimeRange};
use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::file_cache::{FileCache, FileCacheLimits};
use jvmprof_daemon::native::open_file::open_regular;
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::profile::pprof::merge::{MAX_BYTES, Merger};
use jvmprof_daemon::proto::debuginfo::debuginfo_service_server::{DebuginfoService, DebuginfoServiceServer};
use jvmprof_daemon::proto::debuginfo::upload_instructions::UploadStrategy;
use jvmprof_daemon::proto::debuginfo::upload_request::Data;
use jvmprof_daemon::proto::debuginfo::{
    InitiateUploadRequest, InitiateUploadResponse, MarkUploadFinishedRequest, MarkUploadFinishedResponse,
    ShouldInitiateUploadRequest, ShouldInitiateUploadResponse, UploadInstructions, UploadRequest,
    UploadResponse,
};
use jvmprof_daemon::proto::pprof::{Location, Profile};
use jvmprof_daemon::types::FileOffset;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status, Streaming};

/// A server in this process, until it is dropped.
pub(crate) struct DebuginfoServer {
    pub(crate) address: String,
    store: Arc<Store>,
    scratch: TempDir,
    _runtime: Runtime,
}

impl DebuginfoServer {
    pub(crate) fn start() -> Self {
        let scratch = crate::support::scratch();
        let store = Arc::new(Store::open(scratch.path(), StoreOptions::default()).expect("opened"));
        let files = DebugFiles(scratch.path().to_owned());
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let collector = Arc::new(CollectorService::new(Arc::clone(&store)));
        let uploads = DebuginfoServiceServer::new(files);
        let path = "/parca.debuginfo.v1alpha1.DebuginfoService/{*method}";
        let router = routes(collector).route_service(path, uploads);
        runtime.spawn(serve(listener, router, std::future::pending()));
        Self { address, store, scratch, _runtime: runtime }
    }

    /// Returns where the debug file of a build id is, once it was uploaded.
    pub(crate) fn debug_file(&self, build_id: &str) -> PathBuf {
        debug_file(self.scratch.path(), build_id)
    }

    /// Returns the names of each frame of the program's profiles, innermost first: those that came
    /// with it, or those that the uploaded file of its build id has.
    pub(crate) fn frames(&self, comm: &str) -> Vec<Vec<String>> {
        let mut merger = Merger::new(MAX_BYTES);
        for profile in self.store.profiles(TimeRange::ALL, &[Matcher::equal("comm", comm)]) {
            let bytes = self.store.read(&profile).expect("stored");
            let profile = decode(&bytes, DecodeLimits::default()).expect("a profile");
            merger.add(&profile).expect("all are of one type");
        }
        let profile = merger.finish();
        let cache = FileCache::new(FileCacheLimits::default()).with_lines(true);
        profile.location.iter().map(|location| self.location_names(&profile, location, &cache)).collect()
    }

    /// Returns all names of [`Self::frames`].
    pub(crate) fn names(&self, comm: &str) -> BTreeSet<String> {
        self.frames(comm).into_iter().flatten().collect()
    }

    fn location_names(&self, profile: &Profile, location: &Location, cache: &FileCache) -> Vec<String> {
        let text = |index: i64| profile.string_table[usize::try_from(index).expect("an index")].clone();
        let mut lines = location.line.iter().peekable();
        if lines.peek().is_some() {
            let function = |id: u64| profile.function.iter().find(|function| function.id == id);
            return lines.map(|line| text(function(line.function_id).expect("there").name)).collect();
        }
        let mapping = profile.mapping.iter().find(|mapping| mapping.id == location.mapping_id);
        let Some(mapping) = mapping else { return Vec::new() };
        let path = self.debug_file(&text(mapping.build_id));
        let Ok(file) = File::open(&path) else { return Vec::new() };
        let known = cache.identify(&file, &path).expect("an ELF file");
        let offset = FileOffset(location.address - mapping.memory_start + mapping.file_offset);
        let address = known.header.svma_of(offset).expect("in a segment");
        let (debug_files, open) = (DebugFileLocator::default(), || open_regular(&path));
        let lines = cache.lines(&known.key, &path, &debug_files, open, address).expect("readable DWARF");
        let mut names: Vec<_> = lines.iter().filter_map(|line| line.raw_name.as_deref()).collect();
        let symbol = cache.function_name(&known.key, &path, &debug_files, open, address);
        let symbol = symbol.expect("readable symbols");
        names.pop();
        names.into_iter().map(str::to_owned).chain(symbol).collect()
    }
}

fn debug_file(folder: &Path, build_id: &str) -> PathBuf {
    folder.join(format!("{build_id}.debug"))
}

/// Files by build id, below a folder. An upload has the build id as its id.
struct DebugFiles(PathBuf);

#[tonic::async_trait]
impl DebuginfoService for DebugFiles {
    async fn should_initiate_upload(
        &self,
        request: Request<ShouldInitiateUploadRequest>,
    ) -> Result<Response<ShouldInitiateUploadResponse>, Status> {
        let should_initiate_upload = !debug_file(&self.0, &request.into_inner().build_id).exists();
        Ok(Response::new(ShouldInitiateUploadResponse { should_initiate_upload, reason: String::new() }))
    }

    async fn initiate_upload(
        &self,
        request: Request<InitiateUploadRequest>,
    ) -> Result<Response<InitiateUploadResponse>, Status> {
        let build_id = request.into_inner().build_id;
        let upload_instructions = Some(UploadInstructions {
            upload_id: build_id.clone(),
            build_id,
            upload_strategy: UploadStrategy::Grpc as i32,
            ..UploadInstructions::default()
        });
        Ok(Response::new(InitiateUploadResponse { upload_instructions }))
    }

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<UploadResponse>, Status> {
        let mut stream = request.into_inner();
        let Some(Some(Data::Info(info))) = stream.message().await?.map(|message| message.data) else {
            return Err(Status::invalid_argument("no info"));
        };
        let mut received = Vec::new();
        while let Some(message) = stream.message().await? {
            let Some(Data::ChunkData(bytes)) = message.data else {
                return Err(Status::invalid_argument("no data"));
            };
            received.extend_from_slice(&bytes);
        }
        fs::write(self.0.join(&info.upload_id), &received)?;
        Ok(Response::new(UploadResponse { build_id: info.build_id, size: received.len() as u64 }))
    }

    async fn mark_upload_finished(
        &self,
        request: Request<MarkUploadFinishedRequest>,
    ) -> Result<Response<MarkUploadFinishedResponse>, Status> {
        let request = request.into_inner();
        fs::rename(self.0.join(&request.upload_id), debug_file(&self.0, &request.build_id))?;
        Ok(Response::new(MarkUploadFinishedResponse {}))
    }
}
