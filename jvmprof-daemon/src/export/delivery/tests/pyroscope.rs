//! The whole way of batches to Pyroscope: what it answers, how old they are, and its end.

use std::sync::atomic::Ordering;

use super::*;
use crate::export::http_client::HttpOptions;
use crate::export::pyroscope::scripted_server::{HANG, ScriptedPyroscope};
use crate::export::pyroscope::{PyroscopeClient, PyroscopeOptions};

/// Any age: batches of tests are of long ago.
const ALL_AGES: Duration = Duration::from_secs(1 << 40);

fn client(address: impl std::fmt::Display, max_age: Duration) -> PyroscopeClient {
    let http = HttpOptions::new(format!("http://{address}"));
    let options = PyroscopeOptions { max_age, ..PyroscopeOptions::new(http) };
    PyroscopeClient::new(options).expect("valid")
}

fn to_client(client: PyroscopeClient, options: DeliveryOptions) -> Delivery {
    let mut delivery = Delivery::default();
    delivery.add_remote(client, options).expect("the spool opens");
    delivery
}

/// Runs a server whose end closes all its connections.
async fn run_at(server: &ScriptedPyroscope, address: std::net::SocketAddr) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let running = builder.worker_threads(1).enable_all().build().expect("a runtime");
    let server = server.clone();
    running.spawn(async move {
        let listener = tokio::net::TcpListener::bind(address).await.expect("the port is free");
        server.serve_on(listener).await
    });
    let started = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "nobody listens at {address}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running
}

