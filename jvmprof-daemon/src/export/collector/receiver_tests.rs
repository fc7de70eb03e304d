//! The collector as a receiver of OTLP and of Pyroscope's pushes: this project's own sinks push to
//! it, and others send what is wrong.

mod ingest;
mod request_limits;
mod slots;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::http::HeaderMap;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile as OtlpProfile, ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use tokio::net::TcpListener;

use super::parca_validation::RequestLimits;
use super::*;
use crate::event_type::EventType;
use crate::export::http_client::{HttpClient, HttpOptions};
use crate::export::otlp::{self, OtlpClient, OtlpOptions, OtlpProtocol};
use crate::export::parca::ParcaClient;
use crate::export::push::{BackendOptions, PushOutcome};
use crate::export::pyroscope::{self, PyroscopeClient, PyroscopeOptions};
use crate::export::store::{Matcher, Store, StoreOptions, TimeRange, UnixNanos};
use crate::profile::model::{Batch, FrameKind, SampleLabel, SampleLabels};
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::for_push;
use crate::profile::testing::{batch, inlined, line, located, mapping, series};
use crate::proto::pprof::Profile;

async fn start(limits: impl Into<RequestLimits>) -> (tempfile::TempDir, Arc<CollectorService>, SocketAddr) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).unwrap());
    let collector = Arc::new(CollectorService::with_limits(store, limits));
    let address = serve_routes(routes(Arc::clone(&collector))).await;
    (dir, collector, address)
}

async fn serve_routes(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, router, std::future::pending()));
    address
}

fn otlp_client(address: SocketAddr, protocol: OtlpProtocol) -> OtlpClient {
    let http = HttpOptions::new(format!("http://{address}"));
    OtlpClient::new(OtlpOptions { http, protocol, headers: Vec::new(), compress: true }).unwrap()
}

/// Two stacks, one with labels, of one event.
fn batch_of(event: EventType) -> Batch {
    let java = located(&mapping("jvm", 0x1000), 0x1100, vec![line("Order.tax", 7), line("Order.total", 57)]);
    let libc = located(&mapping("/lib/libc.so.6", 0x50_0000), 0x50_0100, vec![line("start_thread", 0)]);
    let stacks = vec![(vec![Arc::clone(&java), libc], 3), (vec![java, inlined(FrameKind::Java, &["a"])], 4)];
    let mut series = series(&[("pid", "7"), ("comm", "java"), ("service_name", "shop")], stacks);
    let label = |name: &str, value: &str| SampleLabel { name: name.into(), value: value.into() };
    series.samples[0].labels = SampleLabels::new([
        label("thread_name", "main"),
        label("wait", "park"),
        label("trace_id", "0af7651916cd43dd8448eb211c80319c"),
        label("span_id", "b7ad6b7169203331"),
    ]);
    Batch { event, ..batch(vec![series]) }
}

/// Returns the outcomes that our clients see in a collector's answers to a push by Parca's
/// protocol, OTLP by gRPC and by HTTP, and Pyroscope's.
async fn outcomes(address: SocketAddr) -> [PushOutcome; 4] {
    let batch = batch_of(EventType::Cpu);
    let parca = ParcaClient::new(BackendOptions::new(format!("http://{address}"))).unwrap();
    let parca = parca.send(&parca.requests(&batch).unwrap()[0]).await;
    let request = otlp::requests(&batch).unwrap().remove(0);
    let grpc = otlp_client(address, OtlpProtocol::Grpc).send(&request).await;
    let http = otlp_client(address, OtlpProtocol::Http).send(&request).await;
    let options = PyroscopeOptions {
        max_age: Duration::from_secs(1 << 40),
        ..PyroscopeOptions::new(HttpOptions::new(format!("http://{address}")))
    };
    let request = pyroscope::requests(&batch).unwrap().requests.remove(0);
    [parca, grpc, http, PyroscopeClient::new(options).unwrap().send(&request).await]
}

/// Each sample as text: functions with lines and files, labels, values.
fn samples(profile: &Profile) -> BTreeSet<String> {
    let text = |at: i64| profile.string_table[at as usize].as_str();
    let line = |id: &u64| {
        let location = &profile.location[*id as usize - 1];
        let mapping = profile.mapping.iter().find(|mapping| mapping.id == location.mapping_id);
        let mapping = mapping.map(|of| (text(of.filename), text(of.build_id), of.memory_start));
        let lines = location.line.iter().map(|line| {
            let function = &profile.function[line.function_id as usize - 1];
            (text(function.name), text(function.filename), line.line)
        });
        format!("{mapping:?} {:x} {:?}", location.address, lines.collect::<Vec<_>>())
    };
    let sample = |sample: &crate::proto::pprof::Sample| {
        let stack: Vec<_> = sample.location_id.iter().map(line).collect();
        let labels: BTreeSet<_> =
            sample.label.iter().map(|label| (text(label.key), text(label.str))).collect();
        format!("{stack:?} {labels:?} {:?}", sample.value)
    };
    profile.sample.iter().map(sample).collect()
}

