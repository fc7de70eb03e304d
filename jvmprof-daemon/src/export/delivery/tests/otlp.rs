//! The whole way of batches to a receiver of OTLP: what it answers, and its end.

use std::sync::atomic::Ordering;

use super::*;
use crate::export::http_client::HttpOptions;
use crate::export::otlp::scripted_receiver::{ALL_REJECTED, HOUR, PARTIAL, ScriptedReceiver};
use crate::export::otlp::{OtlpClient, OtlpOptions, OtlpProtocol};

fn client(address: impl std::fmt::Display, protocol: OtlpProtocol) -> OtlpClient {
    client_of(HttpOptions::new(format!("http://{address}")), protocol)
}

fn client_with_timeout(
    address: impl std::fmt::Display,
    protocol: OtlpProtocol,
    request_timeout: Duration,
) -> OtlpClient {
    let http = HttpOptions { request_timeout, ..HttpOptions::new(format!("http://{address}")) };
    client_of(http, protocol)
}

fn client_of(http: HttpOptions, protocol: OtlpProtocol) -> OtlpClient {
    OtlpClient::new(OtlpOptions { http, protocol, headers: Vec::new(), compress: true }).expect("valid")
}

fn to_client(client: OtlpClient, options: DeliveryOptions) -> Delivery {
    let mut delivery = Delivery::default();
    delivery.add_remote(client, options).expect("the spool opens");
    delivery
}

