mod download;
mod edits;
mod pauses;
mod times;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::ReadLimits;
use super::page_server::{PageOptions, router};
use crate::event_type::{EventType, PAUSE_BEGIN};
use crate::export::store::{NewProfile, Store, StoreOptions, UnixNanos, with_name};
use crate::profile::call_tree::{NodeKind, PathHash};
use crate::profile::model::{Batch, FrameKind, Sample, SampleLabel, SampleLabels, Series, label_names};
use crate::profile::pprof;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::jvm_pauses::{PauseTime, frames};
use crate::profile::testing::{batch, frame, series};

/// Begin of the first stored profile, in milliseconds.
const START: i64 = 1_732_195_500_000;

/// Three profiles of ten seconds, one after the other: 5 samples of java, 3 of java, 2 of postgres.
fn store(dir: &std::path::Path) -> Arc<Store> {
    let store = Store::open(dir, StoreOptions::default()).unwrap();
    for (index, (comm, pid, count)) in (0..).zip([("java", "1", 5), ("java", "1", 3), ("postgres", "2", 2)]) {
        let stack =
            vec![frame(FrameKind::Native, "leaf"), frame(FrameKind::Native, &format!("main of {comm}"))];
        let series = series(&[("comm", comm), ("pid", pid)], vec![(stack, count)]);
        let batch = batch(vec![series]);
        let profile = NewProfile {
            labels: with_name(&batch.series[0].labels, "process_cpu").into(),
            start: UnixNanos((START + index * 10_000) * 1_000_000),
            duration: Duration::from_secs(10),
            samples: count,
            pprof: pprof::to_bytes(&pprof::for_push(&batch, &batch.series[0])).unwrap().into(),
        };
        store.append(&[profile]).unwrap();
    }
    Arc::new(store)
}

struct PageClient {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    router: Router,
}

impl PageClient {
    fn new() -> Self {
        Self::with("127.0.0.1:7070", ReadLimits::default())
    }

    fn with(listen: &str, limits: ReadLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen: SocketAddr = listen.parse().unwrap();
        let store = store(dir.path());
        let router = router(Arc::clone(&store), PageOptions { listen, limits });
        Self { dir, store, router }
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, HeaderMap, Vec<u8>) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, to_bytes(body, usize::MAX).await.unwrap().to_vec())
    }

    async fn get(&self, path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        self.send(Request::get(path).header("host", "localhost:7070").body(Body::empty()).unwrap()).await
    }

    async fn json(&self, path: &str) -> Value {
        let (status, _, body) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    async fn error(&self, path: &str) -> (StatusCode, String) {
        let (status, _, body) = self.get(path).await;
        let body: Value = serde_json::from_slice(&body).unwrap();
        (status, body["error"].as_str().unwrap().to_owned())
    }
}

fn range(rest: &str) -> String {
    format!("from={START}&to={}{rest}", START + 60_000)
}

#[tokio::test]
async fn a_flame_graph_has_the_chosen_samples() {
    let page = PageClient::new();
    let all = page.json(&format!("/api/flamegraph?{}", range(""))).await;
    assert_eq!(all["tree"]["total"], 10);
    assert_eq!((&all["profiles"], &all["series"], &all["unreadable"]), (&json!(3), &json!(2), &json!(0)));
    assert_eq!(all["period_ns"], 10_000_000);
    let java = page.json(&format!("/api/flamegraph?{}", range("&match=comm=java"))).await;
    assert_eq!(java["tree"]["total"], 8);
    let either =
        page.json(&format!("/api/flamegraph?{}", range("&match=comm=java&match=comm=postgres"))).await;
    assert_eq!(either["tree"]["total"], 10);
    let second = format!("/api/flamegraph?from={}&to={}", START + 10_000, START + 20_000);
    assert_eq!(page.json(&second).await["tree"]["total"], 3);
    let none = page.json(&format!("/api/flamegraph?{}", range("&match=comm=nobody"))).await;
    assert_eq!(none["tree"]["total"], 0);
}

