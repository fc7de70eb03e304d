//! A real OpenTelemetry collector behind nginx, which lets few requests through and says when to
//! come again.

use std::fs;
use std::time::{Duration, Instant};

use jvmprof_daemon::event_type::{EventType, SamplesByEvent};
use jvmprof_daemon::export::delivery::Delivery;
use jvmprof_daemon::export::http_client::{Credentials, HttpOptions};
use jvmprof_daemon::export::otlp::OtlpProtocol;
use jvmprof_daemon::export::push::PushOutcome;

use crate::delivered::{batch, check_account, is_empty, options, until};
use crate::otel_collector::{client, start, written};
use crate::server::{PATIENCE, free_address};
use crate::support::keys::Keys;
use crate::support::nginx::{Nginx, TOKEN};
use crate::support::scratch;

/// What answers ask for.
const RETRY_AFTER: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_throttles_before_a_real_collector_is_asked_no_sooner_than_it_says() {
    let (dir, spool, address, keys) = (scratch(), scratch(), free_address(), Keys::make());
    let collector = start(dir.path(), OtlpProtocol::Http, &address, &[]);
    let zone = "limit_req_zone $binary_remote_addr zone=all:1m rate=2r/s;";
    let limit = "limit_req zone=all burst=2 nodelay; limit_req_status 429;";
    let asks = format!("add_header Retry-After {} always;", RETRY_AFTER.as_secs());
    let nginx = Nginx::start_with(&keys, zone, &format!("{limit} {asks} proxy_pass http://{address};"));
    let token = dir.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let http = HttpOptions {
        credentials: Some(Credentials::Bearer(token)),
        ca_file: Some(keys.path("ca.pem").into()),
        client_identity: Some((keys.path("client.pem").into(), keys.path("client.key").into())),
        ..HttpOptions::new(format!("https://localhost:{}", nginx.port))
    };
    let mut delivery = Delivery::default();
    delivery.add_remote(client(http.clone(), OtlpProtocol::Http), options(spool.path())).unwrap();
    // Six requests, of which three are let through at once.
    for event in EventType::ALL {
        delivery.enqueue(batch(event, 1));
    }
    until(&delivery, is_empty).await;
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
    let sums = (counts.delivered, counts.losses.total());
    assert_eq!(sums, (counts.handed_over, SamplesByEvent::NONE), "{counts:?}");
    let answers = nginx.answers();
    let throttled = answers.windows(2).filter(|pair| pair[0].1 == 429);
    let pauses: Vec<f64> = throttled.map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(!pauses.is_empty() && counts.failed_requests > 0, "{answers:?} {counts:?}");
    assert!(pauses.iter().all(|pause| *pause >= RETRY_AFTER.as_secs_f64()), "{answers:?}");

    let client = client(http, OtlpProtocol::Http);
    let started = Instant::now();
    let throttled = loop {
        match client.probe().await {
            PushOutcome::Stored => assert!(started.elapsed() < PATIENCE, "none is throttled"),
            other => break other,
        }
    };
    let PushOutcome::NotStored { message, retry_after } = &throttled else { panic!("{throttled:?}") };
    assert!(message.contains("429"), "{message}");
    assert_eq!(*retry_after, Some(RETRY_AFTER), "{message}");
    drop(collector);
    let written = written(dir.path());
    check_account(spool.path(), |event| written.get(event));
}
