//! A real OpenTelemetry collector: killed, back again, and what it has written beside the account.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jvmprof_daemon::event_type::{EventType, SamplesByEvent};
use jvmprof_daemon::export::delivery::Delivery;
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::otlp::{OtlpClient, OtlpOptions, OtlpProtocol};
use serde_json::Value;

use crate::delivered::{batch, check_account, first_type, is_empty, options, until, until_spooled};
use crate::server::{Server, free_address};
use crate::support::scratch;

pub(crate) const PROTOCOLS: [OtlpProtocol; 2] = [OtlpProtocol::Grpc, OtlpProtocol::Http];

/// Starts a collector at an address for one protocol, which writes to a file in a folder.
/// `settings`: more of the protocol's, `name: value`.
pub(crate) fn start(dir: &Path, protocol: OtlpProtocol, address: &str, settings: &[&str]) -> Server {
    let protocol = if protocol == OtlpProtocol::Grpc { "grpc" } else { "http" };
    let settings: String = settings.iter().map(|setting| format!(", {setting}")).collect();
    let (config, lines) = (dir.join("collector.yaml"), dir.join("lines"));
    let text = format!(
        "receivers: {{otlp: {{protocols: {{{protocol}: {{endpoint: \"{address}\"{settings}}}}}}}}}\n\
         exporters: {{lines: {{path: \"{}\"}}}}\n\
         service:\n  telemetry: {{metrics: {{level: none}}}}\n  pipelines:\n    \
         profiles: {{receivers: [otlp], exporters: [lines]}}\n",
        lines.display()
    );
    fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let args = ["--config", &config, "--feature-gates", "service.profilesSupport"].map(str::to_owned);
    Server::start("JVMPROF_TEST_OTEL_COLLECTOR", &args, dir, address)
}

/// What the collector has written, in events.
pub(crate) fn written(dir: &Path) -> SamplesByEvent {
    let text = fs::read_to_string(dir.join("lines")).unwrap();
    let each = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let mut sums = SamplesByEvent::NONE;
    for line in text.lines() {
        let message: Value = match serde_json::from_str(line) {
            Ok(message) => message,
            // A message that the kill cut off wasn't answered.
            Err(error) if error.is_eof() => continue,
            Err(error) => panic!("{error}: {line}"),
        };
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

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_opentelemetry_collector_wrote_is_what_the_ledger_says() {
    for protocol in PROTOCOLS {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let client = client(HttpOptions::new(format!("http://{address}")), protocol);
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
