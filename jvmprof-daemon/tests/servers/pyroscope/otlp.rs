//! OTLP to a real Pyroscope: its answers beside the account, and what it stores of a request that
//! it refuses.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::{EventType, SampleType};
use jvmprof_daemon::export::delivery::Delivery;
use jvmprof_daemon::export::otlp;
use jvmprof_daemon::export::push::PushOutcome;

use super::{Storage, start_with};
use crate::delivered::{
    LABELLED, PERIOD, batch_of, deliver_labelled, deliver_to_lives, first_type, is_empty, options, sample,
    series, until,
};
use crate::otel_collector::{self, PROTOCOLS, connect};
use crate::server::{Server, free_address, get, post};
use crate::support::scratch;

const EVENT: EventType = EventType::Cpu;

fn start(dir: &Path, address: &str) -> Server {
    super::start(dir, address, Storage::Ingesters)
}

/// The name of a sample type that comes by OTLP, as its page has it: that of the period, and CPU
/// time by its own.
fn otlp_name(event: EventType, kind: SampleType) -> String {
    let period = event.descriptor().period_type;
    match event {
        EventType::Cpu => "process_cpu:cpu:nanoseconds:cpu:nanoseconds".to_owned(),
        _ => [period.name, kind.name, kind.unit, period.name, period.unit].join(":"),
    }
}

/// Asks for the sum of a sample type over the samples that a selector of labels chooses.
fn otlp_sum_of(address: &str, event: EventType, kind: SampleType, selector: &str) -> u64 {
    let query = format!("{}{{{selector}}}", otlp_name(event, kind));
    let parameters = [("query", &*query), ("from", "now-1h"), ("until", "now"), ("format", "json")];
    let answer = get(&format!("http://{address}/pyroscope/render"), &parameters);
    let ticks = answer["flamebearer"]["numTicks"].as_u64().unwrap();
    // Samples of CPU time are the time that they stand for.
    if event == EventType::Cpu { ticks / PERIOD } else { ticks }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_pyroscope_that_gets_otlp_answers_is_what_the_ledger_says() {
    for protocol in PROTOCOLS {
        let connect = |address: &str| otel_collector::connect(address, protocol);
        let sum = |address: &str, event| otlp_sum_of(address, event, first_type(event), "");
        deliver_to_lives(start, connect, sum).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_pyroscope_names_what_comes_by_otlp_after_its_period_and_finds_it_by_labels() {
    for protocol in PROTOCOLS {
        let (dir, address) = (scratch(), free_address());
        let _pyroscope = start(dir.path(), &address);
        deliver_labelled(otel_collector::connect(&address, protocol)).await;
        for event in EventType::ALL {
            for (label, value, sums) in LABELLED.into_iter().chain([("service_name", "cart", [3, 40])]) {
                let label = if label == "comm" { "process_executable_name" } else { label };
                let selector = format!("{label}=\"{value}\"");
                for (kind, expected) in event.descriptor().pushed_types.iter().zip(sums) {
                    let sum = tokio::task::block_in_place(|| otlp_sum_of(&address, event, *kind, &selector));
                    assert_eq!(sum, expected, "{protocol:?} {event:?} {kind:?} {selector}");
                }
            }
        }
        let hour = Duration::from_secs(3600);
        let times = [SystemTime::now() - hour, SystemTime::now() + hour];
        let [start, end] =
            times.map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() * 1000);
        let question = serde_json::json!({ "start": start, "end": end });
        let url = format!("http://{address}/querier.v1.QuerierService/ProfileTypes");
        let answer = tokio::task::block_in_place(|| post(&url, &question));
        let types = answer["profileTypes"].as_array().cloned().unwrap_or_default();
        let names: BTreeSet<_> = types.iter().map(|of| of["ID"].as_str().unwrap().to_owned()).collect();
        let names_of = |event: EventType| {
            event.descriptor().pushed_types.iter().map(move |kind| otlp_name(event, *kind))
        };
        let expected: BTreeSet<_> = EventType::ALL.into_iter().flat_map(names_of).collect();
        assert_eq!(names, expected, "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_otlp_a_real_pyroscope_stores_a_part_of_what_it_refuses_and_that_costs_a_single_request() {
    let names: Vec<String> = (0..40).map(|number| format!("label_{number:02}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let all = || {
        let all = vec![
            series(&[("comm", "a")], vec![sample("main", 7, 7)]),
            series(&[("comm", "b")], vec![sample("main", 11, 11)]),
            series(&many, vec![sample("main", 13, 13)]),
        ];
        batch_of(EVENT, all)
    };
    for protocol in PROTOCOLS {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let _pyroscope = start(dir.path(), &address);
        let mut delivery = Delivery::default();
        delivery.add_remote(connect(&address, protocol), options(spool.path())).unwrap();
        for _ in 0..7 {
            delivery.enqueue(all());
            until(&delivery, is_empty).await;
        }
        let counts = delivery.finish(Duration::from_secs(10)).await[0].1.of_all_events();
        let sums = (counts.delivered, counts.losses.refused, counts.losses.possibly_lost);
        assert_eq!(sums, (6 * 18, 6 * 13, 31), "{protocol:?}: {counts:?}");
        // Refused three times, and not sent any more. The first refusal counts only if it wasn't of
        // what had waited for the server.
        assert!((2..=3).contains(&counts.withheld_series), "{protocol:?}: {counts:?}");
        // Of the first request, too, the first two series are there.
        let stored = tokio::task::block_in_place(|| otlp_sum_of(&address, EVENT, first_type(EVENT), ""));
        assert_eq!(stored, 7 * 18, "{protocol:?}: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_pyroscope_throttles_by_otlp_is_to_be_sent_again() {
    let (dir, address) = (scratch(), free_address());
    let rate = ["-distributor.ingestion-rate-limit-mb=0.0001", "-distributor.ingestion-burst-size-mb=0.001"];
    let _pyroscope = start_with(dir.path(), &address, Storage::Ingesters, &rate);
    let batch = batch_of(EVENT, vec![series(&[("comm", "a")], vec![sample("main", 7, 7)])]);
    let request = otlp::requests(&batch).unwrap().remove(0);
    for protocol in PROTOCOLS {
        let client = connect(&address, protocol);
        let mut outcome = PushOutcome::Stored;
        // Until the burst is used up.
        for _ in 0..100 {
            if outcome == PushOutcome::Stored {
                outcome = client.send(&request).await;
            }
        }
        let PushOutcome::NotStored { message, .. } = &outcome else { panic!("{protocol:?}: {outcome:?}") };
        assert!(message.contains("push rate limit"), "{protocol:?}: {message}");
    }
}
