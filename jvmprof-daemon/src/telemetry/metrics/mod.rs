//! The metrics: a table of the daemon's and one of the collector's, from which their expositions
//! are made and against which `docs/metrics.md` is tested.

mod collector;
mod daemon;
mod debuginfo;
mod delivery;
#[cfg(test)]
mod deployed_tests;
mod sampling;
mod symbolization;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::snapshot::MetricsSnapshot;
use crate::event_type::SamplesByEvent;
use crate::export::delivery::DeliveryCounts;
use crate::pipeline::Counts;
use crate::pipeline::jvm_totals::{JvmName, JvmTotals, PauseTotals};

pub use collector::{CollectorSnapshot, collector_exposition};

/// Content type of the exposition (OpenMetrics 1.0).
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Type of a metric: a counter only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
}

impl From<&MetricKind> for MetricType {
    fn from(kind: &MetricKind) -> Self {
        match kind {
            MetricKind::Counter => Self::Counter,
            MetricKind::Gauge => Self::Gauge,
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name without the `_total` of a counter.
    pub name: &'static str,
    pub kind: MetricKind,
    /// One sentence for people, without a full stop.
    pub help: &'static str,
    read: ValueSource,
}

/// The source of a metric's values in a snapshot.
#[derive(Clone, Copy, Debug)]
enum ValueSource {
    /// A number that the pipeline counts.
    Count(fn(&Counts) -> u64),
    Number(fn(&MetricsSnapshot) -> u64),
    Float(fn(&MetricsSnapshot) -> f64),
    /// `None`: the metric doesn't apply.
    Optional(fn(&MetricsSnapshot) -> Option<f64>),
    /// A number of each sink.
    BySink(fn(&DeliveryCounts) -> u64),
    SamplesBySink(fn(&DeliveryCounts) -> SamplesByEvent),
    /// Values by these labels.
    By(&'static [&'static str], LabelledSource),
}

type LabelledSource = fn(&MetricsSnapshot, &mut MetricValues);

impl Metric {
    const fn counter(name: &'static str, read: ValueSource) -> Self {
        Self { name, kind: MetricKind::Counter, help: "", read }
    }

    const fn gauge(name: &'static str, read: ValueSource) -> Self {
        Self { name, kind: MetricKind::Gauge, help: "", read }
    }

    const fn counter_by(name: &'static str, labels: &'static [&'static str], read: LabelledSource) -> Self {
        Self::counter(name, ValueSource::By(labels, read))
    }

    const fn gauge_by(name: &'static str, labels: &'static [&'static str], read: LabelledSource) -> Self {
        Self::gauge(name, ValueSource::By(labels, read))
    }

    /// Sets the help, which no metric goes without.
    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    /// Returns the names of its labels, if it has some.
    pub fn labels(&self) -> &'static [&'static str] {
        match self.read {
            ValueSource::Count(_)
            | ValueSource::Number(_)
            | ValueSource::Float(_)
            | ValueSource::Optional(_) => &[],
            ValueSource::BySink(_) => &["sink"],
            ValueSource::SamplesBySink(_) => &["sink", "event"],
            ValueSource::By(labels, _) => labels,
        }
    }

    /// Returns its values: none if it doesn't apply, several if it has labels.
    fn values(&self, snapshot: &MetricsSnapshot) -> MetricValues {
        let mut values = MetricValues::default();
        match self.read {
            ValueSource::Count(read) => values.set(read(&snapshot.pipeline) as f64),
            ValueSource::Number(read) => values.set(read(snapshot) as f64),
            ValueSource::Float(read) => values.set(read(snapshot)),
            ValueSource::Optional(read) => read(snapshot).into_iter().for_each(|value| values.set(value)),
            ValueSource::BySink(read) => {
                for (sink, counts) in &snapshot.sinks {
                    values.set_by(sink, read(counts));
                }
            }
            ValueSource::SamplesBySink(read) => {
                for (sink, counts) in &snapshot.sinks {
                    values.set_events(&[sink], read(counts));
                }
            }
            ValueSource::By(_, read) => read(snapshot, &mut values),
        }
        values
    }
}

/// Returns all metrics, in the order of the exposition.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    [
        sampling::METRICS,
        symbolization::METRICS,
        targets::METRICS,
        delivery::METRICS,
        debuginfo::METRICS,
        daemon::METRICS,
    ]
    .into_iter()
    .flatten()
}

/// The values of one metric, by the values of its labels, in the order of [`Metric::labels`]. Whole
/// numbers are exact up to 2^53: a counter of events takes longer than a daemon lives.
#[derive(Debug, Default)]
pub struct MetricValues(Vec<(Vec<String>, f64)>);

impl MetricValues {
    /// Sets the value of a metric without label.
    fn set(&mut self, value: f64) {
        self.0.push((Vec::new(), value));
    }

    fn set_by(&mut self, label: impl Into<String>, value: u64) {
        self.0.push((vec![label.into()], value as f64));
    }

    /// Sets the numbers of all events. `labels`: the values of the labels before `event`, which is
    /// the last one.
    fn set_events(&mut self, labels: &[&str], samples: SamplesByEvent) {
        for (event, samples) in samples.iter() {
            let labels = labels.iter().copied().chain([event.as_str()]);
            self.0.push((labels.map(str::to_owned).collect(), samples as f64));
        }
    }

    /// Sets the time of a JVM by its parts, given in ns.
    fn set_seconds(&mut self, jvm: &JvmName, parts: &BTreeMap<String, u64>) {
        for (part, nanoseconds) in parts {
            let labels = vec![jvm.name.clone(), jvm.pid.clone(), part.clone()];
            self.0.push((labels, *nanoseconds as f64 / 1e9));
        }
    }

    fn set_pauses(&mut self, jvms: &BTreeMap<JvmName, JvmTotals>, read: fn(&PauseTotals) -> f64) {
        for (jvm, totals) in jvms {
            if let Some(pauses) = &totals.pauses {
                self.0.push((vec![jvm.name.clone(), jvm.pid.clone()], read(pauses)));
            }
        }
    }

    fn set_all_by<'a>(&mut self, counts: impl IntoIterator<Item = (&'a &'static str, &'a u64)>) {
        for (label, count) in counts {
            self.set_by(*label, *count);
        }
    }
}

/// Formats a snapshot in OpenMetrics' text format.
///
/// # Errors
/// Returns no known error: writing to a string doesn't fail.
pub fn exposition(snapshot: Arc<MetricsSnapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(SnapshotCollector(snapshot)));
    let mut text = String::with_capacity(16 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct SnapshotCollector(Arc<MetricsSnapshot>);

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for metric in all() {
            let mut family =
                encoder.encode_descriptor(metric.name, metric.help, None, (&metric.kind).into())?;
            for (labels, value) in metric.values(&self.0).0 {
                if labels.is_empty() {
                    one(&mut family, metric.kind, value)?;
                } else {
                    let labels: Vec<_> = metric.labels().iter().copied().zip(labels).collect();
                    one(&mut family.encode_family(&labels)?, metric.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn one(encoder: &mut MetricEncoder<'_>, kind: MetricKind, value: f64) -> fmt::Result {
    match kind {
        MetricKind::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        MetricKind::Gauge => encoder.encode_gauge(&value),
    }
}
