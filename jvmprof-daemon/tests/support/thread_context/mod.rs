//! Programs that publish which request their threads work on, and the labels that samples have of
//! it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::model::LabelSet;
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use prost::Message as _;

use super::{KilledChild, Workload, jvmprof, scratch, signal};

/// What publishes contexts: a part of a program, or a library.
pub(crate) const WRITER: &str = "support/thread_context/writer.c";

/// Flags of a daemon that labels samples with their requests.
pub(crate) const WITH_LABELS: [&str; 3] = ["--thread-context", "--thread-context-attributes", "http.route"];

/// The process context of these programs: how their threads publish contexts, and the names of
/// attributes, in hexadecimal digits.
pub(crate) fn process_context(schema: &str) -> String {
    let text = |text: &str| AnyValue { value: Some(Value::StringValue(text.to_owned())) };
    let keys = ["http.request.method", "http.route"].map(text).to_vec();
    let keys = AnyValue { value: Some(Value::ArrayValue(ArrayValue { values: keys })) };
    let attributes = [("threadlocal.schema_version", text(schema)), ("threadlocal.attribute_key_map", keys)];
    let mut payload = Vec::new();
    for (key, value) in attributes {
        let attribute = KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() };
        let bytes = attribute.encode_to_vec();
        payload.extend([0x12, u8::try_from(bytes.len()).expect("a short attribute")]);
        payload.extend(bytes);
    }
    payload.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compiles files of the tests' folder.
pub(crate) fn gcc(compiler: &str, output: &Path, files: &[&str], flags: &[&str]) {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut gcc = Command::new(compiler);
    gcc.args(["-O2", "-fno-optimize-sibling-calls", "-pthread", "-o"]).arg(output);
    gcc.args(files.iter().map(|file| programs.join(file))).args(flags);
    let status = gcc.status().unwrap_or_else(|error| panic!("this test runs {compiler}: {error}"));
    assert!(status.success(), "{compiler} {files:?} {flags:?}");
}

/// The labels of a sample.
pub(crate) type Labels = BTreeMap<String, String>;

/// Samples of a program, by what its thread did. Those of other code aren't kept.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// The number of the request that is on the stack, and the labels.
    pub(crate) of_requests: Vec<(usize, Labels)>,
    /// In `attach`, which writes the record of a request that begins.
    pub(crate) in_attach: Vec<Labels>,
    /// In `between`, where the thread has no request.
    pub(crate) between: Vec<Labels>,
}

/// Requests of these programs are numbered from 0 up to this.
const REQUESTS: usize = 8;

/// A program with its arguments.
pub(crate) type Load<'a> = (&'a Path, Vec<&'a str>);

/// Profiles of a process, two seconds each, in which its context may not have been found yet, where
/// samples have no labels by which that would be seen.
const SKIPPED: usize = 3;
/// The same where they have: the first one with labels, and one in which names of attributes may be
/// missing.
const SETTLING: usize = 2;
/// Profiles that are returned, at least.
const ENOUGH: usize = 2;
/// Longest time until there are as many, on a machine that is busy with other things.
const LONGEST_WAIT: Duration = Duration::from_mins(2);

fn of_process(pid: u32) -> [Matcher; 2] {
    [Matcher::equal("__name__", "process_cpu"), Matcher::equal("pid", pid.to_string())]
}

