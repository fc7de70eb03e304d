//! Metrics of debug files, uploaded and downloaded.

use super::Metric;
use super::ValueSource::Optional;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter_by("jvmprof_debuginfo_uploads", &["result"], |snapshot, values| {
        if let Some(counts) = &snapshot.uploads {
            values.set_by("uploaded", counts.uploaded);
            values.set_by("not_wanted", counts.not_wanted);
            values.set_by("excluded", counts.excluded);
            values.set_by("without_symbols", counts.without_symbols);
            values.set_by("refused", counts.refused);
            values.set_by("failed", counts.failed);
        }
    })
    .help("Debug files that were offered for upload, by what became of them"),
    Metric::counter(
        "jvmprof_debuginfo_uploads_offered",
        Optional(|snapshot| snapshot.uploads.as_ref().map(|counts| counts.offered as f64)),
    )
    .help("Debug files that were offered for upload"),
    Metric::counter(
        "jvmprof_debuginfo_uploads_put_off",
        Optional(|snapshot| snapshot.uploads.as_ref().map(|counts| counts.put_off as f64)),
    )
    .help("Times that an upload was put off to be tried again"),
    Metric::counter(
        "jvmprof_debuginfo_uploaded_bytes",
        Optional(|snapshot| snapshot.uploads.as_ref().map(|counts| counts.uploaded_bytes as f64)),
    )
    .help("Bytes of debug files that were uploaded"),
    Metric::counter_by("jvmprof_debuginfod_requests", &["result"], |snapshot, values| {
        if let Some(counts) = &snapshot.debuginfod {
            values.set_by("fetched", counts.fetched);
            values.set_by("missing", counts.missing);
            values.set_by("failed", counts.failed);
            values.set_by("turned_away", counts.turned_away);
        }
    })
    .help("Debug files that debuginfod servers were asked for, by what became of them"),
    Metric::counter(
        "jvmprof_debuginfod_fetched_bytes",
        Optional(|snapshot| snapshot.debuginfod.as_ref().map(|counts| counts.fetched_bytes as f64)),
    )
    .help("Bytes of debug files that were fetched"),
];
