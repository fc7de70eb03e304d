//! A real OpenTelemetry collector: killed, back again, and what it has written beside the account.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jvmprof_daemon::event_type::{EventType, SamplesByEvent};
use jvmprof_daemon::export::delivery::Delivery;
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::otlp::{OtlpClient, OtlpOptions, OtlpProtocol};
use serde_json::Value;

use crate::delivered::{
    LABELLED, SPAN_ID, TRACE_ID, batch, check_account, deliver_labelled, first_type, is_empty, options,
    until, until_spooled,
};
use crate::server::{Server, free_address};
use crate::support::scratch;

pub(crate) const PROTOCOLS: [OtlpProtocol; 2] = [OtlpProtocol::Grpc, OtlpProtocol::Http];

/// Starts a collector at an address for one protocol, which writes to a file in a folder.
/// `settings`: more of the protocol's, `name: value`.
pub(crate) fn start(dir: &Path, protocol: OtlpProtocol, address: &str, settings: &[&str]) -> Server {
    start_with(dir, protocol, address, settings, "")
}

/// The setting of a protocol for which clients have to have [`TOKEN`].
pub(crate) const WITH_TOKEN: &str = "auth: {authenticator: token}";
pub(crate) const TOKEN: &str = "s3cret";

/// As [`start`]. `exporter`: more settings of the exporter, each after a comma.
pub(crate) fn start_with(
    dir: &Path,
    protocol: OtlpProtocol,
    address: &str,
    settings: &[&str],
    exporter: &str,
) -> Server {
    let protocol = if protocol == OtlpProtocol::Grpc { "grpc" } else { "http" };
    let settings: String = settings.iter().map(|setting| format!(", {setting}")).collect();
    let (config, lines) = (dir.join("collector.yaml"), lines_file(dir));
    let text = format!(
        "receivers: {{otlp: {{protocols: {{{protocol}: {{endpoint: \"{address}\"{settings}}}}}}}}}\n\
         exporters: {{lines: {{path: \"{}\"{exporter}}}}}\n\
         extensions: {{token: {{token: {TOKEN}}}}}\n\
         service:\n  telemetry: {{metrics: {{level: none}}}}\n  extensions: [token]\n  pipelines:\n    \
         profiles: {{receivers: [otlp], exporters: [lines]}}\n",
        lines.display()
    );
    fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let args = ["--config", &config, "--feature-gates", "service.profilesSupport"].map(str::to_owned);
    Server::start("JVMPROF_TEST_OTEL_COLLECTOR", &args, dir, address)
}

/// The file that a collector writes to, unless there is one of this name and `.stop`.
pub(crate) fn lines_file(dir: &Path) -> PathBuf {
    dir.join("lines")
}

fn each(value: &Value, name: &str) -> Vec<Value> {
    value[name].as_array().cloned().unwrap_or_default()
}

/// What the collector has written.
fn messages(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(lines_file(dir)).unwrap();
    let message = |line: &str| match serde_json::from_str(line) {
        Ok(message) => Some(message),
        // A message that the kill cut off wasn't answered.
        Err(error) if error.is_eof() => None,
        Err(error) => panic!("{error}: {line}"),
    };
    text.lines().filter_map(message).collect()
}

/// The same, in events.
pub(crate) fn written(dir: &Path) -> SamplesByEvent {
    let mut sums = SamplesByEvent::NONE;
    for message in messages(dir) {
        let strings = each(&message["dictionary"], "stringTable");
        let resources = each(&message, "resourceProfiles");
        let scopes = resources.iter().flat_map(|resource| each(resource, "scopeProfiles"));
        for profile in scopes.flat_map(|scope| each(&scope, "profiles")) {
            let name = profile["sampleType"]["typeStrindex"].as_u64().unwrap() as usize;
            let name = strings[name].as_str().unwrap();
            let Some(event) = EventType::ALL.into_iter().find(|event| first_type(*event).name == name) else {
                continue;
            };
            let values = each(&profile, "samples").into_iter().flat_map(|sample| each(&sample, "values"));
            let sum = values.map(|value| value.as_str().unwrap().parse::<u64>().unwrap()).sum();
            sums += SamplesByEvent::of(event, sum);
        }
    }
    sums
}

pub(crate) fn client(http: HttpOptions, protocol: OtlpProtocol) -> OtlpClient {
    OtlpClient::new(OtlpOptions { http, protocol, headers: Vec::new(), compress: true }).unwrap()
}