/// The table of `docs/delivery.md`: status, body, what is done.
fn documented() -> Vec<(u16, String, String)> {
    let text = include_str!("../../../../../docs/delivery.md");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| HTTP ")?.trim_end_matches('|').split('|').map(str::trim);
        let status = cells.next()?.parse().ok()?;
        Some((status, cells.next()?.trim_matches('`').to_owned(), cells.next()?.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

#[tokio::test]
async fn each_answer_is_treated_as_the_documented_table_says() {
    let table = documented();
    assert!(table.len() > 25, "{} rows", table.len());
    for (status, body, done) in table {
        let dir = tempfile::tempdir().expect("a folder");
        // Of three series one meets the answer.
        let server = ScriptedPyroscope::new(&[(status, &body)]);
        let client = client(server.serve().await, ALL_AGES);
        let delivery = to_client(client, options(Some(dir.path())));
        delivery.enqueue(batch_of(3));
        let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
        let sums = (counts.delivered, counts.losses.refused, counts.losses.possibly_lost);
        let expected = match done.as_str() {
            "delivered" | "sent again" => (6, 0, 0),
            "refused" => (5, 1, 0),
            "possibly lost" => (5, 0, 1),
            other => panic!("{other:?} is nothing that is done"),
        };
        assert_eq!(sums, expected, "{status} {body}: {counts:?}");
        // What waits behind a failure comes out of the spool.
        let is_failure = ["sent again", "possibly lost"].contains(&done.as_str());
        assert_eq!(counts.delivered_late > 0, is_failure, "{status} {body}: {counts:?}");
        // The scripted server doesn't keep what it answers by its script.
        let received = if done == "delivered" { counts.delivered - 1 } else { counts.delivered };
        assert_eq!(server.samples(), received, "{status} {body}");
        assert_eq!(end(delivery).await.unaccounted(), 0);
    }
}

#[tokio::test]
async fn what_is_too_old_for_the_server_is_a_loss_of_its_own_and_never_sent() {
    let dir = tempfile::tempdir().expect("a folder");
    // Nobody is there, and so it waits.
    let all = options(Some(dir.path()));
    let delivery = to_client(client(dead_address().await, ALL_AGES), all.clone());
    delivery.enqueue(batch_of(3));
    until(&delivery, |counts| counts.spooled == 6).await;
    end(delivery).await;
    // The next daemon's server takes a day, and the batch is of long ago.
    let server = ScriptedPyroscope::default();
    let day = Duration::from_secs(86_400);
    let delivery = to_client(client(server.serve().await, day), all);
    let mut fresh = batch_of(2);
    fresh.start = std::time::SystemTime::now();
    delivery.enqueue(fresh);
    let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
    assert_eq!((counts.delivered, counts.losses.too_old, counts.losses.total()), (3, 6, 6));
    assert_eq!(server.samples(), 3);
    end(delivery).await;
    let total = noted(dir.path());
    assert_eq!((total.handed_over, total.losses.too_old, total.unaccounted()), (9, 6, 0));
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_has_what_the_account_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let (server, address) = (ScriptedPyroscope::default(), dead_address().await);
    let mut running = run_at(&server, address).await;
    let delivery = to_client(client(address, ALL_AGES), options(Some(dir.path())));
    for _ in 0..3 {
        delivery.enqueue(batch_of(4));
        until(&delivery, |counts| counts.waiting == 0).await;
        running.shutdown_background();
        delivery.enqueue(batch_of(5));
        until(&delivery, |counts| counts.waiting == 0).await;
        running = run_at(&server, address).await;
        until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
    }
    let counts = end(delivery).await.of_all_events();
    running.shutdown_background();
    assert_eq!(counts.handed_over, 3 * (10 + 15));
    assert_eq!(server.samples(), counts.delivered, "{counts:?}");
    assert_eq!(counts.delivered + counts.losses.total(), counts.handed_over);
    assert!(counts.delivered_late > 0, "{counts:?}");
}

/// A client with room for so many requests at once.
fn concurrent(address: impl std::fmt::Display, concurrency: usize) -> PyroscopeClient {
    let http = HttpOptions::new(format!("http://{address}"));
    let options = PyroscopeOptions { max_age: ALL_AGES, concurrency, ..PyroscopeOptions::new(http) };
    PyroscopeClient::new(options).expect("valid")
}

#[tokio::test]
async fn a_server_that_answers_late_gets_several_requests_at_once_and_never_more() {
    for concurrency in [1, 8] {
        let server = ScriptedPyroscope::slow(Duration::from_millis(40));
        let client = concurrent(server.serve().await, concurrency);
        let delivery = to_client(client, options(None));
        delivery.enqueue(batch_of(40));
        let counts = until(&delivery, |counts| counts.delivered == 820).await;
        assert_eq!((counts.requests, counts.in_flight, counts.losses.total()), (40, 0, 0));
        let most = server.most_under_way.load(Ordering::SeqCst);
        assert!(most <= concurrency && (most > 1) == (concurrency > 1), "{most} of {concurrency}");
        assert_eq!(server.samples(), 820);
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_spool_is_sent_to_a_late_server_by_several_requests_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let all = options(Some(dir.path()));
    let delivery = to_client(concurrent(dead_address().await, 8), all.clone());
    delivery.enqueue(batch_of(40));
    until(&delivery, |counts| counts.spooled == 820).await;
    end(delivery).await;
    let server = ScriptedPyroscope::slow(Duration::from_millis(40));
    let delivery = to_client(concurrent(server.serve().await, 8), all);
    let counts = until(&delivery, |counts| counts.spooled == 0).await;
    assert_eq!((counts.delivered, counts.delivered_late, counts.requests), (820, 820, 40));
    let most = server.most_under_way.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most}");
    assert_eq!(server.samples(), 820);
    end(delivery).await;
    let total = noted(dir.path());
    assert_eq!((total.handed_over, total.delivered, total.losses.total()), (820, 820, 0));
}

#[tokio::test]
async fn a_late_server_that_is_killed_leaves_what_was_under_way_open_and_nothing_else() {
    for send_again in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = (ScriptedPyroscope::slow(Duration::from_millis(40)), dead_address().await);
        let mut running = run_at(&server, address).await;
        let options = DeliveryOptions { send_again, ..options(Some(dir.path())) };
        let delivery = to_client(concurrent(address, 8), options);
        for _ in 0..3 {
            delivery.enqueue(batch_of(30));
            // Among them some that are under way.
            until(&delivery, |counts| counts.in_flight > 0).await;
            running.shutdown_background();
            until(&delivery, |counts| counts.waiting == 0).await;
            running = run_at(&server, address).await;
            until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
        }
        let counts = end(delivery).await.of_all_events();
        running.shutdown_background();
        assert_eq!(counts.handed_over, 3 * 465);
        assert_eq!(counts.delivered + counts.losses.possibly_lost, counts.handed_over, "{counts:?}");
        let received = server.samples();
        let open = counts.losses.possibly_lost + counts.possibly_twice;
        assert!(open > 0, "{counts:?}");
        assert!((counts.delivered..=counts.delivered + open).contains(&received), "{received} {counts:?}");
        assert_eq!(counts.losses.possibly_lost > 0, !send_again, "{counts:?}");
    }
}

#[tokio::test]
async fn the_daemon_after_a_killed_one_counts_each_request_that_was_under_way() {
    let (dir, copy) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let all = options(Some(dir.path()));
    let delivery = to_client(concurrent(dead_address().await, 4), all.clone());
    delivery.enqueue(batch_of(10));
    until(&delivery, |counts| counts.spooled == 55).await;
    end(delivery).await;
    // Four requests are answered, so that four are under way; then nobody answers any more.
    let server = ScriptedPyroscope::slow_after(4);
    let delivery = to_client(concurrent(server.serve().await, 4), all);
    let all_under_way = || {
        let entry = read_ledger(dir.path()).expect("readable").expect("an entry");
        (entry.run.requests == 4 && entry.in_transit.len() == 4).then_some(entry)
    };
    let started = Instant::now();
    let killed = loop {
        if let Some(entry) = all_under_way() {
            break entry.total().of_all_events();
        }
        assert!(started.elapsed() < PATIENCE, "{:?}", read_ledger(dir.path()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    // What a killed daemon leaves.
    for file in std::fs::read_dir(dir.path()).expect("a folder").flatten() {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
    }
    drop(delivery);
    let next = to_client(concurrent(dead_address().await, 4), options(Some(copy.path())));
    let counts = next.counts()[0].1.of_all_events();
    end(next).await;
    let total = noted(copy.path());
    assert_eq!((total.handed_over, total.delivered), (55, killed.delivered));
    assert_eq!(total.losses.total(), total.losses.possibly_lost, "{total:?}");
    assert_eq!(killed.spooled - counts.spooled, total.losses.possibly_lost);
    assert_eq!(counts.found, counts.spooled);
    assert!(total.losses.possibly_lost >= 1 + 2 + 3 + 4, "{total:?}");
}

#[tokio::test]
async fn requests_that_hang_since_before_a_failure_hold_up_none_of_those_after_it() {
    let dir = tempfile::tempdir().expect("a folder");
    // Three answers make room for four requests, of which three hang for 30 s.
    let statuses = [200, 200, 200, HANG, HANG, HANG, 500];
    let server = ScriptedPyroscope::new(&statuses.map(|status| (status, "")));
    let delivery = to_client(concurrent(server.serve().await, 4), options(Some(dir.path())));
    delivery.enqueue(batch_of(30));
    let counts = until(&delivery, |counts| {
        let over = counts.delivered + counts.losses.possibly_lost;
        counts.in_flight > 0 && over + counts.in_flight == counts.handed_over && counts.requests == 27
    })
    .await;
    assert_eq!((counts.waiting, counts.spooled), (counts.in_flight, 0), "{counts:?}");
    let counts = delivery.finish(Duration::from_millis(50)).await[0].1;
    assert_eq!((counts.unaccounted(), counts.waiting), (0, SamplesByEvent::NONE), "{counts:?}");
}

#[tokio::test]
async fn answers_that_ask_for_time_are_one_failure_and_nothing_of_the_rest_is_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    let limited = r#"{"code":"resource_exhausted","message":"push rate limit (4.0 MiB) exceeded"}"#;
    let steps = [(429, limited); 12];
    let server = ScriptedPyroscope::new(&steps);
    let delivery = to_client(concurrent(server.serve().await, 8), options(Some(dir.path())));
    delivery.enqueue(batch_of(30));
    let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
    assert_eq!((counts.delivered, counts.losses.total()), (465, 0), "{counts:?}");
    assert_eq!((server.samples(), counts.failed_requests), (465, 12));
    end(delivery).await;
}
