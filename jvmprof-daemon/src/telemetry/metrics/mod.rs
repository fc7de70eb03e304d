//! The metrics: one table, from which the exposition is made and against which `docs/metrics.md` is
//! tested.

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

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::snapshot::MetricsSnapshot;
use crate::event_type::SamplesByEvent;

/// Content type of the exposition (OpenMetrics 1.0).
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Type of a metric: a counter only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
}

impl MetricKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// One metric. `read` sets its values: none if it doesn't apply, several if it has labels.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name without the `_total` of a counter.
    pub name: &'static str,
    pub kind: MetricKind,
    /// Names of its labels, if it has some.
    pub labels: &'static [&'static str],
    /// One sentence for people, without a full stop.
    pub help: &'static str,
    pub read: fn(&MetricsSnapshot, &mut MetricValues),
}

impl Metric {
    const fn counter(
        name: &'static str,
        help: &'static str,
        read: fn(&MetricsSnapshot, &mut MetricValues),
    ) -> Self {
        Self { name, kind: MetricKind::Counter, labels: &[], help, read }
    }

    const fn gauge(
        name: &'static str,
        help: &'static str,
        read: fn(&MetricsSnapshot, &mut MetricValues),
    ) -> Self {
        Self { name, kind: MetricKind::Gauge, labels: &[], help, read }
    }

    const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// Returns the name that is scraped and queried.
    pub fn series_name(&self) -> String {
        match self.kind {
            MetricKind::Counter => format!("{}_total", self.name),
            MetricKind::Gauge => self.name.to_owned(),
        }
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

/// The values of one metric, by the values of its labels, in the order of [`Metric::labels`].
#[derive(Debug, Default)]
pub struct MetricValues(Vec<(Vec<String>, f64)>);

impl MetricValues {
    /// Sets the value of a metric without label. Whole numbers are exact up to 2^53: a counter of
    /// events takes longer than a daemon lives.
    fn set(&mut self, value: u64) {
        self.set_float(value as f64);
    }

    fn set_float(&mut self, value: f64) {
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
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
            };
            let mut values = MetricValues::default();
            (metric.read)(&self.0, &mut values);
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (labels, value) in values.0 {
                if labels.is_empty() {
                    one(&mut family, metric.kind, value)?;
                } else {
                    let labels: Vec<_> = metric.labels.iter().copied().zip(labels).collect();
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
