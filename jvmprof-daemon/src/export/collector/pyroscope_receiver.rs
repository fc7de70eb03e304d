//! Pyroscope's `push.v1.PusherService/Push`, as agents call it: a POST of the Connect protocol.

pub mod form;
pub(super) mod ingest;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use prost::Message as _;
use serde::Serialize;
use tonic::{Code, Status};

use super::http_body;
use super::parca_receiver::{CollectorService, WriteError};
use crate::proto::profilestore::{Label, LabelSet, RawProfileSeries, RawSample, WriteRawRequest};
use crate::proto::pyroscope::{PushRequest, RawProfileSeries as PushedSeries};

/// The path of the procedure.
pub(super) const PATH: &str = "/push.v1.PusherService/Push";
/// Tells Pyroscope's storage how to read values, and is no label of a series.
const DELTA_LABEL: &str = "__delta__";
/// The type of bodies. JSON and gRPC aren't taken.
const PROTOBUF: &str = "application/proto";

/// An error of the Connect protocol.
#[derive(Serialize)]
struct ConnectError<'a> {
    code: &'static str,
    message: &'a str,
}

/// A push.
pub(super) async fn post(
    State(collector): State<Arc<CollectorService>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let received = async {
        let body = http_body::decoded(&headers, PROTOBUF, body)?;
        let message = PushRequest::decode(body)
            .map_err(|error| Status::invalid_argument(format!("parsing a push: {error}")))?;
        let series = message.series.into_iter().map(series_of).collect();
        let request = WriteRawRequest { series, ..WriteRawRequest::default() };
        collector.store_series(move |_| Ok(request)).await.map_err(|error| match error {
            WriteError::Refused(refusal) => refusal.into_plain_status(),
            other => other.into(),
        })
    };
    match received.await {
        Ok(()) => ([("content-type", PROTOBUF)], Bytes::new()).into_response(),
        Err(status) => {
            let (http_status, code) = connect_code(status.code());
            (http_status, axum::Json(ConnectError { code, message: status.message() })).into_response()
        }
    }
}

fn series_of(series: PushedSeries) -> RawProfileSeries {
    let labels = series.labels.into_iter().filter(|label| label.name != DELTA_LABEL);
    let labels = labels.map(|label| Label { name: label.name, value: label.value });
    let sample = |raw_profile| RawSample { raw_profile, executable_info: Vec::new() };
    RawProfileSeries {
        labels: Some(LabelSet { labels: labels.collect() }),
        samples: series.samples.into_iter().map(|raw| sample(raw.raw_profile)).collect(),
    }
}

/// Status and name of a code, as the Connect protocol has them.
fn connect_code(code: Code) -> (StatusCode, &'static str) {
    match code {
        Code::InvalidArgument => (StatusCode::BAD_REQUEST, "invalid_argument"),
        Code::PermissionDenied => (StatusCode::FORBIDDEN, "permission_denied"),
        Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "resource_exhausted"),
        Code::Unimplemented => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unimplemented"),
        Code::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Code::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "unknown"),
    }
}
