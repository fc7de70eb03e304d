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
    let times = json!({"nodes": [1], "lines": [0], "activities": [8], "samples": "AADWJgAxAA=="});
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
