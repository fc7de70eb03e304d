//! A Pyroscope that follows a script, for the tests of its clients.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::post;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::total;
use crate::proto::pyroscope::PushRequest as PushMessage;

/// A body with which it asks for this time (`Retry-After`).
pub(in crate::export) const HOUR: &str = "come back in an hour";
const HOUR_SECONDS: u64 = 3600;

/// In place of a status.
pub(in crate::export) const HANG: u16 = 0;

/// A server that gives these answers, one after the other, and then takes everything.
#[derive(Clone, Default)]
pub(in crate::export) struct ScriptedPyroscope {
    /// Status and body; a status of [`HANG`] is no answer at all.
    steps: Arc<Mutex<VecDeque<(u16, String)>>>,
    /// What was taken.
    pub(in crate::export) taken: Arc<Mutex<Vec<(HeaderMap, PushMessage)>>>,
    /// How long it keeps everybody waiting, as the segments of Pyroscope 2 do.
    delay: Duration,
    /// The number of answers that are left; `None`: any.
    answers: Option<Arc<AtomicUsize>>,
    under_way: Arc<AtomicUsize>,
    /// The most requests that were under way at once.
    pub(in crate::export) most_under_way: Arc<AtomicUsize>,
}

impl ScriptedPyroscope {
    pub(in crate::export) fn new(steps: &[(u16, &str)]) -> Self {
        let steps = steps.iter().map(|(status, body)| (*status, (*body).to_owned())).collect();
        Self { steps: Arc::new(Mutex::new(steps)), ..Self::default() }
    }

    /// Makes a server that answers only after a time.
    pub(in crate::export) fn slow(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Makes a server that answers so many requests, and no other.
    pub(in crate::export) fn slow_after(answers: usize) -> Self {
        Self { answers: Some(Arc::new(AtomicUsize::new(answers))), ..Self::default() }
    }

    /// The samples of all profiles that were taken.
    pub(in crate::export) fn samples(&self) -> u64 {
        let taken = self.taken.lock().expect("no test panicked");
        let raw = taken.iter().flat_map(|(_, message)| &message.series).flat_map(|series| &series.samples);
        raw.map(|raw| total(&decode(&raw.raw_profile, DecodeLimits::default()).expect("pprof"))).sum()
    }

    pub(in crate::export) async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(self.serve_on(listener));
        address
    }

    /// Serves until the task is aborted.
    pub(in crate::export) fn serve_on(&self, listener: TcpListener) -> JoinHandle<()> {
        let router = Router::new().route("/push.v1.PusherService/Push", post(push)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") })
    }
}

async fn push(
    State(server): State<ScriptedPyroscope>,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    assert_eq!(headers["content-type"], "application/proto");
    let message = PushMessage::decode(body).expect("protobuf");
    if message.series.is_empty() {
        let body = r#"{"code":"invalid_argument","message":"no profiles received"}"#;
        return (StatusCode::BAD_REQUEST, body).into_response();
    }
    let under_way = server.under_way.fetch_add(1, Ordering::SeqCst) + 1;
    server.most_under_way.fetch_max(under_way, Ordering::SeqCst);
    tokio::time::sleep(server.delay).await;
    if let Some(answers) = &server.answers {
        let left = answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            std::future::pending::<()>().await;
        }
    }
    server.under_way.fetch_sub(1, Ordering::SeqCst);
    let step = server.steps.lock().expect("no test panicked").pop_front();
    match step {
        Some((HANG, _)) => std::future::pending().await,
        Some((status, body)) => {
            let is_hour = body == HOUR;
            let mut response = (StatusCode::from_u16(status).expect("a status"), body).into_response();
            if is_hour {
                response.headers_mut().insert("retry-after", HOUR_SECONDS.into());
            }
            response
        }
        None => {
            server.taken.lock().expect("no test panicked").push((headers, message));
            ([("content-type", "application/proto")], Bytes::new()).into_response()
        }
    }
}
