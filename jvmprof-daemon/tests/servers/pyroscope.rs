//! A real Pyroscope, with either of its storages: killed, back again without what it had, and its
//! answers beside the account.

mod limits;
mod otlp;
mod spans;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jvmprof_daemon::event_type::{EventType, SampleType};
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::pyroscope::{PyroscopeClient, PyroscopeOptions};
use serde_json::{Value, json};

use crate::delivered::{LABELLED, deliver_labelled, deliver_to_lives, first_type};
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

/// What a Pyroscope stores profiles with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Ingesters: version 1, by default.
    Ingesters,
    /// Segment writers and a metastore: version 2 has no other one.
    Segments,
}

pub(crate) const STORAGES: [Storage; 2] = [Storage::Ingesters, Storage::Segments];

impl Storage {
    fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Ingesters => &[],
            Self::Segments => &[("PYROSCOPE_V2", "1")],
        }
    }

    /// Options beside those of both. `grpc`: the address by which the parts of it talk.
    fn options(self, dir: &Path, grpc: &str) -> Vec<String> {
        if self == Self::Ingesters {
            return Vec::new();
        }
        let (dir, raft) = (dir.display(), free_address());
        let host = grpc.split_once(':').unwrap().0;
        vec![
            "-write-path=segment-writer".to_owned(),
            "-enable-query-backend=true".to_owned(),
            format!("-query-backend.address={grpc}"),
            "-segment-writer.min-ready-duration=0s".to_owned(),
            "-segment-writer.store=inmemory".to_owned(),
            format!("-segment-writer.lifecycler.addr={host}"),
            // Answers come when a segment is flushed: by default each half a second.
            "-segment-writer.segment-duration=100ms".to_owned(),
            // What the metastore doesn't know yet isn't found: then a push is to fail.
            "-segment-writer.metadata-dlq-enabled=false".to_owned(),
            "-metastore.min-ready-duration=0s".to_owned(),
            format!("-metastore.address={grpc}"),
            format!("-metastore.data-dir={dir}/metastore"),
            format!("-metastore.raft.dir={dir}/raft"),
            format!("-metastore.raft.snapshots-dir={dir}/raft"),
            format!("-metastore.raft.bind-address={raft}"),
            format!("-metastore.raft.advertise-address={raft}"),
            format!("-metastore.raft.server-id={raft}"),
        ]
    }
}

/// Starts a Pyroscope that stores in a folder, and waits until it is ready.
pub(crate) fn start(dir: &Path, address: &str, storage: Storage) -> Server {
    start_with(dir, address, storage, &[])
}

/// As [`start`], with more options.
fn start_with(dir: &Path, address: &str, storage: Storage, options: &[&str]) -> Server {
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
    args.extend(storage.options(dir, &grpc));
    args.extend(options.iter().map(|option| (*option).to_owned()));
    let environment = storage.environment();
    let server = Server::start_with("JVMPROF_TEST_PYROSCOPE", &args, environment, dir, address);
    let started = Instant::now();
    while !is_ready(address) {
        assert!(started.elapsed() < PATIENCE, "it isn't ready");
        std::thread::sleep(Duration::from_millis(50));
    }
    server
}

/// Returns whether it says so and answers questions: a metastore that still elects itself doesn't.
fn is_ready(address: &str) -> bool {
    let question = in_last_hour(json!({})).to_string();
    let names = ureq::post(url_of(address, "LabelNames")).header("content-type", "application/json");
    ureq::get(format!("http://{address}/ready")).call().is_ok()
        && names.header("x-scope-orgid", "nobody").send(question).is_ok()
}

fn url_of(address: &str, method: &str) -> String {
    format!("http://{address}/querier.v1.QuerierService/{method}")
}

/// Adds the range of time that a question is for.
fn in_last_hour(mut question: Value) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    question["start"] = (now - 3_600_000).into();
    question["end"] = (now + 1_000).into();
    question
}

