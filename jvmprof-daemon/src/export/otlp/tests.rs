//! The client by gRPC and HTTP, and what a message says of a profile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{Profile, ProfilesDictionary, Sample};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::scripted_receiver::{HOUR, HOUR_SECONDS, ScriptedReceiver};
use super::*;
use crate::event_type::EventType;
use crate::profile::model::{FrameKind, SampleLabel, SampleLabels, Series};
use crate::profile::testing::{batch, frame, inlined, line, located, mapping, series};

fn options(address: impl std::fmt::Display, protocol: OtlpProtocol) -> OtlpOptions {
    let http = HttpOptions::new(format!("http://{address}"));
    OtlpOptions { http, protocol, headers: Vec::new(), compress: true }
}

/// Two stacks of a JVM, one of them with a label, and one of the kernel.
fn jvm_series() -> Series {
    let [jvm, libc, kernel] =
        [("jvm", 0x1000), ("/lib/libc.so.6", 0x50_0000), ("[kernel.kallsyms]", 0xff_0000)]
            .map(|(path, start)| mapping(path, start));
    let java = located(&jvm, 0x1100, vec![line("Order.tax", 7), line("Order.total", 57)]);
    let main = located(&libc, 0x50_0100, vec![line("start_thread", 0)]);
    let page = located(&kernel, 0xff_0100, vec![line("clear_page", 0)]);
    let stacks = vec![(vec![Arc::clone(&java), Arc::clone(&main)], 3), (vec![page, java, main], 4)];
    let labels = [("pid", "7"), ("comm", "java"), ("service_name", "shop"), ("color", "red"), ("none", "")];
    let mut series = series(&labels, stacks);
    let label = |name: &str, value: &str| SampleLabel { name: name.into(), value: value.into() };
    let labels = [
        label("thread_name", "main"),
        label("trace_id", "0af7651916cd43dd8448eb211c80319c"),
        label("span_id", "b7ad6b7169203331"),
        label("wait", "park"),
    ];
    series.samples[0].labels = SampleLabels::new(labels);
    series
}

fn text_of(value: &Option<AnyValue>) -> &str {
    match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?} is no text"),
    }
}

fn string(dictionary: &ProfilesDictionary, at: i32) -> &str {
    &dictionary.string_table[at as usize]
}

fn attributes<'a>(dictionary: &'a ProfilesDictionary, of: &[i32]) -> BTreeMap<&'a str, &'a str> {
    let entry = |at: &i32| {
        let entry = &dictionary.attribute_table[*at as usize];
        (string(dictionary, entry.key_strindex), text_of(&entry.value))
    };
    of.iter().map(entry).collect()
}

/// The frames of a sample: file, type, and the functions with their lines.
fn frames(dictionary: &ProfilesDictionary, sample: &Sample) -> Vec<String> {
    let stack = &dictionary.stack_table[sample.stack_index as usize];
    let frame = |at: &i32| {
        let location = &dictionary.location_table[*at as usize];
        let mapping = &dictionary.mapping_table[location.mapping_index as usize];
        let functions = location.lines.iter().map(|line| {
            let function = &dictionary.function_table[line.function_index as usize];
            format!("{}:{}", string(dictionary, function.name_strindex), line.line)
        });
        let kind = attributes(dictionary, &location.attribute_indices)["profile.frame.type"];
        let file = string(dictionary, mapping.filename_strindex);
        format!("{file} {kind} {}", functions.collect::<Vec<_>>().join(" "))
    };
    stack.location_indices.iter().map(frame).collect()
}

