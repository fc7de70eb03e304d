//! The limits of servers, tried on ones that keep to them: requests that are too large, profiles
//! that are too old, labels that are too many or too long, a tenant that is missing, and answers by
//! proxies. The scripts of the other tests say what a server answers; here it is the server's or
//! the proxy's own doing.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use prost::Message as _;
use tonic::service::Routes;

use super::*;
use crate::export::http_client::HttpOptions;
use crate::export::listener::{self, ListenerLimits};
use crate::export::otlp::scripted_receiver::ScriptedReceiver;
use crate::export::otlp::{OtlpClient, OtlpOptions, OtlpProtocol};
use crate::export::pyroscope::scripted_server::{HOUR, ScriptedPyroscope};
use crate::export::pyroscope::{PyroscopeClient, PyroscopeOptions};
use crate::profile::model::Series;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::total;
use crate::proto::pyroscope::PushRequest as PushMessage;

async fn serve_routes(router: Router) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (limits, forever) = (ListenerLimits::default(), std::future::pending());
    tokio::spawn(listener::serve(listener, router, limits, Arc::default(), forever));
    address
}

fn http(address: std::net::SocketAddr) -> HttpOptions {
    HttpOptions::new(format!("http://{address}"))
}

fn otlp(address: std::net::SocketAddr, protocol: OtlpProtocol) -> Backend {
    let options = OtlpOptions { http: http(address), protocol, headers: Vec::new(), compress: true };
    OtlpClient::new(options).expect("valid").into()
}

fn to_backend(backend: Backend, options: DeliveryOptions) -> Delivery {
    let mut delivery = Delivery::default();
    delivery.add_remote(backend, options).expect("the spool opens");
    delivery
}

/// A series whose profile takes some bytes more than `bytes`, also when it is compressed.
fn series_of(pid: u64, bytes: usize) -> Series {
    let mut state = pid + 1;
    let mut digits = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:08x}", state >> 32)
    };
    // Eight digits are worth four bytes.
    let name: String = (0..bytes / 4).map(|_| digits()).collect();
    series(&[("pid", &pid.to_string())], vec![(vec![frame(FrameKind::Native, &name)], pid)])
}

/// An answer of a proxy: its status, its page, and the time that it asks for.
type ProxyAnswer = (StatusCode, &'static str, Option<&'static str>);

/// A proxy that answers requests by its script, and passes on all others.
type ProxyScript = Arc<Mutex<VecDeque<ProxyAnswer>>>;

async fn proxy(State(script): State<ProxyScript>, request: Request, next: Next) -> Response {
    let step = script.lock().expect("no test panicked").pop_front();
    match step {
        Some((status, page, time)) => {
            let mut response =
                (status, [(header::CONTENT_TYPE, "text/html")], page.to_owned()).into_response();
            if let Some(time) = time {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(time));
            }
            response
        }
        None => next.run(request).await,
    }
}

/// A backend by gRPC behind a proxy that gives its first request this answer.
async fn behind_proxy(answer: ProxyAnswer, is_otlp: bool) -> Backend {
    let script = ProxyScript::new(Mutex::new([answer].into()));
    let service =
        Routes::new(ScriptedServer::default().service()).add_service(ScriptedReceiver::default().service());
    let router = service.into_axum_router().layer(middleware::from_fn_with_state(script, proxy));
    let address = serve_routes(router).await;
    if is_otlp { otlp(address, OtlpProtocol::Grpc) } else { client(address).into() }
}

#[tokio::test]
async fn a_proxys_answer_by_http_to_a_request_by_grpc_is_what_its_status_says() {
    let page = "<html><head><title>a proxy</title></head></html>";
    for (status, done) in [
        (401, "sent again"),
        (403, "sent again"),
        (404, "sent again"),
        (413, "divided"),
        (429, "sent again"),
        (500, "possibly lost"),
        (502, "possibly lost"),
        (503, "sent again"),
        (504, "possibly lost"),
    ] {
        for (page, is_otlp) in [(page, false), ("", false), (page, true), ("", true)] {
            let dir = tempfile::tempdir().expect("a folder");
            let status = StatusCode::from_u16(status).expect("a status");
            let script = ProxyScript::new(Mutex::new([(status, page, None)].into()));
            let (parca, receiver) = (ScriptedServer::default(), ScriptedReceiver::default());
            let service = Routes::new(parca.service()).add_service(receiver.service());
            let router = service.into_axum_router().layer(middleware::from_fn_with_state(script, proxy));
            let address = serve_routes(router).await;
            let backend = if is_otlp { otlp(address, OtlpProtocol::Grpc) } else { client(address).into() };
            let delivery = to_backend(backend, options(Some(dir.path())));
            delivery.enqueue(batch_of(3));
            let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
            let (expected, is_late, divided) = match done {
                "sent again" => ((6, 0), true, 0),
                "divided" => ((6, 0), false, 1),
                _ => ((0, 6), false, 0),
            };
            let row = format!("{status} {page:?} {is_otlp}: {counts:?}");
            assert_eq!((counts.delivered, counts.losses.possibly_lost), expected, "{row}");
            assert_eq!((counts.delivered_late == 6, counts.divided_requests), (is_late, divided), "{row}");
            let taken = if is_otlp { receiver.samples() } else { pids(&parca, 0).iter().sum() };
            assert_eq!(taken, counts.delivered, "{row}");
            assert_eq!(counts.losses.refused, 0, "{row}");
            end(delivery).await;
        }
    }
}

