//! The whole way of batches, to servers that take them, refuse them, or aren't there.

mod event;
mod fleet;
mod kills;
mod limits;
mod otlp;
mod pyroscope;
mod refusals;
mod sinks;

use std::path::Path;

use tonic::Code;

use super::*;
use crate::event_type::EventType;
use crate::export::parca::ParcaClient;
use crate::export::parca::scripted_server::{ScriptedAnswer, ScriptedServer, serve};
use crate::export::push::{BackendOptions, PushOutcome};
use crate::export::store::{StoreOptions, TimeRange};
use crate::profile::model::FrameKind;
use crate::profile::testing::{batch, frame, series};

/// Long enough for everything, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Series with the pids 1..=n, and as many samples each as its pid says.
pub(super) fn batch_of(pids: u64) -> Batch {
    let stack = |count| vec![(vec![frame(FrameKind::Native, "main")], count)];
    batch((1..=pids).map(|pid| series(&[("pid", &pid.to_string())], stack(pid))).collect())
}

pub(super) fn options(spool: Option<&Path>) -> DeliveryOptions {
    let plan = |dir: &Path| SpoolPlan {
        dir: dir.to_owned(),
        max_bytes: 1 << 20,
        max_age: Duration::from_secs(1 << 40),
        bytes_per_second: 1 << 30,
    };
    DeliveryOptions {
        first_delay: Duration::from_millis(10),
        max_delay: Duration::from_millis(50),
        spool: spool.map(plan),
        ..DeliveryOptions::default()
    }
}

pub(super) fn client(address: impl std::fmt::Display) -> ParcaClient {
    ParcaClient::new(BackendOptions::new(format!("http://{address}"))).expect("valid")
}

fn to(client: &ParcaClient, options: &DeliveryOptions) -> Delivery {
    let mut delivery = Delivery::default();
    delivery.add_remote(client.clone(), options.clone()).expect("the spool opens");
    delivery
}

/// Waits until the only sink's counts of all events are as they should be.
async fn until(delivery: &Delivery, reached: impl Fn(&DeliveryCounts<u64>) -> bool) -> DeliveryCounts<u64> {
    let started = Instant::now();
    loop {
        let counts = delivery.counts()[0].1;
        assert_eq!(counts.unaccounted(), 0, "{counts:?}");
        let counts = counts.of_all_events();
        if reached(&counts) {
            return counts;
        }
        assert!(started.elapsed() < PATIENCE, "{counts:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn end(delivery: Delivery) -> DeliveryCounts {
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
    assert_eq!((counts.unaccounted(), counts.waiting), (0, SamplesByEvent::NONE), "{counts:?}");
    counts
}

/// The sums of all runs, of all events.
fn noted(dir: &Path) -> DeliveryCounts<u64> {
    let total = read_ledger(dir).expect("readable").expect("an entry").total();
    assert_eq!(total.unaccounted(), 0, "{total:?}");
    total.of_all_events()
}

fn cpu(samples: u64) -> SamplesByEvent {
    SamplesByEvent::of(EventType::Cpu, samples)
}

/// An address at which nobody listens.
async fn dead_address() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address")
}

/// The pids that a server has taken with OK, from requests that weren't answered by a step.
fn pids(scripted: &ScriptedServer, skip: usize) -> Vec<u64> {
    let seen = scripted.seen.lock().expect("no test panicked");
    let series = seen.iter().skip(skip).flat_map(|(_, message)| &message.series);
    let pid =
        |label: &crate::proto::profilestore::Label| (label.name == "pid").then(|| label.value.parse().ok());
    let labels = series.flat_map(|series| &series.labels).flat_map(|set| &set.labels);
    labels.filter_map(pid).flatten().collect()
}

#[tokio::test]
async fn what_a_server_takes_is_delivered_and_never_on_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let scripted = ScriptedServer::default();
    let delivery = to(&client(serve(&scripted).await), &options(Some(dir.path())));
    for _ in 0..3 {
        delivery.enqueue(batch_of(3));
    }
    let counts = until(&delivery, |counts| counts.delivered == 18).await;
    assert_eq!((counts.losses.total(), counts.spooled, counts.requests), (0, 0, 3));
    end(delivery).await;
    let files = std::fs::read_dir(dir.path()).expect("a folder").flatten();
    assert_eq!(files.filter(|file| file.file_name().to_string_lossy().ends_with(".spool")).count(), 0);
}