#[tokio::test]
async fn a_flame_graph_is_compared_with_another_time_or_other_labels() {
    let page = PageClient::new();
    let later = format!("from={}&to={}", START + 10_000, START + 20_000);
    let base = format!("&base_from={START}&base_to={}", START + 9_000);
    let both = page.json(&format!("/api/flamegraph?{later}{base}")).await;
    assert_eq!((&both["tree"]["total"], &both["tree"]["base"]), (&json!(3), &json!(5)));
    let side = |events: u64| json!({"period_ns": 10_000_000, "duration_ns": 10_000_000_000_u64, "events": events, "total": events});
    assert_eq!(both["sides"], json!([side(5), side(3)]));
    let labels = format!(
        "/api/flamegraph?{}",
        range(&format!(
            "&match=comm=java&base_match=comm=postgres&base_from={START}&base_to={}",
            START + 60_000
        ))
    );
    let labels = page.json(&labels).await;
    assert_eq!((&labels["tree"]["total"], &labels["tree"]["base"]), (&json!(8), &json!(2)));
    let alone = page.json(&format!("/api/flamegraph?{later}")).await;
    assert!(alone.get("sides").is_none() && alone["tree"].get("base").is_none());
}

#[tokio::test]
async fn stacks_are_grouped_by_a_label() {
    let page = PageClient::new();
    let grouped = page.json(&format!("/api/flamegraph?{}", range("&group=comm"))).await;
    let strings = grouped["tree"]["strings"].as_array().unwrap();
    assert!(strings.contains(&json!("java")) && strings.contains(&json!("postgres")));
    let programs = page.json(&format!("/api/flamegraph?{}", range("&group=auto"))).await;
    assert_eq!(programs["tree"]["strings"], grouped["tree"]["strings"]);
    let one = page.json(&format!("/api/flamegraph?{}", range("&group=auto&match=comm=java"))).await;
    assert!(!one["tree"]["strings"].as_array().unwrap().contains(&json!("java")), "it is one program");
    let unlabelled = page.json(&format!("/api/flamegraph?{}", range("&group=pod"))).await;
    assert!(unlabelled["tree"]["strings"].as_array().unwrap().contains(&json!("(no pod)")));
}

/// The groups of an answer, with their samples.
fn groups(answer: &Value) -> Vec<(&str, u64)> {
    let (tree, nodes) = (&answer["tree"], &answer["tree"]["nodes"]);
    let at = |column: &Value, row: usize| column[row].as_u64().unwrap() as usize;
    let group = |node: usize| {
        let function = at(&nodes["function"], node);
        let is_group = at(&tree["functions"]["kind"], function) == NodeKind::Label as usize;
        let name = tree["strings"][at(&tree["functions"]["name"], function)].as_str().unwrap();
        is_group.then(|| (name, nodes["total"][node].as_u64().unwrap()))
    };
    let mut groups: Vec<_> = (0..nodes["total"].as_array().unwrap().len()).filter_map(group).collect();
    groups.sort_unstable();
    groups
}

/// Stores a profile of CPU time from `START` on.
fn add_profile(page: &PageClient, of: Series) {
    add_profile_at(page, 0, of);
}

/// The same from so many milliseconds later on.
fn add_profile_at(page: &PageClient, later: i64, of: Series) {
    let batch = batch(vec![of]);
    let profile = pprof::for_push(&batch, &batch.series[0]);
    let profile = NewProfile {
        labels: with_name(&batch.series[0].labels, "process_cpu").into(),
        start: UnixNanos((START + later) * 1_000_000),
        duration: Duration::from_secs(10),
        samples: pprof::total(&profile),
        pprof: pprof::to_bytes(&profile).unwrap().into(),
    };
    page.store.append(&[profile]).unwrap();
}