fn types(profile: &Profile) -> Vec<(&str, &str)> {
    let text = |at: i64| profile.string_table[at as usize].as_str();
    profile.sample_type.iter().map(|of| (text(of.r#type), text(of.unit))).collect()
}

#[tokio::test]
async fn what_our_sink_pushes_by_otlp_is_stored_as_it_was_sampled() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let (_dir, collector, address) = start(DecodeLimits::default()).await;
        let client = otlp_client(address, protocol);
        assert_eq!(client.probe().await, PushOutcome::Stored);
        for event in EventType::ALL {
            let batch = batch_of(event);
            for request in otlp::requests(&batch).unwrap() {
                assert_eq!(client.send(&request).await, PushOutcome::Stored, "{protocol:?}");
            }
            let name = Matcher::equal("__name__", event.descriptor().series);
            let service = Matcher::equal("service_name", "shop");
            let stored =
                collector.store().profiles(TimeRange::ALL, &[name, Matcher::equal("pid", "7"), service]);
            let [reference] = &stored[..] else { panic!("{event:?}: {stored:?}") };
            let stored =
                decode(&collector.store().read(reference).unwrap(), DecodeLimits::default()).unwrap();
            let sampled = for_push(&batch, &batch.series[0]);
            assert_eq!(samples(&stored), samples(&sampled), "{event:?}");
            assert_eq!(types(&stored), types(&sampled));
            assert_eq!(
                (stored.period, stored.time_nanos, stored.duration_nanos, stored.comment.len()),
                (sampled.period, sampled.time_nanos, sampled.duration_nanos, sampled.comment.len())
            );
        }
    }
}

#[tokio::test]
async fn what_our_sink_pushes_as_to_pyroscope_is_stored_as_it_was_sampled() {
    let (_dir, collector, address) = start(DecodeLimits::default()).await;
    let http = HttpOptions::new(format!("http://{address}"));
    let max_age = Duration::from_secs(1 << 40);
    let client = PyroscopeClient::new(PyroscopeOptions { max_age, ..PyroscopeOptions::new(http) }).unwrap();
    assert_eq!(client.probe().await, PushOutcome::Stored);
    for event in EventType::ALL {
        for request in pyroscope::requests(&batch_of(event)).unwrap().requests {
            assert_eq!(client.send(&request).await, PushOutcome::Stored);
        }
    }
    let stored = collector.store().profiles(TimeRange::ALL, &[Matcher::equal("service_name", "shop")]);
    assert_eq!(stored.len(), EventType::ALL.len());
    let delta = Matcher::equal("__delta__", "false");
    assert!(collector.store().profiles(TimeRange::ALL, &[delta]).is_empty(), "it is no label");
    let sum = |event: EventType| {
        let name = Matcher::equal("__name__", event.descriptor().series);
        collector.store().profiles(TimeRange::ALL, &[name]).iter().map(|of| of.samples).sum::<u64>()
    };
    assert_eq!(EventType::ALL.map(sum), [7; EventType::ALL.len()]);
}

/// A message of one profile, whose dictionary has texts and one stack only.
fn message(samples: Vec<Sample>) -> ExportProfilesServiceRequest {
    let string_table = ["", "events", "count"].map(str::to_owned).into();
    let dictionary = ProfilesDictionary {
        string_table,
        stack_table: vec![Stack::default()],
        ..ProfilesDictionary::default()
    };
    let sample_type = Some(ValueType { type_strindex: 1, unit_strindex: 2 });
    let profiles = vec![OtlpProfile { sample_type, samples, ..OtlpProfile::default() }];
    let scope_profiles = vec![ScopeProfiles { profiles, ..ScopeProfiles::default() }];
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles { scope_profiles, ..ResourceProfiles::default() }],
        dictionary: Some(dictionary),
    }
}

async fn posted(address: SocketAddr, path: &str, content_type: &'static str, body: Vec<u8>) -> (u16, String) {
    let client = HttpClient::new(HttpOptions::new(format!("http://{address}"))).unwrap();
    let url = format!("http://{address}{path}");
    let answer = client.post(&url, content_type, &HeaderMap::new(), body.into()).await.unwrap();
    (answer.status.as_u16(), String::from_utf8_lossy(&answer.body).into_owned())
}

