//! The collector behind a real port: what Parca refuses, with its codes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::routing::get;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::{Code, Status};

use super::*;
use crate::export::store::{MAX_LABEL_SET_BYTES, Matcher, Store, StoreOptions, TimeRange, UnixNanos};
use crate::profile::gzip;
use crate::profile::model::FrameKind;
use crate::profile::pprof::decode::DecodeLimits;
use crate::profile::pprof::{for_push, to_bytes};
use crate::profile::testing::{batch, frame, inlined, line, located, mapping, series};
use crate::proto::pprof::{Label as SampleLabel, Line, Profile, ValueType};
use crate::proto::profilestore::profile_store_service_client::ProfileStoreServiceClient;
use crate::proto::profilestore::{
    ExecutableInfo, Label, LabelSet, RawProfileSeries, RawSample, WriteArrowRequest, WriteRawRequest,
    WriteRequest,
};

type Client = ProfileStoreServiceClient<tonic::transport::Channel>;

struct Running {
    dir: tempfile::TempDir,
    collector: Arc<CollectorService>,
    address: SocketAddr,
    client: Client,
}

async fn start_with(options: StoreOptions, limits: DecodeLimits) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), options).unwrap());
    let collector = Arc::new(CollectorService::with_limits(store, limits));
    let page = Router::new().route("/", get(|| async { "a page" }));
    let router = page.merge(routes(Arc::clone(&collector)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, router, std::future::pending()));
    let client = Client::connect(format!("http://{address}")).await.unwrap();
    Running { dir, collector, address, client }
}

async fn start() -> Running {
    start_with(StoreOptions::default(), DecodeLimits::default()).await
}

fn good_profile() -> Profile {
    let leaf = located(&mapping("/opt/app", 0x1000), 0x1008, vec![line("total", 3)]);
    let batch = batch(vec![series(&[], vec![(vec![leaf, inlined(FrameKind::Java, &["a", "b"])], 7)])]);
    for_push(&batch, &batch.series[0])
}

fn request_of(labels: &[(&str, &str)], raw_profile: Vec<u8>) -> WriteRawRequest {
    let label = |&(name, value): &(&str, &str)| Label { name: name.to_owned(), value: value.to_owned() };
    WriteRawRequest {
        series: vec![RawProfileSeries {
            labels: Some(LabelSet { labels: labels.iter().map(label).collect() }),
            samples: vec![RawSample { raw_profile: raw_profile.into(), executable_info: vec![] }],
        }],
        ..WriteRawRequest::default()
    }
}

const LABELS: &[(&str, &str)] = &[("__name__", "process_cpu"), ("node", "a"), ("pid", "1")];

fn request(profile: &Profile) -> WriteRawRequest {
    request_of(LABELS, to_bytes(profile).unwrap())
}

async fn refusal(running: &mut Running, request: WriteRawRequest) -> Status {
    let before = running.collector.counters();
    let status = running.client.write_raw(request).await.expect_err("refused");
    assert_eq!(
        running.collector.store().profiles(TimeRange::ALL, &[]),
        [],
        "a refused request stores nothing"
    );
    assert_eq!(running.collector.counters().refused_requests, before.refused_requests + 1);
    status
}

#[tokio::test]
async fn a_good_request_is_on_disk_when_it_is_answered() {
    let mut running = start().await;
    let mut message = request(&good_profile());
    // Plain pprof is taken too, and packed for the disk.
    message.series[0].samples.push(RawSample {
        raw_profile: good_profile().encode_to_vec().into(),
        executable_info: vec![ExecutableInfo::default()],
    });
    running.client.write_raw(message).await.unwrap();

    let store = Store::open_for_reading(running.dir.path()).unwrap();
    let found = store
        .profiles(TimeRange::ALL, &[Matcher::equal("pid", "1"), Matcher::equal("__name__", "process_cpu")]);
    assert_eq!(found.iter().map(|profile| profile.samples).collect::<Vec<_>>(), [7, 7]);
    assert_eq!(found[0].duration, Duration::from_secs(10));
    for profile in &found {
        let bytes = store.read(profile).unwrap();
        assert!(gzip::is_gzip(&bytes));
        assert_eq!(
            crate::profile::pprof::decode::decode(&bytes, DecodeLimits::default()).unwrap(),
            good_profile()
        );
    }
    let counters = running.collector.counters();
    assert_eq!((counters.stored_requests, counters.stored_profiles, counters.stored_samples), (1, 2, 14));
}

#[tokio::test]
async fn label_sets_are_held_to_parcas_rules() {
    let mut running = start().await;
    let bytes = to_bytes(&good_profile()).unwrap();
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("node", "a")], "checking a series: it has no label __name__"),
        (&[("__name__", "")], "checking a series: it has no label __name__"),
        (&[("__name__", "cpu"), ("a-b", "")], "checking a series: invalid label name: \"a-b\""),
        (&[("__name__", "cpu"), ("9a", "")], "checking a series: invalid label name: \"9a\""),
        (&[("__name__", "cpu"), ("", "")], "checking a series: invalid label name: \"\""),
        (&[("__name__", "cpu"), ("größe", "")], "checking a series: invalid label name: \"größe\""),
        (&[("__name__", "cpu"), ("a", "1"), ("a", "2")], "checking a series: duplicate label name: \"a\""),
    ];
    for (labels, message) in cases {
        let status = refusal(&mut running, request_of(labels, bytes.clone())).await;
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, *message));
    }
    let mut unlabelled = request(&good_profile());
    unlabelled.series[0].labels = None;
    let status = refusal(&mut running, unlabelled).await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "checking a series: it has no label set")
    );
}

