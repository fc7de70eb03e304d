//! Limits of a request as a whole: our clients know them for what they are, and divide.

use super::*;
use crate::export::store::MAX_LABEL_SET_BYTES;
use crate::proto::pyroscope::{
    LabelPair, PushRequest as PushMessage, RawProfileSeries as PushedSeries, RawSample as PushedSample,
};

#[tokio::test]
async fn a_request_that_is_too_large_as_a_whole_is_refused_so_that_clients_divide_it() {
    let limits = RequestLimits::default();
    for limits in [RequestLimits { max_profiles: 0, ..limits }, RequestLimits { max_bytes: 200, ..limits }] {
        let (_dir, collector, address) = start(limits).await;
        for outcome in outcomes(address).await {
            let PushOutcome::Refused { code, message, divisible } = outcome else { panic!("{outcome:?}") };
            assert_eq!((code, divisible), (Code::ResourceExhausted, true), "{message}");
            assert!(message.contains("received message larger than max ("), "{message}");
        }
        assert_eq!(collector.counters().refused_requests, 4);
        assert_eq!(collector.store().profiles(TimeRange::ALL, &[]), []);
    }
}

#[tokio::test]
async fn the_parts_of_a_request_that_is_too_large_are_stored() {
    let frames = |pid: u32| vec![inlined(FrameKind::Java, &[format!("{pid}{}", "x".repeat(4_000)).as_str()])];
    let series = |pid: u32| series(&[("pid", &pid.to_string())], vec![(frames(pid), 1)]);
    let batch = batch((0..3).map(series).collect());
    let limits = RequestLimits::default();
    for limits in [RequestLimits { max_profiles: 2, ..limits }, RequestLimits { max_bytes: 10_000, ..limits }]
    {
        let (_dir, collector, address) = start(limits).await;
        let client = ParcaClient::new(BackendOptions::new(format!("http://{address}"))).unwrap();
        let request = client.requests(&batch).unwrap().remove(0);
        let outcome = client.send(&request).await;
        assert!(matches!(outcome, PushOutcome::Refused { divisible: true, .. }), "{outcome:?}");
        for half in request.split_series().unwrap() {
            assert_eq!(client.send(&half).await, PushOutcome::Stored);
        }
        assert_eq!(collector.store().series(TimeRange::ALL, &[]).len(), 3);
    }
}

#[tokio::test]
async fn labels_count_for_what_a_request_may_have_once_a_series() {
    let batch = batch_of(EventType::Cpu);
    let profile = for_push(&batch, &batch.series[0]);
    let packed = crate::profile::pprof::to_bytes(&profile).unwrap();
    let label = |name: &str, value: &str| LabelPair { name: name.to_owned(), value: value.to_owned() };
    let push = |count: usize, profiles: usize| {
        let series = |number: usize| PushedSeries {
            labels: vec![
                label("__name__", "process_cpu"),
                label("number", &number.to_string()),
                label("long", &"x".repeat(4_000)),
            ],
            samples: vec![PushedSample { raw_profile: packed.clone().into() }; profiles],
        };
        PushMessage { series: (0..count).map(series).collect() }.encode_to_vec()
    };
    // Room for the labels of two series, and for five profiles.
    let max_bytes = 2 * 4_100 + 5 * profile.encoded_len();
    assert!(2 * profile.encoded_len() < 3_800);
    let limits = RequestLimits { max_bytes, ..RequestLimits::default() };
    let (_dir, _collector, address) = start(limits).await;
    let posted = async |body| posted(address, pyroscope_receiver::PATH, "application/proto", body).await;
    assert_eq!(posted(push(2, 1)).await.0, 200);
    assert_eq!(posted(push(1, 5)).await.0, 200);
    let (status, text) = posted(push(3, 1)).await;
    assert_eq!(status, 429, "{text}");
    assert!(text.starts_with("{\"code\":\"resource_exhausted\",\"message\":\"received message"), "{text}");
}

#[tokio::test]
async fn what_unpacks_beyond_the_limit_of_a_message_is_too_large_however_it_is_packed() {
    let (_dir, _collector, address) = start(DecodeLimits::default()).await;
    let bomb = crate::profile::gzip::compress(&vec![0; MAX_OTHER_MESSAGE_BYTES + 1]).unwrap();
    let client = HttpClient::new(HttpOptions::new(format!("http://{address}"))).unwrap();
    let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
    for (path, content_type, status) in [
        (otlp_receiver::HTTP_PATH, "application/x-protobuf", 413),
        (pyroscope_receiver::PATH, "application/proto", 429),
    ] {
        let url = format!("http://{address}{path}");
        let answer = client.post(&url, content_type, &headers, bomb.clone().into()).await.unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status.as_u16(), status, "{text}");
        assert!(text.contains("received message larger than max ("), "{text}");
    }
}

#[tokio::test]
async fn a_label_set_that_is_too_large_is_wrong_by_all_protocols() {
    let (_dir, collector, address) = start(DecodeLimits::default()).await;
    let long = "x".repeat(MAX_LABEL_SET_BYTES);
    let mut otlp = message(vec![Sample { values: vec![1], ..Sample::default() }]);
    let value = Some(AnyValue { value: Some(Value::StringValue(long.clone())) });
    let attributes = vec![KeyValue { key: "long".to_owned(), value, ..KeyValue::default() }];
    otlp.resource_profiles[0].resource = Some(Resource { attributes, ..Resource::default() });
    let labels = vec![
        LabelPair { name: "__name__".to_owned(), value: "events".to_owned() },
        LabelPair { name: "long".to_owned(), value: long },
    ];
    let pyroscope = PushMessage { series: vec![PushedSeries { labels, samples: Vec::new() }] };
    for (path, content_type, body) in [
        (otlp_receiver::HTTP_PATH, "application/x-protobuf", otlp.encode_to_vec()),
        (pyroscope_receiver::PATH, "application/proto", pyroscope.encode_to_vec()),
    ] {
        let (status, text) = posted(address, path, content_type, body).await;
        assert_eq!(status, 400, "{text}");
        assert!(text.contains("label set of 65554 bytes: the limit is 65536 bytes"), "{text}");
    }
    assert_eq!(collector.counters().refused_requests, 2);
    assert_eq!(collector.store().profiles(TimeRange::ALL, &[]), []);
}

#[tokio::test]
async fn a_series_that_finds_no_room_for_its_labels_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_label_bytes: 20, ..StoreOptions::default() };
    let store = Arc::new(Store::open(dir.path(), options).unwrap());
    let collector = Arc::new(CollectorService::new(store));
    let address = serve_routes(routes(Arc::clone(&collector))).await;
    for outcome in outcomes(address).await {
        let PushOutcome::NotStored { message, .. } = outcome else { panic!("{outcome:?}") };
        assert!(message.contains("no room for a new series in "), "{message}");
    }
    assert_eq!(collector.counters().failed_requests, 4);
}