#[tokio::test]
async fn programs_of_one_command_are_told_apart_by_their_main_class() {
    let page = PageClient::new();
    for (main_class, pid, count) in [("acme.Shop", "7", 4), ("acme.Stock", "8", 6)] {
        let labels = [("comm", "java"), (label_names::MAIN_CLASS, main_class), ("pid", pid)];
        add_profile(&page, series(&labels, vec![(vec![frame(FrameKind::Native, "leaf")], count)]));
    }
    let all = page.json(&format!("/api/flamegraph?{}", range("&group=auto"))).await;
    // One without a main class has its command.
    assert_eq!(groups(&all), [("acme.Shop", 4), ("acme.Stock", 6), ("java", 8), ("postgres", 2)]);
    let main_class = label_names::MAIN_CLASS;
    let one = format!("&group=auto&match=comm=java&match={main_class}=acme.Shop");
    let one = page.json(&format!("/api/flamegraph?{}", range(&one))).await;
    assert_eq!((groups(&one), &one["tree"]["total"]), (Vec::new(), &json!(4)));
}

fn sample_of(kind: &str, count: u64) -> Sample {
    Sample {
        labels: SampleLabels::new([SampleLabel { name: "thread_kind".into(), value: kind.into() }]),
        ..Sample::of_events([frame(FrameKind::Native, "leaf")].into(), count, count * 10_000_000)
    }
}

#[tokio::test]
async fn a_timeline_tells_kinds_of_threads_apart() {
    let page = PageClient::new();
    let samples = vec![sample_of("gc", 4), sample_of("java", 6)];
    add_profile(&page, Series { samples, ..series(&[("comm", "shop"), ("pid", "7")], Vec::new()) });
    let timeline = page.json(&format!("/api/timeline/threads?{}", range(""))).await;
    let sums = timeline["rows"].as_array().unwrap().iter().map(|row| {
        let samples: Vec<f64> = serde_json::from_value(row["samples"].clone()).unwrap();
        (row["number"].as_u64().unwrap(), samples[..40].iter().sum::<f64>(), samples.iter().sum::<f64>())
    });
    let expected = [((3 << 4) + 1, 4.0, 4.0), ((1 << 4) + 6, 6.0, 6.0), (8, 5.0, 10.0)];
    let is_close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    for (row, of) in sums.zip(expected) {
        assert!(row.0 == of.0 && is_close(row.1, of.1) && is_close(row.2, of.2), "{row:?}, not {of:?}");
    }
    assert_eq!((timeline["rows"].as_array().unwrap().len(), &timeline["unreadable"]), (3, &json!(0)));
    let of_bytes = page.json(&format!("/api/timeline/threads?{}", range("&type=memory:alloc_space"))).await;
    assert_eq!(of_bytes["rows"], json!([]));
    let few = ReadLimits { profiles: 2, ..ReadLimits::default() };
    let page = PageClient::with("127.0.0.1:1", few);
    let (status, error) = page.error(&format!("/api/timeline/threads?{}", range(""))).await;
    assert!(status == StatusCode::PAYLOAD_TOO_LARGE && error.contains("3 profiles"), "{error}");
}