#[tokio::test]
async fn messages_of_others_are_taken_by_their_values_or_their_timestamps() {
    let (_dir, collector, address) = start(DecodeLimits::default()).await;
    let by_time = Sample { timestamps_unix_nano: vec![1, 2, 3], ..Sample::default() };
    let by_value = Sample { values: vec![5, 6], ..Sample::default() };
    let body = message(vec![by_time, by_value]).encode_to_vec();
    let (status, text) = posted(address, otlp_receiver::HTTP_PATH, "application/x-protobuf", body).await;
    assert_eq!(status, 200, "{text}");
    let stored = collector.store().profiles(TimeRange::ALL, &[Matcher::equal("__name__", "events")]);
    assert_eq!(stored.iter().map(|of| of.samples).collect::<Vec<_>>(), [14]);
    // It doesn't say when it began.
    let age = UnixNanos::from(SystemTime::now()).0 - stored[0].start.0;
    assert!((0..600_000_000_000).contains(&age), "{age} ns ago");
}

#[tokio::test]
async fn hostile_messages_are_refused_with_what_is_wrong_and_nothing_is_stored() {
    let limits = DecodeLimits { max_bytes: 1 << 20, ..DecodeLimits::default() };
    let (_dir, collector, address) = start(limits).await;
    let good = || Sample { values: vec![1], ..Sample::default() };
    let nowhere = message(vec![Sample { stack_index: 9, ..good() }]);
    let negative = message(vec![Sample { attribute_indices: vec![-1], ..good() }]);
    let overflow = message(vec![Sample { values: vec![i64::MAX, 1], ..Sample::default() }]);
    let mut no_dictionary = message(vec![good()]);
    no_dictionary.dictionary = None;
    let mut no_type = message(vec![good()]);
    no_type.resource_profiles[0].scope_profiles[0].profiles[0].sample_type = None;
    // 60 KB that would become 500 MB.
    let mut bomb = message(vec![good(); 5_000]);
    let dictionary = bomb.dictionary.as_mut().unwrap();
    dictionary.location_table = vec![Default::default()];
    dictionary.stack_table[0].location_indices = vec![0; 10_000];
    // Half a megabyte that would become a hundred.
    let mut long_text = message(vec![good()]);
    long_text.dictionary.as_mut().unwrap().string_table.push("x".repeat(500_000));
    let refers = |number: u32| KeyValue {
        key: format!("key{number}"),
        value: Some(AnyValue { value: Some(Value::StringValueStrindex(3)) }),
        ..KeyValue::default()
    };
    let attributes = (0..200).map(refers).collect();
    long_text.resource_profiles[0].resource = Some(Resource { attributes, ..Resource::default() });
    // What is nothing on the wire, and something in memory.
    let mut many = message(vec![good()]);
    let profiles = &mut many.resource_profiles[0].scope_profiles[0].profiles;
    *profiles = vec![profiles[0].clone(); 3_000];
    let mut many_labels = message(vec![good()]);
    let attributes = (0..8_000).map(|number| KeyValue {
        value: Some(AnyValue { value: Some(Value::BoolValue(true)) }),
        ..refers(number)
    });
    many_labels.resource_profiles[0].resource =
        Some(Resource { attributes: attributes.collect(), ..Resource::default() });
    let otlp = (otlp_receiver::HTTP_PATH, "application/x-protobuf");
    let pyroscope = (pyroscope_receiver::PATH, "application/proto");
    for ((path, content_type), body, status, expected) in [
        (otlp, nowhere.encode_to_vec(), 400, "index 9 is not in the stack table, which has 1 entries"),
        (otlp, negative.encode_to_vec(), 400, "index -1 is not in the attribute table"),
        (otlp, overflow.encode_to_vec(), 400, "more than 63 bits"),
        (otlp, no_dictionary.encode_to_vec(), 400, "profiles without a dictionary"),
        (otlp, no_type.encode_to_vec(), 400, "a profile without a sample type"),
        (otlp, bomb.encode_to_vec(), 400, "more than 1048576 bytes of pprof"),
        (otlp, long_text.encode_to_vec(), 400, "more than 1048576 bytes of pprof"),
        (otlp, many.encode_to_vec(), 400, "more than 1048576 bytes of pprof"),
        (otlp, many_labels.encode_to_vec(), 400, "more than 1048576 bytes of pprof"),
        (otlp, vec![0xff; 40], 400, "parsing an OTLP message"),
        (otlp, vec![0; MAX_OTHER_MESSAGE_BYTES + 1], 413, "length limit exceeded"),
        ((otlp.0, "application/json"), Vec::new(), 415, "only application/x-protobuf is taken"),
        (pyroscope, vec![0xff; 40], 400, "parsing a push"),
        ((pyroscope.0, "application/json"), Vec::new(), 415, "only application/proto is taken"),
    ] {
        let (found, text) = posted(address, path, content_type, body).await;
        assert_eq!(found, status, "{expected}: {text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(collector.store().profiles(TimeRange::ALL, &[]), []);
}
