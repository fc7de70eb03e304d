//! Sinks of all three kinds beside one another, each to a collector of its own: one of them is away
//! for a while, and each account adds up by itself.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::*;
use crate::export::collector::{self, CollectorService};
use crate::export::http_client::HttpOptions;
use crate::export::otlp::{OtlpClient, OtlpOptions, OtlpProtocol};
use crate::export::pyroscope::{PyroscopeClient, PyroscopeOptions};

const SINKS: usize = 3;

/// Runs a collector whose end closes all its connections.
async fn run_at(store: &Arc<Store>, address: SocketAddr) -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let running = builder.worker_threads(1).enable_all().build().expect("a runtime");
    let service = CollectorService::new(Arc::clone(store));
    running.spawn(async move {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        collector::serve(listener, collector::routes(Arc::new(service)), std::future::pending()).await;
    });
    let started = Instant::now();
    while TcpStream::connect(address).await.is_err() {
        assert!(started.elapsed() < PATIENCE, "nobody listens at {address}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running
}

/// A client of each kind.
fn backends(addresses: [SocketAddr; SINKS]) -> [Backend; SINKS] {
    let [parca, otlp, pyroscope] = addresses;
    let http = |address| HttpOptions::new(format!("http://{address}"));
    let protocol = OtlpProtocol::Grpc;
    let otlp = OtlpOptions { http: http(otlp), protocol, headers: Vec::new(), compress: true };
    // Batches of tests are of long ago.
    let max_age = Duration::from_secs(1 << 40);
    let pyroscope = PyroscopeOptions { max_age, ..PyroscopeOptions::new(http(pyroscope)) };
    [
        client(parca).into(),
        OtlpClient::new(otlp).expect("valid").into(),
        PyroscopeClient::new(pyroscope).expect("valid").into(),
    ]
}

/// Waits until the counts of each sink are as they should be.
async fn until_each(delivery: &Delivery, reached: impl Fn(usize, &DeliveryCounts<u64>) -> bool) {
    let started = Instant::now();
    loop {
        let counts = delivery.counts();
        assert!(counts.iter().all(|(_, counts)| counts.unaccounted() == 0), "{counts:?}");
        let mut numbered = counts.iter().enumerate();
        if numbered.all(|(number, (_, counts))| reached(number, &counts.of_all_events())) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{counts:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn stored(store: &Store) -> u64 {
    store.series(TimeRange::ALL, &[]).iter().map(|series| series.samples).sum()
}

/// One of the sinks is away for a while, with a spool, or without one until its room in memory is
/// full.
async fn check_accounts(away: usize, has_spool: bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |kind: &str, number: usize| dir.path().join(format!("{kind}-{number}"));
    let open =
        |number: usize| Store::open(&folder("store", number), StoreOptions::default()).expect("a store");
    let stores = [0, 1, 2].map(|number| Arc::new(open(number)));
    let addresses = [dead_address().await, dead_address().await, dead_address().await];
    let mut delivery = Delivery::default();
    for (number, backend) in backends(addresses).into_iter().enumerate() {
        let spool = folder("spool", number);
        let is_spooling = has_spool || number != away;
        let options = options(is_spooling.then_some(spool.as_path()));
        let max_waiting_bytes = if is_spooling { options.max_waiting_bytes } else { 4000 };
        let options = DeliveryOptions { max_waiting_bytes, ..options };
        delivery.add_remote(backend, options).expect("the spool opens");
    }
    let mut running = Vec::new();
    for (store, address) in stores.iter().zip(addresses) {
        running.push(run_at(store, address).await);
    }
    let mut taken = 0;
    for is_away in [false, true, false] {
        if is_away {
            running.remove(away).shutdown_background();
        }
        loop {
            for batch in [batch_of(4), Batch { event: EventType::Allocation, ..batch_of(3) }] {
                taken += batch.samples();
                delivery.enqueue(batch);
                until_each(&delivery, |number, counts| {
                    counts.waiting == 0 || is_away && number == away && !has_spool
                })
                .await;
            }
            let counts = delivery.counts()[away].1.of_all_events();
            if !is_away || counts.spooled > 0 || counts.losses.queue_full > 0 {
                break;
            }
        }
        if is_away {
            running.insert(away, run_at(&stores[away], addresses[away]).await);
        }
        until_each(&delivery, |_, counts| counts.waiting + counts.spooled == 0).await;
    }
    let ended = delivery.finish(Duration::from_secs(10)).await;
    running.into_iter().for_each(Runtime::shutdown_background);
    for (number, (sink, counts)) in ended.iter().enumerate() {
        let counts = counts.of_all_events();
        let losses = counts.losses;
        assert_eq!((counts.handed_over, counts.unaccounted()), (taken, 0), "{sink}: {counts:?}");
        assert_eq!(counts.delivered + losses.total(), taken, "{sink}: {counts:?}");
        let stored = stored(&stores[number]);
        let possible = counts.delivered..=counts.delivered + losses.possibly_lost;
        assert!(possible.contains(&stored), "{sink} has {stored}: {counts:?}");
        if number != away {
            assert_eq!((losses.total(), counts.delivered_late, stored), (0, 0, taken), "{sink}: {counts:?}");
            assert_eq!(counts.failed_requests, 0, "{sink}: {counts:?}");
        } else if has_spool {
            assert_eq!(losses.total(), losses.possibly_lost, "{sink}: {counts:?}");
            assert!(counts.delivered_late > 0, "{sink}: {counts:?}");
        } else {
            assert!(losses.queue_full > 0, "{sink}: {counts:?}");
        }
        if has_spool || number != away {
            let total = noted(&folder("spool", number));
            assert_eq!((total.handed_over, total.delivered), (taken, counts.delivered), "{sink}: {total:?}");
        }
    }
}

#[tokio::test]
async fn a_sink_that_is_away_changes_no_account_of_the_two_others() {
    for away in 0..SINKS {
        check_accounts(away, true).await;
    }
}

#[tokio::test]
async fn what_a_sink_without_a_spool_drops_is_counted_for_it_alone() {
    for away in 0..SINKS {
        check_accounts(away, false).await;
    }
}

#[tokio::test]
async fn labels_that_find_no_room_in_the_local_store_cost_no_other_series_its_samples() {
    let dir = tempfile::tempdir().expect("a folder");
    // Two label sets of 23 bytes.
    let options = StoreOptions { max_label_bytes: 50, ..StoreOptions::default() };
    let store = Arc::new(Store::open(dir.path(), options).expect("a store"));
    let mut delivery = Delivery::default();
    delivery.add_local(Arc::clone(&store));
    for round in 1..3 {
        delivery.enqueue(batch_of(3));
        let counts = until(&delivery, |counts| counts.waiting == 0 && counts.handed_over == round * 6).await;
        assert_eq!((counts.delivered, counts.losses.store_failed), (round * 3, round * 3), "{counts:?}");
        assert_eq!((counts.losses.total(), counts.unaccounted()), (round * 3, 0), "{counts:?}");
    }
    assert_eq!(stored(&store), 6);
}
