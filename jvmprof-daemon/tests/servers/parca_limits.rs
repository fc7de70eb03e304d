//! A real Parca: what it refuses, which is but a message that is too large, and what it has no
//! limit for.

use std::time::Duration;

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::export::delivery::{Delivery, DeliveryCounts, DeliveryOptions};
use jvmprof_daemon::profile::model::Batch;

use crate::delivered::{PERIOD, batch_of, first_type, options, sample, series, until};
use crate::parca::{connect, shown_sum_since, start, sum_of};
use crate::server::free_address;
use crate::support::scratch;

const EVENT: EventType = EventType::Cpu;
const DAY: Duration = Duration::from_hours(24);

/// Delivers batches, with room in memory for the largest of them.
async fn deliver(address: &str, batches: Vec<Batch>) -> DeliveryCounts<u64> {
    let spool = scratch();
    let options = DeliveryOptions { max_waiting_bytes: 1 << 30, ..options(spool.path()) };
    let mut delivery = Delivery::default();
    delivery.add_remote(connect(address), options).unwrap();
    batches.into_iter().for_each(|batch| delivery.enqueue(batch));
    until(&delivery, |counts| counts.waiting.is_none()).await;
    delivery.finish(Duration::from_secs(10)).await[0].1.of_all_events()
}

/// The samples of the series with this label.
fn samples_with(address: &str, label: &str, value: &str) -> u64 {
    let selector = format!("{label}=\"{value}\"");
    tokio::task::block_in_place(|| sum_of(address, EVENT, first_type(EVENT), &selector))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_parca_refuses_a_series_beyond_64_mib_and_has_the_one_beside_it() {
    let (dir, address) = (scratch(), free_address());
    let _parca = start(dir.path(), &address);
    // Labels aren't compressed.
    let long = "v".repeat(65 << 20);
    let labels = [("comm", "large"), ("value", long.as_str())];
    let large = series(&labels, vec![sample("main", 11, 11)]);
    let fine = series(&[("comm", "fine")], vec![sample("main", 5, 5)]);
    let counts = deliver(&address, vec![batch_of(EVENT, vec![large, fine])]).await;
    let sums = (counts.delivered, counts.losses.refused, counts.losses.total());
    assert_eq!(sums, (5, 11, 11), "{counts:?}");
    assert_eq!(samples_with(&address, "comm", "fine"), 5);
    // All that it has.
    assert_eq!(tokio::task::block_in_place(|| sum_of(&address, EVENT, first_type(EVENT), "")), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_parca_has_a_hundred_labels_a_value_of_a_mib_and_what_is_two_days_old() {
    let (dir, address) = (scratch(), free_address());
    let _parca = start(dir.path(), &address);
    let names: Vec<String> = (0..100).map(|number| format!("label_{number:02}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let many = series(&many, vec![sample("main", 7, 7)]);
    let value = "v".repeat(1 << 20);
    let long = [("comm", "long"), ("value", value.as_str())];
    let long = series(&long, vec![sample("main", 11, 11)]);
    let old = batch_of(EVENT, vec![series(&[("comm", "old")], vec![sample("main", 13, 13)])]);
    let old = Batch { start: old.start - 2 * DAY, ..old };
    let counts = deliver(&address, vec![batch_of(EVENT, vec![many, long]), old]).await;
    assert_eq!((counts.delivered, counts.losses.total()), (31, 0), "{counts:?}");
    assert_eq!(samples_with(&address, "label_99", "x"), 7);
    assert_eq!(samples_with(&address, "comm", "long"), 11);
    let shown = || shown_sum_since(3 * DAY, &address, EVENT, first_type(EVENT), "comm=\"old\"");
    assert_eq!(tokio::task::block_in_place(shown) / PERIOD, 13);
}
