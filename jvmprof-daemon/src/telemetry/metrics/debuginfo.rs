//! Of debug files: those that go out, and those that come in.

use super::Metric;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        "jvmprof_debuginfo_uploads",
        "Debug files that were offered for upload, by what became of them",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.of("uploaded", counts.uploaded);
                values.of("not_wanted", counts.not_wanted);
                values.of("excluded", counts.excluded);
                values.of("without_symbols", counts.without_symbols);
                values.of("refused", counts.refused);
                values.of("failed", counts.failed);
            }
        },
    )
    .by(&["result"]),
    Metric::counter(
        "jvmprof_debuginfo_uploads_offered",
        "Debug files that were offered for upload",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.is(counts.offered);
            }
        },
    ),
    Metric::counter(
        "jvmprof_debuginfo_uploads_put_off",
        "Times that an upload was put off to be tried again",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.is(counts.put_off);
            }
        },
    ),
    Metric::counter(
        "jvmprof_debuginfo_uploaded_bytes",
        "Bytes of debug files that were uploaded",
        |snapshot, values| {
            if let Some(counts) = &snapshot.uploads {
                values.is(counts.uploaded_bytes);
            }
        },
    ),
    Metric::counter(
        "jvmprof_debuginfod_requests",
        "Debug files that debuginfod servers were asked for, by what became of them",
        |snapshot, values| {
            if let Some(counts) = &snapshot.debuginfod {
                values.of("fetched", counts.fetched);
                values.of("missing", counts.missing);
                values.of("failed", counts.failed);
                values.of("turned_away", counts.turned_away);
            }
        },
    )
    .by(&["result"]),
    Metric::counter(
        "jvmprof_debuginfod_fetched_bytes",
        "Bytes of debug files that were fetched",
        |snapshot, values| {
            if let Some(counts) = &snapshot.debuginfod {
                values.is(counts.fetched_bytes);
            }
        },
    ),
];
