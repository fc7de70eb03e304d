//! A real Parca: killed, back again without what it had, and its answers beside the account. Of its
//! own protocol and of OTLP.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339;
use jvmprof_daemon::event_type::{EventType, SampleType};
use jvmprof_daemon::export::otlp::OtlpProtocol;
use jvmprof_daemon::export::parca::{ParcaClient, ParcaOptions};
use serde_json::Value;

use crate::delivered::{LABELLED, PERIOD, deliver_labelled, deliver_to_lives, first_type};
use crate::otel_collector;
use crate::server::{Server, free_address, get};
use crate::support::scratch;

/// Starts a Parca that keeps profiles in memory.
fn start(dir: &Path, address: &str) -> Server {
    let config = dir.join("parca.yaml");
    let bucket = dir.join("bucket").display().to_string();
    let text =
        format!("object_storage:\n  bucket: {{type: FILESYSTEM, config: {{directory: \"{bucket}\"}}}}\n");
    fs::write(&config, text).unwrap();
    let args = [
        format!("--config-path={}", config.display()),
        format!("--http-address={address}"),
        format!("--debuginfo-cache-dir={}", dir.display()),
        "--storage-active-memory=67108864".to_owned(),
    ];
    Server::start("JVMPROF_TEST_PARCA", &args, dir, address)
}

/// The name of all profiles that come by OTLP: that of their scope.
const OTLP_NAME: &str = "jvmprof";

/// Asks for the sum of an event's first sample type over all series.
fn sum(address: &str, event: EventType) -> u64 {
    sum_of(address, event.descriptor().series, event, first_type(event), "")
}

/// Asks for the sum of a sample type over the samples that a selector of labels chooses, in the
/// profiles of this name.
fn sum_of(address: &str, name: &str, event: EventType, kind: SampleType, selector: &str) -> u64 {
    let period = event.descriptor().period_type;
    let names = [name, kind.name, kind.unit, period.name, period.unit];
    let query = format!("{}:delta{{{selector}}}", names.join(":"));
    let hour = Duration::from_secs(3600);
    let [from, to] = [SystemTime::now() - hour, SystemTime::now() + hour];
    let [from, to] = [from, to].map(|time| format_rfc3339(time).to_string());
    let parameters = [("query", &*query), ("start", &from), ("end", &to), ("step", "1s")];
    let answer = get(&format!("http://{address}/api/profiles/query_range"), &parameters);
    let samples = each(&answer, "series").into_iter().flat_map(|series| each(&series, "samples"));
    let values = samples.map(|sample| sample["value"].as_str().unwrap().parse::<u64>().unwrap());
    // It shows samples as the time that they stand for.
    let unit = if (kind.name, kind.unit) == ("samples", "count") { PERIOD } else { 1 };
    values.sum::<u64>() / unit
}

fn each(value: &Value, name: &str) -> Vec<Value> {
    value[name].as_array().cloned().unwrap_or_default()
}

fn connect(address: &str) -> ParcaClient {
    ParcaClient::new(ParcaOptions::new(format!("http://{address}"))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_parca_answers_is_what_the_ledger_says() {
    deliver_to_lives(start, connect, sum).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_parca_finds_samples_by_labels_of_series_in_each_of_their_types() {
    let (dir, address) = (scratch(), free_address());
    let _parca = start(dir.path(), &address);
    deliver_labelled(connect(&address)).await;
    for event in EventType::ALL {
        // Labels of samples, which name the threads here, are dropped by it.
        for (name, value, sums) in LABELLED.into_iter().filter(|(name, ..)| *name != "thread_name") {
            let selector = format!("{name}=\"{value}\"");
            for (kind, expected) in event.descriptor().pushed_types.iter().zip(sums) {
                let series = event.descriptor().series;
                let sum = tokio::task::block_in_place(|| sum_of(&address, series, event, *kind, &selector));
                assert_eq!(sum, expected, "{event:?} {kind:?} {selector}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_parca_that_gets_otlp_answers_is_what_the_ledger_says() {
    let connect = |address: &str| otel_collector::connect(address, OtlpProtocol::Grpc);
    let sum = |address: &str, event| sum_of(address, OTLP_NAME, event, first_type(event), "");
    deliver_to_lives(start, connect, sum).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_parca_names_what_comes_by_otlp_after_its_scope_and_finds_it_by_labels() {
    let (dir, address) = (scratch(), free_address());
    let _parca = start(dir.path(), &address);
    deliver_labelled(otel_collector::connect(&address, OtlpProtocol::Grpc)).await;
    for event in EventType::ALL {
        // The name of a service that nobody has given is one all the same.
        for (label, value, sums) in LABELLED.into_iter().chain([("service_name", "cart", [3, 40])]) {
            let label = if label == "comm" { "process_executable_name" } else { label };
            let selector = format!("{label}=\"{value}\"");
            for (kind, expected) in event.descriptor().pushed_types.iter().zip(sums) {
                let sum =
                    tokio::task::block_in_place(|| sum_of(&address, OTLP_NAME, event, *kind, &selector));
                assert_eq!(sum, expected, "{event:?} {kind:?} {selector}");
            }
        }
    }
    let types = tokio::task::block_in_place(|| get(&format!("http://{address}/api/profiles/types"), &[]));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names: BTreeSet<_> =
        each(&types, "types").iter().map(|of| [text(&of["name"]), text(&of["sampleType"])]).collect();
    let pushed = EventType::ALL.into_iter().flat_map(|event| event.descriptor().pushed_types);
    let expected: BTreeSet<_> = pushed.map(|kind| [OTLP_NAME.to_owned(), kind.name.to_owned()]).collect();
    assert_eq!(names, expected);
}
