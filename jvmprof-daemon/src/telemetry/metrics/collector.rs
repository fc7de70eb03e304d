//! Metrics of `jvmprof collector`, on the port of its page.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::{MetricKind, one};
use crate::export::collector::CollectorCounters;
use crate::export::collector::sums::SumCounts;
use crate::export::store::StoreCounters;

/// Counts of a collector since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct CollectorSnapshot {
    pub requests: CollectorCounters,
    pub store: StoreCounters,
    pub sums: SumCounts,
    /// Bytes that the store's files take now.
    pub used_bytes: u64,
}

/// One metric of a collector.
#[derive(Clone, Copy, Debug)]
pub(super) struct CollectorMetric {
    /// Name without the `_total` of a counter.
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    /// Name of its label; empty without one.
    pub(super) label: &'static str,
    /// One sentence for people, without a full stop.
    pub(super) help: &'static str,
    /// Values by the label's.
    read: fn(&CollectorSnapshot) -> Vec<(&'static str, u64)>,
}

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&CollectorSnapshot) -> Vec<(&'static str, u64)>,
) -> CollectorMetric {
    CollectorMetric { name, kind: MetricKind::Counter, label: "", help, read }
}

impl CollectorMetric {
    const fn by(self, label: &'static str) -> Self {
        Self { label, ..self }
    }
}

/// All of them, in the order of the exposition.
pub(super) const METRICS: &[CollectorMetric] = &[
    counter("jvmprof_collector_requests", "Requests with profiles, by what became of them", |it| {
        let CollectorCounters { stored_requests, refused_requests, failed_requests, .. } = it.requests;
        vec![("stored", stored_requests), ("refused", refused_requests), ("failed", failed_requests)]
    })
    .by("result"),
    counter("jvmprof_collector_samples", "Samples that were stored", |it| {
        vec![("", it.requests.stored_samples)]
    }),
    counter("jvmprof_store_profiles_stored", "Profiles that were written to the folder", |it| {
        vec![("", it.store.stored_profiles)]
    }),
    counter("jvmprof_store_bytes_stored", "Bytes of these profiles", |it| vec![("", it.store.stored_bytes)]),
    counter(
        "jvmprof_store_profiles_removed",
        "Oldest profiles that were removed, since the folder is as large as it may be",
        |it| vec![("", it.store.removed_profiles)],
    ),
    counter("jvmprof_store_bytes_removed", "Bytes of these profiles", |it| {
        vec![("", it.store.removed_bytes)]
    }),
    counter(
        "jvmprof_store_files_left_over",
        "Half-written files of an earlier crash that were removed before the first profile was stored",
        |it| vec![("", it.store.leftovers_removed)],
    ),
    counter(
        "jvmprof_store_files_skipped",
        "Files and folders that are somebody else's, can't be read, or find no room for their labels in memory, and are left alone",
        |it| vec![("", it.store.skipped)],
    ),
    counter("jvmprof_collector_sums", "Sums of a series and a period, by what became of them", |it| {
        let SumCounts { stored, outdated, refused, failed } = it.sums;
        vec![("stored", stored), ("outdated", outdated), ("refused", refused), ("failed", failed)]
    })
    .by("result"),
    CollectorMetric {
        kind: MetricKind::Gauge,
        ..counter("jvmprof_store_used_bytes", "Bytes that the folder takes on disk", |it| {
            vec![("", it.used_bytes)]
        })
    },
];

/// Formats a snapshot in OpenMetrics' text format.
///
/// # Errors
/// Returns no known error: writing to a string doesn't fail.
pub fn collector_exposition(snapshot: CollectorSnapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for CollectorSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for CollectorMetric { name, kind, label, help, read } in METRICS {
            let mut family = encoder.encode_descriptor(name, help, None, kind.into())?;
            for (result, number) in read(self) {
                let number = number as f64;
                match *label {
                    "" => one(&mut family, *kind, number)?,
                    _ => one(&mut family.encode_family(&[(*label, result)])?, *kind, number)?,
                }
            }
        }
        Ok(())
    }
}
