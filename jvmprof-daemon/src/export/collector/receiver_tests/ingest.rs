//! Pushes of Pyroscope's SDKs for single languages: what they push is stored as they took it.

use super::*;
use crate::export::http_client::Credentials;

const FORM: &str = "multipart/form-data; boundary=x7";
/// As pyroscope-go asks, of an application `shop` with the tag `region`.
const QUERY: &str = "name=shop%7Bregion%3Dnorth%7D&from=1700000000000000000&until=1700000010000000000\
                     &spyName=gospy&sampleRate=100&units=samples&aggregationType=sum";

fn packed(event: EventType) -> Vec<u8> {
    let batch = batch_of(event);
    crate::profile::pprof::to_bytes(&for_push(&batch, &batch.series[0])).unwrap()
}

/// A form with these parts.
fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, contents) in parts {
        let head =
            format!("--x7\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(contents);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--x7--\r\n");
    body
}

#[tokio::test]
async fn a_profile_that_an_sdk_pushes_is_a_series_of_its_application_and_tags() {
    const CONFIG: &[u8] = br#"{"samples":{"units":"samples","display-name":"cpu","sampled":true}}"#;
    let cpu = packed(EventType::Cpu);
    for (content_type, query, body) in [
        (FORM, QUERY.to_owned(), form(&[("profile", &cpu), ("sample_type_config", CONFIG)])),
        (FORM, QUERY.to_owned(), form(&[("profile", &cpu)])),
        ("binary/octet-stream", format!("{QUERY}&format=pprof"), cpu.clone()),
    ] {
        let (_dir, collector, address) = start(DecodeLimits::default()).await;
        let (status, text) = posted(address, &format!("/ingest?{query}"), content_type, body).await;
        assert_eq!((status, text.as_str()), (200, ""), "{content_type}");
        let series = collector.store().series(TimeRange::ALL, &[]);
        let [series] = &series[..] else { panic!("{content_type}: {series:?}") };
        let labels: Vec<_> =
            series.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("__name__", "process_cpu"), ("region", "north"), ("service_name", "shop")]);
        let stored = collector.store().profiles(TimeRange::ALL, &[]);
        let stored = decode(&collector.store().read(&stored[0]).unwrap(), DecodeLimits::default()).unwrap();
        let batch = batch_of(EventType::Cpu);
        let sampled = for_push(&batch, &batch.series[0]);
        assert_eq!(samples(&stored), samples(&sampled), "{content_type}");
        assert_eq!((types(&stored), stored.time_nanos), (types(&sampled), sampled.time_nanos));
    }
}

#[tokio::test]
async fn locks_are_a_series_by_what_an_sdk_says_of_their_sample_types() {
    const BLOCK: &[u8] =
        br#"{"contentions":{"display-name":"block_count"},"delay":{"display-name":"block_duration"}}"#;
    let locks = packed(EventType::Lock);
    for (parts, expected) in [
        (vec![("profile", &locks[..]), ("sample_type_config", BLOCK)], "block"),
        (vec![("profile", &locks[..]), ("sample_type_config", &b""[..])], "mutex"),
        (vec![("profile", &locks[..])], "mutex"),
    ] {
        let (_dir, collector, address) = start(DecodeLimits::default()).await;
        let (status, text) = posted(address, &format!("/ingest?{QUERY}"), FORM, form(&parts)).await;
        assert_eq!(status, 200, "{text}");
        let stored = collector.store().profiles(TimeRange::ALL, &[Matcher::equal("__name__", expected)]);
        assert_eq!(stored.len(), 1, "{expected}");
    }
}

#[tokio::test]
async fn types_that_selectors_cannot_have_are_stored_by_names_that_they_can() {
    let batch = batch_of(EventType::Lock);
    let mut locks = for_push(&batch, &batch.series[0]);
    for name in &mut locks.string_table {
        *name = name.replace("contentions", "lock-count").replace("delay", "lock-time");
    }
    let (_dir, collector, address) = start(DecodeLimits::default()).await;
    let body = form(&[("profile", &locks.encode_to_vec())]);
    let (status, text) = posted(address, &format!("/ingest?{QUERY}"), FORM, body).await;
    assert_eq!(status, 200, "{text}");
    let stored = collector.store().profiles(TimeRange::ALL, &[Matcher::equal("__name__", "lock_time")]);
    let [stored] = &stored[..] else { panic!("{stored:?}") };
    let stored = decode(&collector.store().read(stored).unwrap(), DecodeLimits::default()).unwrap();
    assert_eq!(types(&stored), [("lock_count", "count"), ("lock_time", "nanoseconds")]);
    assert_eq!(samples(&stored), samples(&locks));
}

