//! A real Parca: killed, back again without what it had, and its answers beside the account.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339;
use jvmprof_daemon::event_type::{EventType, SampleType};
use jvmprof_daemon::export::parca::ParcaClient;
use jvmprof_daemon::export::push::BackendOptions;
use serde_json::Value;

use crate::delivered::{LABELLED, PERIOD, deliver_labelled, deliver_to_lives, first_type};
use crate::server::{Server, free_address, get};
use crate::support::scratch;

const HOUR: Duration = Duration::from_secs(3600);

/// Starts a Parca that keeps profiles in memory.
pub(crate) fn start(dir: &Path, address: &str) -> Server {
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

/// Asks for the sum of an event's first sample type over all series.
fn sum(address: &str, event: EventType) -> u64 {
    sum_of(address, event, first_type(event), "")
}

/// Asks for the sum of a sample type over the samples that a selector of labels chooses.
pub(crate) fn sum_of(address: &str, event: EventType, kind: SampleType, selector: &str) -> u64 {
    sum_of_name(event.descriptor().series, address, event, kind, selector)
}

/// The same in the profiles of this name.
pub(crate) fn sum_of_name(
    name: &str,
    address: &str,
    event: EventType,
    kind: SampleType,
    selector: &str,
) -> u64 {
    let unit = if (kind.name, kind.unit) == ("samples", "count") { PERIOD } else { 1 };
    shown_sum_since(HOUR, address, name, event, kind, selector) / unit
}

/// The same as it is shown: samples of CPU time as the time that they stand for.
pub(crate) fn shown_sum_of(address: &str, event: EventType, kind: SampleType, selector: &str) -> u64 {
    shown_sum_since(HOUR, address, event.descriptor().series, event, kind, selector)
}

/// The same over a time before now.
pub(crate) fn shown_sum_since(
    before: Duration,
    address: &str,
    name: &str,
    event: EventType,
    kind: SampleType,
    selector: &str,
) -> u64 {
    let period = event.descriptor().period_type;
    let names = [name, kind.name, kind.unit, period.name, period.unit];
    let query = format!("{}:delta{{{selector}}}", names.join(":"));
    let [from, to] = [SystemTime::now() - before, SystemTime::now() + Duration::from_secs(3600)];
    let [from, to] = [from, to].map(|time| format_rfc3339(time).to_string());
    let parameters = [("query", &*query), ("start", &from), ("end", &to), ("step", "1s")];
    let answer = get(&format!("http://{address}/api/profiles/query_range"), &parameters);
    let samples = each(&answer, "series").into_iter().flat_map(|series| each(&series, "samples"));
    samples.map(|sample| sample["value"].as_str().unwrap().parse::<u64>().unwrap()).sum()
}

pub(crate) fn each(value: &Value, name: &str) -> Vec<Value> {
    value[name].as_array().cloned().unwrap_or_default()
}

pub(crate) fn connect(address: &str) -> ParcaClient {
    ParcaClient::new(BackendOptions::new(format!("http://{address}"))).unwrap()
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
                let sum = tokio::task::block_in_place(|| sum_of(&address, event, *kind, &selector));
                assert_eq!(sum, expected, "{event:?} {kind:?} {selector}");
            }
        }
    }
}