#[tokio::test]
async fn what_nobody_takes_waits_on_disk_and_is_sent_oldest_first_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = options(Some(dir.path()));
    let delivery = to(&client(dead_address().await), &options);
    for pids in 1..=4 {
        delivery.enqueue(batch_of(pids));
        until(&delivery, |counts| counts.waiting == 0).await;
    }
    let counts = end(delivery).await.of_all_events();
    assert_eq!((counts.spooled, counts.delivered, counts.losses.total()), (20, 0, 0));

    let scripted = ScriptedServer::default();
    let delivery = to(&client(serve(&scripted).await), &options);
    let counts = until(&delivery, |counts| counts.spooled == 0).await;
    assert_eq!((counts.found, counts.delivered, counts.delivered_late), (20, 20, 20));
    end(delivery).await;
    assert_eq!(pids(&scripted, 0), [1, 1, 2, 1, 2, 3, 1, 2, 3, 4]);
    let total = noted(dir.path());
    assert_eq!((total.handed_over, total.delivered, total.unaccounted()), (20, 20, 0));
}

#[tokio::test]
async fn fresh_batches_overtake_the_spool_whose_rate_is_bounded() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut options = options(Some(dir.path()));
    let delivery = to(&client(dead_address().await), &options);
    for _ in 0..3 {
        delivery.enqueue(batch_of(1));
        until(&delivery, |counts| counts.waiting == 0).await;
    }
    assert_eq!(end(delivery).await.spooled.total(), 3);

    // One record at once, the next after many minutes.
    options.spool.as_mut().expect("a plan").bytes_per_second = 1;
    let scripted = ScriptedServer::default();
    let delivery = to(&client(serve(&scripted).await), &options);
    until(&delivery, |counts| counts.delivered_late == 1).await;
    delivery.enqueue(batch_of(5));
    let counts = until(&delivery, |counts| counts.delivered == 16).await;
    assert_eq!((counts.delivered_late, counts.spooled), (1, 2));
    assert_eq!(end(delivery).await.spooled.total(), 2, "they wait for the next daemon");
}

#[tokio::test]
async fn a_dead_sink_holds_up_no_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(Store::open(&dir.path().join("store"), StoreOptions::default()).expect("a store"));
    let scripted = ScriptedServer::default();
    let mut delivery = to(&client(dead_address().await), &options(Some(&dir.path().join("spool"))));
    delivery.add_remote(client(serve(&scripted).await), options(None)).expect("no spool");
    delivery.add_local(Arc::clone(&store));
    let started = Instant::now();
    for _ in 0..20 {
        delivery.enqueue(batch_of(2));
        // A busy disk is no reason to lose what waits for it.
        while delivery.counts()[1..].iter().any(|(_, counts)| !counts.waiting.is_none()) {
            assert!(started.elapsed() < PATIENCE, "{:?}", delivery.counts());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let counts: Vec<_> =
        delivery.finish(PATIENCE).await.into_iter().map(|(_, counts)| counts.of_all_events()).collect();
    assert_eq!(counts.iter().map(|counts| counts.delivered).collect::<Vec<_>>(), [0, 60, 60]);
    assert_eq!((counts[0].spooled, counts[0].losses.total()), (60, 0));
    assert_eq!(store.series(TimeRange::ALL, &[]).iter().map(|series| series.samples).sum::<u64>(), 60);
}

#[tokio::test]
async fn bad_series_are_found_and_the_others_delivered() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).expect("a store"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let collector = crate::export::collector::CollectorService::new(Arc::clone(&store));
    let router = crate::export::collector::routes(Arc::new(collector));
    tokio::spawn(crate::export::collector::serve(listener, router, std::future::pending()));
    let delivery = to(&client(address), &options(None));
    let stack = || vec![(vec![frame(FrameKind::Native, "main")], 1)];
    let bad = |pid| matches!(pid, 3 | 17 | 18);
    let all = (0..40).map(|pid| {
        let name = if bad(pid) { "not-a-label" } else { "fine" };
        series(&[("pid", &pid.to_string()), (name, "x")], stack())
    });
    delivery.enqueue(batch(all.collect()));
    let counts = until(&delivery, |counts| counts.waiting == 0).await;
    assert_eq!((counts.delivered, counts.losses.refused, counts.losses.total()), (37, 3, 3));
    assert!(counts.requests < 40, "{counts:?}");
    assert_eq!(store.series(TimeRange::ALL, &[]).len(), 37);
}

#[tokio::test]
async fn a_server_that_wants_nothing_is_not_asked_for_each_series() {
    let scripted = ScriptedServer::new(&vec![ScriptedAnswer::Answer(Code::InvalidArgument, "no"); 1000]);
    let delivery = to(&client(serve(&scripted).await), &options(None));
    delivery.enqueue(batch_of(500));
    let counts = until(&delivery, |counts| counts.waiting == 0).await;
    assert_eq!(counts.losses.refused, 125_250);
    assert!(counts.requests < 200, "{counts:?}");
}

