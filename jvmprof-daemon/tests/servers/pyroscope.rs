//! A real Pyroscope: killed, back again without what it had, and its answers beside the account. Of
//! its own protocol and of OTLP.

mod limits;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::{EventType, SampleType};
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::pyroscope::{PyroscopeClient, PyroscopeOptions};

use crate::delivered::{LABELLED, PERIOD, deliver_labelled, deliver_to_lives, first_type};
use crate::otel_collector::{self, PROTOCOLS};
use crate::server::{PATIENCE, Server, free_address, get, post};
use crate::support::scratch;

/// Parts of it that find one another by a store of addresses: each is this process alone.
const RINGS: [&str; 6] =
    ["", "distributor.", "compactor.", "overrides-exporter.", "query-scheduler.", "store-gateway.sharding-"];
/// Options for the address under which others find a part.
const ADDRESSES: [&str; 7] = [
    "compactor.ring.instance-addr",
    "distributor.ring.instance-addr",
    "ingester.lifecycler.addr",
    "overrides-exporter.ring.instance-addr",
    "query-frontend.instance-addr",
    "query-scheduler.ring.instance-addr",
    "store-gateway.sharding-ring.instance-addr",
];

/// Starts a Pyroscope that stores in a folder, and waits until it is ready.
fn start(dir: &Path, address: &str) -> Server {
    start_with(dir, address, &[])
}

/// As [`start`], with more options.
fn start_with(dir: &Path, address: &str, options: &[&str]) -> Server {
    let dir_name = dir.display();
    let (host, port) = address.split_once(':').unwrap();
    let [grpc, members] = [free_address(), free_address()];
    let port_of = |address: &str| address.split_once(':').unwrap().1.to_owned();
    let mut args = vec![
        format!("-server.http-listen-address={host}"),
        format!("-server.http-listen-port={port}"),
        format!("-server.grpc-listen-address={host}"),
        format!("-server.grpc-listen-port={}", port_of(&grpc)),
        format!("-memberlist.bind-addr={host}"),
        format!("-memberlist.bind-port={}", port_of(&members)),
        format!("-pyroscopedb.data-path={dir_name}/data"),
        format!("-compactor.data-dir={dir_name}/compactor"),
        "-storage.backend=filesystem".to_owned(),
        format!("-storage.filesystem.dir={dir_name}/store"),
        "-self-profiling.disable-push=true".to_owned(),
        "-usage-stats.enabled=false".to_owned(),
        "-ingester.min-ready-duration=0s".to_owned(),
    ];
    args.extend(RINGS.map(|part| format!("-{part}ring.store=inmemory")));
    args.extend(ADDRESSES.map(|option| format!("-{option}={host}")));
    args.extend(options.iter().map(|option| (*option).to_owned()));
    let server = Server::start("JVMPROF_TEST_PYROSCOPE", &args, dir, address);
    let started = std::time::Instant::now();
    while ureq::get(format!("http://{address}/ready")).call().is_err() {
        assert!(started.elapsed() < PATIENCE, "it isn't ready");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    server
}

/// Asks for the sum of an event's first sample type over all series.
fn sum(address: &str, event: EventType) -> u64 {
    sum_of(address, event, first_type(event), "")
}

/// Asks for the sum of a sample type over the samples that a selector of labels chooses.
fn sum_of(address: &str, event: EventType, kind: SampleType, selector: &str) -> u64 {
    let descriptor = event.descriptor();
    let period = descriptor.period_type;
    let names = [descriptor.series, kind.name, kind.unit, period.name, period.unit];
    ticks(address, &names.join(":"), selector)
}

/// Asks for the sum of a type of profiles, as its page names it.
fn ticks(address: &str, name: &str, selector: &str) -> u64 {
    let query = format!("{name}{{{selector}}}");
    let parameters = [("query", &*query), ("from", "now-1h"), ("until", "now"), ("format", "json")];
    let answer = get(&format!("http://{address}/pyroscope/render"), &parameters);
    answer["flamebearer"]["numTicks"].as_u64().unwrap()
}

fn connect(address: &str) -> PyroscopeClient {
    let http = HttpOptions::new(format!("http://{address}"));
    PyroscopeClient::new(PyroscopeOptions::new(http)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_pyroscope_answers_is_what_the_ledger_says() {
    deliver_to_lives(start, connect, sum).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_pyroscope_finds_samples_by_labels_of_series_and_of_threads_in_both_of_their_types() {
    let (dir, address) = (scratch(), free_address());
    let _pyroscope = start(dir.path(), &address);
    deliver_labelled(connect(&address)).await;
    // The name of a service that nobody has given is one all the same.
    let mut all = LABELLED.to_vec();
    all.push(("service_name", "cart", [3, 40]));
    for event in EventType::ALL {
        for (name, value, sums) in &all {
            let selector = format!("{name}=\"{value}\"");
            for (kind, expected) in event.descriptor().sample_types.iter().zip(*sums) {
                let sum = tokio::task::block_in_place(|| sum_of(&address, event, *kind, &selector));
                assert_eq!(sum, expected, "{event:?} {kind:?} {selector}");
            }
        }
    }
    let values = |name: &str| {
        let question = serde_json::json!({ "name": name });
        let url = format!("http://{address}/querier.v1.QuerierService/LabelValues");
        let answer = tokio::task::block_in_place(|| post(&url, &question));
        answer["names"].as_array().cloned().unwrap_or_default()
    };
    assert_eq!(values("service_name"), ["cart", "shop"]);
    assert_eq!(values("region"), ["north", "south"]);
    assert_eq!(values("thread_name"), ["worker-1", "worker-2"]);
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

/// As [`sum_of`], of what came by OTLP.
fn otlp_sum_of(address: &str, event: EventType, kind: SampleType, selector: &str) -> u64 {
    let ticks = ticks(address, &otlp_name(event, kind), selector);
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
