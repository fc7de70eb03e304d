//! Contexts of running processes and of hostile ones.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue};

use super::payload::encoded;
use super::reader::read;
use super::test_writer::{ContextWriter, hex, payload};
use super::*;
use crate::process::process_table::mapped_code;
use crate::process::{Process, ProcessTable, procfs};
use crate::types::{Avma, BuildId, FileOffset};

const SECOND_NS: u64 = 1_000_000_000;

/// A process in a table of its own, sampled at times of the test's choice.
struct Sampled {
    writer: ContextWriter,
    table: ProcessTable,
    start_ns: u64,
    now_ns: u64,
}

impl Sampled {
    fn new() -> Self {
        let writer = ContextWriter::start();
        let info = procfs::process_info(writer.pid()).expect("it runs");
        let start_ns = info.start_ticks * jvmprof_common::unwind_tables::NS_PER_TICK;
        Self { writer, table: ProcessTable::default(), start_ns, now_ns: SECOND_NS }
    }

    /// Samples the process some seconds later, and returns the service of its context.
    fn after(&mut self, seconds: u64) -> Option<ServiceIdentity> {
        self.now_ns += seconds * SECOND_NS;
        let none = |_: &Process| None::<std::iter::Empty<Avma>>;
        let pid = self.writer.pid();
        let process = self.table.process_of_sample(pid, self.start_ns, "writer", self.now_ns, none);
        process.context().map(|context| context.service.clone())
    }

    fn name_after(&mut self, seconds: u64) -> String {
        self.after(seconds).and_then(|service| service.name).unwrap_or_default()
    }

    fn counts(&self) -> ContextCounts {
        self.table.counts().contexts
    }
}

#[test]
fn a_context_is_read_from_each_kind_of_mapping_and_found_where_that_has_a_name() {
    for kind in ["anon", "anon_shmem", "memfd"] {
        let mut sampled = Sampled::new();
        let attributes = [
            ("service.name", "cart"),
            ("service.namespace", "shop"),
            ("deployment.environment.name", "prod"),
            ("k8s.pod.name", "cart-0"),
        ];
        let at = sampled.writer.publish(kind, &attributes);
        let (_, context) = read(sampled.writer.pid(), at).expect("a context");
        let service = &context.service;
        assert_eq!(service.name.as_deref(), Some("cart"), "{kind}");
        assert_eq!(service.namespace.as_deref(), Some("shop"));
        assert_eq!(service.environment.as_deref(), Some("prod"));
        assert_eq!(service.attributes.get("k8s.pod.name"), Some("cart-0"));
        // A kernel without CONFIG_ANON_VMA_NAME gives anonymous memory no name.
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", sampled.writer.pid())).expect("it runs");
        let is_named = maps.contains("OTEL_CTX");
        assert!(is_named || kind != "memfd");
        assert_eq!(sampled.after(0), is_named.then_some(context.service), "{kind}");
        assert_eq!(sampled.counts(), ContextCounts { read: is_named.into(), ..ContextCounts::default() });
    }
}

#[test]
fn a_context_that_is_published_later_is_found_and_its_changes_are_followed() {
    let mut sampled = Sampled::new();
    assert_eq!(sampled.after(0), None);
    sampled.writer.publish("memfd", &[("service.name", "first")]);
    assert_eq!(sampled.after(0), None, "it isn't searched at each sample");
    assert_eq!(sampled.name_after(600), "first");
    sampled.writer.update(&[("service.name", "second")]);
    assert_eq!(sampled.name_after(0), "first", "it isn't checked at each sample");
    assert_eq!(sampled.name_after(2), "second");
    assert_eq!(sampled.name_after(100), "second");
    assert_eq!(sampled.counts(), ContextCounts { read: 2, ..ContextCounts::default() });
}

#[test]
fn a_process_that_begins_is_searched_after_a_second_and_not_at_its_first_sample() {
    let mut sampled = Sampled::new();
    sampled.writer.publish("memfd", &[("service.name", "cart")]);
    sampled.table.exec(sampled.writer.pid(), "writer", 1);
    assert_eq!(sampled.after(0), None);
    assert_eq!(sampled.name_after(1), "cart");
}

#[test]
fn a_library_that_is_loaded_has_the_mappings_searched_soon() {
    let mut sampled = Sampled::new();
    (0..10).for_each(|_| assert_eq!(sampled.after(600), None));
    sampled.writer.publish("memfd", &[("service.name", "cart")]);
    assert_eq!(sampled.after(2), None);
    let library =
        mapped_code(0, Avma(0x1000), 0x1000, FileOffset(0), "/usr/lib/libagent.so", BuildId::new(&[1; 20]));
    sampled.table.insert_mapping(sampled.writer.pid(), sampled.now_ns, library);
    assert_eq!(sampled.name_after(2), "cart");
}

#[test]
fn a_context_that_is_removed_stays_until_another_one_is_published() {
    let mut sampled = Sampled::new();
    sampled.writer.publish("memfd", &[("service.name", "first")]);
    assert_eq!(sampled.name_after(0), "first");
    sampled.writer.send("remove");
    assert_eq!(sampled.name_after(2), "first");
    assert_eq!(sampled.name_after(2), "first");
    sampled.writer.publish("memfd", &[("service.name", "second")]);
    assert_eq!(sampled.name_after(600), "second");
}

