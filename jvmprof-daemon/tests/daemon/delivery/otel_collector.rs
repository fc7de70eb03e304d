//! A real OpenTelemetry collector: killed, back again, and what it has written beside the account.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jvmprof_daemon::event_type::{EventType, SamplesByEvent};
use jvmprof_daemon::export::delivery::{Delivery, DeliveryCounts, DeliveryOptions, SpoolPlan, read_ledger};
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::otlp::{OtlpClient, OtlpOptions, OtlpProtocol};
use jvmprof_daemon::profile::model::{Batch, Frame, FrameKind, LabelSet, Line, Sample, Series};
use serde_json::Value;

use super::free_address;
use crate::support::scratch;

const PATIENCE: Duration = Duration::from_secs(120);

/// The collector that `cargo xtask test` has built, until it is killed.
struct Collector(Child);

impl Collector {
    /// Starts it at an address for one protocol, and waits until it listens.
    fn start(dir: &Path, protocol: OtlpProtocol, address: &str) -> Self {
        let program = std::env::var("JVMPROF_TEST_OTEL_COLLECTOR")
            .expect("JVMPROF_TEST_OTEL_COLLECTOR names an OpenTelemetry collector: run `cargo xtask test`");
        let protocol = if protocol == OtlpProtocol::Grpc { "grpc" } else { "http" };
        let (config, lines) = (dir.join("collector.yaml"), dir.join("lines"));
        let text = format!(
            "receivers: {{otlp: {{protocols: {{{protocol}: {{endpoint: \"{address}\"}}}}}}}}\n\
             exporters: {{lines: {{path: \"{}\"}}}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n  pipelines:\n    \
             profiles: {{receivers: [otlp], exporters: [lines]}}\n",
            lines.display()
        );
        fs::write(&config, text).unwrap();
        let mut collector = Command::new(&program);
        collector.arg("--config").arg(&config).args(["--feature-gates", "service.profilesSupport"]);
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
        let child = collector.stdout(Stdio::null()).stderr(log).spawn();
        let mut collector = Self(child.unwrap_or_else(|error| panic!("starting {program}: {error}")));
        let started = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            let log = || fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(collector.0.try_wait().unwrap().is_none(), "the collector has ended: {}", log());
            assert!(started.elapsed() < PATIENCE, "nobody listens at {address}: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        collector
    }
}

impl Drop for Collector {
    /// Kills it: SIGKILL.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ten series; of each `(pid + round) * 7` events, whose value is twice as much.
fn batch(event: EventType, round: u64) -> Batch {
    let series = |pid: u64| {
        let lines = vec![Line::named("main")];
        let frame = Frame { kind: FrameKind::Native, address: None, mapping: None, lines };
        let events = (pid + round) * 7;
        Series {
            labels: LabelSet::from([
                ("pid".to_owned(), pid.to_string()),
                ("comm".to_owned(), "a".to_owned()),
            ]),
            samples: vec![Sample::of_events([Arc::new(frame)].into(), events, 2 * events)],
        }
    };
    Batch {
        event,
        start: SystemTime::now(),
        duration: Duration::from_secs(1),
        period: 1_000_000,
        series: (1..=10).map(series).collect(),
    }
}

/// The first sample type that is pushed of an event, whose values are its events here.
fn first_type(event: EventType) -> &'static str {
    event.descriptor().pushed_types[0].name
}

/// What the collector has written, in events.
fn written(dir: &Path) -> SamplesByEvent {
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
            let Some(event) = EventType::ALL.into_iter().find(|event| first_type(*event) == name) else {
                continue;
            };
            let values = each(&profile, "samples").into_iter().flat_map(|sample| each(&sample, "values"));
            let sum = values.map(|value| value.as_str().unwrap().parse::<u64>().unwrap()).sum();
            sums += SamplesByEvent::of(event, sum);
        }
    }
    sums
}

async fn until(delivery: &Delivery, is_reached: impl Fn(&DeliveryCounts) -> bool) {
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

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_opentelemetry_collector_wrote_is_what_the_ledger_says() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let http = HttpOptions::new(format!("http://{address}"));
        let options = OtlpOptions { http, protocol, headers: Vec::new(), compress: true };
        let plan = SpoolPlan {
            dir: spool.path().to_owned(),
            max_bytes: 64 << 20,
            max_age: Duration::from_secs(3600),
            bytes_per_second: 1 << 30,
        };
        let (first_delay, max_delay) = (Duration::from_millis(20), Duration::from_millis(200));
        let delivery_options =
            DeliveryOptions { first_delay, max_delay, spool: Some(plan), ..DeliveryOptions::default() };
        let mut delivery = Delivery::default();
        delivery.add_remote(OtlpClient::new(options).unwrap(), delivery_options).unwrap();
        let mut collector = Collector::start(dir.path(), protocol, &address);
        let is_empty = |counts: &DeliveryCounts| counts.waiting.is_none() && counts.spooled.is_none();
        for round in 0..12 {
            for event in EventType::ALL {
                delivery.enqueue(batch(event, round));
            }
            if round % 4 == 1 {
                // Among them some that may be under way.
                drop(collector);
                // The first one may be lost on a connection that isn't known to be closed.
                while delivery.counts()[0].1.spooled.is_none() {
                    delivery.enqueue(batch(EventType::Cpu, 1));
                    until(&delivery, |counts| counts.waiting.is_none()).await;
                }
                collector = Collector::start(dir.path(), protocol, &address);
            }
            until(&delivery, is_empty).await;
        }
        delivery.finish(Duration::from_secs(10)).await;
        drop(collector);
        let total = read_ledger(spool.path()).unwrap().unwrap().total();
        let written = written(dir.path());
        assert_eq!(total.unaccounted(), 0);
        let lost = total.losses.possibly_lost;
        assert_eq!(total.delivered + lost, total.handed_over, "{protocol:?}: {total:?}");
        assert!(!total.delivered_late.is_none(), "{protocol:?}: {total:?}");
        for event in EventType::ALL {
            let (delivered, at_most) = (total.delivered.get(event), (total.delivered + lost).get(event));
            assert!(delivered > 0, "{protocol:?} {event:?}: {total:?}");
            let written = written.get(event);
            assert!((delivered..=at_most).contains(&written), "{protocol:?} {event:?} {written}: {total:?}");
        }
    }
}
