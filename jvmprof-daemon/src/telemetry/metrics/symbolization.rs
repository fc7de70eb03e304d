//! Metrics of naming: files, JVMs, generated code, the kernel's tables, and caches.

use super::Metric;
use super::ValueSource::Count;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter_by("jvmprof_unusable_files", &["reason"], |snapshot, values| {
        values.set_all_by(&snapshot.pipeline.symbols.unusable_files);
    })
    .help("Mapped files that could not be opened or read, so that their frames have no names"),
    Metric::counter_by("jvmprof_unreadable_jvms", &["reason"], |snapshot, values| {
        values.set_all_by(&snapshot.pipeline.symbols.unreadable_jvms);
    })
    .help("JVMs of which nothing can be read, so that their Java frames have no names"),
    Metric::counter_by("jvmprof_unnamed_frames", &["reason"], |snapshot, values| {
        values.set_all_by(&snapshot.pipeline.symbols.unnamed);
    })
    .help("Frames without a name, each counted once while it is remembered"),
    Metric::counter("jvmprof_stacks_finished_by_daemon", Count(|counts| counts.symbols.completed_by_daemon))
        .help("Samples whose stack the daemon walked on over its copy"),
    Metric::gauge_by("jvmprof_cache_bytes", &["cache"], |snapshot, values| {
        for cache in &snapshot.pipeline.caches {
            values.set_by(cache.name, cache.bytes);
        }
    })
    .help("Memory that a cache takes"),
    Metric::gauge_by("jvmprof_cache_limit_bytes", &["cache"], |snapshot, values| {
        for cache in &snapshot.pipeline.caches {
            values.set_by(cache.name, cache.limit_bytes);
        }
    })
    .help("Memory that a cache may take at most"),
    Metric::counter("jvmprof_file_cache_hits", Count(|counts| counts.symbols.files.hits))
        .help("Questions about a file that the cache could answer"),
    Metric::counter("jvmprof_file_cache_misses", Count(|counts| counts.symbols.files.misses))
        .help("Questions about a file for which it had to be read"),
    Metric::counter("jvmprof_file_cache_evictions", Count(|counts| counts.symbols.files.evictions))
        .help("What was known of files and had to make room"),
    Metric::counter_by("jvmprof_file_cache_load_errors", &["reason"], |snapshot, values| {
        values.set_all_by(&snapshot.pipeline.symbols.files.load_errors);
    })
    .help("Reads of files that failed"),
    Metric::counter("jvmprof_frame_cache_resets", Count(|counts| counts.symbols.frame_cache_resets))
        .help("Times that all remembered frames were forgotten to make room"),
    Metric::gauge("jvmprof_unwind_tables", Count(|counts| counts.symbols.tables.tables))
        .help("Files and JVMs whose unwind rows the kernel has"),
    Metric::gauge("jvmprof_unwind_rules", Count(|counts| counts.symbols.tables.rules))
        .help("Different unwind rules that the kernel has, of 16,384"),
    Metric::counter("jvmprof_unwind_tables_evicted", Count(|counts| counts.symbols.tables.evicted))
        .help("Unwind tables that left the kernel to make room"),
    Metric::counter("jvmprof_unwind_tables_without_room", Count(|counts| counts.symbols.tables.no_room))
        .help("Files and JVMs whose unwind rows found no room in the kernel"),
    Metric::counter("jvmprof_unwind_rows_refused", Count(|counts| counts.symbols.tables.refused_rows))
        .help("Unwind rows that had to be left out"),
    Metric::counter("jvmprof_processes_published", Count(|counts| counts.symbols.tables.published))
        .help("Times that a process's code was published to the kernel"),
    Metric::counter(
        "jvmprof_processes_unpublished",
        Count(|counts| counts.symbols.tables.unpublished_processes),
    )
    .help("Processes for which there was no capacity in the kernel's tables"),
    Metric::counter("jvmprof_jit_entries", Count(|counts| counts.symbols.perf_maps.entries))
        .help("Entries of perf maps and jitdumps that were read"),
    Metric::counter("jvmprof_jit_read_bytes", Count(|counts| counts.symbols.perf_maps.bytes_read))
        .help("Bytes of perf maps and jitdumps that were read"),
    Metric::counter("jvmprof_perf_maps_unusable", Count(|counts| counts.symbols.perf_maps.unusable))
        .help("Perf maps that are no regular file, belong to another user or can't be read"),
    Metric::counter("jvmprof_perf_maps_stale", Count(|counts| counts.symbols.perf_maps.stale))
        .help("Perf maps of an earlier process with the same pid"),
    Metric::counter("jvmprof_perf_map_lines_refused", Count(|counts| counts.symbols.perf_maps.refused_lines))
        .help("Lines of perf maps that were malformed, too long or beyond the limit"),
    Metric::counter_by("jvmprof_jitdumps_unusable", &["reason"], |snapshot, values| {
        values.set_all_by(&snapshot.pipeline.symbols.perf_maps.unusable_dumps);
    })
    .help("Jitdumps that could not be used, or no further"),
    Metric::counter(
        "jvmprof_jitdump_records_refused",
        Count(|counts| counts.symbols.perf_maps.refused_records),
    )
    .help("Records of jitdumps that were malformed or beyond the limit"),
    Metric::counter(
        "jvmprof_jit_history_over_limit",
        Count(|counts| counts.symbols.perf_maps.history_over_limit),
    )
    .help("Past entries of generated code that were forgotten before their time"),
    Metric::counter("jvmprof_jit_frames_ambiguous", Count(|counts| counts.symbols.perf_maps.ambiguous))
        .help("Frames of generated code whose name is one of two"),
    Metric::counter(
        "jvmprof_jit_unwinding_unusable",
        Count(|counts| counts.symbols.perf_maps.unusable_unwinding),
    )
    .help("Entries of jitdumps whose unwinding information couldn't be used"),
    Metric::counter(
        "jvmprof_jit_stacks_ambiguous",
        Count(|counts| counts.symbols.perf_maps.ambiguous_stacks),
    )
    .help("Stacks that were walked by unwinding information that may have been that of other code"),
    Metric::counter("jvmprof_jit_frames_unknown", Count(|counts| counts.symbols.perf_maps.unknown))
        .help("Frames of generated code that nothing covers"),
];
