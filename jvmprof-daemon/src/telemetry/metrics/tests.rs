//! The metrics that are exposed against those that are documented, both ways.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::event_type::EventType;
use crate::export::delivery::{DeliveryCounts, Losses};
use crate::sampler::{ProgramRunTime, SamplerCounts};
use crate::symbolize::StackOutcome;

const DOCUMENT: &str = include_str!("../../../../docs/metrics.md");

impl MetricKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

impl Metric {
    /// Returns the name that is scraped and queried.
    pub(super) fn series_name(&self) -> String {
        series_name(self.name, self.kind)
    }
}

fn series_name(name: &str, kind: MetricKind) -> String {
    match kind {
        MetricKind::Counter => format!("{name}_total"),
        MetricKind::Gauge => name.to_owned(),
    }
}

/// The rows of the document's tables: type, label and meaning by name.
fn documented() -> BTreeMap<String, (String, String, String)> {
    let mut rows = BTreeMap::new();
    let is_metric = |line: &&str| line.starts_with("| `jvmprof_") || line.starts_with("| `process_");
    for line in DOCUMENT.lines().filter(is_metric) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, label, meaning, ..] = cells[..] else { panic!("{line}: too few columns") };
        let bare = |cell: &str| cell.replace('`', "");
        let twice = rows.insert(bare(name), (bare(kind), bare(label), meaning.to_owned()));
        assert!(twice.is_none(), "{name} is documented twice");
    }
    rows
}

fn exposed(snapshot: MetricsSnapshot) -> String {
    exposition(Arc::new(snapshot)).expect("encodes")
}

/// A snapshot in which each optional part is there.
pub(super) fn full() -> MetricsSnapshot {
    let cpu = |samples| SamplesByEvent::of(EventType::Cpu, samples);
    let allocated = |samples| SamplesByEvent::of(EventType::Allocation, samples);
    let losses = Losses { spool_full: allocated(2), ..Losses::default() };
    let handed_over = cpu(7) + allocated(2);
    let delivery = DeliveryCounts { handed_over, delivered: cpu(7), losses, ..DeliveryCounts::default() };
    let mut snapshot = MetricsSnapshot {
        sinks: vec![("http://parca:7070".to_owned(), delivery), ("/var/lib/jvmprof".to_owned(), delivery)],
        uploads: Some(Default::default()),
        debuginfod: Some(Default::default()),
        ..MetricsSnapshot::default()
    };
    snapshot.pipeline.run_times.clock = Some(ProgramRunTime { run_time_ns: 1_500_000_000, run_count: 3 });
    snapshot.pipeline.outcomes = BTreeMap::from([
        (StackOutcome::Whole, cpu(5) + allocated(6)),
        (StackOutcome::Truncated("stack \"unreadable\"\n"), cpu(2)),
    ]);
    snapshot.pipeline.sampler = SamplerCounts { shed: cpu(4) + allocated(3), ..SamplerCounts::default() };
    snapshot
}

#[test]
fn the_document_has_each_metric_and_no_other() {
    let mut documented = documented();
    for metric in all() {
        let name = metric.series_name();
        let row = documented.remove(&name).unwrap_or_else(|| panic!("{name} is not in docs/metrics.md"));
        let expected = (metric.kind.as_str().to_owned(), metric.labels().join(", "), metric.help.to_owned());
        assert_eq!(row, expected, "{name} is documented otherwise");
    }
    for metric in collector::METRICS {
        let name = series_name(metric.name, metric.kind);
        let row = documented.remove(&name).unwrap_or_else(|| panic!("{name} is not in docs/metrics.md"));
        let expected = (metric.kind.as_str().to_owned(), metric.label.to_owned(), metric.help.to_owned());
        assert_eq!(row, expected, "{name} is documented otherwise");
    }
    assert!(documented.is_empty(), "documented, but not there: {:?}", documented.keys());
}

#[test]
fn the_exposition_has_a_family_for_each_metric() {
    let text = exposed(full());
    let families: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split(' ').next().unwrap_or(""))
        .collect();
    assert_eq!(families, all().map(|metric| metric.name).collect::<BTreeSet<_>>());
    for line in [
        "jvmprof_kernel_program_seconds_total 1.5",
        "jvmprof_samples_taken_total{event=\"allocation\"} 0.0",
        "jvmprof_samples_lost_total{reason=\"shed\",event=\"cpu\"} 4.0",
        "jvmprof_samples_lost_total{reason=\"shed\",event=\"allocation\"} 3.0",
        "jvmprof_stacks_total{outcome=\"whole\",event=\"allocation\"} 6.0",
        "jvmprof_samples_delivered_total{sink=\"http://parca:7070\",event=\"cpu\"} 7.0",
        "jvmprof_samples_undelivered_total{sink=\"/var/lib/jvmprof\",reason=\"spool_full\",event=\"cpu\"} 0.0",
        "jvmprof_samples_undelivered_total{sink=\"/var/lib/jvmprof\",reason=\"spool_full\",event=\"allocation\"} 2.0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line} in {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn a_collectors_exposition_has_its_counts() {
    let mut snapshot = CollectorSnapshot { used_bytes: 4096, ..CollectorSnapshot::default() };
    (snapshot.sums.refused, snapshot.store.removed_profiles) = (3, 5);
    snapshot.requests.failed_requests = 2;
    let text = collector_exposition(snapshot).expect("encodes");
    for line in [
        "jvmprof_collector_requests_total{result=\"failed\"} 2.0",
        "jvmprof_collector_sums_total{result=\"refused\"} 3.0",
        "jvmprof_store_profiles_removed_total 5.0",
        "jvmprof_store_used_bytes 4096.0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line} in {text}");
    }
    let families = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(families, collector::METRICS.len(), "{text}");
}

#[test]
fn no_value_can_forge_a_line() {
    let text = exposed(full());
    assert!(text.contains(r#"{outcome="stack \"unreadable\"\n",event="cpu"} 2"#), "{text}");
}

#[test]
fn names_follow_prometheus_rules() {
    let mut seen = BTreeSet::new();
    for metric in all() {
        assert!(seen.insert(metric.name), "{} is there twice", metric.name);
        assert!(metric.name.starts_with("jvmprof_") || metric.name.starts_with("process_"));
        assert!(!metric.name.ends_with("_total") && !metric.help.ends_with('.'), "{}", metric.name);
        assert!(!metric.help.is_empty(), "{} has no help", metric.name);
        let mut of = BTreeSet::new();
        for (labels, _) in metric.values(&full()).0 {
            assert_eq!(labels.len(), metric.labels().len(), "{}: {labels:?}", metric.name);
            assert!(of.insert(labels.clone()), "{} has {labels:?} twice", metric.name);
        }
    }
}
