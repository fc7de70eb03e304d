//! Requests that samples belong to, at a real Pyroscope: their spans are found, and make no series.

use jvmprof_daemon::event_type::{EventType, SampleType};
use serde_json::json;

use super::{STORAGES, Storage, ask, connect, names_of, profile_type, start, sum_of};
use crate::delivered::{SPAN_ID, TRACE_ID, deliver_labelled};
use crate::server::free_address;
use crate::support::scratch;

/// A span of which there is no sample.
const OTHER_SPAN_ID: &str = "00f067aa0ba902b7";

#[tokio::test(flavor = "multi_thread")]
async fn a_real_pyroscope_finds_the_samples_of_a_span_in_each_type_of_every_event() {
    for storage in STORAGES {
        let (dir, address) = (scratch(), free_address());
        let _pyroscope = start(dir.path(), &address, storage);
        deliver_labelled(connect(&address)).await;
        tokio::task::block_in_place(|| assert_spans(storage, &address));
    }
}

/// Asks for the spans and traces of what [`deliver_labelled`] has delivered.
fn assert_spans(storage: Storage, address: &str) {
    for event in EventType::ALL {
        for (kind, expected) in event.descriptor().sample_types.iter().zip([7, 700]) {
            let of = format!("{storage:?} {event:?} {kind:?}");
            assert_eq!(sum_of_span(address, event, *kind, SPAN_ID), expected, "{of}");
            assert_eq!(sum_of_span(address, event, *kind, OTHER_SPAN_ID), 0, "{of}");
            let trace = format!("trace_id=\"{TRACE_ID}\"");
            assert_eq!(sum_of(address, event, *kind, &trace), expected, "{of}");
        }
    }
    let names = names_of(address, "shop", None);
    assert!(names.iter().any(|name| name == "thread_name"), "{storage:?}: {names:?}");
    assert!(!names.iter().any(|name| name == "span_id"), "a series for each span: {storage:?}: {names:?}");
    // Up to version 1.21 each trace is a series, with either storage.
    assert!(names.iter().any(|name| name == "trace_id"), "{storage:?}: {names:?}");
}

/// Asks for the sum of a sample type over the samples of a span, whose service is `shop`.
fn sum_of_span(address: &str, event: EventType, kind: SampleType, span: &str) -> u64 {
    let question = json!({
        "profileTypeID": profile_type(event, kind),
        "labelSelector": "{service_name=\"shop\"}",
        "spanSelector": [span],
    });
    let answer = ask(address, "SelectMergeSpanProfile", question);
    // A number of 64 bits is a text, and none is left out.
    answer["flamegraph"]["total"].as_str().map_or(0, |total| total.parse().unwrap())
}
