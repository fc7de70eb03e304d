//! A Pyroscope in this process, beside a collector: killed, back again, and of another mind.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use jvmprof_daemon::profile::pprof;
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pyroscope::PushRequest;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::proxy::Daemon;
use super::{BUSY, collector, daemon_until, field, free_address, has_emptied_spool, has_taken, stored};
use crate::support::keys::Keys;
use crate::support::nginx::{Nginx, TOKEN};
use crate::support::{Workload, compile, scratch, signal};

/// The requests that the server got and took.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<PushRequest>>>);

impl Received {
    fn samples(&self) -> u64 {
        let taken = self.0.lock().unwrap();
        let raw = taken.iter().flat_map(|request| &request.series).flat_map(|series| &series.samples);
        raw.map(|raw| pprof::total(&decode(&raw.raw_profile, DecodeLimits::default()).unwrap())).sum()
    }

    /// Waits until so many have arrived, and one more.
    fn until_more_than(&self, samples: u64) {
        let started = Instant::now();
        while self.samples() <= samples {
            assert!(started.elapsed() < Duration::from_secs(120), "nothing arrives");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The values of a label of all series.
    fn values(&self, name: &str) -> Vec<String> {
        let taken = self.0.lock().unwrap();
        let labels = taken.iter().flat_map(|request| &request.series).flat_map(|series| &series.labels);
        labels.filter(|label| label.name == name).map(|label| label.value.clone()).collect()
    }
}

async fn push(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
    let message = PushRequest::decode(body).unwrap();
    if headers.get("x-scope-orgid").is_none_or(|tenant| tenant != "shop") {
        return (StatusCode::UNAUTHORIZED, r#"{"code":"unauthenticated","message":"no org id"}"#.into());
    }
    if message.series.is_empty() {
        let text = r#"{"code":"invalid_argument","message":"no profiles received"}"#;
        return (StatusCode::BAD_REQUEST, text.into());
    }
    received.0.lock().unwrap().push(message);
    (StatusCode::OK, String::new())
}

/// Serves until the runtime is shut down, which closes all connections.
fn serve(received: &Received, address: &str) -> Runtime {
    let address: SocketAddr = address.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let router = Router::new().route("/push.v1.PusherService/Push", post(push)).with_state(received.clone());
    runtime.spawn(async move {
        axum::serve(TcpListener::bind(address).await.unwrap(), router).await.unwrap();
    });
    let started = Instant::now();
    while runtime.block_on(TcpStream::connect(address)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(30), "nobody listens at {address}");
        std::thread::sleep(Duration::from_millis(10));
    }
    runtime
}

#[test]
fn pyroscope_and_a_collector_both_get_every_sample() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (mut collector, collector_address) = collector(&dir.path().join("store"));
    let (received, address) = (Received::default(), free_address());
    let server = serve(&received, &address);
    let url = format!("http://{address}");
    let args = [
        "--pyroscope-address",
        &url,
        "--pyroscope-tenant",
        "shop",
        "--remote-store-address",
        &collector_address,
    ];
    let (log, success) = daemon_until(&dir.path().join("spool"), &args, |log| has_taken(log, 100));
    assert!(success, "{log}");
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
    server.shutdown_background();
    let samples = field(&log, "samples");
    assert!(samples > 100, "{log}");
    assert_eq!((received.samples(), stored(&dir.path().join("store"))), (samples, samples), "{log}");
    assert_eq!((field(&log, "delivered"), field(&log, "lost")), (2 * samples, 0), "{log}");
    assert!(received.values("service_name").iter().any(|service| service == "busy"));
    assert!(received.values("__name__").iter().all(|name| name == "process_cpu"));
}

#[test]
fn a_pyroscope_that_is_killed_and_comes_back_has_what_the_account_says() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (received, address) = (Received::default(), free_address());
    let server = serve(&received, &address);
    let url = format!("http://{address}");
    let args = ["--pyroscope-address", &url, "--pyroscope-tenant", "shop"].map(str::to_owned);
    let daemon = Daemon::start(&args, &[]);
    received.until_more_than(0);
    server.shutdown_background();
    daemon.until("the server doesn't take profiles");
    let before = received.samples();
    let server = serve(&received, &address);
    daemon.until("the server answers again");
    received.until_more_than(before);
    let log = daemon.end();
    server.shutdown_background();
    let [delivered, possibly_lost, spooled, samples] =
        ["delivered", "possibly_lost", "spooled", "samples"].map(|name| field(&log, name));
    assert_eq!((delivered + possibly_lost + spooled, field(&log, "lost")), (samples, 0), "{log}");
    // A request that was under way at the kill may have been taken.
    let possible = delivered..=delivered + possibly_lost;
    assert!(possible.contains(&received.samples()), "{}: {log}", received.samples());
    assert!(delivered > before, "{log}");
}

#[test]
fn a_tenant_that_is_not_let_in_costs_no_sample() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (received, address) = (Received::default(), free_address());
    let server = serve(&received, &address);
    let url = format!("http://{address}");
    let spool = dir.path().join("spool");
    let is_refused = |log: &str| log.contains("no org id") && has_taken(log, 50);
    let (log, success) = daemon_until(&spool, &["--pyroscope-address", &url], is_refused);
    assert!(success, "{log}");
    let missed = field(&log, "samples");
    assert!(missed > 50, "{log}");
    assert_eq!((field(&log, "spooled"), field(&log, "lost"), received.samples()), (missed, 0, 0), "{log}");
    // Somebody puts it right.
    let args = ["--pyroscope-address", &url, "--pyroscope-tenant", "shop"];
    let (log, success) = daemon_until(&spool, &args, has_emptied_spool);
    assert!(success, "{log}");
    server.shutdown_background();
    assert_eq!(received.samples(), missed + field(&log, "samples"), "{log}");
    assert_eq!(received.samples(), field(&log, "delivered"), "{log}");
}

#[test]
fn nginx_with_tls_a_clients_certificate_and_a_token_lets_profiles_through() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (received, address, keys) = (Received::default(), free_address(), Keys::make());
    let server = serve(&received, &address);
    let nginx = Nginx::start(&keys, &format!("proxy_pass http://{address};"));
    let token = dir.path().join("token").display().to_string();
    std::fs::write(&token, TOKEN).unwrap();
    let url = format!("https://localhost:{}", nginx.port);
    let files = [keys.path("ca.pem"), keys.path("client.pem"), keys.path("client.key")];
    let mut args = vec!["--pyroscope-address", &url, "--pyroscope-tenant", "shop"];
    args.extend(["--pyroscope-ca-file", &files[0], "--pyroscope-client-cert", &files[1]]);
    args.extend(["--pyroscope-client-key", &files[2]]);
    let spool = dir.path().join("spool");
    // nginx answers 401 by itself, and nothing is lost.
    let (log, success) = daemon_until(&spool, &args, |log| log.contains("HTTP 401"));
    assert!(success, "{log}");
    let missed = field(&log, "samples");
    assert_eq!((field(&log, "spooled"), field(&log, "lost")), (missed, 0), "{log}");
    args.extend(["--pyroscope-bearer-token-file", &token]);
    let is_done = |log: &str| has_emptied_spool(log) && has_taken(log, 100);
    let (log, success) = daemon_until(&spool, &args, is_done);
    assert!(success, "{log}");
    server.shutdown_background();
    let samples = missed + field(&log, "samples");
    assert!(missed > 0 && samples > 100, "{log}");
    assert_eq!((received.samples(), field(&log, "delivered")), (samples, samples), "{log}");
}
