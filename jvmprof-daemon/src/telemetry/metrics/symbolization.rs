//! Metrics of naming: files, JVMs, generated code, the kernel's tables, and caches.

use super::Metric;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        "jvmprof_unusable_files",
        "Mapped files that could not be opened or read, so that their frames have no names",
        |snapshot, values| values.set_all_by(&snapshot.symbols.unusable_files),
    )
    .by(&["reason"]),
    Metric::counter(
        "jvmprof_unreadable_jvms",
        "JVMs of which nothing can be read, so that their Java frames have no names",
        |snapshot, values| values.set_all_by(&snapshot.symbols.unreadable_jvms),
    )
    .by(&["reason"]),
    Metric::counter(
        "jvmprof_unnamed_frames",
        "Frames without a name, each counted once while it is remembered",
        |snapshot, values| values.set_all_by(&snapshot.symbols.unnamed),
    )
    .by(&["reason"]),
    Metric::counter(
        "jvmprof_stacks_finished_by_daemon",
        "Samples whose stack the daemon walked on over its copy",
        |snapshot, values| values.set(snapshot.symbols.finished_by_daemon),
    ),
    Metric::gauge("jvmprof_cache_bytes", "Memory that a cache takes", |snapshot, values| {
        for cache in &snapshot.caches {
            values.set_by(cache.name, cache.bytes);
        }
    })
    .by(&["cache"]),
    Metric::gauge("jvmprof_cache_limit_bytes", "Memory that a cache may take at most", |snapshot, values| {
        for cache in &snapshot.caches {
            values.set_by(cache.name, cache.limit_bytes);
        }
    })
    .by(&["cache"]),
    Metric::counter(
        "jvmprof_file_cache_hits",
        "Questions about a file that the cache could answer",
        |snapshot, values| values.set(snapshot.symbols.files.hits),
    ),
    Metric::counter(
        "jvmprof_file_cache_misses",
        "Questions about a file for which it had to be read",
        |snapshot, values| values.set(snapshot.symbols.files.misses),
    ),
    Metric::counter(
        "jvmprof_file_cache_evictions",
        "What was known of files and had to make room",
        |snapshot, values| values.set(snapshot.symbols.files.evictions),
    ),
    Metric::counter("jvmprof_file_cache_load_errors", "Reads of files that failed", |snapshot, values| {
        values.set_all_by(&snapshot.symbols.files.load_errors);
    })
    .by(&["reason"]),
    Metric::counter(
        "jvmprof_frame_cache_resets",
        "Times that all remembered frames were forgotten to make room",
        |snapshot, values| values.set(snapshot.symbols.frame_cache_resets),
    ),
    Metric::gauge(
        "jvmprof_unwind_tables",
        "Files and JVMs whose unwind rows the kernel has",
        |snapshot, values| values.set(snapshot.symbols.tables.tables),
    ),
    Metric::gauge(
        "jvmprof_unwind_rules",
        "Different unwind rules that the kernel has, of 16,384",
        |snapshot, values| values.set(snapshot.symbols.tables.rules),
    ),
    Metric::counter(
        "jvmprof_unwind_tables_evicted",
        "Unwind tables that left the kernel to make room",
        |snapshot, values| values.set(snapshot.symbols.tables.evicted),
    ),
    Metric::counter(
        "jvmprof_unwind_tables_without_room",
        "Files and JVMs whose unwind rows found no room in the kernel",
        |snapshot, values| values.set(snapshot.symbols.tables.no_room),
    ),
    Metric::counter(
        "jvmprof_unwind_rows_refused",
        "Unwind rows that had to be left out",
        |snapshot, values| values.set(snapshot.symbols.tables.refused_rows),
    ),
    Metric::counter(
        "jvmprof_processes_published",
        "Times that a process's code was published to the kernel",
        |snapshot, values| values.set(snapshot.symbols.tables.published),
    ),
    Metric::counter(
        "jvmprof_processes_unpublished",
        "Processes for which there was no capacity in the kernel's tables",
        |snapshot, values| values.set(snapshot.symbols.tables.unpublished_processes),
    ),
    Metric::counter(
        "jvmprof_jit_entries",
        "Entries of perf maps and jitdumps that were read",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.entries),
    ),
    Metric::counter(
        "jvmprof_jit_read_bytes",
        "Bytes of perf maps and jitdumps that were read",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.bytes_read),
    ),
    Metric::counter(
        "jvmprof_perf_maps_unusable",
        "Perf maps that are no regular file, belong to another user or can't be read",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.unusable),
    ),
    Metric::counter(
        "jvmprof_perf_maps_stale",
        "Perf maps of an earlier process with the same pid",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.stale),
    ),
    Metric::counter(
        "jvmprof_perf_map_lines_refused",
        "Lines of perf maps that were malformed, too long or beyond the limit",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.refused_lines),
    ),
    Metric::counter(
        "jvmprof_jitdumps_unusable",
        "Jitdumps that could not be used, or no further",
        |snapshot, values| values.set_all_by(&snapshot.symbols.perf_maps.unusable_dumps),
    )
    .by(&["reason"]),
    Metric::counter(
        "jvmprof_jitdump_records_refused",
        "Records of jitdumps that were malformed or beyond the limit",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.refused_records),
    ),
    Metric::counter(
        "jvmprof_jit_history_over_limit",
        "Past entries of generated code that were forgotten before their time",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.history_over_limit),
    ),
    Metric::counter(
        "jvmprof_jit_frames_ambiguous",
        "Frames of generated code whose name is one of two",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.ambiguous),
    ),
    Metric::counter(
        "jvmprof_jit_unwinding_unusable",
        "Entries of jitdumps whose unwinding information couldn't be used",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.unusable_unwinding),
    ),
    Metric::counter(
        "jvmprof_jit_stacks_ambiguous",
        "Stacks that were walked by unwinding information that may have been that of other code",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.ambiguous_stacks),
    ),
    Metric::counter(
        "jvmprof_jit_frames_unknown",
        "Frames of generated code that nothing covers",
        |snapshot, values| values.set(snapshot.symbols.perf_maps.unknown),
    ),
];
