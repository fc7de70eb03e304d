//! Metrics of debug files, uploaded and downloaded.

use super::Metric;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        "jvmprof_debuginfo_uploads",
        "Debug files that were offered for upload, by what became of them",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.set_by("uploaded", counts.uploaded);
                values.set_by("not_wanted", counts.not_wanted);
                values.set_by("excluded", counts.excluded);
                values.set_by("without_symbols", counts.without_symbols);
                values.set_by("refused", counts.refused);
                values.set_by("failed", counts.failed);
            }
        },
    )
    .by(&["result"]),
    Metric::counter(
        "jvmprof_debuginfo_uploads_offered",
        "Debug files that were offered for upload",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.set(counts.offered);
            }
        },
    ),
    Metric::counter(
        "jvmprof_debuginfo_uploads_put_off",
        "Times that an upload was put off to be tried again",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.set(counts.put_off);
            }
        },
    ),
    Metric::counter(
        "jvmprof_debuginfo_uploaded_bytes",
        "Bytes of debug files that were uploaded",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.set(counts.uploaded_bytes);
            }
        },
    ),
    Metric::counter(
        "jvmprof_debuginfod_requests",
        "Debug files that debuginfod servers were asked for, by what became of them",
        |snapshot, values| {
            if let Some(counts) = &snapshot.debuginfod {
                values.set_by("fetched", counts.fetched);
                values.set_by("missing", counts.missing);
                values.set_by("failed", counts.failed);
                values.set_by("turned_away", counts.turned_away);
            }
        },
    )
    .by(&["result"]),
    Metric::counter(
        "jvmprof_debuginfod_fetched_bytes",
        "Bytes of debug files that were fetched",
        |snapshot, values| {
            if let Some(counts) = &snapshot.debuginfod {
                values.set(counts.fetched_bytes);
            }
        },
    ),
];