#[test]
fn a_message_says_all_that_the_profile_does() {
    let requests = requests(&batch(vec![jvm_series()])).expect("encodable");
    let [request] = &requests[..] else { panic!("{} requests", requests.len()) };
    let message = message::of_request(request).expect("a profile");
    let dictionary = message.dictionary.expect("a dictionary");
    let [resource] = &message.resource_profiles[..] else { panic!("one resource") };
    let attribute = |name: &str| {
        let mut all = resource.resource.iter().flat_map(|resource| &resource.attributes);
        all.find(|attribute| attribute.key == name).map(|attribute| text_of(&attribute.value))
    };
    assert_eq!(attribute("service.name"), Some("shop"));
    assert_eq!((attribute("process.pid"), attribute("process.executable.name")), (Some("7"), Some("java")));
    assert_eq!((attribute("color"), attribute("none"), attribute("__name__")), (Some("red"), None, None));
    assert_eq!(resource.scope_profiles[0].scope.as_ref().expect("a scope").name, "jvmprof");
    let [profile] = &resource.scope_profiles[0].profiles[..] else { panic!("one type of CPU time") };
    assert_eq!(profile.samples.iter().map(|sample| sample.values[0]).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(
        frames(&dictionary, &profile.samples[1]),
        [
            "[kernel.kallsyms] kernel clear_page:0",
            "jvm jvm Order.tax:7 Order.total:57",
            "/lib/libc.so.6 native start_thread:0",
        ]
    );
    let labels = attributes(&dictionary, &profile.samples[0].attribute_indices);
    assert_eq!(labels, BTreeMap::from([("thread.name", "main"), ("wait", "park")]));
    assert!(profile.samples[1].attribute_indices.is_empty());
    let link = &dictionary.link_table[profile.samples[0].link_index as usize];
    assert_eq!((link.trace_id[0], link.trace_id.len(), link.span_id[7]), (0x0a, 16, 0x31));
    assert_eq!(profile.samples[1].link_index, 0);
    let build_ids = |mapping: &opentelemetry_proto::tonic::profiles::v1development::Mapping| {
        let of = attributes(&dictionary, &mapping.attribute_indices);
        of.get("process.executable.build_id.gnu").map(|id| (*id).to_owned())
    };
    // The last four bytes of the path.
    let ids: BTreeSet<_> = dictionary.mapping_table.iter().filter_map(build_ids).collect();
    assert!(ids.contains("6f2e362e") || ids.contains(&hex("so.6")), "{ids:?}");
    let [sample_type, period_type] = [profile.sample_type, profile.period_type].map(|of| {
        let of = of.expect("a type");
        (string(&dictionary, of.type_strindex).to_owned(), string(&dictionary, of.unit_strindex).to_owned())
    });
    assert_eq!(sample_type, ("samples".to_owned(), "count".to_owned()));
    assert_eq!(period_type, ("cpu".to_owned(), "nanoseconds".to_owned()));
    assert_eq!((profile.period, profile.duration_nano), (10_000_000, 10_000_000_000));
}

fn hex(text: &str) -> String {
    crate::types::hex(text.as_bytes())
}

#[test]
fn the_first_entry_of_each_table_stands_for_none() {
    let requests = requests(&batch(vec![jvm_series()])).expect("encodable");
    let dictionary = message::of_request(&requests[0]).expect("a profile").dictionary.expect("a dictionary");
    assert_eq!(dictionary.string_table[0], "");
    assert_eq!(dictionary.mapping_table[0], Default::default());
    assert_eq!(dictionary.location_table[0], Default::default());
    assert_eq!(dictionary.function_table[0], Default::default());
    assert_eq!(dictionary.link_table[0], Default::default());
    assert_eq!(dictionary.link_table.len(), 2);
    assert_eq!(dictionary.attribute_table[0], Default::default());
    assert_eq!(dictionary.stack_table[0], Default::default());
    let texts: BTreeSet<_> = dictionary.string_table.iter().collect();
    assert_eq!(texts.len(), dictionary.string_table.len(), "each text once");
}

#[test]
fn each_sample_type_is_a_profile_of_its_own() {
    let samples = vec![(vec![frame(FrameKind::Native, "main")], 3)];
    let mut batch = batch(vec![series(&[("comm", "x")], samples)]);
    let expected: [&[(&str, i64)]; EventType::ALL.len()] = [
        &[("samples", 3)],
        &[("alloc_objects", 3), ("alloc_space", 30_000_000)],
        &[("waits", 3), ("off_cpu", 30_000_000)],
        &[("contentions", 3), ("delay", 30_000_000)],
        &[("pauses", 3), ("pause", 30_000_000)],
        &[("caused_contentions", 3), ("caused_delay", 30_000_000)],
    ];
    for (event, expected) in EventType::ALL.into_iter().zip(expected) {
        batch.event = event;
        let message = message::of_request(&requests(&batch).expect("encodable")[0]).expect("a profile");
        let dictionary = message.dictionary.expect("a dictionary");
        let type_and_sum = |profile: &Profile| {
            let name = profile.sample_type.expect("a type").type_strindex;
            let sum = profile.samples.iter().map(|sample| sample.values[0]).sum::<i64>();
            (string(&dictionary, name), sum)
        };
        let scope = &message.resource_profiles[0].scope_profiles[0];
        let profiles: Vec<_> = scope.profiles.iter().map(type_and_sum).collect();
        assert_eq!(profiles, expected, "{event:?}");
        let service = &message.resource_profiles[0].resource.as_ref().expect("a resource").attributes[0];
        assert_eq!((service.key.as_str(), text_of(&service.value)), ("service.name", "x"));
    }
}

#[test]
fn a_large_series_becomes_several_messages_below_what_receivers_take() {
    let long = |number: u32| (vec![inlined(FrameKind::Native, &[&format!("{number}").repeat(40_000)])], 2);
    let samples = (10..110).map(long).collect();
    let requests = requests(&batch(vec![series(&[("comm", "x")], samples)])).expect("encodable");
    assert!(requests.len() > 2);
    assert_eq!(requests.iter().map(|request| request.samples).sum::<u64>(), 200);
    for request in &requests {
        assert!(message::of_request(request).expect("a profile").encoded_len() < 4 << 20);
    }
}

#[tokio::test]
async fn both_protocols_bring_headers_token_and_all_samples() {
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "secret\n").expect("written");
    let request = requests(&batch(vec![jvm_series()])).expect("encodable").remove(0);
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        for compress in [false, true] {
            let receiver = ScriptedReceiver::default();
            let address = receiver.serve(protocol).await;
            let mut options = OtlpOptions { compress, ..options(address, protocol) };
            options.headers = vec![("x-team".to_owned(), "shop".to_owned())];
            options.http.credentials = Some(Credentials::Bearer(token.path().to_owned()));
            let client = OtlpClient::new(options).expect("valid");
            assert_eq!(client.probe().await, PushOutcome::Stored);
            assert_eq!(client.send(&request).await, PushOutcome::Stored, "{protocol:?}");
            assert_eq!(receiver.samples(), 7, "{protocol:?}");
            let taken = receiver.taken.lock().expect("no test panicked");
            assert_eq!(taken[0].0["authorization"], "Bearer secret");
            assert_eq!(taken[0].0["x-team"], "shop");
        }
    }
}