/// Returns its answer to a question about the last hour.
fn ask(address: &str, method: &str, question: Value) -> Value {
    post(&url_of(address, method), &in_last_hour(question))
}

/// Returns the names of the services that have profiles. Of fresh segments nothing else is known,
/// so that other questions have to name one of these.
pub(crate) fn services(address: &str) -> BTreeSet<String> {
    let answer = ask(address, "Series", json!({ "labelNames": ["service_name", "__profile_type__"] }));
    let each = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let labels = each(&answer, "labelsSet").into_iter().flat_map(|set| each(&set, "labels"));
    let names = labels.filter(|label| label["name"] == "service_name");
    names.map(|label| label["value"].as_str().unwrap().to_owned()).collect()
}

/// Returns the names of a service's labels, or the values of one of these.
fn names_of(address: &str, service: &str, label: Option<&str>) -> Vec<Value> {
    let question = json!({ "name": label, "matchers": [format!("{{service_name=\"{service}\"}}")] });
    let method = if label.is_some() { "LabelValues" } else { "LabelNames" };
    ask(address, method, question)["names"].as_array().cloned().unwrap_or_default()
}

/// Asks for the sum of an event's first sample type over all series.
pub(crate) fn sum(address: &str, event: EventType) -> u64 {
    sum_of(address, event, first_type(event), "")
}

/// Asks for the sum of a sample type over the samples that a selector of labels chooses.
pub(crate) fn sum_of(address: &str, event: EventType, kind: SampleType, selector: &str) -> u64 {
    let of_service = |service: String| {
        let query = format!("{}{{service_name=\"{service}\",{selector}}}", profile_type(event, kind));
        let parameters = [("query", &*query), ("from", "now-1h"), ("until", "now"), ("format", "json")];
        let answer = get(&format!("http://{address}/pyroscope/render"), &parameters);
        answer["flamebearer"]["numTicks"].as_u64().unwrap()
    };
    services(address).into_iter().map(of_service).sum()
}

/// Returns its name of a sample type.
fn profile_type(event: EventType, kind: SampleType) -> String {
    let descriptor = event.descriptor();
    let period = descriptor.period_type;
    [descriptor.series, kind.name, kind.unit, period.name, period.unit].join(":")
}

fn connect(address: &str) -> PyroscopeClient {
    let http = HttpOptions::new(format!("http://{address}"));
    PyroscopeClient::new(PyroscopeOptions::new(http)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_pyroscope_answers_is_what_the_ledger_says() {
    for storage in STORAGES {
        deliver_to_lives(|dir, address| start(dir, address, storage), connect, sum).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_pyroscope_finds_samples_by_labels_of_series_and_of_threads_in_both_of_their_types() {
    for storage in STORAGES {
        let (dir, address) = (scratch(), free_address());
        let _pyroscope = start(dir.path(), &address, storage);
        deliver_labelled(connect(&address)).await;
        tokio::task::block_in_place(|| assert_labels(storage, &address));
    }
}

/// Asks for what [`deliver_labelled`] has delivered.
fn assert_labels(storage: Storage, address: &str) {
    // The name of a service that nobody has given is one all the same.
    assert!(services(address).iter().eq(["cart", "shop"]), "{storage:?}");
    let mut all = LABELLED.to_vec();
    all.push(("service_name", "cart", [3, 40]));
    for event in EventType::ALL {
        for (name, value, sums) in &all {
            let selector = format!("{name}=\"{value}\"");
            for (kind, expected) in event.descriptor().sample_types.iter().zip(*sums) {
                let sum = sum_of(address, event, *kind, &selector);
                assert_eq!(sum, expected, "{storage:?} {event:?} {kind:?} {selector}");
            }
        }
    }
    let values = |service, name| names_of(address, service, Some(name));
    assert_eq!(values("shop", "region"), ["north"], "{storage:?}");
    assert_eq!(values("cart", "region"), ["south"], "{storage:?}");
    assert_eq!(values("shop", "thread_name"), ["worker-1", "worker-2"], "{storage:?}");
}
