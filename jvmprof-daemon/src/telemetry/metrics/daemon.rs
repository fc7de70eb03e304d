//! Metrics of the daemon itself.

use super::Metric;

pub(super) const METRICS: &[Metric] = &[
    Metric::gauge("jvmprof_build_info", "1, with the program's version", |_, values| {
        values.set_by(env!("CARGO_PKG_VERSION"), 1);
    })
    .by(&["version"]),
    Metric::gauge(
        "jvmprof_sampling_frequency_hertz",
        "Samples per second and CPU: wanted is what was asked for, current what the CPU budget leaves of it",
        |snapshot, values| {
            values.set_by("wanted", u64::from(snapshot.budget.wanted_hz));
            values.set_by("current", u64::from(snapshot.budget.current_hz));
        },
    )
    .by(&["which"]),
    Metric::counter(
        "jvmprof_sampling_frequency_changes",
        "Times that the CPU budget changed the frequency",
        |snapshot, values| {
            values.set_by("lowered", snapshot.budget.lowered);
            values.set_by("raised", snapshot.budget.raised);
        },
    )
    .by(&["direction"]),
    Metric::gauge(
        "jvmprof_cpu_budget_cores",
        "CPU that the daemon and the kernel program may take, in cores; absent without a budget",
        |snapshot, values| {
            if let Some(percent) = snapshot.budget.limit_percent {
                values.set_float(percent / 100.0);
            }
        },
    ),
    Metric::gauge(
        "jvmprof_cpu_used_cores",
        "CPU that the daemon and the kernel program took in the last measured stretch, in cores",
        |snapshot, values| values.set_float(snapshot.budget.used_percent / 100.0),
    ),
    Metric::counter(
        "jvmprof_clock_steps",
        "Times that the host's clock was set while a window was open",
        |snapshot, values| values.set(snapshot.clock_steps),
    ),
    Metric::counter(
        "jvmprof_suspends",
        "Times that the host was suspended while a window was open",
        |snapshot, values| values.set(snapshot.suspends),
    ),
    Metric::counter(
        "jvmprof_log_messages_suppressed",
        "Log messages that were held back, since many like them had just been written",
        |snapshot, values| values.set(snapshot.suppressed_messages),
    ),
    Metric::counter(
        "jvmprof_http_connections_refused",
        "Connections to the metrics' listener that were closed, since too many were open",
        |snapshot, values| values.set(snapshot.refused_connections),
    ),
    Metric::counter("process_cpu_seconds", "User and system CPU time of the daemon", |snapshot, values| {
        values.set_float(snapshot.usage.cpu.as_secs_f64());
    }),
    Metric::gauge("process_resident_memory_bytes", "Resident memory of the daemon", |snapshot, values| {
        values.set(snapshot.usage.rss_bytes);
    }),
    Metric::gauge(
        "jvmprof_peak_resident_memory_bytes",
        "The most memory that the daemon ever had resident",
        |snapshot, values| values.set(snapshot.usage.peak_rss_bytes),
    ),
    Metric::gauge("process_open_fds", "Open file descriptors of the daemon", |snapshot, values| {
        values.set(snapshot.usage.open_files);
    }),
    Metric::gauge("process_max_fds", "File descriptors that it may open", |snapshot, values| {
        values.set(snapshot.usage.max_open_files);
    }),
    Metric::gauge("process_threads", "Threads of the daemon", |snapshot, values| {
        values.set(snapshot.usage.threads);
    }),
    Metric::gauge(
        "process_start_time_seconds",
        "When the daemon was started, Unix time",
        |snapshot, values| values.set_float(snapshot.usage.started),
    ),
];
