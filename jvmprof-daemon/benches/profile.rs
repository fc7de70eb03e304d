//! Cost of turning ten seconds of a busy host into pprof, and to merge pprof again.
//!
//! `cargo bench --bench profile`: 200 processes, 50 stacks each, 60 frames deep, Java with inlined
//! lines.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use divan::Bencher;
use divan::counter::ItemsCount;
use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::profile::folded_stacks::{self, Annotation};
use jvmprof_daemon::profile::model::{Batch, Frame, FrameKind, LabelSet, Line, Mapping, Sample, Series};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::profile::pprof::merge::{MAX_BYTES, Merger};
use jvmprof_daemon::profile::pprof::{for_file, for_push, to_bytes};
use jvmprof_daemon::types::{Avma, FileOffset};

const PROCESSES: u64 = 200;
const STACKS: u64 = 50;
const DEPTH: u64 = 60;
/// Different frames of a process; stacks share most of theirs.
const FRAMES: u64 = 400;

fn main() {
    divan::main();
}

fn line(number: u64) -> Line {
    let name: Arc<str> =
        format!("com.acme.package{}.Class{}.method{number}", number % 17, number % 93).into();
    let system_name = format!("{name}(Ljava/util/List;IJ)Ljava/lang/Object;").into();
    let file = Some(format!("Class{}.java", number % 93).into());
    Line { system_name, file, line: (number % 900) as u32 + 1, ..Line::named(name) }
}

fn process(pid: u64) -> Series {
    let mapping = Arc::new(Mapping {
        start: Avma(0x7000_0000),
        limit: Avma(0x7800_0000),
        offset: FileOffset(0),
        path: "jvm".into(),
        build_id: None,
    });
    let frame = |number: u64| {
        let lines = (0..1 + number % 3).map(|inlined| line(number * 3 + inlined)).collect();
        let (address, mapping) = (Some(Avma(0x7000_0000 + number * 64)), Some(Arc::clone(&mapping)));
        Arc::new(Frame { kind: FrameKind::Java, address, mapping, lines })
    };
    let frames: Vec<_> = (0..FRAMES).map(frame).collect();
    let stack = |number: u64| {
        let frame = |at| Arc::clone(&frames[((number * 7 + at * 5) % FRAMES) as usize]);
        let events = number % 9 + 1;
        Sample::of_events((0..DEPTH).map(frame).collect(), events, events * 10_000_000)
    };
    Series {
        labels: LabelSet::from([("pid".to_owned(), pid.to_string()), ("comm".to_owned(), "java".to_owned())]),
        samples: (0..STACKS).map(stack).collect(),
    }
}

fn host() -> Batch {
    Batch {
        event: EventType::Cpu,
        start: SystemTime::now(),
        duration: Duration::from_secs(10),
        period: 10_000_000,
        series: (0..PROCESSES).map(process).collect(),
    }
}

fn frames() -> ItemsCount {
    ItemsCount::new(PROCESSES * STACKS * DEPTH)
}

#[divan::bench]
fn encode_for_push(bencher: Bencher<'_, '_>) {
    let batch = host();
    bencher.counter(frames()).bench_local(|| {
        batch.series.iter().map(|series| for_push(&batch, series).sample.len()).sum::<usize>()
    });
}

#[divan::bench]
fn encode_for_file(bencher: Bencher<'_, '_>) {
    let batch = host();
    bencher.counter(frames()).bench_local(|| for_file(&batch));
}

#[divan::bench]
fn compress_for_push(bencher: Bencher<'_, '_>) {
    let batch = host();
    let profiles: Vec<_> = batch.series.iter().map(|series| for_push(&batch, series)).collect();
    bencher.counter(frames()).bench_local(|| {
        profiles.iter().map(|profile| to_bytes(profile).map_or(0, |bytes| bytes.len())).sum::<usize>()
    });
}

#[divan::bench]
fn fold(bencher: Bencher<'_, '_>) {
    let batch = host();
    bencher.counter(frames()).bench_local(|| folded_stacks::lines(&batch, Annotation::Kernel).len());
}

#[divan::bench]
fn merge(bencher: Bencher<'_, '_>) {
    let batch = host();
    let profiles: Vec<_> =
        batch.series.iter().filter_map(|series| to_bytes(&for_push(&batch, series)).ok()).collect();
    bencher.counter(frames()).bench_local(|| {
        let mut merger = Merger::new(MAX_BYTES);
        let decoded = profiles.iter().filter_map(|bytes| decode(bytes, DecodeLimits::default()).ok());
        let added = decoded.filter(|profile| merger.add(profile).is_ok()).count();
        (added, merger.finish())
    });
}
