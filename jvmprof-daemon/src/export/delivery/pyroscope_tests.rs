//! The whole way of batches to Pyroscope: what it answers, how old they are, and its end.

use super::tests::{batch_of, dead_address, end, noted, options, until};
use super::*;
use crate::export::http_client::HttpOptions;
use crate::export::pyroscope::scripted_server::ScriptedPyroscope;
use crate::export::pyroscope::{PyroscopeClient, PyroscopeOptions};

/// Any age: batches of tests are of long ago.
const ALL_AGES: Duration = Duration::from_secs(1 << 40);

fn client(address: impl std::fmt::Display, max_age: Duration) -> PyroscopeClient {
    let http = HttpOptions {
        request_timeout: Duration::from_millis(500),
        ..HttpOptions::new(format!("http://{address}"))
    };
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
    let text = include_str!("../../../../docs/delivery.md");
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
        assert_eq!(counts.delivered_late > 0, done == "sent again", "{status} {body}: {counts:?}");
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