#[tokio::test]
async fn stacks_are_grouped_by_the_kind_of_their_thread() {
    let page = PageClient::new();
    let samples = vec![sample_of("gc", 4), sample_of("java", 6)];
    add_profile(&page, Series { samples, ..series(&[("comm", "shop"), ("pid", "7")], Vec::new()) });
    let all = page.json(&format!("/api/flamegraph?{}", range("&group=thread_kind"))).await;
    assert_eq!(groups(&all), [("(no thread_kind)", 10), ("gc", 4), ("java", 6)]);
    // Of one group, wherever it is.
    let group = PathHash::of_function(NodeKind::Label, "gc", "", "");
    let under = format!("&group=thread_kind&under={}&under_group=gc", PathHash::ROOT.child(group));
    let under = page.json(&format!("/api/flamegraph?{}", range(&under))).await;
    assert_eq!(groups(&under), [("gc", 4)]);
    // Series aren't grouped by it: the timeline has a row for each program.
    let timeline = page.json(&format!("/api/timeline?{}", range("&group=thread_kind"))).await;
    let names = timeline["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str());
    assert_eq!(names.collect::<Vec<_>>(), [Some("shop"), Some("java"), Some("postgres")]);
}

#[tokio::test]
async fn values_of_a_filtered_label_stay_choosable() {
    let page = PageClient::new();
    let labels = page.json(&format!("/api/labels?{}", range("&match=comm=java"))).await;
    let of =
        |name: &str| labels.as_array().unwrap().iter().find(|label| label["name"] == name).unwrap().clone();
    let value = |value: &str, samples: u64| json!({"value": value, "samples": samples});
    assert_eq!(of("comm")["values"], json!([value("java", 8), value("postgres", 2)]));
    assert_eq!(of("pid")["values"], json!([value("1", 8)]));
    assert_eq!(of("pid")["count"], 1);
}

#[tokio::test]
async fn the_timeline_tells_what_the_range_holds() {
    let page = PageClient::new();
    let timeline = page.json(&format!("/api/timeline?{}", range(""))).await;
    let samples: Vec<f64> = serde_json::from_value(timeline["samples"].clone()).unwrap();
    assert!((samples.iter().sum::<f64>() - 10.0).abs() < 1e-6);
    assert!(
        (samples[..40].iter().sum::<f64>() - 5.0).abs() < 1e-6,
        "ten of sixty seconds are 40 of 240 bars"
    );
    let rows = timeline["rows"].as_array().unwrap();
    assert!(rows.len() > 1, "{rows:?}");
    let of_row = |row: &serde_json::Value| {
        let samples: Vec<f64> = serde_json::from_value(row["samples"].clone()).unwrap();
        samples.iter().sum::<f64>()
    };
    assert!((rows.iter().map(of_row).sum::<f64>() - 10.0).abs() < 1e-6, "rows add up to the bars");
    assert_eq!(timeline["newest_ms"], START + 30_000);
    let earlier = page.json("/api/timeline?from=0&to=1000").await;
    assert_eq!(earlier["newest_ms"], START + 30_000, "an empty range says where samples are");
}

#[tokio::test]
async fn the_download_is_one_pprof_of_all_that_is_shown() {
    let page = PageClient::new();
    let (status, headers, body) = page.get(&format!("/api/pprof?{}", range("&match=comm=java"))).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["content-disposition"], "attachment; filename=\"jvmprof-1732195500.pb.gz\"");
    assert!(!headers.contains_key("content-encoding"), "the file is compressed, its transport isn't");
    let profile = decode(&body, DecodeLimits::default()).unwrap();
    assert_eq!(pprof::total(&profile), 8);
    let text = |index: i64| profile.string_table[index as usize].as_str();
    let types: Vec<_> = profile.sample_type.iter().map(|of| (text(of.r#type), text(of.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    let nanos: i64 = profile.sample.iter().map(|sample| sample.value[1]).sum();
    assert_eq!(nanos, 8 * 10_000_000, "a sample stands for its period");
}

#[tokio::test]
async fn the_stacks_through_a_node_are_returned_alone() {
    let page = PageClient::new();
    // Of `main of java` in a file that isn't known.
    let main = PathHash::of_function(NodeKind::Native, "main of java", "", "");
    let under = format!("&under={}", PathHash::ROOT.child(main));
    let under = page.json(&format!("/api/flamegraph?{}", range(&under))).await;
    assert_eq!((&under["tree"]["total"], &under["profiles"]), (&json!(8), &json!(3)));
    // Grouped, only the series of its group are read.
    let group = PathHash::of_function(NodeKind::Label, "java", "", "");
    let in_group = PathHash::ROOT.child(group).child(main);
    let query = format!("&group=comm&under={in_group}&under_group=java");
    let java = page.json(&format!("/api/flamegraph?{}", range("&group=comm&match=comm=java"))).await;
    let in_group = page.json(&format!("/api/flamegraph?{}", range(&query))).await;
    assert_eq!((&in_group["tree"]["total"], &in_group["profiles"]), (&json!(8), &java["profiles"]));
    let (status, error) = page.error(&format!("/api/flamegraph?{}", range("&under=main"))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error.contains("16 hexadecimal digits"), "{error}");
}

#[tokio::test]
async fn the_stacks_through_a_node_are_those_of_both_sides_of_a_comparison() {
    let page = PageClient::new();
    let [begin, end, later, last] = [0, 9_000, 10_000, 60_000].map(|at| START + at);
    for (program, range, base, expected) in [
        ("java", [later, last], [begin, end], [3, 5]),
        ("postgres", [later, last], [begin, end], [2, 0]),
        // What is gone is there.
        ("postgres", [begin, end], [later, last], [0, 2]),
    ] {
        let main = PathHash::of_function(NodeKind::Native, &format!("main of {program}"), "", "");
        let sides = format!("from={}&to={}&base_from={}&base_to={}", range[0], range[1], base[0], base[1]);
        let under = format!("/api/flamegraph?{sides}&under={}", PathHash::ROOT.child(main));
        let answer = page.json(&under).await;
        let samples = json!([answer["tree"]["total"], answer["tree"]["base"]]);
        assert_eq!(samples, json!(expected), "{program}");
    }
}

#[tokio::test]
async fn what_a_request_may_cost_is_bounded() {
    let few = ReadLimits { profiles: 2, ..ReadLimits::default() };
    let (status, error) =
        PageClient::with("127.0.0.1:1", few).error(&format!("/api/flamegraph?{}", range(""))).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(error.contains("3 profiles") && error.contains("choose a shorter range"), "{error}");
    let small = ReadLimits { bytes: 10, ..ReadLimits::default() };
    let (status, _) =
        PageClient::with("127.0.0.1:1", small).error(&format!("/api/pprof?{}", range(""))).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let quick = ReadLimits { time: Duration::ZERO, ..ReadLimits::default() };
    let (status, _) =
        PageClient::with("127.0.0.1:1", quick).error(&format!("/api/flamegraph?{}", range(""))).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test]
async fn wrong_requests_are_told_what_is_wrong() {
    let (status, error) = PageClient::new().error("/api/flamegraph?from=5").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(error, "parameter to is missing: milliseconds since 1970, UTC");
}

#[tokio::test]
async fn a_profile_that_cannot_be_read_is_counted() {
    let page = PageClient::new();
    let files = walk(page.dir.path());
    let victim = files.iter().find(|path| path.extension().is_some_and(|ending| ending == "gz")).unwrap();
    std::fs::write(victim, b"not a profile").unwrap();
    let flame = page.json(&format!("/api/flamegraph?{}", range(""))).await;
    assert_eq!((&flame["profiles"], &flame["unreadable"]), (&json!(2), &json!(1)));
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn every_answer_carries_the_policy_of_the_page() {
    let page = PageClient::new();
    for path in ["/", "/assets/view.js", "/api/labels?from=0&to=1", "/api/labels", "/assets/none", "/healthz"]
    {
        let (_, headers, _) = page.get(path).await;
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'; script-src 'self';"), "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert!(!headers.contains_key("access-control-allow-origin"), "{path}");
    }
}

#[tokio::test]
async fn files_of_the_page_are_served_compressed_and_only_once() {
    let page = PageClient::new();
    let (status, headers, body) = page.get("/").await;
    assert_eq!(
        (status, &headers["content-type"]),
        (StatusCode::OK, &"text/html; charset=utf-8".parse().unwrap())
    );
    let html = String::from_utf8(body).unwrap();
    let assets: Vec<_> = html.split('"').filter(|text| text.starts_with("/assets/")).collect();
    assert!(assets.len() > 10);
    for asset in assets {
        assert_eq!(page.get(asset).await.0, StatusCode::OK, "{asset}");
    }
    let request = |name: &str, value: &str| {
        let request = Request::get("/assets/d3.min.js").header("host", "localhost").header(name, value);
        request.body(Body::empty()).unwrap()
    };
    let (_, headers, _) = page.send(request("accept-encoding", "gzip")).await;
    assert_eq!(headers["content-encoding"], "gzip");
    let (status, _, body) = page.send(request("if-none-match", headers["etag"].to_str().unwrap())).await;
    assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0));
    assert_eq!(page.get("/assets/..%2fCargo.toml").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn names_of_others_are_refused_on_a_loopback_address_only() {
    let request =
        || Request::get("/healthz").header("host", "evil.example:7070").body(Body::empty()).unwrap();
    let (status, _, _) = PageClient::new().send(request()).await;
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);
    let (status, _, body) = PageClient::with("0.0.0.0:7070", ReadLimits::default()).send(request()).await;
    assert_eq!((status, body.as_slice()), (StatusCode::OK, &b"ok\n"[..]));
}