#[tokio::test]
async fn a_label_set_that_is_too_large_is_refused_by_its_name() {
    let mut running = start().await;
    let long = "x".repeat(MAX_LABEL_SET_BYTES);
    let labels = [("__name__", "cpu"), ("node", "a"), ("long", &long)];
    let request = request_of(&labels, to_bytes(&good_profile()).unwrap());
    let status = refusal(&mut running, request).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    let expected =
        "label set of 65556 bytes: the limit is 65536 bytes (series \"cpu\", its longest label is \"long\")";
    assert_eq!(status.message(), expected);
}

#[tokio::test]
async fn profiles_are_held_to_parcas_rules() {
    type Damage = fn(&mut Profile);
    let cases: &[(&str, Damage)] = &[
        ("string table doesn't begin", |p| p.string_table[0] = "x".to_owned()),
        ("string table doesn't begin", |p| {
            *p = Profile { sample_type: vec![ValueType::default()], ..Profile::default() };
        }),
        ("mapping 0 has id 2", |p| p.mapping[0].id = 2),
        ("file name of mapping 0 isn't in the string table: 99", |p| p.mapping[0].filename = 99),
        ("build id of mapping 0 isn't in the string table: -1", |p| p.mapping[0].build_id = -1),
        ("function 1 has id 1", |p| p.function[1].id = 1),
        ("name of function 0 isn't", |p| p.function[0].name = 99),
        ("system name of function 0 isn't", |p| p.function[0].system_name = 99),
        ("file name of function 0 isn't", |p| p.function[0].filename = 99),
        ("location 0 has id 0", |p| p.location[0].id = 0),
        ("location 0 refers to mapping 2", |p| p.location[0].mapping_id = 2),
        ("location 1 refers to function 9", |p| {
            p.location[1].line.push(Line { function_id: 9, ..Line::default() });
        }),
        ("samples without a sample type", |p| p.sample_type.clear()),
        ("name of type 0 isn't", |p| p.sample_type[0].r#type = 99),
        ("unit of type 1 isn't", |p| p.period_type.as_mut().unwrap().unit = 99),
        ("sample 0 has 2 values for 1", |p| p.sample[0].value.push(1)),
        ("sample 0 refers to location 0", |p| p.sample[0].location_id[0] = 0),
        ("sample 0 refers to location 3", |p| p.sample[0].location_id[0] = 3),
        ("sample 0 has a label without a key", |p| p.sample[0].label.push(SampleLabel::default())),
        ("label key of sample 0 isn't", |p| {
            p.sample[0].label.push(SampleLabel { key: 99, ..SampleLabel::default() });
        }),
        ("label value of sample 0 isn't", |p| {
            p.sample[0].label.push(SampleLabel { key: 1, str: 99, ..SampleLabel::default() });
        }),
    ];
    let mut running = start().await;
    for (message, damage) in cases {
        let mut profile = good_profile();
        damage(&mut profile);
        let status = refusal(&mut running, request(&profile)).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{message}");
        assert!(status.message().starts_with("invalid profile: "), "{status}");
        assert!(status.message().contains(message), "{} instead of {message}", status.message());
    }
    let mut infos = request(&good_profile());
    infos.series[0].samples[0].executable_info = vec![ExecutableInfo::default(); 2];
    let status = refusal(&mut running, infos).await;
    assert_eq!(status.message(), "invalid profile: 2 executable infos for 1 mappings");
}

#[tokio::test]
async fn bytes_that_are_no_profile_have_parcas_codes() {
    let mut running = start().await;
    let good = to_bytes(&good_profile()).unwrap();
    let cut = good[..good.len() - 4].to_vec();
    let not_pprof = gzip::compress(b"\x0a\xff\xff").unwrap();
    for (bytes, code) in
        [(cut, Code::Unknown), (not_pprof, Code::InvalidArgument), (b"text".to_vec(), Code::InvalidArgument)]
    {
        let status = refusal(&mut running, request_of(LABELS, bytes)).await;
        assert_eq!(status.code(), code, "{status}");
    }
}

#[tokio::test]
async fn profile_types_must_be_selectors() {
    let mut running = start().await;
    let bytes = to_bytes(&good_profile()).unwrap();
    for name in ["process-cpu", "9cpu", "cpu.time", "größe"] {
        let status = refusal(&mut running, request_of(&[("__name__", name)], bytes.clone())).await;
        assert_eq!(status.code(), Code::Unknown);
        assert!(status.message().contains(&format!("{name}:samples:count:cpu:nanoseconds")), "{status}");
    }
    let mut odd = good_profile();
    odd.string_table.push("alloc/space".to_owned());
    odd.sample_type[0].r#type = odd.string_table.len() as i64 - 1;
    assert_eq!(refusal(&mut running, request(&odd)).await.code(), Code::Unknown);
}

#[tokio::test]
async fn a_profile_that_does_not_say_when_it_began_ended_when_it_arrived() {
    const SECOND: i64 = 1_000_000_000;
    for (time, duration, before_arrival) in
        [(0, 10 * SECOND, 10 * SECOND), (-5, 0, 0), (0, -1, 0), (0, i64::MAX, 0)]
    {
        let mut running = start().await;
        let unsaid = Profile { time_nanos: time, duration_nanos: duration, ..good_profile() };
        let before = UnixNanos::from(SystemTime::now());
        running.client.write_raw(request(&unsaid)).await.unwrap();
        let after = UnixNanos::from(SystemTime::now());
        let stored = running.collector.store().profiles(TimeRange::ALL, &[]).remove(0);
        let possible = before.0 - before_arrival..=after.0 - before_arrival;
        assert!(possible.contains(&stored.start.0), "{time} {duration}: {stored:?}");
        assert_eq!(stored.duration, Duration::from_nanos(u64::try_from(duration).unwrap_or(0)));
    }
}

#[tokio::test]
async fn one_bad_series_refuses_the_whole_request() {
    let mut running = start().await;
    let mut message = request(&good_profile());
    message.series.extend(request_of(&[("node", "b")], vec![]).series);
    assert_eq!(refusal(&mut running, message).await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn requests_with_nothing_in_them_are_fine_and_store_nothing() {
    let mut running = start().await;
    running.client.write_raw(WriteRawRequest::default()).await.unwrap();
    let mut zero = good_profile();
    zero.sample[0].value = vec![0];
    running.client.write_raw(request(&zero)).await.unwrap();
    running.client.write_raw(request_of(LABELS, vec![])).await.unwrap();
    assert_eq!(running.collector.store().profiles(TimeRange::ALL, &[]), []);
}

#[tokio::test]
async fn bombs_and_giants_are_refused_as_exhausting() {
    let limits = DecodeLimits { max_bytes: 1 << 20, max_entries: 1_000 };
    let mut running = start_with(StoreOptions::default(), limits).await;
    let bomb = gzip::compress(&vec![0; 100 << 20]).unwrap();
    assert_eq!(refusal(&mut running, request_of(LABELS, bomb)).await.code(), Code::ResourceExhausted);
    let many = Profile { string_table: vec![String::new(); 1_001], ..good_profile() };
    assert_eq!(refusal(&mut running, request(&many)).await.code(), Code::ResourceExhausted);

    // Above the limit of a message: refused before it is read.
    let giant = request_of(LABELS, vec![0; MAX_MESSAGE_BYTES + 1]);
    let status = running.client.write_raw(giant).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let mut packing = running.client.clone().send_compressed(CompressionEncoding::Gzip);
    let giant = request_of(LABELS, vec![0; MAX_MESSAGE_BYTES + 1]);
    let status = packing.write_raw(giant).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("exceeded while decompressing message"), "{status}");
    packing.write_raw(request(&good_profile())).await.expect("and it goes on");
}

#[tokio::test]
async fn a_store_that_fails_is_not_a_refusal() {
    let options = StoreOptions { limit_bytes: 10, ..StoreOptions::default() };
    let mut running = start_with(options, DecodeLimits::default()).await;
    let status = running.client.write_raw(request(&good_profile())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "it will never fit: {status}");

    let mut running = start().await;
    std::fs::remove_dir_all(running.dir.path().join("series")).unwrap();
    std::fs::write(running.dir.path().join("series"), "in the way").unwrap();
    let status = running.client.write_raw(request(&good_profile())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    assert!(status.message().starts_with("create folder "), "{status}");
    assert_eq!(running.collector.counters().failed_requests, 1);
}

#[tokio::test]
async fn arrow_is_unimplemented() {
    let mut running = start().await;
    let status = running.client.write_arrow(WriteArrowRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let status = running.client.write(tokio_stream::iter([WriteRequest::default()])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_page_and_grpc_share_the_port() {
    let mut running = start().await;
    let mut browser = TcpStream::connect(running.address).await.unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    browser.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("a page"), "{answer}");
    running.client.write_raw(request(&good_profile())).await.unwrap();
}

#[tokio::test]
async fn many_at_once_are_all_stored() {
    let running = start().await;
    let requests: Vec<_> = (0..40)
        .map(|pid: u32| {
            let mut client = running.client.clone();
            let frames = vec![frame(FrameKind::Native, "main")];
            let batch = batch(vec![series(&[], vec![(frames, 1)])]);
            let bytes = to_bytes(&for_push(&batch, &batch.series[0])).unwrap();
            let message = request_of(&[("__name__", "process_cpu"), ("pid", &pid.to_string())], bytes);
            tokio::spawn(async move { client.write_raw(message).await })
        })
        .collect();
    for request in requests {
        request.await.unwrap().unwrap();
    }
    assert_eq!(running.collector.store().series(TimeRange::ALL, &[]).len(), 40);
}
