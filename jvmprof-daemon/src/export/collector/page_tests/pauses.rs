//! Answers about pauses, and about time that is no CPU time.

use super::*;

/// Stores pauses of `java` in the second of its profiles: one that began half a second before it.
fn add_pauses(page: &PageClient) {
    let java = [("comm", "java"), ("pid", "1")];
    let begin =
        SampleLabel { name: PAUSE_BEGIN.name.into(), value: format!("{}000000", START + 9_500).into() };
    let sample = |time, count, value| Sample {
        labels: SampleLabels::new([begin.clone()]),
        ..Sample::of_events(frames(&"ThreadDump".into(), None, time), count, value)
    };
    let samples =
        vec![sample(PauseTime::Stopped, 1, 1_000_000_000), sample(PauseTime::ToSafepoint, 0, 250_000_000)];
    let of_jvm = Series { samples, ..series(&java, Vec::new()) };
    let batch = Batch { event: EventType::Pause, period: 1, ..batch(vec![of_jvm]) };
    let profile = NewProfile {
        labels: with_name(&batch.series[0].labels, "jvm_pauses").into(),
        start: UnixNanos((START + 10_000) * 1_000_000),
        duration: Duration::from_secs(10),
        samples: 1,
        pprof: pprof::to_bytes(&pprof::for_push(&batch, &batch.series[0])).unwrap().into(),
    };
    page.store.append(&[profile]).unwrap();
}

#[tokio::test]
async fn pauses_are_those_of_the_chosen_jvms_and_time_whatever_is_counted() {
    let page = PageClient::new();
    let of =
        |from: i64, to: i64, rest: &str| format!("/api/pauses?from={}&to={}{rest}", START + from, START + to);
    let none = json!({"jvms": [], "more_jvms": 0, "unreadable": 0});
    assert_eq!(page.json(&of(0, 60_000, "")).await, none);
    add_pauses(&page);
    let mark = |begin_ms: f64| json!({"begin_ms": begin_ms, "to_safepoint_ms": 250.0, "stopped_ms": 1_000.0, "what": "ThreadDump"});
    for rest in ["", "&match=comm=java", "&type=memory:alloc_space"] {
        let all = page.json(&of(0, 60_000, rest)).await;
        // Two profiles of CPU time, and that of pauses beside the second.
        let expected = json!({
            "jvm": "java (1)", "followed_from_ms": 0.0, "followed_ms": 20_000.0, "pauses": 1,
            "stopped_ms": 1_000.0, "to_safepoint_ms": 250.0, "marks": [mark(9_500.0)],
        });
        assert_eq!(all["jvms"], json!([expected]), "{rest}");
    }
    // It is in the next profile, and reaches into both times.
    let before = page.json(&of(0, 10_000, "")).await;
    assert_eq!(
        (&before["jvms"][0]["stopped_ms"], &before["jvms"][0]["to_safepoint_ms"]),
        (&json!(250.0), &json!(250.0))
    );
    let after = page.json(&of(10_000, 20_000, "")).await;
    assert_eq!(
        (&after["jvms"][0]["stopped_ms"], &after["jvms"][0]["to_safepoint_ms"]),
        (&json!(750.0), &json!(0.0))
    );
    assert_eq!(after["jvms"][0]["marks"], json!([mark(-500.0)]));
    assert_eq!(page.json(&of(0, 60_000, "&match=comm=postgres")).await, none);
    assert_eq!(page.json(&of(20_000, 60_000, "")).await["jvms"], json!([]));
    // A part of a range with times is looked at by itself: only gaps make more than one span.
    assert_eq!(page.json(&of(0, 60_000, "&times=1")).await["jvms"][0].get("followed_spans_ms"), None);
    let stack = vec![frame(FrameKind::Native, "leaf")];
    add_profile_at(&page, 40_000, series(&[("comm", "java"), ("pid", "1")], vec![(stack, 1)]));
    let spans = json!([[0.0, 20_000.0], [40_000.0, 50_000.0]]);
    assert_eq!(page.json(&of(0, 60_000, "&times=1")).await["jvms"][0]["followed_spans_ms"], spans);
    assert_eq!(page.json(&of(0, 60_000, "")).await["jvms"][0].get("followed_spans_ms"), None);
}

#[tokio::test]
async fn waits_have_the_kinds_of_their_threads_and_no_timeline_of_activities() {
    let page = PageClient::new();
    let stack = vec![frame(FrameKind::Native, "leaf")];
    let mut waits = batch(vec![series(&[("comm", "java")], vec![(stack, 4)])]);
    waits.event = EventType::OffCpu;
    let label = SampleLabel { name: "thread_kind".into(), value: "gc".into() };
    waits.series[0].samples[0].labels = SampleLabels::new([label]);
    let profile = NewProfile {
        labels: with_name(&waits.series[0].labels, "off_cpu").into(),
        start: UnixNanos(START * 1_000_000),
        duration: Duration::from_secs(10),
        samples: 4,
        pprof: pprof::to_bytes(&pprof::for_push(&waits, &waits.series[0])).unwrap().into(),
    };
    page.store.append(&[profile]).unwrap();
    let flame = page.json(&format!("/api/flamegraph?{}", range("&type=off_cpu:off_cpu"))).await;
    assert_eq!(flame["tree"]["nodes"]["activity"], json!([[], [3 << 4 | 1]]), "{flame}");
    assert_eq!((&flame["unit"], &flame["activities"]), (&json!("waiting_time"), &Value::Null));
}
