//! Profiles whose sums are known, and their delivery.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jvmprof_daemon::event_type::{EventType, SampleType, SamplesByEvent};
use jvmprof_daemon::export::delivery::{
    Backend, Delivery, DeliveryCounts, DeliveryOptions, SpoolPlan, read_ledger,
};
use jvmprof_daemon::export::push::PushOutcome;
use jvmprof_daemon::profile::model::{
    Batch, Frame, FrameKind, LabelSet, Line, Sample, SampleLabel, SampleLabels, Series,
};

use crate::server::{PATIENCE, Server, free_address};
use crate::support::scratch;

/// Nanoseconds between two samples of [`batch`].
pub(crate) const PERIOD: u64 = 1_000_000;

/// The labels of a series, and its samples.
pub(crate) type NewSeries<'a> = (&'a [(&'a str, &'a str)], Vec<Sample>);

pub(crate) fn series<'a>(labels: &'a [(&'a str, &'a str)], samples: Vec<Sample>) -> NewSeries<'a> {
    (labels, samples)
}

/// A batch that was taken now.
pub(crate) fn batch_of(event: EventType, series: Vec<NewSeries<'_>>) -> Batch {
    let label = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    let series = series
        .into_iter()
        .map(|(labels, samples)| Series { labels: labels.iter().map(label).collect::<LabelSet>(), samples });
    let (start, duration) = (SystemTime::now(), Duration::from_secs(1));
    Batch { event, start, duration, period: PERIOD, series: series.collect() }
}

/// So many events in a function.
pub(crate) fn sample(function: &str, events: u64, value: u64) -> Sample {
    let lines = vec![Line::named(function)];
    let frame = Frame { kind: FrameKind::Native, address: None, mapping: None, lines };
    Sample::of_events([Arc::new(frame)].into(), events, value)
}

/// Ten series; of each `(pid + round) * 7` events, whose value is twice as much.
pub(crate) fn batch(event: EventType, round: u64) -> Batch {
    let pids: Vec<String> = (1..=10).map(|pid: u64| pid.to_string()).collect();
    let labels: Vec<_> = pids.iter().map(|pid| [("pid", pid.as_str()), ("comm", "a")]).collect();
    let all = labels.iter().zip(1..).map(|(labels, pid)| {
        let events = (pid + round) * 7;
        series(labels, vec![sample("main", events, 2 * events)])
    });
    batch_of(event, all.collect())
}

/// The span of a request, in [`labelled`].
pub(crate) const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
pub(crate) const SPAN_ID: &str = "b7ad6b7169203331";

/// Two services; of the first two threads, one of which works on a request.
pub(crate) fn labelled(event: EventType) -> Batch {
    let of_thread = |labels: &[(&str, &str)], sample: Sample| {
        let label = |&(name, value): &(&str, &str)| SampleLabel { name: name.into(), value: value.into() };
        let labels: Vec<SampleLabel> = labels.iter().map(label).collect();
        Sample { labels: SampleLabels::new(labels), ..sample }
    };
    let request = [("thread_name", "worker-1"), ("trace_id", TRACE_ID), ("span_id", SPAN_ID)];
    let shop = vec![
        of_thread(&request, sample("main", 7, 700)),
        of_thread(&[("thread_name", "worker-2")], sample("main", 5, 90)),
    ];
    let cart = vec![sample("main", 3, 40)];
    let shop = series(&[("service_name", "shop"), ("comm", "java"), ("region", "north")], shop);
    let cart = series(&[("comm", "cart"), ("region", "south")], cart);
    batch_of(event, vec![shop, cart])
}

/// Labels of [`labelled`], and the events and values of the samples that have them.
pub(crate) const LABELLED: [(&str, &str, [u64; 2]); 6] = [
    ("service_name", "shop", [12, 790]),
    ("region", "north", [12, 790]),
    ("region", "south", [3, 40]),
    ("comm", "cart", [3, 40]),
    ("thread_name", "worker-1", [7, 700]),
    ("thread_name", "worker-2", [5, 90]),
];