/// Samples programs, and returns the samples of each from when its context was found.
pub(crate) fn samples_of(loads: &[Load<'_>], options: &[&str]) -> Vec<Samples> {
    profiles_of(loads, options).into_iter().map(samples_of_profiles).collect()
}

/// As [`samples_of`]: the samples of so many programs at the end have no labels all the same.
pub(crate) fn samples_with_and_without(loads: &[Load<'_>], without: usize) -> Vec<Samples> {
    let profiles = stored_profiles(loads, &WITH_LABELS, loads.len() - without);
    profiles.into_iter().map(samples_of_profiles).collect()
}

fn samples_of_profiles(profiles: Vec<StoredProfile>) -> Samples {
    let mut samples = Samples::default();
    for (_, pprof) in profiles {
        let more = samples_of_pprof(&pprof);
        samples.of_requests.extend(more.of_requests);
        samples.in_attach.extend(more.in_attach);
        samples.between.extend(more.between);
    }
    samples
}

/// A profile as the daemon has stored it: the labels of its series, and pprof.
pub(crate) type StoredProfile = (LabelSet, Vec<u8>);

/// Samples programs, and returns the profiles of each from when its context was found.
pub(crate) fn profiles_of(loads: &[Load<'_>], options: &[&str]) -> Vec<Vec<StoredProfile>> {
    let labelled = if options.is_empty() { 0 } else { loads.len() };
    stored_profiles(loads, options, labelled)
}

/// Samples programs, of which the first so many have labels once their context was found: the
/// profiles of each from the first one on in which all samples may have them.
fn stored_profiles(loads: &[Load<'_>], options: &[&str], labelled: usize) -> Vec<Vec<StoredProfile>> {
    let dir = scratch();
    let store = dir.path().join("store");
    let loads: Vec<Workload> =
        loads.iter().map(|(program, arguments)| Workload::start(program, arguments)).collect();
    let mut daemon = jvmprof();
    daemon.args(["daemon", "--push-interval", "2s", "-F", "499", "--local-store-directory"]).arg(&store);
    let mut daemon = KilledChild(daemon.args(options).spawn().expect("the binary runs"));
    // `None` while the daemon makes the store, or changes it.
    let read = || -> Option<Vec<Vec<StoredProfile>>> {
        let store = Store::open_for_reading(&store).ok()?;
        let read = |(at, load): (usize, &Workload)| profiles_of_process(&store, load.pid(), at < labelled);
        loads.iter().enumerate().map(read).collect()
    };
    let has_enough = |profiles: &[Vec<StoredProfile>]| profiles.iter().all(|of| of.len() >= ENOUGH);
    let deadline = Instant::now() + LONGEST_WAIT;
    while !read().is_some_and(|profiles| has_enough(&profiles)) {
        let seen = || read().map(|profiles| profiles.iter().map(Vec::len).collect::<Vec<_>>());
        assert!(Instant::now() < deadline, "too few profiles with contexts: {:?}", seen());
        std::thread::sleep(Duration::from_secs(1));
    }
    signal(daemon.0.id(), "TERM");
    assert!(daemon.0.wait().expect("it ends").success());
    read().expect("it was stored")
}

/// The profiles of a process from when its context was found. `is_labelled`: samples have the
/// labels of requests from then on.
fn profiles_of_process(store: &Store, pid: u32, is_labelled: bool) -> Option<Vec<StoredProfile>> {
    let series = store.series(TimeRange::ALL, &of_process(pid));
    let (mut skipped, to_skip) = (0, if is_labelled { SETTLING } else { SKIPPED });
    let mut stored = Vec::new();
    for profile in store.profiles(TimeRange::ALL, &of_process(pid)) {
        let own = series.iter().find(|series| series.fingerprint == profile.fingerprint)?;
        let pprof = store.read(&profile).ok()?;
        if skipped >= to_skip {
            stored.push((own.labels.clone(), pprof));
        } else if !is_labelled || skipped > 0 || has_labels(&pprof) {
            skipped += 1;
        }
    }
    Some(stored)
}

/// Returns true if any of the samples of requests has the labels of one.
fn has_labels(pprof: &[u8]) -> bool {
    samples_of_pprof(pprof).of_requests.iter().any(|(_, labels)| labels.contains_key("trace_id"))
}

/// Returns the samples of a profile.
pub(crate) fn samples_of_pprof(bytes: &[u8]) -> Samples {
    let pprof = decode(bytes, DecodeLimits::default()).expect("pprof");
    let text = |at: i64| pprof.string_table[at as usize].as_str();
    let mut samples = Samples::default();
    for sample in &pprof.sample {
        let locations =
            sample.location_id.iter().filter_map(|id| pprof.location.iter().find(|it| it.id == *id));
        // With those that were inlined.
        let lines = locations.flat_map(|location| &location.line);
        let functions =
            lines.filter_map(|line| pprof.function.iter().find(|function| function.id == line.function_id));
        let functions: Vec<&str> = functions.map(|function| text(function.name)).collect();
        let labels = sample.label.iter().map(|it| (text(it.key).to_owned(), text(it.str).to_owned()));
        let labels: Labels = labels.collect();
        let request = functions.iter().find_map(|name| name.rsplit_once("request_")?.1.parse().ok());
        // In whichever class.
        let is_in = |method: &str| functions.iter().any(|name| name.rsplit('.').next() == Some(method));
        if let Some(number) = request {
            samples.of_requests.push((number, labels));
        } else if is_in("attach") {
            samples.in_attach.push(labels);
        } else if is_in("between") {
            samples.between.push(labels);
        }
    }
    samples
}

/// Returns true if the labels are those of one request, of whichever number, or of none: those that
/// a record gives while it is written, unless it is taken for whole when it isn't.
pub(crate) fn are_of_one_request_or_none(labels: &Labels) -> bool {
    labels.is_empty() || (0..REQUESTS).any(|number| are_of_request(number, labels))
}

/// Returns true if the labels are those of the request of this number.
pub(crate) fn are_of_request(number: usize, labels: &Labels) -> bool {
    let expected = [
        ("http_route", format!("/route/{number}")),
        ("span_id", format!("{:02x}", 0x10 + number).repeat(8)),
        ("trace_id", format!("{:02x}", 0xa0 + number).repeat(16)),
    ];
    labels.iter().map(|(name, value)| (name.as_str(), value.clone())).eq(expected)
}