/// A client of a receiver without TLS.
pub(crate) fn connect(address: &str, protocol: OtlpProtocol) -> OtlpClient {
    client(HttpOptions::new(format!("http://{address}")), protocol)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_opentelemetry_collector_wrote_is_what_the_ledger_says() {
    for protocol in PROTOCOLS {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let client = connect(&address, protocol);
        let mut delivery = Delivery::default();
        delivery.add_remote(client, options(spool.path())).unwrap();
        let mut collector = start(dir.path(), protocol, &address, &[]);
        for round in 0..12 {
            for event in EventType::ALL {
                delivery.enqueue(batch(event, round));
            }
            if round % 4 == 1 {
                // Among them some that may be under way.
                drop(collector);
                until_spooled(&delivery).await;
                collector = start(dir.path(), protocol, &address, &[]);
            }
            until(&delivery, is_empty).await;
        }
        delivery.finish(Duration::from_secs(10)).await;
        drop(collector);
        let written = written(dir.path());
        check_account(spool.path(), |event| written.get(event));
    }
}

/// The attributes of a sample and of its resource, and the ids of its link's span.
pub(crate) type Labels = BTreeMap<String, String>;

/// A sample of a sample type, and its value.
type Row = (Labels, u64);

/// What the collector has written, by the names and units of sample types.
pub(crate) fn rows(dir: &Path) -> BTreeMap<[String; 2], Vec<Row>> {
    let mut rows: BTreeMap<[String; 2], Vec<Row>> = BTreeMap::new();
    for message in messages(dir) {
        let dictionary = &message["dictionary"];
        let text_at = |index: &Value| {
            let index = index.as_u64().unwrap_or_default() as usize;
            dictionary["stringTable"][index].as_str().unwrap_or_default().to_owned()
        };
        // Texts, or their places in the table.
        let text = |of: &Value, name: &str| match of[name].as_str() {
            Some(text) => text.to_owned(),
            None => text_at(&of[format!("{name}Strindex")]),
        };
        let attribute = |of: &Value| (text(of, "key"), text(&of["value"], "stringValue"));
        for resource in each(&message, "resourceProfiles") {
            let of_resource = each(&resource["resource"], "attributes");
            let scopes = each(&resource, "scopeProfiles");
            for profile in scopes.iter().flat_map(|scope| each(scope, "profiles")) {
                let of = &profile["sampleType"];
                let sample_type = ["typeStrindex", "unitStrindex"].map(|name| text_at(&of[name]));
                for sample in each(&profile, "samples") {
                    let mut labels: BTreeMap<_, _> = of_resource.iter().map(attribute).collect();
                    let at = |table: &str, index: &Value| {
                        dictionary[table][index.as_u64().unwrap_or_default() as usize].clone()
                    };
                    let own = each(&sample, "attributeIndices");
                    labels.extend(own.iter().map(|index| attribute(&at("attributeTable", index))));
                    let link = at("linkTable", &sample["linkIndex"]);
                    let ids = ["traceId", "spanId"].map(|name| (name, link[name].as_str()));
                    labels.extend(
                        ids.into_iter().filter_map(|(name, id)| Some((name.to_owned(), id?.to_owned()))),
                    );
                    let value = each(&sample, "values")[0].as_str().unwrap().parse().unwrap();
                    rows.entry(sample_type.clone()).or_default().push((labels, value));
                }
            }
        }
    }
    rows
}

/// OpenTelemetry's name of a label.
fn attribute_of(label: &str) -> &str {
    match label {
        "service_name" => "service.name",
        "comm" => "process.executable.name",
        "thread_name" => "thread.name",
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_collector_has_labels_links_and_each_type_of_every_event() {
    for protocol in PROTOCOLS {
        let (dir, address) = (scratch(), free_address());
        let collector = start(dir.path(), protocol, &address, &[]);
        deliver_labelled(connect(&address, protocol)).await;
        drop(collector);
        let rows = rows(dir.path());
        for event in EventType::ALL {
            let types = event.descriptor().pushed_types;
            for (number, kind) in types.iter().enumerate() {
                let of_type = &rows[&[kind.name.to_owned(), kind.unit.to_owned()]];
                // The name of a service that nobody has given is one all the same.
                for (label, value, sums) in LABELLED.into_iter().chain([("service_name", "cart", [3, 40])]) {
                    let has_it =
                        |(labels, _): &&Row| labels.get(attribute_of(label)).is_some_and(|it| it == value);
                    let sum: u64 = of_type.iter().filter(has_it).map(|(_, value)| value).sum();
                    assert_eq!(sum, sums[number], "{protocol:?} {kind:?} {label}={value}: {of_type:?}");
                }
                for (labels, _) in of_type {
                    let is_request = labels.get("thread.name").is_some_and(|name| name == "worker-1");
                    let ids = ["traceId", "spanId"].map(|name| labels.get(name).map(String::as_str));
                    let expected = if is_request { [Some(TRACE_ID), Some(SPAN_ID)] } else { [None; 2] };
                    assert_eq!(ids, expected, "{protocol:?} {kind:?}: {labels:?}");
                    assert!(!labels.contains_key("trace_id"), "{labels:?}");
                }
            }
        }
    }
}
