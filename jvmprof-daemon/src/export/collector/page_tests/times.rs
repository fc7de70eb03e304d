//! Samples that count by their own times.

use std::time::SystemTime;

use super::*;

/// Stores ten seconds of `shop` from `start` on, in milliseconds since `START`: one stack with
/// events at these times since then, and with `untimed` further ones.
fn add_timed(page: &PageClient, start: i64, times: &[i32], untimed: u64) {
    let events = times.len() as u64 + untimed;
    let stack = [frame(FrameKind::Native, "leaf")].into();
    let sample = Sample { times: times.to_vec(), ..Sample::of_events(stack, events, events * 10_000_000) };
    let of_shop = Series { samples: vec![sample], ..series(&[("comm", "shop"), ("pid", "7")], Vec::new()) };
    let start = Duration::from_millis(u64::try_from(START + start).unwrap());
    let batch = Batch { start: SystemTime::UNIX_EPOCH + start, ..batch(vec![of_shop]) };
    page.store.append(&NewProfile::of_batch(&batch).unwrap()).unwrap();
}

/// Two profiles side by side; of the second an event was taken before it began.
fn page() -> PageClient {
    let page = PageClient::new();
    add_timed(&page, 60_000, &[100, 5_000, 9_999], 0);
    add_timed(&page, 70_000, &[-50, 300], 2);
    page
}

/// A range in milliseconds since `START`.
fn query(from: i64, to: i64, rest: &str) -> String {
    format!("from={}&to={}{rest}", START + from, START + to)
}

#[tokio::test]
async fn samples_of_a_part_of_their_profiles_are_those_that_were_taken_then() {
    let page = page();
    let by_profiles = page.json(&format!("/api/flamegraph?{}", query(65_000, 70_000, ""))).await;
    assert_eq!((&by_profiles["tree"]["total"], by_profiles.get("times")), (&json!(0), None));
    let by_times = page.json(&format!("/api/flamegraph?{}", query(65_000, 70_000, "&times=1"))).await;
    assert_eq!((&by_times["tree"]["total"], &by_times["profiles"]), (&json!(3), &json!(2)));
    assert_eq!(by_times["period_ns"], 10_000_000);
    // Of the one entry 0 ms, 4,950 (two bytes) and 49 later: LEB128 in base64.
    let (steps, entries) = ("ANYmMQ==", "AAAA");
    let times = json!({"nodes": [1], "lines": [0], "activities": [8], "steps": steps, "entries": entries});
    assert_eq!(by_times["times"], times);
    let millisecond = page.json(&format!("/api/flamegraph?{}", query(69_950, 69_951, "&times=1"))).await;
    assert_eq!(millisecond["tree"]["total"], 1);
    // Its bars are those of the profiles, as far as they lie in the range.
    let timeline = page.json(&format!("/api/timeline?{}", query(65_000, 70_000, "&times=1"))).await;
    let bars: Vec<f64> = serde_json::from_value(timeline["samples"].clone()).unwrap();
    assert!((bars.iter().sum::<f64>() - 1.5).abs() < 1e-6, "{bars:?}");
    let (_, _, body) = page.get(&format!("/api/pprof?{}", query(65_000, 70_000, "&times=1"))).await;
    assert_eq!(pprof::total(&decode(&body, DecodeLimits::default()).unwrap()), 3);
}

#[tokio::test]
async fn samples_whose_times_are_not_known_count_with_their_profile_and_it_is_said() {
    let page = page();
    let some = page.json(&format!("/api/flamegraph?{}", query(70_000, 80_000, "&times=1"))).await;
    assert_eq!((&some["tree"]["total"], &some["times"]["untimed"]), (&json!(3), &json!(2)));
    let known = page.json(&format!("/api/flamegraph?{}", query(70_000, 80_000, "&times=known"))).await;
    assert_eq!((&known["tree"]["total"], known["times"].get("untimed")), (&json!(1), None));
    let none = page.json(&format!("/api/flamegraph?{}", query(0, 60_000, "&times=1"))).await;
    assert_eq!((&none["tree"]["total"], &none["times"]["untimed"]), (&json!(10), &json!(10)));
    assert_eq!(none["times"]["nodes"], json!([]));
}

#[tokio::test]
async fn groups_are_those_of_all_that_reaches_into_the_range() {
    let page = page();
    let labels = [("comm", "till"), ("pid", "8")];
    let sample =
        Sample { times: vec![9_000], ..Sample::of_events([frame(FrameKind::Native, "leaf")].into(), 1, 1) };
    let start = Duration::from_millis(u64::try_from(START + 60_000).unwrap());
    let of_till = Series { samples: vec![sample], ..series(&labels, Vec::new()) };
    let batch = Batch { start: SystemTime::UNIX_EPOCH + start, ..batch(vec![of_till]) };
    page.store.append(&NewProfile::of_batch(&batch).unwrap()).unwrap();
    let both = page.json(&format!("/api/flamegraph?{}", query(65_000, 70_000, "&times=1&group=auto"))).await;
    assert_eq!(groups(&both), [("shop", 3), ("till", 1)]);
    let (status, error) = page.error(&format!("/api/flamegraph?{}", query(0, 900_001, "&times=1"))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(error, "parameter times: the range is longer than 15 minutes");
}

#[tokio::test]
async fn of_a_part_its_own_samples_are_counted_in_the_groups_of_the_whole() {
    let page = page();
    // `java` and `postgres` of the store ended before the part begins.
    let whole = page.json(&format!("/api/flamegraph?{}", query(0, 80_000, "&times=1&group=auto"))).await;
    assert_eq!(groups(&whole), [("java", 8), ("postgres", 2), ("shop", 7)]);
    let in_part = |rest: &str| query(0, 80_000, &format!("&times=1&group=auto&part=65000-70000{rest}"));
    let part = page.json(&format!("/api/flamegraph?{}", in_part(""))).await;
    assert_eq!((groups(&part), &part["profiles"]), (vec![("shop", 3)], &json!(2)));
    assert_eq!(part.get("times"), None, "those of the whole say it");
    let exactly = page.json(&format!("/api/flamegraph?{}", query(65_000, 70_000, "&times=known"))).await;
    assert_eq!(part["tree"]["total"], exactly["tree"]["total"]);
    let (_, _, body) = page.get(&format!("/api/pprof?{}", in_part(""))).await;
    assert_eq!(pprof::total(&decode(&body, DecodeLimits::default()).unwrap()), 3);

    // What is below one of its nodes.
    let group = PathHash::ROOT.child(PathHash::of_function(NodeKind::Label, "shop", "", ""));
    let leaf = group.child(PathHash::of_function(NodeKind::Native, "leaf", "", ""));
    for (under, groups_of_answer) in [(leaf, vec![("shop", 3)]), (PathHash::ROOT.child(leaf), vec![])] {
        let under = in_part(&format!("&under={under}&under_group=shop"));
        let under = page.json(&format!("/api/flamegraph?{under}")).await;
        assert_eq!((groups(&under), under.get("times")), (groups_of_answer, None));
    }
    let (status, error) = page.error(&format!("/api/flamegraph?{}", query(0, 9, "&times=1&part=5-10"))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let expected = "part=\"5-10\" isn't FROM-TO, milliseconds since the begin of the range and within it";
    assert_eq!(error, expected);
}
