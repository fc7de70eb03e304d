//! A server that follows a script, for the tests of its clients.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Code, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::proto::profilestore::profile_store_service_server::{
    ProfileStoreService, ProfileStoreServiceServer,
};
use crate::proto::profilestore::{
    WriteArrowRequest, WriteArrowResponse, WriteRawRequest, WriteRawResponse, WriteRequest, WriteResponse,
};

/// An action of the server on the next request.
#[derive(Clone)]
pub(in crate::export) enum ScriptedAnswer {
    Answer(Code, &'static str),
    /// With the time after which it wants to be asked again.
    AskForTime(Code, Duration),
    /// Takes it and never answers.
    Hang,
    /// Takes it.
    Take,
}

/// A pid, and the code and the message of the answer.
pub(in crate::export) type RefusedPid = (&'static str, Code, &'static str);

/// A server that follows a script and takes everything after its end.
#[derive(Clone, Default)]
pub(in crate::export) struct ScriptedServer {
    pub(in crate::export) steps: Arc<Mutex<VecDeque<ScriptedAnswer>>>,
    pub(in crate::export) seen: Arc<Mutex<Vec<(MetadataMap, WriteRawRequest)>>>,
    /// The answer to requests that hold a series of this pid, whatever the script says.
    pub(in crate::export) never: Arc<Mutex<Option<RefusedPid>>>,
}

impl ScriptedServer {
    pub(in crate::export) fn new(steps: &[ScriptedAnswer]) -> Self {
        Self { steps: Arc::new(Mutex::new(steps.iter().cloned().collect())), ..Self::default() }
    }

    pub(in crate::export) fn service(&self) -> ProfileStoreServiceServer<Self> {
        ProfileStoreServiceServer::new(self.clone()).accept_compressed(CompressionEncoding::Gzip)
    }

    pub(in crate::export) fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

#[tonic::async_trait]
impl ProfileStoreService for ScriptedServer {
    async fn write_raw(
        &self,
        request: tonic::Request<WriteRawRequest>,
    ) -> Result<Response<WriteRawResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let labels = message.series.iter().flat_map(|series| &series.labels).flat_map(|set| &set.labels);
        let pids: Vec<&str> =
            labels.filter(|label| label.name == "pid").map(|label| label.value.as_str()).collect();
        let never = self.never.lock().unwrap().filter(|(pid, ..)| pids.contains(pid));
        if let Some((_, code, text)) = never {
            return Err(Status::new(code, text));
        }
        self.seen.lock().unwrap().push((metadata, message));
        let step = self.steps.lock().unwrap().pop_front();
        match step {
            None | Some(ScriptedAnswer::Take) => Ok(Response::new(WriteRawResponse {})),
            Some(ScriptedAnswer::Answer(code, message)) => Err(Status::new(code, message)),
            Some(ScriptedAnswer::AskForTime(code, time)) => {
                Err(Status::with_error_details(code, "slow down", ErrorDetails::with_retry_info(Some(time))))
            }
            Some(ScriptedAnswer::Hang) => std::future::pending().await,
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

pub(in crate::export) async fn serve(scripted: &ScriptedServer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    serve_on(scripted, listener);
    address
}

pub(in crate::export) fn serve_on(scripted: &ScriptedServer, listener: TcpListener) {
    let server = Server::builder().add_service(scripted.service());
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
}
