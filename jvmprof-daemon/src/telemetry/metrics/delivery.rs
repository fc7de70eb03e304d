//! Metrics of delivery, by sink: outcomes of samples that were handed to it.
//!
//! Sinks are called by the backend's address, which never has a user or a password in it, or by the
//! folder.

use super::{Metric, MetricValues};
use crate::event_type::SamplesByEvent;
use crate::export::delivery::DeliveryCounts;
use crate::telemetry::MetricsSnapshot;

fn each(snapshot: &MetricsSnapshot, values: &mut MetricValues, count: fn(&DeliveryCounts) -> u64) {
    for (sink, counts) in &snapshot.sinks {
        values.set_by(sink, count(counts));
    }
}

fn samples(
    snapshot: &MetricsSnapshot,
    values: &mut MetricValues,
    count: fn(&DeliveryCounts) -> SamplesByEvent,
) {
    for (sink, counts) in &snapshot.sinks {
        values.set_events(&[sink], count(counts));
    }
}

pub(super) const METRICS: &[Metric] = &[
    Metric::counter("jvmprof_windows", "Windows that have ended", |snapshot, values| {
        values.set(snapshot.windows);
    }),
    Metric::counter(
        "jvmprof_samples_found",
        "Samples that an earlier daemon had left in the spool",
        |snapshot, values| samples(snapshot, values, |counts| counts.found),
    )
    .by(&["sink", "event"]),
    Metric::counter(
        "jvmprof_samples_handed_over",
        "Samples that were handed to a sink",
        |snapshot, values| samples(snapshot, values, |counts| counts.handed_over),
    )
    .by(&["sink", "event"]),
    Metric::counter("jvmprof_samples_delivered", "Samples that a sink has taken", |snapshot, values| {
        samples(snapshot, values, |counts| counts.delivered);
    })
    .by(&["sink", "event"]),
    Metric::counter(
        "jvmprof_samples_delivered_late",
        "The part of them that had waited in the spool",
        |snapshot, values| samples(snapshot, values, |counts| counts.delivered_late),
    )
    .by(&["sink", "event"]),
    Metric::counter(
        "jvmprof_samples_undelivered",
        "Samples that were lost on their way out, possibly_lost ones perhaps not",
        |snapshot, values| {
            for (sink, counts) in &snapshot.sinks {
                for (reason, samples) in counts.losses.iter() {
                    values.set_events(&[sink, reason], samples);
                }
            }
        },
    )
    .by(&["sink", "reason", "event"]),
    Metric::counter(
        "jvmprof_samples_possibly_twice",
        "Samples that were sent again although the first time may have succeeded",
        |snapshot, values| samples(snapshot, values, |counts| counts.possibly_twice),
    )
    .by(&["sink", "event"]),
    Metric::gauge("jvmprof_samples_spooled", "Samples that wait in the spool", |snapshot, values| {
        samples(snapshot, values, |counts| counts.spooled);
    })
    .by(&["sink", "event"]),
    Metric::gauge(
        "jvmprof_samples_left_behind",
        "Samples in a spool's folder that settings have replaced by another one: nobody sends them",
        |snapshot, values| samples(snapshot, values, |counts| counts.orphaned),
    )
    .by(&["sink", "event"]),
    Metric::gauge("jvmprof_samples_queued", "Samples that wait in memory for a sink", |snapshot, values| {
        samples(snapshot, values, |counts| counts.waiting);
    })
    .by(&["sink", "event"]),
    Metric::gauge(
        "jvmprof_samples_in_flight",
        "The part of them in a request without an answer yet",
        |snapshot, values| samples(snapshot, values, |counts| counts.in_flight),
    )
    .by(&["sink", "event"]),
    Metric::gauge("jvmprof_spool_bytes", "Bytes that the spool takes on disk", |snapshot, values| {
        each(snapshot, values, |counts| counts.spool_bytes);
    })
    .by(&["sink"]),
    Metric::counter(
        "jvmprof_delivery_requests",
        "Requests to a backend, answered or not",
        |snapshot, values| each(snapshot, values, |counts| counts.requests),
    )
    .by(&["sink"]),
    Metric::counter("jvmprof_delivery_sent_bytes", "Bytes of these requests' bodies", |snapshot, values| {
        each(snapshot, values, |counts| counts.sent_bytes);
    })
    .by(&["sink"]),
    Metric::counter(
        "jvmprof_delivery_requests_failed",
        "Requests that were not stored, or perhaps not",
        |snapshot, values| each(snapshot, values, |counts| counts.failed_requests),
    )
    .by(&["sink"]),
    Metric::counter(
        "jvmprof_delivery_requests_divided",
        "Requests that were sent in two halves, to find what the server doesn't want",
        |snapshot, values| each(snapshot, values, |counts| counts.divided_requests),
    )
    .by(&["sink"]),
];
