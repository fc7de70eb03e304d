//! What a real Pyroscope refuses by its limits and tenants, and what the account says of it.

use std::path::Path;
use std::time::{Duration, Instant};

use jvmprof_daemon::event_type::{EventType, SamplesByEvent};
use jvmprof_daemon::export::delivery::{Delivery, DeliveryCounts};
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::push::PushOutcome;
use jvmprof_daemon::export::pyroscope::{PyroscopeClient, PyroscopeOptions, requests};
use jvmprof_daemon::profile::model::{Batch, SampleLabel, SampleLabels};
use tonic::Code;

use super::{STORAGES, Storage, start, start_with};
use crate::delivered::{batch, batch_of, is_empty, options, sample, series, until};
use crate::server::{PATIENCE, free_address};
use crate::support::scratch;

const EVENT: EventType = EventType::Cpu;

fn client(address: &str, tenant: Option<&str>, max_age: Duration) -> PyroscopeClient {
    let http = HttpOptions::new(format!("http://{address}"));
    let tenant = tenant.map(str::to_owned);
    PyroscopeClient::new(PyroscopeOptions { tenant, max_age, ..PyroscopeOptions::new(http) }).unwrap()
}

/// Delivers batches until each request has been answered, or waits in the spool.
async fn deliver(client: PyroscopeClient, spool: &Path, batches: Vec<Batch>) -> DeliveryCounts<u64> {
    let mut delivery = Delivery::default();
    delivery.add_remote(client, options(spool)).unwrap();
    batches.into_iter().for_each(|batch| delivery.enqueue(batch));
    until(&delivery, |counts| counts.waiting.is_none()).await;
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
    assert_eq!(counts.waiting, SamplesByEvent::NONE, "{counts:?}");
    counts.of_all_events()
}

const HOUR: Duration = Duration::from_mins(60);
const OLD: Duration = Duration::from_mins(20);

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_pyroscope_refuses_for_its_tenant_or_its_limits_is_in_the_account() {
    for storage in STORAGES {
        assert_refused_is_accounted_for(storage).await;
    }
}