#[tokio::test]
async fn a_server_is_asked_whether_it_is_back_before_samples_are_at_stake() {
    let dir = tempfile::tempdir().expect("a folder");
    // The first costs its samples; the failures after it meet empty requests.
    let scripted = ScriptedServer::new(&vec![ScriptedAnswer::Answer(Code::Unavailable, "bad gateway"); 4]);
    let delivery = to(&client(serve(&scripted).await), &options(Some(dir.path())));
    delivery.enqueue(batch_of(1));
    until(&delivery, |counts| counts.losses.possibly_lost == 1).await;
    delivery.enqueue(batch_of(2));
    delivery.enqueue(batch_of(3));
    let counts = until(&delivery, |counts| counts.delivered == 9).await;
    assert_eq!(counts.losses.total(), 1);
    let seen: Vec<_> = scripted
        .seen
        .lock()
        .expect("no test panicked")
        .iter()
        .map(|(_, message)| message.series.len())
        .collect();
    assert_eq!(seen[..5], [1, 0, 0, 0, 0], "{seen:?}");
}

#[tokio::test]
async fn at_least_once_sends_again_what_may_be_stored() {
    let dir = tempfile::tempdir().expect("a folder");
    let scripted = ScriptedServer::new(&[
        ScriptedAnswer::Hang,
        ScriptedAnswer::Take,
        ScriptedAnswer::Answer(Code::Unknown, "storage"),
    ]);
    let options = DeliveryOptions { send_again: true, ..options(Some(dir.path())) };
    let impatient = BackendOptions {
        request_timeout: Duration::from_secs(2),
        ..BackendOptions::new(format!("http://{}", serve(&scripted).await))
    };
    let delivery = to(&ParcaClient::new(impatient).expect("valid"), &options);
    delivery.enqueue(batch_of(3));
    let counts = until(&delivery, |counts| counts.delivered == 6).await;
    assert_eq!((counts.losses.total(), counts.possibly_twice), (0, 12));
}