/// The names of gRPC's codes, in the order of their numbers.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The table of `docs/delivery.md`: protocol, status, text, what is done.
fn documented() -> Vec<(OtlpProtocol, u16, String, String)> {
    let text = include_str!("../../../../../docs/delivery.md");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| OTLP/")?.trim_end_matches('|').split('|').map(str::trim);
        let (protocol, status) = (cells.next()?, cells.next()?);
        let (protocol, status) = match protocol {
            "gRPC" => (OtlpProtocol::Grpc, CODES.iter().position(|code| *code == status)? as u16),
            _ => (OtlpProtocol::Http, status.parse().ok()?),
        };
        Some((protocol, status, cells.next()?.to_owned(), cells.next()?.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

#[tokio::test]
async fn each_answer_of_a_receiver_is_treated_as_the_documented_table_says() {
    let table = documented();
    assert!(table.len() > 40, "{} rows", table.len());
    for (protocol, status, text, done) in table {
        // The receiver's own failures by HTTP are protobuf, a proxy's are a page.
        let bodies = if protocol == OtlpProtocol::Http { &[false, true][..] } else { &[false] };
        for has_status_bodies in bodies {
            let dir = tempfile::tempdir().expect("a folder");
            let receiver = ScriptedReceiver::new(&[(status, &text)]).with_status_bodies(*has_status_bodies);
            let address = receiver.serve(protocol).await;
            let delivery = to_client(client(address, protocol), options(Some(dir.path())));
            delivery.enqueue(batch_of(1));
            let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
            let sums = (counts.delivered, counts.losses.refused, counts.losses.possibly_lost);
            let row = format!("{protocol:?} {status} {text:?} {has_status_bodies}: {counts:?}");
            let expected = match done.as_str() {
                "delivered" | "sent again" => (1, 0, 0),
                "refused" => (0, 1, 0),
                "possibly lost" => (0, 0, 1),
                other => panic!("{other:?} is nothing that is done"),
            };
            assert_eq!(sums, expected, "{row}");
            assert_eq!(counts.delivered_late > 0, done == "sent again", "{row}");
            // The scripted receiver doesn't keep what it answers by its script.
            let received = if done == "delivered" { counts.delivered - 1 } else { counts.delivered };
            assert_eq!(receiver.samples(), received, "{row}");
            assert_eq!(end(delivery).await.unaccounted(), 0);
        }
    }
}

#[tokio::test]
async fn a_receiver_that_asks_for_time_is_left_alone_and_the_spool_keeps_all() {
    for (protocol, status) in [(OtlpProtocol::Grpc, 14), (OtlpProtocol::Http, 503)] {
        let dir = tempfile::tempdir().expect("a folder");
        let receiver = ScriptedReceiver::new(&[(status, HOUR)]);
        let address = receiver.serve(protocol).await;
        let delivery = to_client(client(address, protocol), options(Some(dir.path())));
        delivery.enqueue(batch_of(4));
        until(&delivery, |counts| counts.spooled == 10).await;
        // The back-off alone is 50 ms at most.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(receiver.requests.load(Ordering::Relaxed), 1, "{protocol:?}");
        assert_eq!(end(delivery).await.unaccounted(), 0);
    }
}

#[tokio::test]
async fn a_receiver_that_asks_for_time_with_an_answer_that_leaves_it_open_is_left_alone_too() {
    for (protocol, status) in [(OtlpProtocol::Grpc, 13), (OtlpProtocol::Http, 500)] {
        let dir = tempfile::tempdir().expect("a folder");
        let receiver = ScriptedReceiver::new(&[(status, HOUR)]);
        let address = receiver.serve(protocol).await;
        let delivery = to_client(client(address, protocol), options(Some(dir.path())));
        delivery.enqueue(batch_of(4));
        until(&delivery, |counts| counts.losses.possibly_lost == 10).await;
        delivery.enqueue(batch_of(3));
        until(&delivery, |counts| counts.spooled == 6).await;
        // The back-off alone is 50 ms at most.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(receiver.requests.load(Ordering::Relaxed), 1, "{protocol:?}");
        assert_eq!(end(delivery).await.unaccounted(), 0);
    }
}

/// Failures with which real receivers answer a message without profiles: Parca, and Pyroscope.
const TO_EMPTY: [(OtlpProtocol, u16, &str); 2] = [
    (OtlpProtocol::Grpc, 2, "invalid request: resource profiles are empty"),
    (OtlpProtocol::Http, 500, "rpc error: code = InvalidArgument desc = missing profile metadata dictionary"),
];

#[tokio::test]
async fn a_receiver_that_fails_with_empty_messages_gets_its_spool_once_it_answers_them() {
    for (protocol, status, text) in TO_EMPTY {
        let dir = tempfile::tempdir().expect("a folder");
        let unavailable = if protocol == OtlpProtocol::Grpc { 14 } else { 503 };
        let receiver =
            ScriptedReceiver::new(&[(unavailable, "sending queue is full")]).failing_if_empty(status, text);
        let address = receiver.serve(protocol).await;
        let delivery = to_client(client(address, protocol), options(Some(dir.path())));
        delivery.enqueue(batch_of(3));
        let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
        assert_eq!((counts.delivered_late, counts.losses.total()), (6, 0), "{protocol:?}: {counts:?}");
        assert_eq!(receiver.samples(), 6, "{protocol:?}");
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_receiver_that_fails_with_everything_is_asked_before_each_request_and_costs_that_one_alone() {
    for (protocol, status, text) in TO_EMPTY {
        let dir = tempfile::tempdir().expect("a folder");
        let receiver = ScriptedReceiver::new(&[(status, "storage"); 3]).failing_if_empty(status, text);
        let address = receiver.serve(protocol).await;
        let delivery = to_client(client(address, protocol), options(Some(dir.path())));
        for failed in 1..=3 {
            delivery.enqueue(batch_of(3));
            until(&delivery, |counts| counts.losses.possibly_lost == 6 * failed).await;
        }
        delivery.enqueue(batch_of(3));
        let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
        assert_eq!((counts.delivered, counts.losses.total()), (6, 18), "{protocol:?}: {counts:?}");
        assert_eq!((counts.requests, counts.failed_requests), (4, 3), "{protocol:?}: {counts:?}");
        // A question behind each failure.
        assert_eq!(receiver.requests.load(Ordering::Relaxed), 4 + 3, "{protocol:?}");
        end(delivery).await;
    }
}

#[tokio::test]
async fn what_a_receiver_misses_waits_in_the_spool_for_the_next_daemon() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let dir = tempfile::tempdir().expect("a folder");
        let delivery = to_client(client(dead_address().await, protocol), options(Some(dir.path())));
        delivery.enqueue(batch_of(4));
        until(&delivery, |counts| counts.spooled == 10).await;
        end(delivery).await;
        let receiver = ScriptedReceiver::default();
        let address = receiver.serve(protocol).await;
        let delivery = to_client(client(address, protocol), options(Some(dir.path())));
        delivery.enqueue(batch_of(2));
        until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
        assert_eq!(receiver.samples(), 13, "{protocol:?}");
        end(delivery).await;
        let total = noted(dir.path());
        assert_eq!((total.handed_over, total.delivered, total.unaccounted()), (13, 13, 0));
    }
}

#[tokio::test]
async fn at_least_once_sends_again_what_a_receiver_may_have_stored_until_it_is_delivered() {
    // Answers that leave it open.
    for (protocol, statuses) in [(OtlpProtocol::Grpc, [13, 2]), (OtlpProtocol::Http, [500, 502])] {
        let dir = tempfile::tempdir().expect("a folder");
        let receiver = ScriptedReceiver::new(&statuses.map(|status| (status, "storage")));
        let address = receiver.serve(protocol).await;
        let options = DeliveryOptions { send_again: true, ..options(Some(dir.path())) };
        let delivery = to_client(client(address, protocol), options);
        delivery.enqueue(batch_of(3));
        let counts = until(&delivery, |counts| counts.delivered == 6).await;
        assert_eq!((counts.losses.total(), counts.possibly_twice), (0, 12), "{protocol:?}: {counts:?}");
        assert_eq!((counts.failed_requests, counts.spooled), (2, 0), "{protocol:?}: {counts:?}");
        assert_eq!(receiver.samples(), 6, "{protocol:?}");
        end(delivery).await;
        let total = noted(dir.path());
        let sums = (total.handed_over, total.delivered, total.possibly_twice);
        assert_eq!(sums, (6, 6, 12), "{protocol:?}: {total:?}");
    }
}

#[tokio::test]
async fn of_several_series_only_the_one_that_is_refused_is_lost() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let dir = tempfile::tempdir().expect("a folder");
        let receiver = ScriptedReceiver::refusing("3");
        let address = receiver.serve(protocol).await;
        let delivery = to_client(client(address, protocol), options(Some(dir.path())));
        delivery.enqueue(batch_of(6));
        let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
        assert_eq!((counts.delivered, counts.losses.refused), (18, 3), "{protocol:?}: {counts:?}");
        assert_eq!(receiver.samples(), 18, "{protocol:?}");
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_receiver_that_stores_parts_gets_each_series_by_itself_until_it_has_stored_it_so() {
    // What they store of the ten samples of the first request, which has a series that they don't
    // take.
    type MakeReceiver = fn(&'static str) -> ScriptedReceiver;
    let receivers: [(MakeReceiver, u64); 2] =
        [(ScriptedReceiver::refusing_after_others, 3), (ScriptedReceiver::rejecting, 7)];
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        for (receiver, stored, send_again) in
            receivers.into_iter().flat_map(|(it, stored)| [(it, stored, false), (it, stored, true)])
        {
            let dir = tempfile::tempdir().expect("a folder");
            let receiver = receiver("3");
            let address = receiver.serve(protocol).await;
            let options = DeliveryOptions { send_again, ..options(Some(dir.path())) };
            let delivery = to_client(client(address, protocol), options);
            // Of the first batch, and the requests of the three.
            let (again, lost) = if send_again { (1, 0) } else { (0, 10) };
            let requests = if send_again { [1 + 4, 2, 2] } else { [1, 4, 2] };
            for batch in 0..3 {
                delivery.enqueue(batch_of(4));
                let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
                let row = format!("{protocol:?} {stored} {send_again} {batch}: {counts:?}");
                let taken = batch as u64 + again;
                assert_eq!([counts.delivered, counts.losses.refused], [7 * taken, 3 * taken], "{row}");
                assert_eq!((counts.losses.possibly_lost, counts.possibly_twice), (lost, 10 - lost), "{row}");
                assert_eq!(counts.requests, requests[..=batch].iter().sum::<u64>(), "{row}");
                assert_eq!(receiver.samples(), stored + counts.delivered, "{row}");
            }
            end(delivery).await;
        }
    }
}

#[tokio::test]
async fn a_partial_success_of_several_series_may_have_stored_any_of_them_unless_it_rejects_all_or_none() {
    for (protocol, success) in [(OtlpProtocol::Grpc, 0), (OtlpProtocol::Http, 200)] {
        for (text, expected) in
            [(PARTIAL, (0, 0, 6)), (ALL_REJECTED, (0, 6, 0)), ("names were shortened", (6, 0, 0))]
        {
            let dir = tempfile::tempdir().expect("a folder");
            let receiver = ScriptedReceiver::new(&[(success, text)]);
            let address = receiver.serve(protocol).await;
            let delivery = to_client(client(address, protocol), options(Some(dir.path())));
            delivery.enqueue(batch_of(3));
            let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
            let sums = (counts.delivered, counts.losses.refused, counts.losses.possibly_lost);
            // What is rejected isn't sent again, nor in parts.
            assert_eq!((sums, counts.requests), (expected, 1), "{protocol:?} {text}: {counts:?}");
            end(delivery).await;
        }
    }
}

#[tokio::test]
async fn a_receiver_that_needs_more_time_for_a_window_than_there_is_gets_it_in_parts() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let dir = tempfile::tempdir().expect("a folder");
        // 1.6 s for the first request, and there is one.
        let receiver = ScriptedReceiver::default().taking(Duration::from_millis(200));
        let address = receiver.serve(protocol).await;
        let options = DeliveryOptions { send_again: true, ..options(Some(dir.path())) };
        let client = client_with_timeout(address, protocol, Duration::from_secs(1));
        let delivery = to_client(client, options);
        delivery.enqueue(batch_of(8));
        let counts = until(&delivery, |counts| counts.delivered == 36).await;
        assert_eq!((counts.losses.total(), counts.spooled), (0, 0), "{protocol:?}: {counts:?}");
        assert!(counts.possibly_twice >= 36, "{protocol:?}: {counts:?}");
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_request_that_is_divided_ends_with_the_daemon() {
    // It accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let http = HttpOptions::new(format!("http://{}", silent.local_addr().expect("bound")));
    let protocol = OtlpProtocol::Http;
    let client = OtlpClient::new(OtlpOptions { http, protocol, headers: Vec::new(), compress: true });
    let backend = Backend::Otlp(client.expect("valid"));
    let request = backend.encode(&batch_of(4)).expect("encoded").requests.pop().expect("a request");
    let samples = request.samples_by_event();
    assert!(request.series() > 1);
    let policy = bisection::FailurePolicy { send_again: true, divide: true, remember_refusals: true };
    let deadline = std::pin::pin!(async {});
    let refused = refused_series::RefusedSeries::default();
    let report = bisection::deliver(&backend, &refused, request, policy, deadline).await;
    assert_eq!((report.retry_samples(), report.requests), (samples, 1));
}
