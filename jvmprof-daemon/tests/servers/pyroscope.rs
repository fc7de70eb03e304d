//! A real Pyroscope: killed, back again without what it had, and its answers beside the account.

use std::path::Path;

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::pyroscope::{PyroscopeClient, PyroscopeOptions};

use crate::delivered::{deliver_to_lives, first_type};
use crate::server::{PATIENCE, Server, free_address, get};

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
    let (kind, descriptor) = (first_type(event), event.descriptor());
    let period = descriptor.period_type;
    let names = [descriptor.series, kind.name, kind.unit, period.name, period.unit];
    let query = format!("{}{{}}", names.join(":"));
    let parameters = [("query", &*query), ("from", "now-1h"), ("until", "now"), ("format", "json")];
    let answer = get(&format!("http://{address}/pyroscope/render"), &parameters);
    answer["flamebearer"]["numTicks"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_pyroscope_answers_is_what_the_ledger_says() {
    let connect = |address: &str| {
        let http = HttpOptions::new(format!("http://{address}"));
        PyroscopeClient::new(PyroscopeOptions::new(http)).unwrap()
    };
    deliver_to_lives(start, connect, sum).await;
}
