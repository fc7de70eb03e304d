//! `DebuginfoService`.

use tonic::{Request, Response, Status, Streaming};

use super::Debuginfo;
use super::uploads::{Receiving, UploadRefusal};
use crate::proto::debuginfo::debuginfo_service_server::DebuginfoService;
use crate::proto::debuginfo::upload_instructions::UploadStrategy;
use crate::proto::debuginfo::upload_request::Data;
use crate::proto::debuginfo::{
    DebuginfoType, InitiateUploadRequest, InitiateUploadResponse, MarkUploadFinishedRequest,
    MarkUploadFinishedResponse, ShouldInitiateUploadRequest, ShouldInitiateUploadResponse,
    UploadInstructions, UploadRequest, UploadResponse,
};
use crate::types::BuildId;

/// A build id is the name of a file here: nothing but hexadecimal digits may be in it. Go's own
/// build ids have slashes, and are refused.
fn build_id(text: &str) -> Result<BuildId, UploadRefusal> {
    // Parca asks for three characters at least.
    let id = BuildId::from_hex(text).filter(|_| text.len() > 2);
    id.ok_or_else(|| UploadRefusal::BuildId(text.chars().take(64).collect()))
}

fn check_kind(kind: i32) -> Result<(), UploadRefusal> {
    match kind == DebuginfoType::DebuginfoUnspecified as i32 {
        true => Ok(()),
        false => Err(UploadRefusal::Kind),
    }
}

fn refused(step: &'static str) -> impl Fn(UploadRefusal) -> Status {
    move |refusal| {
        tracing::warn!(step, error = %refusal, "a step of an upload of a debug file was refused");
        refusal.into()
    }
}

#[tonic::async_trait]
impl DebuginfoService for Debuginfo {
    async fn should_initiate_upload(
        &self,
        request: Request<ShouldInitiateUploadRequest>,
    ) -> Result<Response<ShouldInitiateUploadResponse>, Status> {
        let request = request.into_inner();
        let id = build_id(&request.build_id).map_err(refused("should initiate"))?;
        let wish = self.inner.uploads.wish(id);
        let is_kept = check_kind(request.r#type).is_ok();
        let reason = if is_kept { wish.reason } else { "only debug files are kept here" };
        Ok(Response::new(ShouldInitiateUploadResponse {
            should_initiate_upload: is_kept && wish.is_wanted,
            reason: reason.to_owned(),
        }))
    }

    async fn initiate_upload(
        &self,
        request: Request<InitiateUploadRequest>,
    ) -> Result<Response<InitiateUploadResponse>, Status> {
        let request = request.into_inner();
        let begin = || {
            check_kind(request.r#type)?;
            self.inner.uploads.begin(build_id(&request.build_id)?, request.size, &request.hash)
        };
        let upload_id = begin().map_err(refused("initiate"))?;
        let upload_instructions = Some(UploadInstructions {
            build_id: request.build_id,
            upload_id,
            upload_strategy: UploadStrategy::Grpc as i32,
            signed_url: String::new(),
            r#type: request.r#type,
        });
        Ok(Response::new(InitiateUploadResponse { upload_instructions }))
    }

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<UploadResponse>, Status> {
        let mut stream = request.into_inner();
        let first = stream.message().await?.and_then(|message| message.data);
        let Some(Data::Info(info)) = first else {
            return Err(refused("upload")(UploadRefusal::Order));
        };
        let id = build_id(&info.build_id).map_err(refused("upload"))?;
        let receiving = self.inner.uploads.receive(id, &info.upload_id).map_err(refused("upload"))?;
        // If the client goes away, this is where its upload is given up.
        let mut guard = Abandon { debuginfo: self, upload_id: &info.upload_id, is_over: false };
        let receiving = receive(&mut stream, receiving).await?;
        let size = self.inner.uploads.received(&info.upload_id, receiving).map_err(refused("upload"))?;
        guard.is_over = true;
        Ok(Response::new(UploadResponse { build_id: info.build_id, size }))
    }

    async fn mark_upload_finished(
        &self,
        request: Request<MarkUploadFinishedRequest>,
    ) -> Result<Response<MarkUploadFinishedResponse>, Status> {
        let request = request.into_inner();
        let id = build_id(&request.build_id).map_err(refused("finish"))?;
        let inner = std::sync::Arc::clone(&self.inner);
        let finish = move || inner.uploads.finish(id, &request.upload_id);
        let finished = tokio::task::spawn_blocking(finish).await;
        finished.map_err(|error| Status::internal(error.to_string()))?.map_err(refused("finish"))?;
        tracing::info!(build_id = %id, "debug file received");
        Ok(Response::new(MarkUploadFinishedResponse {}))
    }
}

/// Gives up an upload that isn't over, so that it can be announced again.
struct Abandon<'a> {
    debuginfo: &'a Debuginfo,
    upload_id: &'a str,
    is_over: bool,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.debuginfo.inner.uploads.abandon(self.upload_id);
        }
    }
}

async fn receive(
    stream: &mut Streaming<UploadRequest>,
    mut receiving: Receiving,
) -> Result<Receiving, Status> {
    while let Some(message) = stream.message().await? {
        let Some(Data::ChunkData(bytes)) = message.data else {
            return Err(refused("upload")(UploadRefusal::Order));
        };
        let written = tokio::task::spawn_blocking(move || {
            receiving.write(&bytes)?;
            Ok(receiving)
        });
        let written = written.await.map_err(|error| Status::internal(error.to_string()))?;
        receiving = written.map_err(refused("upload"))?;
    }
    Ok(receiving)
}
