//! Samples of several events on one way: what happens to one leaves the sums of the other alone.

use tonic::Code;

use super::*;
use crate::event_type::EventType;
use crate::export::parca::scripted_server::{ScriptedAnswer, ScriptedServer, serve};

fn allocated(samples: u64) -> SamplesByEvent {
    SamplesByEvent::of(EventType::Allocation, samples)
}

/// The same as [`batch_of`], of allocations, each of which stands for 1,000 objects.
fn allocations_of(pids: u64) -> Batch {
    let mut batch = Batch { event: EventType::Allocation, ..batch_of(pids) };
    for sample in batch.series.iter_mut().flat_map(|series| &mut series.samples) {
        sample.count *= 1000;
    }
    batch
}

#[tokio::test]
async fn what_is_refused_of_one_event_is_no_loss_of_the_other() {
    let dir = tempfile::tempdir().expect("a folder");
    for options in [options(None), options(Some(dir.path()))] {
        let scripted = ScriptedServer::default();
        *scripted.never.lock().expect("no test panicked") = Some(("4", Code::InvalidArgument, "no"));
        let delivery = to(&client(serve(&scripted).await), &options);
        // Its fourth series is refused.
        delivery.enqueue(allocations_of(4));
        delivery.enqueue(batch_of(3));
        until(&delivery, |counts| counts.handed_over == 16 && counts.waiting == 0).await;
        let counts = end(delivery).await;
        assert_eq!(counts.handed_over, cpu(6) + allocated(10));
        assert_eq!(counts.delivered, cpu(6) + allocated(6));
        assert_eq!((counts.losses.refused, counts.losses.total()), (allocated(4), allocated(4)));
        assert_eq!(counts.unaccounted(), 0);
    }
}

#[tokio::test]
async fn the_spool_and_the_ledger_keep_events_apart() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = options(Some(dir.path()));
    let mut delivery = to(&client(dead_address().await), &options);
    for batch in [batch_of(2), allocations_of(3), batch_of(1)] {
        delivery.enqueue(batch);
        until(&delivery, |counts| counts.waiting == 0).await;
    }
    // 3 of CPU time and 5 allocations are still in the sampler's memory.
    delivery.record_taken(&SampleTotals {
        taken: cpu(7) + allocated(12),
        lost_before: allocated(1),
        ..SampleTotals::default()
    });
    kills::until_noted(dir.path(), cpu(7) + allocated(12)).await;
    assert_eq!(delivery.counts()[0].1.spooled, cpu(4) + allocated(6));
    kills::kill(delivery);

    // The first record, of CPU time, is possibly lost: nobody answers.
    let scripted = ScriptedServer::new(&[ScriptedAnswer::Take, ScriptedAnswer::Hang]);
    let delivery = kills::open(&client(serve(&scripted).await), &options).await;
    until(&delivery, |_| scripted.requests() == 2).await;
    assert_eq!(delivery.counts()[0].1.found, cpu(4) + allocated(6));
    kills::kill(delivery);

    let scripted = ScriptedServer::default();
    let delivery = kills::open(&client(serve(&scripted).await), &options).await;
    until(&delivery, |counts| counts.spooled == 0 && counts.waiting == 0).await;
    end(delivery).await;
    let total = read_ledger(dir.path()).expect("readable").expect("an entry").total();
    assert_eq!((total.handed_over, total.unaccounted()), (cpu(7) + allocated(11), 0), "{total:?}");
    assert_eq!(total.delivered, cpu(1) + allocated(6));
    assert_eq!(total.losses.possibly_lost, cpu(3));
    assert_eq!(total.losses.killed, cpu(3) + allocated(5));
    assert_eq!(noted(dir.path()).delivered_late, 7);
}

#[tokio::test]
async fn what_a_daemon_of_the_first_version_left_is_delivered_as_cpu_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/spool-version-1");
    for file in std::fs::read_dir(files).expect("a folder").flatten() {
        std::fs::copy(file.path(), dir.path().join(file.file_name())).expect("copied");
    }
    let scripted = ScriptedServer::default();
    let delivery = to(&client(serve(&scripted).await), &options(Some(dir.path())));
    delivery.enqueue(allocations_of(1));
    until(&delivery, |counts| counts.spooled == 0 && counts.waiting == 0).await;
    let counts = end(delivery).await;
    assert_eq!((counts.found, counts.delivered_late), (cpu(20), cpu(20)));
    let total = read_ledger(dir.path()).expect("readable").expect("an entry").total();
    // 3 were delivered and 1 refused by the daemon before the one that was killed; that one had
    // taken 30, of which 2 were lost before, and had handed over 20.
    assert_eq!((total.handed_over, total.unaccounted()), (cpu(24 + 8) + allocated(1), 0), "{total:?}");
    assert_eq!(total.delivered, cpu(3 + 20) + allocated(1));
    assert_eq!((total.losses.refused, total.losses.killed), (cpu(1), cpu(8)));
}

#[tokio::test]
async fn what_a_replaced_sink_left_in_the_spool_is_counted_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = options(Some(dir.path()));
    let delivery = to(&client(dead_address().await), &options);
    delivery.enqueue(batch_of(4));
    delivery.enqueue(allocations_of(1));
    let closed = end(delivery).await;
    let delivery = to(&client(dead_address().await), &options);
    delivery.enqueue(batch_of(2));
    let counts = end(delivery).await.after(&closed);
    let all = cpu(13) + allocated(1);
    assert_eq!((counts.handed_over, counts.spooled, counts.unaccounted()), (all, all, 0));
    assert!(counts.found.is_none(), "{counts:?}");
}

#[tokio::test]
async fn what_is_handed_over_without_a_sink_is_counted() {
    let delivery = Delivery::default();
    assert_eq!(delivery.counts(), []);
    delivery.enqueue(batch_of(4));
    delivery.enqueue(allocations_of(2));
    let handed_over = cpu(10) + allocated(3);
    let losses = Losses { undelivered: handed_over, ..Losses::default() };
    let expected = DeliveryCounts { handed_over, losses, ..DeliveryCounts::default() };
    assert_eq!((expected.unaccounted(), delivery.counts()), (0, vec![(NO_SINK.to_owned(), expected)]));
    assert_eq!(delivery.finish(Duration::ZERO).await, [(NO_SINK.to_owned(), expected)]);
}
