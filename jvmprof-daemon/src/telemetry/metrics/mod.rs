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

use super::snapshot::Snapshot;

/// What the exposition is, as OpenMetrics 1.0 says it.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Only ever grows, or may also fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// One metric. `read` gives its values: none if it doesn't apply, several if it has labels.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Without the `_total` of a counter.
    pub name: &'static str,
    pub kind: Kind,
    /// Names of its labels, if it has some.
    pub labels: &'static [&'static str],
    /// One sentence for people, without a full stop.
    pub help: &'static str,
    pub read: fn(&Snapshot, &mut Values),
}

impl Metric {
    const fn counter(name: &'static str, help: &'static str, read: fn(&Snapshot, &mut Values)) -> Self {
        Self { name, kind: Kind::Counter, labels: &[], help, read }
    }

    const fn gauge(name: &'static str, help: &'static str, read: fn(&Snapshot, &mut Values)) -> Self {
        Self { name, kind: Kind::Gauge, labels: &[], help, read }
    }

    const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// As it is scraped and queried.
    pub fn series_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Gauge => self.name.to_owned(),
        }
    }
}

/// All metrics, in the order in which they are told.
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
pub struct Values(Vec<(Vec<String>, f64)>);

impl Values {
    /// The value of a metric without label. Whole numbers are exact up to 2^53: a counter of events
    /// takes longer than a daemon lives.
    fn is(&mut self, value: u64) {
        self.real(value as f64);
    }

    fn real(&mut self, value: f64) {
        self.0.push((Vec::new(), value));
    }

    fn of(&mut self, label: impl Into<String>, value: u64) {
        self.0.push((vec![label.into()], value as f64));
    }

    fn of_two(&mut self, first: &str, second: &str, value: u64) {
        self.0.push((vec![first.to_owned(), second.to_owned()], value as f64));
    }

    fn by<'a>(&mut self, counts: impl IntoIterator<Item = (&'a &'static str, &'a u64)>) {
        for (label, count) in counts {
            self.of(*label, *count);
        }
    }
}

/// The snapshot in OpenMetrics' text format.
///
/// # Errors
/// None that is known: writing to a string doesn't fail.
pub fn exposition(snapshot: Arc<Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposed(snapshot)));
    let mut text = String::with_capacity(16 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Exposed(Arc<Snapshot>);

impl Collector for Exposed {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for metric in all() {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut values = Values::default();
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

fn one(encoder: &mut MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        Kind::Gauge => encoder.encode_gauge(&value),
    }
}