/// Waits until a server that has just begun to listen answers requests: until all its parts have
/// started it may fail with any of them.
async fn until_it_answers(backend: &Backend) {
    let started = Instant::now();
    loop {
        let outcome = match backend {
            Backend::Parca(client) => client.probe().await,
            Backend::Pyroscope(client) => client.probe().await,
            Backend::Otlp(client) => client.probe().await,
        };
        if matches!(outcome, PushOutcome::Stored | PushOutcome::Refused { .. }) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{}: {outcome:?}", backend.address());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Delivers [`labelled`] of each event.
pub(crate) async fn deliver_labelled(backend: impl Into<Backend>) {
    let backend = backend.into();
    until_it_answers(&backend).await;
    let mut delivery = Delivery::default();
    delivery.add_remote(backend, DeliveryOptions::default()).unwrap();
    for event in EventType::ALL {
        delivery.enqueue(labelled(event));
    }
    until(&delivery, is_empty).await;
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
    assert_eq!(counts.delivered, counts.handed_over, "{counts:?}");
}

/// The first sample type that is pushed of an event, whose values are its events here.
pub(crate) fn first_type(event: EventType) -> SampleType {
    event.descriptor().pushed_types[0]
}

/// Options of a delivery that tries again soon, with a spool in this folder.
pub(crate) fn options(spool: &Path) -> DeliveryOptions {
    let plan = SpoolPlan {
        dir: spool.to_owned(),
        max_bytes: 64 << 20,
        max_age: Duration::from_secs(3600),
        bytes_per_second: 1 << 30,
    };
    let (first_delay, max_delay) = (Duration::from_millis(20), Duration::from_millis(200));
    DeliveryOptions { first_delay, max_delay, spool: Some(plan), ..DeliveryOptions::default() }
}

/// Waits until the counts of the only backend are so.
pub(crate) async fn until(delivery: &Delivery, is_reached: impl Fn(&DeliveryCounts) -> bool) {
    let started = Instant::now();
    loop {
        let counts = delivery.counts()[0].1;
        assert_eq!(counts.unaccounted(), 0, "{counts:?}");
        if is_reached(&counts) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{counts:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns true once all has been delivered or is lost.
pub(crate) fn is_empty(counts: &DeliveryCounts) -> bool {
    counts.waiting.is_none() && counts.spooled.is_none()
}

/// Delivers until the server is noticed to be gone, and something waits for it in the spool.
pub(crate) async fn until_spooled(delivery: &Delivery) {
    let started = Instant::now();
    // The first one may be lost on a connection that isn't known to be closed.
    while delivery.counts()[0].1.spooled.is_none() {
        assert!(started.elapsed() < PATIENCE, "{:?}", delivery.counts());
        delivery.enqueue(batch(EventType::Cpu, 1));
        until(delivery, |counts| counts.waiting.is_none()).await;
    }
}

/// Checks the account of a delivery that has ended against the sum of an event that the server has.
pub(crate) fn check_account(spool: &Path, stored: impl Fn(EventType) -> u64) {
    let total = read_ledger(spool).unwrap().unwrap().total();
    assert_eq!(total.unaccounted(), 0);
    let lost = total.losses.possibly_lost;
    assert_eq!(total.delivered + lost, total.handed_over, "{total:?}");
    assert!(!total.delivered_late.is_none(), "{total:?}");
    for event in EventType::ALL {
        let (delivered, at_most) = (total.delivered.get(event), (total.delivered + lost).get(event));
        assert!(delivered > 0, "{event:?}: {total:?}");
        let stored = stored(event);
        assert!((delivered..=at_most).contains(&stored), "{event:?} {stored}: {total:?}");
    }
}

/// Delivers to a server that forgets when it is killed, which it is twice. Each time, its sums are
/// asked for before, and then what waits for it meanwhile is spooled. Checks the account against
/// all of them.
pub(crate) async fn deliver_to_lives<B: Into<Backend>>(
    start: impl Fn(&Path, &str) -> Server,
    connect: impl FnOnce(&str) -> B,
    sum: impl Fn(&str, EventType) -> u64,
) {
    let (spool, address) = (scratch(), free_address());
    let mut delivery = Delivery::default();
    delivery.add_remote(connect(&address), options(spool.path())).unwrap();
    let mut sums = SamplesByEvent::NONE;
    for life in 0..3 {
        let dir = scratch();
        let server = start(dir.path(), &address);
        for round in 0..4 {
            for event in EventType::ALL {
                delivery.enqueue(batch(event, 4 * life + round));
            }
            until(&delivery, is_empty).await;
        }
        for event in EventType::ALL {
            // Questions wait for an answer, and the delivery must go on.
            sums += SamplesByEvent::of(event, tokio::task::block_in_place(|| sum(&address, event)));
        }
        if life < 2 {
            drop(server);
            until_spooled(&delivery).await;
            // A server may fail with the first of them while its parts start.
            for event in EventType::ALL {
                delivery.enqueue(batch(event, 4 * life));
            }
            until(&delivery, |counts| counts.waiting.is_none()).await;
        }
    }
    delivery.finish(Duration::from_secs(10)).await;
    check_account(spool.path(), |event| sums.get(event));
}
