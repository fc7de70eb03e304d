//! Metrics of delivery, by sink: outcomes of samples that were handed to it.
//!
//! Sinks are called by the backend's address, which never has a user or a password in it, or by the
//! folder.

use super::Metric;
use super::ValueSource::{BySink, Number, SamplesBySink};

pub(super) const METRICS: &[Metric] = &[
    Metric::counter("jvmprof_windows", Number(|snapshot| snapshot.windows)).help("Windows that have ended"),
    Metric::counter("jvmprof_samples_found", SamplesBySink(|counts| counts.found))
        .help("Samples that an earlier daemon had left in the spool"),
    Metric::counter("jvmprof_samples_handed_over", SamplesBySink(|counts| counts.handed_over))
        .help("Samples that were handed to a sink"),
    Metric::counter("jvmprof_samples_delivered", SamplesBySink(|counts| counts.delivered))
        .help("Samples that a sink has taken"),
    Metric::counter("jvmprof_samples_delivered_late", SamplesBySink(|counts| counts.delivered_late))
        .help("The part of them that had waited in the spool"),
    Metric::counter_by("jvmprof_samples_undelivered", &["sink", "reason", "event"], |snapshot, values| {
        for (sink, counts) in &snapshot.sinks {
            for (reason, samples) in counts.losses.iter() {
                values.set_events(&[sink, reason], samples);
            }
        }
    })
    .help("Samples that were lost on their way out, possibly_lost ones perhaps not"),
    Metric::counter("jvmprof_samples_possibly_twice", SamplesBySink(|counts| counts.possibly_twice))
        .help("Samples that were sent again although the first time may have succeeded"),
    Metric::gauge("jvmprof_samples_spooled", SamplesBySink(|counts| counts.spooled))
        .help("Samples that wait in the spool"),
    Metric::gauge("jvmprof_samples_left_behind", SamplesBySink(|counts| counts.orphaned))
        .help("Samples in a spool's folder that settings have replaced by another one: nobody sends them"),
    Metric::gauge("jvmprof_samples_queued", SamplesBySink(|counts| counts.waiting))
        .help("Samples that wait in memory for a sink"),
    Metric::gauge("jvmprof_samples_in_flight", SamplesBySink(|counts| counts.in_flight))
        .help("The part of them in a request without an answer yet"),
    Metric::gauge("jvmprof_spool_bytes", BySink(|counts| counts.spool_bytes))
        .help("Bytes that the spool takes on disk"),
    Metric::counter("jvmprof_delivery_requests", BySink(|counts| counts.requests))
        .help("Requests to a backend, answered or not"),
    Metric::counter("jvmprof_delivery_sent_bytes", BySink(|counts| counts.sent_bytes))
        .help("Bytes of these requests' bodies"),
    Metric::counter("jvmprof_delivery_requests_failed", BySink(|counts| counts.failed_requests))
        .help("Requests that were not stored, or perhaps not"),
    Metric::counter("jvmprof_delivery_requests_divided", BySink(|counts| counts.divided_requests))
        .help("Requests that were sent in two halves, to find what the server doesn't want"),
    Metric::counter("jvmprof_delivery_series_withheld", BySink(|counts| counts.withheld_series))
        .help("Series that weren't sent, since the backend has refused them again and again"),
    Metric::counter("jvmprof_delivery_labels_limited", BySink(|counts| counts.limited_labels)).help(
        "Labels of series that were cut or left out, since the backend takes no longer or no more ones",
    ),
];
