//! Series that a server refuses for good, in window after window, and many of them at once.

use super::*;
use crate::export::collector::{self, CollectorService};
use crate::export::http_client::HttpOptions;
use crate::export::otlp::scripted_receiver::ScriptedReceiver;
use crate::export::otlp::{OtlpClient, OtlpOptions, OtlpProtocol};

/// A backend that never takes the series of pid 3, and takes all others.
async fn refusing(protocol: Option<OtlpProtocol>) -> Backend {
    let Some(protocol) = protocol else {
        let scripted = ScriptedServer::default();
        *scripted.never.lock().expect("no test panicked") = Some(("3", Code::InvalidArgument, "bad pid"));
        return client(serve(&scripted).await).into();
    };
    let address = ScriptedReceiver::refusing("3").serve(protocol).await;
    let http = HttpOptions::new(format!("http://{address}"));
    let options = OtlpOptions { http, protocol, headers: Vec::new(), compress: true };
    OtlpClient::new(options).expect("valid").into()
}

fn to_backend(backend: Backend, options: DeliveryOptions) -> Delivery {
    let mut delivery = Delivery::default();
    delivery.add_remote(backend, options).expect("the spool opens");
    delivery
}

#[tokio::test]
async fn a_series_that_is_refused_in_each_window_costs_the_others_no_requests_for_ever() {
    for protocol in [None, Some(OtlpProtocol::Grpc), Some(OtlpProtocol::Http)] {
        let delivery = to_backend(refusing(protocol).await, options(None));
        // All four, two halves, and the second one's halves; then those three and that one; then
        // those three.
        let mut expected = 0;
        for (window, (requests, withheld)) in (1..).zip([(5, 0), (5, 0), (2, 0), (1, 1), (1, 2), (1, 3)]) {
            delivery.enqueue(batch_of(4));
            let counts = until(&delivery, |counts| counts.waiting == 0).await;
            expected += requests;
            let row = format!("{protocol:?} {window}: {counts:?}");
            assert_eq!((counts.requests, counts.withheld_series), (expected, withheld), "{row}");
            assert_eq!((counts.delivered, counts.losses.refused), (7 * window, 3 * window), "{row}");
            assert_eq!(counts.losses.total(), counts.losses.refused, "{row}");
        }
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_refusal_of_what_has_waited_is_none_of_fresh_samples() {
    let dir = tempfile::tempdir().expect("a folder");
    let delivery = to_backend(client(dead_address().await).into(), options(Some(dir.path())));
    for waiting in 1..=4 {
        delivery.enqueue(batch_of(4));
        until(&delivery, |counts| counts.spooled == 10 * waiting).await;
    }
    end(delivery).await;
    let delivery = to_backend(refusing(None).await, options(Some(dir.path())));
    let counts = until(&delivery, |counts| counts.spooled + counts.waiting == 0).await;
    assert_eq!((counts.delivered, counts.losses.refused, counts.requests), (28, 12, 20), "{counts:?}");
    // Together with the others, as if that series had never been refused.
    delivery.enqueue(batch_of(4));
    let counts = until(&delivery, |counts| counts.waiting == 0).await;
    assert_eq!((counts.delivered, counts.requests, counts.withheld_series), (35, 25, 0), "{counts:?}");
    end(delivery).await;
}

#[tokio::test]
async fn however_many_series_are_bad_the_good_ones_are_found() {
    const SERIES: u64 = 400;
    /// Returns true for the ids of processes whose series are bad.
    type IsBad = fn(u64) -> bool;
    let cases: [(&str, IsBad); 4] = [
        ("each second one", |pid| pid.is_multiple_of(2)),
        ("nine of ten", |pid| !pid.is_multiple_of(10)),
        ("the first ones", |pid| pid < 300),
        ("the last ones", |pid| pid >= 100),
    ];
    for (name, is_bad) in cases {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).expect("a store"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = collector::routes(Arc::new(CollectorService::new(Arc::clone(&store))));
        tokio::spawn(collector::serve(listener, router, std::future::pending()));
        let delivery = to(&client(address), &options(None));
        let stack = || vec![(vec![frame(FrameKind::Native, "main")], 1)];
        let of_pid = |pid: u64| {
            let label = if is_bad(pid) { "not-a-label" } else { "fine" };
            series(&[("pid", &pid.to_string()), (label, "x")], stack())
        };
        delivery.enqueue(batch((0..SERIES).map(of_pid).collect()));
        let counts = until(&delivery, |counts| counts.waiting == 0).await;
        let bad = (0..SERIES).filter(|pid| is_bad(*pid)).count() as u64;
        assert_eq!((counts.delivered, counts.losses.refused), (SERIES - bad, bad), "{name}: {counts:?}");
        assert!(counts.requests < 2 * SERIES, "{name}: {counts:?}");
        assert_eq!(store.series(TimeRange::ALL, &[]).len() as u64, SERIES - bad, "{name}");
        end(delivery).await;
    }
}
