//! OTLP to a real Parca: its answers beside the account, and its names of what comes.

use std::collections::BTreeSet;

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::export::otlp::OtlpProtocol;
use serde_json::Value;

use crate::delivered::{LABELLED, deliver_labelled, deliver_to_lives, first_type};
use crate::otel_collector;
use crate::parca::{each, start, sum_of_name};
use crate::server::{free_address, get};
use crate::support::scratch;

/// The name of all profiles that come by OTLP: that of their scope.
const OTLP_NAME: &str = "jvmprof";

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_parca_that_gets_otlp_answers_is_what_the_ledger_says() {
    let connect = |address: &str| otel_collector::connect(address, OtlpProtocol::Grpc);
    let sum = |address: &str, event| sum_of_name(OTLP_NAME, address, event, first_type(event), "");
    deliver_to_lives(start, connect, sum).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_parca_names_what_comes_by_otlp_after_its_scope_and_finds_it_by_labels() {
    let (dir, address) = (scratch(), free_address());
    let _parca = start(dir.path(), &address);
    deliver_labelled(otel_collector::connect(&address, OtlpProtocol::Grpc)).await;
    for event in EventType::ALL {
        // The name of a service that nobody has given is one all the same.
        for (label, value, sums) in LABELLED.into_iter().chain([("service_name", "cart", [3, 40])]) {
            let label = if label == "comm" { "process_executable_name" } else { label };
            let selector = format!("{label}=\"{value}\"");
            for (kind, expected) in event.descriptor().pushed_types.iter().zip(sums) {
                let sum =
                    tokio::task::block_in_place(|| sum_of_name(OTLP_NAME, &address, event, *kind, &selector));
                assert_eq!(sum, expected, "{event:?} {kind:?} {selector}");
            }
        }
    }
    let types = tokio::task::block_in_place(|| get(&format!("http://{address}/api/profiles/types"), &[]));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names: BTreeSet<_> =
        each(&types, "types").iter().map(|of| [text(&of["name"]), text(&of["sampleType"])]).collect();
    let pushed = EventType::ALL.into_iter().flat_map(|event| event.descriptor().pushed_types);
    let expected: BTreeSet<_> = pushed.map(|kind| [OTLP_NAME.to_owned(), kind.name.to_owned()]).collect();
    assert_eq!(names, expected);
}