#[test]
fn a_context_that_is_being_written_is_read_later() {
    let mut sampled = Sampled::new();
    sampled.writer.publish("memfd", &[("service.name", "first")]);
    sampled.writer.send("begin");
    assert_eq!(sampled.after(0), None);
    assert_eq!(sampled.counts(), ContextCounts { torn: 1, ..ContextCounts::default() });
    sampled.writer.update(&[("service.name", "second")]);
    assert_eq!(sampled.name_after(600), "second");
    sampled.writer.send("begin");
    assert_eq!(sampled.name_after(2), "second", "the last whole one counts");
    sampled.writer.update(&[("service.name", "third")]);
    assert_eq!(sampled.name_after(100), "third");
}

#[test]
fn a_context_that_changes_all_the_time_is_read_whole_or_not_at_all() {
    let mut sampled = Sampled::new();
    sampled.writer.publish("memfd", &[("service.name", "first")]);
    // The writer makes the last 4,000 bytes one letter each time: a torn one has two.
    const END: usize = 4000;
    sampled.writer.send(&format!("endless {}", payload(&[("service.name", &"x".repeat(END))])));
    while sampled.counts().read < 1000 {
        let name = sampled.name_after(600);
        let first = name.chars().next().map(String::from).unwrap_or_default();
        assert!(name.is_empty() || name == "first" || name == first.repeat(END), "{name:?} is torn");
    }
    sampled.writer.send("quiet");
    sampled.writer.update(&[("service.name", "last")]);
    assert_eq!(sampled.name_after(600), "last");
}

#[test]
fn a_process_that_changes_its_context_all_the_time_is_followed_less_often() {
    let mut sampled = Sampled::new();
    sampled.writer.publish("memfd", &[("service.name", "0")]);
    assert_eq!(sampled.name_after(0), "0");
    for second in 0..600 {
        sampled.writer.update(&[("service.name", &second.to_string())]);
        sampled.after(1);
    }
    let read = sampled.counts().read;
    assert!((8..=20).contains(&read), "{read} reads in ten minutes");
}

#[test]
fn contexts_that_are_none_are_refused_and_counted() {
    let whole = [("service.name", "x")];
    for line in ["size 0", "size 65537", "size 4294967295", "version 1", "version 3", "nowhere", "update ff"]
    {
        let mut sampled = Sampled::new();
        sampled.writer.publish("memfd", &whole);
        sampled.writer.send(line);
        assert_eq!(sampled.after(0), None, "{line}");
        assert_eq!(sampled.counts(), ContextCounts { refused: 1, ..ContextCounts::default() }, "{line}");
        sampled.writer.send("version 2");
        sampled.writer.update(&whole);
        assert_eq!(sampled.name_after(600), "x", "{line}: a later one is read");
    }
}

#[test]
fn a_refused_payload_is_read_once() {
    let mut sampled = Sampled::new();
    sampled.writer.publish("memfd", &[("service.name", "x")]);
    sampled.writer.send("update ff");
    for _ in 0..10 {
        assert_eq!(sampled.after(600), None);
    }
    assert_eq!(sampled.counts(), ContextCounts { refused: 1, ..ContextCounts::default() });
}

#[test]
fn values_that_are_no_texts_are_left_out_and_counted() {
    let array = ArrayValue { values: vec![AnyValue { value: Some(Value::BoolValue(true)) }] };
    let bytes = encoded(&[
        ("service.name", Value::StringValue("cart".to_owned())),
        ("a", Value::IntValue(-7)),
        ("b", Value::BoolValue(true)),
        ("c", Value::ArrayValue(array)),
        ("d", Value::BytesValue(vec![1])),
        ("service.name", Value::StringValue("again".to_owned())),
    ]);
    let context = decode(&bytes).expect("a context");
    let pairs: Vec<_> = context.service.attributes.iter().collect();
    assert_eq!(pairs, [("a", "-7"), ("b", "true"), ("service.name", "cart")]);
    assert_eq!(context.left_out, 3);
    assert_eq!(decode(b""), Ok(ProcessContext::default()));
    let many: Vec<(String, Value)> =
        (0..500).map(|number| (format!("k{number}"), Value::IntValue(number))).collect();
    let many: Vec<(&str, Value)> = many.iter().map(|(name, value)| (&**name, value.clone())).collect();
    assert_eq!(decode(&encoded(&many)).expect("a context").left_out, 500 - 64);
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_a_context_within_bounds_or_none(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        at in 0_usize..60,
        changed in proptest::prelude::any::<u8>(),
    ) {
        let mut whole = encoded(&[
            ("service.name", Value::StringValue("cart".to_owned())),
            ("a", Value::DoubleValue(0.5)),
        ]);
        let len = whole.len();
        whole[at % len] = changed;
        for bytes in [bytes, whole] {
            if let Some(header) = bytes.first_chunk() {
                let _ = ContextHeader::parse(header);
            }
            let Ok(context) = decode(&bytes) else { continue };
            let kept = context.service.attributes.iter().map(|(name, value)| name.len() + value.len());
            proptest::prop_assert!(kept.sum::<usize>() <= 16 << 10);
        }
    }
}

#[test]
fn a_payload_that_is_cut_anywhere_or_nested_endlessly_harms_nobody() {
    let whole = encoded(&[("service.name", Value::StringValue("cart".to_owned()))]);
    for end in 1..whole.len() {
        assert_eq!(decode(&whole[..end]), Err(ContextError::Malformed), "{end} of {}", hex(&whole));
    }
    // An array in an array, about as deep as the longest payload allows, in an attribute's value.
    let within = |tag: u8, inner: &[u8]| {
        let mut outer = vec![tag];
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend_from_slice(inner);
        outer
    };
    let mut nested = Vec::new();
    while nested.len() < 60_000 {
        nested = within(0x2a, &within(0x0a, &nested));
    }
    let attribute = within(0x0a, &within(0x12, &nested));
    assert_eq!(decode(&within(0x0a, &attribute)), Err(ContextError::Malformed));
}