#[tokio::test]
async fn a_proxys_failure_by_http_is_no_answer_of_a_receiver_by_grpc() {
    for page in ["<html><head><title>a proxy</title></head></html>", ""] {
        let backend = behind_proxy((StatusCode::INTERNAL_SERVER_ERROR, page, None), true).await;
        let probed = backend.probe().await;
        assert!(matches!(probed, PushOutcome::PossiblyLost { .. }), "{probed:?}");
        assert_eq!(backend.probe().await, PushOutcome::Stored);
    }
}

#[tokio::test]
async fn a_request_beyond_a_servers_limit_arrives_in_parts_and_only_what_is_too_large_alone_is_refused() {
    const LIMIT: usize = 16 << 10;
    // All of them are four times the limit; the eighth alone is twice.
    let all =
        || batch((1..=24).map(|pid| series_of(pid, if pid == 8 { 2 * LIMIT } else { LIMIT / 8 })).collect());
    let samples: u64 = (1..=24).sum();
    for protocol in [None, Some(OtlpProtocol::Grpc), Some(OtlpProtocol::Http)] {
        let (parca, receiver) = (ScriptedServer::default(), ScriptedReceiver::default());
        let router = Routes::new(parca.service().max_decoding_message_size(LIMIT))
            .add_service(receiver.service().max_decoding_message_size(LIMIT))
            .into_axum_router()
            .merge(receiver.routes().layer(DefaultBodyLimit::max(LIMIT)));
        let address = serve_routes(router).await;
        let backend = match protocol {
            None => client(address).into(),
            Some(protocol) => otlp(address, protocol),
        };
        let delivery = to_backend(backend, options(None));
        delivery.enqueue(all());
        let counts = until(&delivery, |counts| counts.waiting == 0).await;
        let sums = (counts.delivered, counts.losses.refused, counts.losses.total());
        assert_eq!(sums, (samples - 8, 8, 8), "{protocol:?}: {counts:?}");
        assert!(counts.divided_requests > 2, "{protocol:?}: {counts:?}");
        let taken = if protocol.is_some() { receiver.samples() } else { pids(&parca, 0).iter().sum() };
        assert_eq!(taken, samples - 8, "{protocol:?}");
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_server_that_throttles_is_left_alone_for_the_time_that_it_asks_for() {
    let hour = Duration::from_secs(3600);
    let parca = |code| ScriptedServer::new(&[ScriptedAnswer::AskForTime(code, hour)]);
    let (exhausted, unavailable) = (parca(Code::ResourceExhausted), parca(Code::Unavailable));
    // Gateways before Pyroscope say when; it itself doesn't.
    let pyroscope = ScriptedPyroscope::new(&[(429, HOUR)]);
    let pyroscope_client = PyroscopeOptions {
        max_age: Duration::from_secs(1 << 40),
        ..PyroscopeOptions::new(http(pyroscope.serve().await))
    };
    let receiver = ScriptedReceiver::new(&[(429, HOUR)]);
    let mut backends: Vec<(Backend, u64)> = vec![
        (client(serve(&exhausted).await).into(), 0),
        // A proxy may have said it, whenever the connection behind it broke.
        (client(serve(&unavailable).await).into(), 6),
        (PyroscopeClient::new(pyroscope_client).expect("valid").into(), 0),
        (otlp(receiver.serve(OtlpProtocol::Http).await, OtlpProtocol::Http), 0),
    ];
    for (status, page, is_otlp, lost) in [
        (StatusCode::TOO_MANY_REQUESTS, "<html></html>", false, 0),
        (StatusCode::TOO_MANY_REQUESTS, "", true, 0),
        (StatusCode::SERVICE_UNAVAILABLE, "", false, 0),
        (StatusCode::SERVICE_UNAVAILABLE, "<html></html>", true, 0),
        (StatusCode::BAD_GATEWAY, "<html></html>", false, 6),
        (StatusCode::BAD_GATEWAY, "", true, 6),
    ] {
        backends.push((behind_proxy((status, page, Some("3600")), is_otlp).await, lost));
    }
    for (backend, lost) in backends {
        let dir = tempfile::tempdir().expect("a folder");
        let delivery = to_backend(backend, options(Some(dir.path())));
        delivery.enqueue(batch_of(3));
        until(&delivery, |counts| counts.failed_requests == 1).await;
        delivery.enqueue(batch_of(3));
        until(&delivery, |counts| counts.spooled == 12 - lost).await;
        // The back-off alone is 100 ms at most.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let counts = end(delivery).await.of_all_events();
        assert_eq!((counts.requests, counts.losses.total(), counts.spooled), (1, lost, 12 - lost));
    }
}

/// A Pyroscope with the limits of its defaults, as `pkg/validation/validate.go` and
/// `pkg/distributor/distributor.go` check them.
#[derive(Clone, Default)]
struct Pyroscope {
    has_tenants: bool,
    taken: Arc<Mutex<Vec<PushMessage>>>,
}

impl Pyroscope {
    async fn serve(&self) -> std::net::SocketAddr {
        let push = |State(server): State<Self>, headers: HeaderMap, body: Bytes| async move {
            match server.push(&headers, body) {
                Ok(()) => StatusCode::OK.into_response(),
                Err((status, code, message)) => {
                    let failure = serde_json::json!({ "code": code, "message": message });
                    (status, failure.to_string()).into_response()
                }
            }
        };
        serve_routes(Router::new().route("/push.v1.PusherService/Push", post(push)).with_state(self.clone()))
            .await
    }

    fn push(&self, headers: &HeaderMap, body: Bytes) -> Result<(), (StatusCode, &'static str, String)> {
        let invalid = |message: String| (StatusCode::BAD_REQUEST, "invalid_argument", message);
        if self.has_tenants && !headers.contains_key("x-scope-orgid") {
            return Err((StatusCode::UNAUTHORIZED, "unauthenticated", "no org id".to_owned()));
        }
        let message = PushMessage::decode(body).map_err(|error| invalid(error.to_string()))?;
        if message.series.is_empty() {
            return Err(invalid("no profiles received".to_owned()));
        }
        for series in &message.series {
            let labels = &series.labels;
            if labels.len() > 30 {
                return Err(invalid(format!("{} label names; limit 30", labels.len())));
            }
            for name in ["__name__", "service_name"] {
                if !labels.iter().any(|label| label.name == name) {
                    return Err(invalid(format!("{name} is not provided")));
                }
            }
            let too_long = labels.iter().find(|label| label.name.len() > 1024 || label.value.len() > 2048);
            if let Some(label) = too_long {
                return Err(invalid(format!("label name or value too long: {}", label.name)));
            }
            let label_bytes: usize = labels.iter().map(|label| label.name.len() + label.value.len()).sum();
            for sample in &series.samples {
                let profile = decode(&sample.raw_profile, DecodeLimits::default());
                let profile = profile.map_err(|error| invalid(error.to_string()))?;
                let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(profile.time_nanos.cast_unsigned());
                let age = SystemTime::now().duration_since(time).unwrap_or_default();
                let ahead = time.duration_since(SystemTime::now()).unwrap_or_default();
                if age > Duration::from_mins(60) || ahead > Duration::from_mins(10) {
                    return Err(invalid("outside of ingestion window".to_owned()));
                }
                let bytes = profile.encoded_len();
                if bytes > 4 << 20 || profile.sample.len() > 16_000 {
                    return Err(invalid(
                        "max_profile_size_byte or max_profile_stacktrace_samples".to_owned(),
                    ));
                }
                if bytes + label_bytes > 2 << 20 {
                    let message = "push rate limit (4.0 MiB) exceeded".to_owned();
                    return Err((StatusCode::TOO_MANY_REQUESTS, "resource_exhausted", message));
                }
            }
        }
        self.taken.lock().expect("no test panicked").push(message);
        Ok(())
    }

    fn samples(&self) -> u64 {
        let taken = self.taken.lock().expect("no test panicked");
        let raw = taken.iter().flat_map(|message| &message.series).flat_map(|series| &series.samples);
        raw.map(|raw| total(&decode(&raw.raw_profile, DecodeLimits::default()).expect("pprof"))).sum()
    }
}

fn pyroscope(address: std::net::SocketAddr, tenant: Option<&str>, max_age: Duration) -> Backend {
    let tenant = tenant.map(str::to_owned);
    let options = PyroscopeOptions { tenant, max_age, ..PyroscopeOptions::new(http(address)) };
    PyroscopeClient::new(options).expect("valid").into()
}

const HOUR_OF_AGE: Duration = Duration::from_mins(60);

/// The same batch, taken so long ago.
fn aged(batch: Batch, age: Duration) -> Batch {
    Batch { start: SystemTime::now() - batch.duration - age, ..batch }
}

#[tokio::test]
async fn pyroscope_refuses_nothing_by_its_limits_and_what_they_cost_is_counted() {
    let names: Vec<_> = (0..40).map(|number| format!("label_{number:02}")).collect();
    let many_labels: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let (long_value, long_name) = ("v".repeat(5000), "n".repeat(2000));
    let main = || vec![(vec![frame(FrameKind::Native, "main")], 1)];
    let many = (0..40_000).map(|number| (vec![frame(FrameKind::Native, &format!("f{number}"))], 1));
    let long = (0..6).map(|number| (vec![frame(FrameKind::Native, &format!("{number}").repeat(1 << 20))], 1));
    let deep = vec![(vec![frame(FrameKind::Native, "recursive"); 3000], 1)];
    let all = || {
        vec![
            series(&many_labels, main()),
            series(&[("comm", "c"), ("executable", &long_value), (&long_name, "x")], main()),
            series(&[("pid", "1")], many.clone().collect()),
            series(&[("pid", "2")], long.clone().collect()),
            series(&[("pid", "3")], deep.clone()),
        ]
    };
    for event in [EventType::Cpu, EventType::Allocation] {
        let server = Pyroscope::default();
        let delivery = to_backend(pyroscope(server.serve().await, None, HOUR_OF_AGE), options(None));
        delivery.enqueue(aged(Batch { event, ..batch(all()) }, Duration::ZERO));
        let counts = until(&delivery, |counts| counts.waiting == 0).await;
        assert_eq!((counts.delivered, counts.losses.total()), (40_009, 0), "{counts:?}");
        assert_eq!((server.samples(), counts.failed_requests), (40_009, 0), "{counts:?}");
        // 42 labels, or 43 with the one of allocation, and two of the second series.
        let of_many = if event == EventType::Cpu { 12 } else { 13 };
        assert_eq!(counts.limited_labels, of_many + 2);
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_profile_that_pyroscope_finds_too_old_is_refused_alone_if_the_settings_know_no_better() {
    for (max_age, expected) in [(HOUR_OF_AGE, (0, 6)), (2 * HOUR_OF_AGE, (6, 0))] {
        let server = Pyroscope::default();
        let delivery = to_backend(pyroscope(server.serve().await, None, max_age), options(None));
        delivery.enqueue(aged(batch_of(3), HOUR_OF_AGE + Duration::from_mins(1)));
        delivery.enqueue(aged(batch_of(2), Duration::ZERO));
        let counts = until(&delivery, |counts| counts.waiting == 0 && counts.handed_over == 9).await;
        assert_eq!((counts.losses.refused, counts.losses.too_old), expected, "{counts:?}");
        assert_eq!((counts.delivered, server.samples()), (3, 3), "{counts:?}");
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_push_without_a_tenant_waits_in_the_spool_until_the_settings_name_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Pyroscope { has_tenants: true, ..Pyroscope::default() };
    let address = server.serve().await;
    let delivery = to_backend(pyroscope(address, None, HOUR_OF_AGE), options(Some(dir.path())));
    delivery.enqueue(aged(batch_of(3), Duration::ZERO));
    until(&delivery, |counts| counts.spooled == 6 && counts.waiting == 0).await;
    end(delivery).await;
    let delivery = to_backend(pyroscope(address, Some("shop"), HOUR_OF_AGE), options(Some(dir.path())));
    let counts = until(&delivery, |counts| counts.spooled == 0).await;
    assert_eq!((counts.delivered, counts.losses.total(), server.samples()), (6, 0, 6), "{counts:?}");
    end(delivery).await;
}