/// Hands over until a series that is never taken is refused.
async fn refused_in_the_end(
    options: &DeliveryOptions,
    code: Code,
    text: &'static str,
) -> DeliveryCounts<u64> {
    let scripted = ScriptedServer::default();
    *scripted.never.lock().expect("no test panicked") = Some(("9", code, text));
    let delivery = to(&client(serve(&scripted).await), options);
    let (first, others) = (batch_of(20), batch_of(3));
    let room = first.samples() + 2 * others.samples();
    delivery.enqueue(first);
    let started = Instant::now();
    while delivery.counts()[0].1.losses.refused.is_none() {
        assert!(started.elapsed() < PATIENCE, "{:?}", delivery.counts());
        // The others are taken meanwhile, as fast as the machine lets them.
        let has_capacity = delivery.sinks[0].queue.capacity() > 0;
        if has_capacity && delivery.counts()[0].1.waiting.total() <= room {
            delivery.enqueue(others.clone());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
    end(delivery).await.of_all_events()
}

#[tokio::test]
async fn what_is_never_taken_holds_up_no_other_and_is_refused_in_the_end() {
    let dir = tempfile::tempdir().expect("a folder");
    // What waits finds room, also on a busy machine.
    let roomy = |options| DeliveryOptions { max_waiting_bytes: 1 << 24, ..options };
    for options in [options(Some(dir.path())), options(None)].map(roomy) {
        for (code, text) in [(Code::ResourceExhausted, "slow down"), (Code::PermissionDenied, "HTTP 403")] {
            let counts = refused_in_the_end(&options, code, text).await;
            assert_eq!((counts.losses.refused, counts.losses.total()), (9, 9), "{counts:?}");
        }
        let again = DeliveryOptions { send_again: true, ..options };
        let counts = refused_in_the_end(&again, Code::Unknown, "storage").await;
        assert_eq!((counts.losses.refused, counts.losses.total()), (9, 9), "{counts:?}");
    }
}

#[tokio::test]
async fn a_server_that_takes_nothing_but_questions_refuses_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let scripted = ScriptedServer::default();
    *scripted.never.lock().expect("no test panicked") = Some(("1", Code::ResourceExhausted, "slow down"));
    let delivery = to(&client(serve(&scripted).await), &options(Some(dir.path())));
    for _ in 0..5 {
        delivery.enqueue(batch_of(4));
    }
    let counts = until(&delivery, |counts| counts.requests >= 60).await;
    assert_eq!((counts.losses.total(), counts.divided_requests, counts.delivered), (0, 0, 0), "{counts:?}");
    *scripted.never.lock().expect("no test panicked") = None;
    let counts = until(&delivery, |counts| counts.delivered == 50).await;
    assert_eq!(counts.losses.total(), 0);
    end(delivery).await;
}

#[tokio::test]
async fn without_a_spool_memory_is_bounded_and_the_rest_counted() {
    let address = dead_address().await;
    let options = DeliveryOptions { max_waiting_bytes: 2000, ..options(None) };
    let delivery = to(&client(address), &options);
    for _ in 0..50 {
        delivery.enqueue(batch_of(2));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let counts = until(&delivery, |counts| counts.losses.queue_full > 0 && counts.handed_over == 150).await;
    assert!(counts.waiting > 0, "{counts:?}");
    let counts = delivery.finish(Duration::from_millis(100)).await[0].1.of_all_events();
    assert_eq!((counts.delivered, counts.unaccounted(), counts.waiting), (0, 0, 0));
    assert!(counts.losses.undelivered > 0 && counts.losses.queue_full > 0, "{counts:?}");
}

#[tokio::test]
async fn the_end_of_the_daemon_spools_what_could_not_be_sent() {
    let dir = tempfile::tempdir().expect("a folder");
    let scripted = ScriptedServer::new(&[ScriptedAnswer::Hang]);
    let options = options(Some(dir.path()));
    let delivery = to(&client(serve(&scripted).await), &options);
    delivery.enqueue(batch_of(1));
    until(&delivery, |counts| counts.in_flight == 1 && counts.requests == 0 && scripted.requests() == 1)
        .await;
    delivery.enqueue(batch_of(2));
    let counts = delivery.finish(Duration::from_millis(200)).await[0].1.of_all_events();
    // The first was sent and its answer not waited for; the second was never sent.
    assert_eq!((counts.losses.possibly_lost, counts.spooled, counts.unaccounted()), (1, 3, 0));
}

#[tokio::test]
async fn the_books_of_a_daemon_that_vanished_are_closed_by_the_next() {
    let dir = tempfile::tempdir().expect("a folder");
    let scripted = ScriptedServer::new(&[ScriptedAnswer::Take, ScriptedAnswer::Hang]);
    let options = options(Some(dir.path()));
    let client = client(serve(&scripted).await);
    let mut delivery = to(&client, &options);
    delivery.enqueue(batch_of(2));
    until(&delivery, |counts| counts.delivered == 3).await;
    delivery.enqueue(batch_of(3));
    until(&delivery, |counts| counts.in_flight == 6 && scripted.requests() == 2).await;
    delivery.enqueue(batch_of(4));
    delivery.record_taken(&SampleTotals { taken: cpu(40), lost_before: cpu(1), ..SampleTotals::default() });
    kills::until_noted(dir.path(), cpu(40)).await;
    kills::kill(delivery);

    let delivery = kills::open(&client, &options).await;
    let total = noted(dir.path());
    // 40 taken: 1 lost before, 19 handed over, so 20 in the sampler's memory; 10 waited behind the
    // request of 6.
    assert_eq!((total.delivered, total.losses.possibly_lost, total.losses.killed), (3, 6, 30));
    assert_eq!((total.handed_over, total.unaccounted()), (39, 0));
    end(delivery).await;
}

#[tokio::test]
async fn what_is_still_being_encoded_at_the_end_is_spooled() {
    let dir = tempfile::tempdir().expect("a folder");
    let delivery = to(&client(dead_address().await), &options(Some(dir.path())));
    for _ in 0..3 {
        delivery.enqueue(batch_of(300));
    }
    let counts = delivery.finish(Duration::ZERO).await[0].1.of_all_events();
    let samples = counts.spooled + counts.losses.spool_full;
    assert_eq!((samples, counts.waiting, counts.unaccounted()), (3 * 45_150, 0, 0), "{counts:?}");
}

#[tokio::test]
async fn sinks_that_are_replaced_lose_nothing_in_the_books() {
    let dir = tempfile::tempdir().expect("a folder");
    let scripted = ScriptedServer::default();
    let (client, options) = (client(serve(&scripted).await), options(Some(dir.path())));
    let mut delivery = to(&client, &options);
    delivery.enqueue(batch_of(4));
    // 90 are still in the sampler's memory.
    delivery.record_taken(&SampleTotals { taken: cpu(105), lost_before: cpu(5), ..SampleTotals::default() });
    let closed = end(delivery).await;

    // Settings were read again.
    let so_far = SampleTotals {
        taken: cpu(107),
        lost_before: cpu(6),
        handed_over: cpu(10),
        ..SampleTotals::default()
    };
    let mut delivery = Delivery::after(so_far);
    delivery.add_remote(client.clone(), options.clone()).expect("the lock is free again");
    let entry = read_ledger(dir.path()).expect("readable").expect("an entry");
    let LedgerEntry { taken, lost_before, handed_over_before: handed_over, .. } = entry;
    assert_eq!(
        SampleTotals { taken, lost_before, handed_over, ..SampleTotals::default() },
        so_far,
        "a daemon that is killed now had done no less"
    );
    delivery.enqueue(batch_of(2));
    delivery.record_taken(&SampleTotals { taken: cpu(110), lost_before: cpu(5), ..SampleTotals::default() });
    until(&delivery, |counts| counts.delivered == 3).await;
    let counts = delivery.counts()[0].1.after(&closed).of_all_events();
    assert_eq!((counts.handed_over, counts.delivered, counts.unaccounted()), (13, 13, 0));
    let total = noted(dir.path());
    assert_eq!((total.losses.killed, total.unaccounted()), (0, 0), "{total:?}");
    end(delivery).await;

    // The next daemon.
    end(to(&client, &options)).await;
    let total = noted(dir.path());
    assert_eq!((total.delivered, total.losses.total(), total.unaccounted()), (13, 0, 0), "{total:?}");
}

/// The table of `docs/delivery.md`: code, example of a message, what is done.
fn documented() -> Vec<(Code, String, String)> {
    let text = include_str!("../../../../docs/delivery.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")).filter(|line| line.contains("` ("));
    let row = |row: &str| {
        let mut cells = row.trim_end_matches('|').split('|').map(str::trim);
        let code = cells.next()?;
        let number: i32 = code.split(['(', ')']).nth(1)?.parse().ok()?;
        let message = cells.next()?.trim_matches('`').to_owned();
        Some((Code::from_i32(number), message, cells.next()?.to_owned()))
    };
    rows.filter_map(row).collect()
}

#[tokio::test]
async fn each_code_is_answered_as_the_documented_table_says() {
    let table = documented();
    for code in 1..=16 {
        let code = Code::from_i32(code);
        assert!(table.iter().any(|(documented, ..)| *documented == code), "{code:?} is not documented");
    }
    for (code, message, done) in table {
        let dir = tempfile::tempdir().expect("a folder");
        let scripted = if code == Code::Ok {
            ScriptedServer::default()
        } else {
            ScriptedServer::new(&[ScriptedAnswer::Answer(code, message.clone().leak())])
        };
        let delivery = to(&client(serve(&scripted).await), &options(Some(dir.path())));
        delivery.enqueue(batch_of(3));
        let counts = until(&delivery, |counts| counts.waiting + counts.spooled == 0).await;
        let losses = counts.losses;
        let sums = (counts.delivered, losses.refused, losses.possibly_lost);
        let is_sent_again = counts.delivered_late == 6;
        let (expected, sent_again) = match done.as_str() {
            "delivered" => ((6, 0, 0), false),
            "sent again" => ((6, 0, 0), true),
            "divided" => ((6, 0, 0), false),
            "refused" => ((0, 6, 0), false),
            "possibly lost" => ((0, 0, 6), false),
            other => panic!("{other:?} is nothing that is done"),
        };
        assert_eq!((sums, is_sent_again), (expected, sent_again), "{code:?} {message:?}: {counts:?}");
        assert_eq!(counts.divided_requests, u64::from(done == "divided"), "{code:?}");
        end(delivery).await;
    }
}

#[tokio::test]
async fn a_compressed_request_arrives_over_ipv6() {
    let scripted = ScriptedServer::default();
    let listener = tokio::net::TcpListener::bind("[::1]:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    crate::export::parca::scripted_server::serve_on(&scripted, listener);
    let options = BackendOptions { compress: true, insecure: true, ..BackendOptions::new(address) };
    let client = ParcaClient::new(options).expect("valid");
    let request = crate::export::push::requests(&batch_of(2), 1 << 20).expect("encodable").remove(0);
    assert_eq!(client.send(&request).await, PushOutcome::Stored);
    let seen = scripted.seen.lock().expect("no test panicked");
    assert_eq!(
        seen[0].0.get("grpc-encoding").map(tonic::metadata::MetadataValue::as_bytes),
        Some(&b"gzip"[..])
    );
    assert_eq!(seen[0].1.series.len(), 2);
}
