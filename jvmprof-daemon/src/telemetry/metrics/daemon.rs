//! Metrics of the daemon itself.

use super::Metric;
use super::ValueSource::{Count, Float, Number, Optional};

pub(super) const METRICS: &[Metric] = &[
    Metric::gauge_by("jvmprof_build_info", &["version"], |_, values| {
        values.set_by(env!("CARGO_PKG_VERSION"), 1);
    })
    .help("1, with the program's version"),
    Metric::gauge("jvmprof_host_profiled", Number(|snapshot| u64::from(snapshot.host.is_profiled)))
        .help("1 if this host is profiled, 0 if --host-fraction leaves it out"),
    Metric::gauge("jvmprof_host_fraction_ratio", Float(|snapshot| snapshot.host.fraction))
        .help("Share of hosts that are profiled, as --host-fraction says"),
    Metric::gauge_by("jvmprof_sampling_frequency_hertz", &["which"], |snapshot, values| {
        values.set_by("wanted", u64::from(snapshot.budget.wanted_hz));
        values.set_by("current", u64::from(snapshot.budget.current_hz));
    })
    .help(
        "Samples per second and CPU: wanted is what was asked for, current what the CPU budget \
         leaves of it",
    ),
    Metric::counter_by("jvmprof_sampling_frequency_changes", &["direction"], |snapshot, values| {
        values.set_by("lowered", snapshot.budget.lowered);
        values.set_by("raised", snapshot.budget.raised);
    })
    .help("Times that the CPU budget changed the frequency"),
    Metric::gauge(
        "jvmprof_cpu_budget_cores",
        Optional(|snapshot| snapshot.budget.limit_percent.map(|percent| percent / 100.0)),
    )
    .help("CPU that the daemon and the kernel program may take, in cores; absent without a budget"),
    Metric::gauge("jvmprof_cpu_used_cores", Float(|snapshot| snapshot.budget.used_percent / 100.0))
        .help("CPU that the daemon and the kernel program took in the last measured stretch, in cores"),
    Metric::counter(
        "jvmprof_urgent_cpu_seconds",
        Float(|snapshot| snapshot.pipeline.urgent_cpu.used.as_secs_f64()),
    )
    .help("CPU time of the threads that read sampled processes, at a raised priority"),
    Metric::counter("jvmprof_urgent_cpu_exhausted", Count(|counts| counts.urgent_cpu.exhausted))
        .help("Times that these threads fell to the default priority, since --urgent-cpu was used up"),
    Metric::counter("jvmprof_clock_steps", Count(|counts| counts.clocks.steps))
        .help("Times that the host's clock was set while a window was open"),
    Metric::counter("jvmprof_suspends", Count(|counts| counts.clocks.suspends))
        .help("Times that the host was suspended while a window was open"),
    Metric::counter("jvmprof_log_messages_suppressed", Number(|snapshot| snapshot.suppressed_messages))
        .help("Log messages that were held back, since many like them had just been written"),
    Metric::counter("jvmprof_http_connections_refused", Number(|snapshot| snapshot.refused_connections))
        .help("Connections to the metrics' listener that were closed, since too many were open"),
    Metric::counter("process_cpu_seconds", Float(|snapshot| snapshot.usage.cpu.as_secs_f64()))
        .help("User and system CPU time of the daemon"),
    Metric::gauge("process_resident_memory_bytes", Number(|snapshot| snapshot.usage.rss_bytes))
        .help("Resident memory of the daemon"),
    Metric::gauge("jvmprof_peak_resident_memory_bytes", Number(|snapshot| snapshot.usage.peak_rss_bytes))
        .help("The most memory that the daemon ever had resident"),
    Metric::gauge("process_open_fds", Number(|snapshot| snapshot.usage.open_files))
        .help("Open file descriptors of the daemon"),
    Metric::gauge("process_max_fds", Number(|snapshot| snapshot.usage.max_open_files))
        .help("File descriptors that it may open"),
    Metric::gauge("process_threads", Number(|snapshot| snapshot.usage.threads)).help("Threads of the daemon"),
    Metric::gauge("process_start_time_seconds", Float(|snapshot| snapshot.usage.started))
        .help("When the daemon was started, Unix time"),
];