#[tokio::test]
async fn the_token_of_a_collector_is_the_password_of_an_sdk() {
    const TOKEN: &str = "correct-horse-battery";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), TOKEN).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).unwrap());
    let collector = Arc::new(CollectorService::new(Arc::clone(&store)));
    let token = Arc::new(AccessToken::read(file.path()).unwrap());
    let address = serve_routes(require_token(routes(collector), token)).await;
    let url = format!("http://{address}/ingest?{QUERY}");
    let body = form(&[("profile", &packed(EventType::Cpu))]);
    for (user, status, profiles) in [(None, 401, 0), (Some("me:wrong"), 401, 0), (Some("me"), 200, 1)] {
        let credentials = tempfile::NamedTempFile::new().unwrap();
        let mut options = HttpOptions::new(format!("http://{address}"));
        if let Some(user) = user {
            std::fs::write(credentials.path(), format!("{user}:{TOKEN}")).unwrap();
            options.credentials = Some(Credentials::Basic(credentials.path().to_owned()));
        }
        let client = HttpClient::new(options).unwrap();
        let answer = client.post(&url, FORM, &HeaderMap::new(), body.clone().into()).await.unwrap();
        assert_eq!(answer.status.as_u16(), status, "{user:?}");
        assert_eq!(store.profiles(TimeRange::ALL, &[]).len(), profiles, "{user:?}");
    }
}

#[tokio::test]
async fn a_push_of_an_sdk_without_a_profile_is_fine_and_stores_nothing() {
    let (_dir, collector, address) = start(DecodeLimits::default()).await;
    let (status, text) = posted(address, &format!("/ingest?{QUERY}"), FORM, form(&[("profile", b"")])).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(collector.store().profiles(TimeRange::ALL, &[]), []);
}

#[tokio::test]
async fn what_is_no_push_of_an_sdk_is_refused_with_what_is_wrong_and_nothing_is_stored() {
    let (_dir, collector, address) = start(DecodeLimits::default()).await;
    let cpu = packed(EventType::Cpu);
    let whole = form(&[("profile", &cpu)]);
    let jfr = format!("{QUERY}&format=jfr");
    for (query, content_type, body, status, expected) in [
        (
            jfr.as_str(),
            FORM,
            form(&[("jfr", b"x"), ("labels", b"y")]),
            415,
            "profiles that JVM without an agent",
        ),
        (QUERY, "binary/octet-stream+trie", cpu.clone(), 415, "only pprof is taken"),
        ("format=pprof", "", cpu.clone(), 400, "without the name of an application"),
        (QUERY, "multipart/form-data", whole.clone(), 400, "no boundary"),
        (QUERY, FORM, whole[..whole.len() / 2].to_vec(), 400, "ends before its last boundary"),
        (QUERY, FORM, form(&[("prof", &cpu)]), 400, "without a part profile"),
        (QUERY, FORM, form(&[("profile", &cpu), ("sample_type_config", b"{")]), 400, "sample_type_config"),
        (QUERY, FORM, form(&[("profile", &cpu), ("prev_profile", &cpu)]), 400, "a newer SDK pushes none"),
        (QUERY, FORM, form(&[("profile", &[0xff; 40])]), 400, "parsing pprof"),
        (QUERY, FORM, form(&[("profile", &cpu[..cpu.len() / 2])]), 400, ""),
        (QUERY, FORM, vec![0; MAX_OTHER_MESSAGE_BYTES + 1], 413, "length limit exceeded"),
    ] {
        let (found, text) = posted(address, &format!("/ingest?{query}"), content_type, body).await;
        assert_eq!(found, status, "{expected}: {text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // A page of another site may have a browser send a form.
    let client = HttpClient::new(HttpOptions::new(format!("http://{address}"))).unwrap();
    let url = format!("http://{address}/ingest?{QUERY}");
    for (name, value) in [("origin", "http://elsewhere.example"), ("sec-fetch-site", "cross-site")] {
        let header = (header::HeaderName::from_static(name), HeaderValue::from_static(value));
        let headers = HeaderMap::from_iter([header]);
        let answer = client.post(&url, FORM, &headers, whole.clone().into()).await.unwrap();
        assert_eq!(answer.status.as_u16(), 403, "{name}");
    }
    assert_eq!(collector.store().profiles(TimeRange::ALL, &[]), []);
}