#[tokio::test]
async fn nobody_there_is_not_stored_and_no_answer_may_be() {
    let request = requests(&batch(vec![jvm_series()])).expect("encodable").remove(0);
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut impatient = options(address, protocol);
        impatient.http.request_timeout = Duration::from_secs(1);
        let client = OtlpClient::new(impatient).expect("valid");
        let sent = client.send(&request).await;
        assert!(matches!(sent, PushOutcome::PossiblyLost { .. }), "{protocol:?}: {sent:?}");
        drop((client, listener));
        let client = OtlpClient::new(options(address, protocol)).expect("valid");
        let sent = client.send(&request).await;
        assert!(matches!(sent, PushOutcome::NotStored { .. }), "{protocol:?}: {sent:?}");
    }
}

#[tokio::test]
async fn a_receivers_own_failure_answers_an_empty_message_unless_it_asks_for_time() {
    use OtlpProtocol::{Grpc, Http};
    for (protocol, status, text, is_answer) in [
        (Grpc, 2, "invalid request: resource profiles are empty", true),
        (Grpc, 3, "missing profile metadata dictionary", true),
        (Grpc, 13, "", true),
        (Http, 500, "missing profile metadata dictionary", true),
        (Grpc, 2, HOUR, false),
        (Grpc, 13, HOUR, false),
        (Http, 500, HOUR, false),
        // A proxy may have said it, while nobody was behind it.
        (Grpc, 4, "context deadline exceeded", false),
        (Grpc, 14, "transport is closing", false),
        (Http, 502, "Bad Gateway", false),
        (Http, 504, "Gateway Timeout", false),
    ] {
        let receiver = ScriptedReceiver::default().failing_if_empty(status, text);
        let address = receiver.serve(protocol).await;
        let probed = OtlpClient::new(options(address, protocol)).expect("valid").probe().await;
        let row = format!("{protocol:?} {status} {text:?}: {probed:?}");
        assert_eq!(matches!(probed, PushOutcome::Refused { .. }), is_answer, "{row}");
    }
}

