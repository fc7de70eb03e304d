//! Profiles of OTLP, by gRPC and by HTTP, into the collector's store.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response as HttpResponse};
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_server::ProfilesService;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message as _;
use tonic::{Code, Request, Response, Status};
use tonic_types::pb::Status as RpcStatus;

use super::http_body;
use super::parca_receiver::{CollectorService, WriteError};
use crate::export::otlp::received;

/// Path that profiles are posted to, as OTLP says.
pub(super) const HTTP_PATH: &str = "/v1development/profiles";
/// The type of bodies by HTTP. JSON isn't taken.
const PROTOBUF: &str = "application/x-protobuf";

/// The gRPC service.
#[derive(Debug)]
pub(super) struct OtlpReceiver(pub(super) Arc<CollectorService>);

#[tonic::async_trait]
impl ProfilesService for OtlpReceiver {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, Status> {
        store(&self.0, request.into_inner()).await?;
        Ok(Response::new(ExportProfilesServiceResponse::default()))
    }
}

async fn store(collector: &CollectorService, message: ExportProfilesServiceRequest) -> Result<(), Status> {
    let stored = collector.store_series(move |limits| Ok(received::series(&message, limits.max_bytes)?));
    stored.await.map_err(|error| match error {
        // The only code of OTLP that says "later" by itself.
        WriteError::Store(error) if error.is_out_of_space() => Status::unavailable(error.to_string()),
        WriteError::Refused(refusal) => refusal.into_plain_status(),
        other => other.into(),
    })
}

/// A POST of OTLP/HTTP.
pub(super) async fn post(
    State(collector): State<Arc<CollectorService>>,
    headers: HeaderMap,
    body: Bytes,
) -> HttpResponse {
    let received = async {
        let body = http_body::decoded(&headers, PROTOBUF, body)?;
        let message = ExportProfilesServiceRequest::decode(body)
            .map_err(|error| Status::invalid_argument(format!("parsing an OTLP message: {error}")))?;
        store(&collector, message).await
    };
    let content_type = [("content-type", PROTOBUF)];
    match received.await {
        Ok(()) => (content_type, ExportProfilesServiceResponse::default().encode_to_vec()).into_response(),
        Err(status) => {
            let body = RpcStatus {
                code: status.code() as i32,
                message: status.message().to_owned(),
                details: Vec::new(),
            };
            (http_status(status.code()), content_type, body.encode_to_vec()).into_response()
        }
    }
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Unimplemented => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