async fn assert_refused_is_accounted_for(storage: Storage) {
    let (dir, spool, address) = (scratch(), scratch(), free_address());
    let limits = [
        "-auth.multitenancy-enabled=true",
        "-validation.max-label-names-per-series=8",
        "-validation.reject-older-than=10m",
        "-validation.max-profile-size-bytes=20000",
    ];
    let _pyroscope = start_with(dir.path(), &address, storage, &limits);

    // Nothing is lost to a tenant that is missing or can't be one.
    let mut waiting = 0;
    for (tenant, said) in [(None, "no org id"), (Some("../x"), "")] {
        let client = client(&address, tenant, HOUR);
        let request = requests(&batch(EVENT, 1)).unwrap().requests.remove(0);
        let outcome = client.send(&request).await;
        let PushOutcome::NotStored { message, .. } = &outcome else { panic!("{tenant:?}: {outcome:?}") };
        assert!(message.contains(said), "{tenant:?}: {message}");
        let counts = deliver(client, spool.path(), vec![batch(EVENT, 1)]).await;
        waiting += counts.handed_over;
        assert_eq!((counts.spooled, counts.losses.total()), (waiting, 0), "{tenant:?}: {counts:?}");
    }
    let mut delivery = Delivery::default();
    delivery.add_remote(client(&address, Some("shop"), HOUR), options(spool.path())).unwrap();
    until(&delivery, |counts| counts.spooled.is_none()).await;
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1.of_all_events();
    assert_eq!((counts.delivered, counts.losses.total()), (waiting, 0), "{counts:?}");

    // What is beyond a limit is refused by itself, and what comes with it is delivered.
    let names: Vec<String> = (0..12).map(|number| format!("label_{number:02}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let long = "f".repeat(30_000);
    let fine = || batch_of(EVENT, vec![series(&[("comm", "fine")], vec![sample("main", 5, 5)])]);
    let many_labels = batch_of(EVENT, vec![series(&many, vec![sample("main", 7, 7)])]);
    let too_large = batch_of(EVENT, vec![series(&[("comm", "large")], vec![sample(&long, 11, 11)])]);
    let too_old = batch_of(EVENT, vec![series(&[("comm", "old")], vec![sample("main", 13, 13)])]);
    let too_old = Batch { start: too_old.start - OLD, ..too_old };
    for (refused, said, samples) in [
        (many_labels, "label names; limit 8", 7),
        (too_large, "exceeds limit of", 11),
        (too_old.clone(), "outside of ingestion window", 13),
    ] {
        let client = client(&address, Some("shop"), HOUR);
        let request = requests(&refused).unwrap().requests.remove(0);
        let outcome = client.send(&request).await;
        let PushOutcome::Refused { code, message, .. } = &outcome else { panic!("{said}: {outcome:?}") };
        assert_eq!(*code, Code::InvalidArgument, "{said}: {message}");
        assert!(message.contains(said), "{message}");
        let counts = deliver(client, scratch().path(), vec![refused, fine()]).await;
        let sums = (counts.delivered, counts.losses.refused, counts.losses.total());
        assert_eq!(sums, (5, samples, samples), "{said}: {counts:?}");
    }
    // Settings that know the server's limit save the push.
    let client = client(&address, Some("shop"), Duration::from_mins(10));
    let counts = deliver(client, scratch().path(), vec![too_old, fine()]).await;
    let sums = (counts.delivered, counts.losses.too_old, counts.losses.total());
    assert_eq!(sums, (5, 13, 13), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_series_and_of_samples_are_together_within_a_real_pyroscopes_limit() {
    let names: Vec<String> = (0..40).map(|number| format!("label_{number:02}")).collect();
    let labels: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let of_sample =
        ["thread_name", "http_route"].map(|name| SampleLabel { name: name.into(), value: "x".into() });
    let mut sample = sample("main", 7, 7);
    sample.labels = SampleLabels::new(of_sample);
    for storage in STORAGES {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let _pyroscope = start(dir.path(), &address, storage);
        let batch = batch_of(EVENT, vec![series(&labels, vec![sample.clone()])]);
        let counts = deliver(client(&address, None, HOUR), spool.path(), vec![batch]).await;
        assert_eq!((counts.delivered, counts.losses.total()), (7, 0), "{storage:?}: {counts:?}");
        // 42 labels with its own, for which there are 28 places beside those of the sample.
        assert_eq!(counts.limited_labels, 14, "{storage:?}: {counts:?}");
    }
}

/// A tenth of a MiB a second, and as much at once.
const RATE: [&str; 2] =
    ["-distributor.ingestion-rate-limit-mb=0.1", "-distributor.ingestion-burst-size-mb=0.1"];

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_faster_than_a_real_pyroscope_takes_it_waits_in_the_spool() {
    let (dir, spool, address) = (scratch(), scratch(), free_address());
    let _pyroscope = start_with(dir.path(), &address, Storage::Ingesters, &RATE);
    // 180 kB at once.
    let names = ["a", "b", "c", "d", "e", "f"].map(|letter| letter.repeat(30_000));
    let labels: Vec<_> = names.iter().map(|name| [("comm", &name[..1])]).collect();
    let all = names.iter().zip(&labels).map(|(name, labels)| series(labels, vec![sample(name, 5, 5)]));
    let mut delivery = Delivery::default();
    delivery.add_remote(client(&address, None, HOUR), options(spool.path())).unwrap();
    delivery.enqueue(batch_of(EVENT, all.collect()));
    until(&delivery, is_empty).await;
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1.of_all_events();
    assert_eq!((counts.delivered, counts.losses.total()), (30, 0), "{counts:?}");
    assert!(counts.delivered_late > 0 && counts.failed_requests > 0, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_larger_than_a_real_pyroscopes_burst_is_refused_alone() {
    let (dir, spool, address) = (scratch(), scratch(), free_address());
    let _pyroscope = start_with(dir.path(), &address, Storage::Ingesters, &RATE);
    let long = "f".repeat(150_000);
    let large = batch_of(EVENT, vec![series(&[("comm", "large")], vec![sample(&long, 11, 11)])]);
    let fine = || batch_of(EVENT, vec![series(&[("comm", "fine")], vec![sample("main", 5, 5)])]);
    let client = client(&address, None, HOUR);
    let outcome = client.send(&requests(&large).unwrap().requests.remove(0)).await;
    let PushOutcome::NotStored { message, retry_after: None } = &outcome else { panic!("{outcome:?}") };
    assert!(message.contains("push rate limit (102 KiB) exceeded"), "{message}");

    let mut delivery = Delivery::default();
    delivery.add_remote(client, options(spool.path())).unwrap();
    delivery.enqueue(large);
    let started = Instant::now();
    // It is given up after some tries between which others were taken.
    while delivery.counts()[0].1.losses.refused.is_none() {
        assert!(started.elapsed() < PATIENCE, "{:?}", delivery.counts());
        delivery.enqueue(fine());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until(&delivery, is_empty).await;
    let counts = delivery.finish(Duration::from_secs(10)).await[0].1.of_all_events();
    assert_eq!((counts.losses.refused, counts.losses.total()), (11, 11), "{counts:?}");
    assert!(counts.delivered > 0 && counts.delivered == counts.handed_over - 11, "{counts:?}");
}
