//! A real OpenTelemetry collector over TLS: who knows its authority and shows a certificate
//! delivers, and whom one side refuses loses nothing and is told why.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use jvmprof_daemon::event_type::{EventType, SamplesByEvent};
use jvmprof_daemon::export::delivery::Delivery;
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::otlp::{OtlpClient, OtlpProtocol};
use jvmprof_daemon::export::push::PushOutcome;

use crate::delivered::{batch, check_account, is_empty, options, until};
use crate::otel_collector::{PROTOCOLS, client, start, written};
use crate::server::{PATIENCE, free_address};
use crate::support::keys::Keys;
use crate::support::scratch;

/// A receiver's setting: its certificate, and the authority of clients, if these have to show one.
fn tls(keys: &Keys, clients: Option<&str>) -> String {
    let clients = clients.map(|file| format!(", client_ca_file: \"{}\"", keys.path(file)));
    let [certificate, key] = ["server.pem", "server.key"].map(|file| keys.path(file));
    let clients = clients.unwrap_or_default();
    format!("tls: {{cert_file: \"{certificate}\", key_file: \"{key}\"{clients}}}")
}

/// Waits until a question is answered with this text, and never as if something was stored.
async fn until_told(client: &OtlpClient, text: &str) {
    let started = Instant::now();
    loop {
        let outcome = client.probe().await;
        let (PushOutcome::NotStored { message, .. } | PushOutcome::PossiblyLost { message, .. }) = &outcome
        else {
            panic!("{text}: {outcome:?}")
        };
        if message.contains(text) {
            return;
        }
        // The connection may have ended before its question was on it, or before the server's alert
        // was read.
        assert!(started.elapsed() < PATIENCE, "{text}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_collector_gets_by_tls_what_it_missed_while_one_side_refused_the_other() {
    let (keys, others) = (Keys::make(), Keys::make());
    let tls = tls(&keys, Some("ca.pem"));
    for protocol in PROTOCOLS {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let _collector = start(dir.path(), protocol, &address, &[&tls]);
        // The name in its certificate.
        let address = address.replace("127.0.0.1", "localhost");
        let trusting = HttpOptions {
            ca_file: Some(keys.path("ca.pem").into()),
            client_identity: identity(&keys),
            ..HttpOptions::new(&address)
        };
        let distrusting = HttpOptions { ca_file: Some(others.path("ca.pem").into()), ..trusting.clone() };
        let unknown = HttpOptions { client_identity: identity(&others), ..trusting.clone() };
        let nobody = HttpOptions { client_identity: None, ..trusting.clone() };
        let refused = "the server wants a client certificate that it trusts";
        for (http, said) in [(distrusting, "invalid peer certificate"), (unknown, refused), (nobody, refused)]
        {
            let client = client(http, protocol);
            until_told(&client, said).await;
            let mut delivery = Delivery::default();
            delivery.add_remote(client, options(spool.path())).unwrap();
            for event in EventType::ALL {
                delivery.enqueue(batch(event, 1));
            }
            until(&delivery, |counts| counts.waiting.is_none()).await;
            let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
            let sums = (counts.spooled - counts.found, counts.losses.total());
            assert_eq!(sums, (counts.handed_over, SamplesByEvent::NONE), "{said}: {counts:?}");
        }
        let mut delivery = Delivery::default();
        delivery.add_remote(client(trusting, protocol), options(spool.path())).unwrap();
        for event in EventType::ALL {
            delivery.enqueue(batch(event, 2));
        }
        until(&delivery, is_empty).await;
        let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
        assert_eq!(counts.delivered, counts.found + counts.handed_over, "{counts:?}");
        let written = written(dir.path());
        check_account(spool.path(), |event| written.get(event));
    }
}

/// The client's certificate and key.
fn identity(keys: &Keys) -> Option<(PathBuf, PathBuf)> {
    Some((keys.path("client.pem").into(), keys.path("client.key").into()))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_tls_alone_with_a_real_collector_is_told_what_to_write() {
    let keys = Keys::make();
    let tls = tls(&keys, None);
    for protocol in PROTOCOLS {
        for (settings, scheme, said) in [
            (&[][..], "https", "the server doesn't speak TLS: write the address as http://"),
            (&[&*tls][..], "http", "the server speaks TLS only: write the address as https://"),
        ] {
            let (dir, address) = (scratch(), free_address());
            let _collector = start(dir.path(), protocol, &address, settings);
            let http = HttpOptions {
                ca_file: Some(keys.path("ca.pem").into()),
                ..HttpOptions::new(format!("{scheme}://{address}"))
            };
            until_told(&client(http, protocol), said).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_collector_that_speaks_tls_refuses_nothing_that_comes_without_it() {
    let keys = Keys::make();
    let tls = tls(&keys, None);
    let (dir, spool, address) = (scratch(), scratch(), free_address());
    let _collector = start(dir.path(), OtlpProtocol::Http, &address, &[&tls]);
    let client = client(HttpOptions::new(format!("http://{address}")), OtlpProtocol::Http);
    let mut delivery = Delivery::default();
    delivery.add_remote(client, options(spool.path())).unwrap();
    delivery.enqueue(batch(EventType::Cpu, 1));
    until(&delivery, |counts| counts.waiting.is_none()).await;
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
    assert_eq!((counts.spooled, counts.delivered), (counts.handed_over, SamplesByEvent::NONE), "{counts:?}");
}