#[tokio::test]
async fn the_time_that_a_receiver_asks_for_is_part_of_the_outcome() {
    let request = requests(&batch(vec![jvm_series()])).expect("encodable").remove(0);
    for (protocol, status) in [
        (OtlpProtocol::Grpc, 8),
        (OtlpProtocol::Grpc, 14),
        (OtlpProtocol::Http, 429),
        (OtlpProtocol::Http, 503),
    ] {
        let receiver = ScriptedReceiver::new(&[(status, HOUR), (status, "later")]);
        let address = receiver.serve(protocol).await;
        let client = OtlpClient::new(options(address, protocol)).expect("valid");
        for expected in [Some(Duration::from_secs(HOUR_SECONDS)), None] {
            let sent = client.send(&request).await;
            let PushOutcome::NotStored { retry_after, .. } = sent else { panic!("{status}: {sent:?}") };
            assert_eq!(retry_after, expected, "{status}");
        }
    }
}

/// A port that takes TLS and plaintext: it passes plaintext on to a receiver, but for the first
/// connection, which ends with the request.
async fn mixed_port(receiver: std::net::SocketAddr) -> std::net::SocketAddr {
    const FAILURE_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut is_first = true;
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut begin = [0];
            stream.peek(&mut begin).await.expect("a first byte");
            let is_tls = begin == [22];
            if !is_tls && !std::mem::take(&mut is_first) {
                let mut upstream = TcpStream::connect(receiver).await.expect("a receiver");
                tokio::spawn(async move { copy_bidirectional(&mut stream, &mut upstream).await });
                continue;
            }
            let _ = stream.read(&mut [0; 4096]).await.expect("a request");
            if is_tls {
                stream.write_all(&FAILURE_ALERT).await.expect("an alert");
            }
        }
    });
    address
}

#[tokio::test]
async fn a_receiver_that_takes_plaintext_beside_tls_is_not_said_to_speak_tls_only() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let receiver = ScriptedReceiver::default();
        let address = mixed_port(receiver.serve(protocol).await).await;
        let client = OtlpClient::new(options(address, protocol)).expect("valid");
        let probed = client.probe().await;
        let PushOutcome::NotStored { message, .. } = &probed else { panic!("{protocol:?}: {probed:?}") };
        assert!(message.contains(" (the server also speaks TLS, "), "{protocol:?}: {message}");
        assert_eq!(client.probe().await, PushOutcome::Stored, "{protocol:?}");
    }
}

#[tokio::test]
async fn options_that_cannot_work_are_errors_that_name_what_is_wrong() {
    let plain = |protocol| options("host:4317", protocol);
    let with_header =
        |protocol| OtlpOptions { headers: vec![("a b".to_owned(), "x".to_owned())], ..plain(protocol) };
    let mut basic = plain(OtlpProtocol::Grpc);
    basic.http.credentials = Some(Credentials::Basic("/file".into()));
    for (options, expected) in [
        (options("host:1/path", OtlpProtocol::Http), "host:1/path"),
        (options("host:1/path", OtlpProtocol::Grpc), "host:1/path"),
        (with_header(OtlpProtocol::Http), "a b"),
        (with_header(OtlpProtocol::Grpc), "a b"),
        (basic, "basic authentication"),
    ] {
        let error = OtlpClient::new(options).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
