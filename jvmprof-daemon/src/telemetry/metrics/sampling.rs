//! Metrics of the kernel programs, and of the way of samples and process events to the daemon.

use jvmprof_common::abi::{Counter, Stop};

use super::Metric;
use crate::symbolize::Outcome;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter("jvmprof_samples_taken", "Samples that the kernel program took", |snapshot, values| {
        values.set_events(&[], snapshot.sampler.by_event(Counter::Taken));
    })
    .by(&["event"]),
    Metric::counter(
        "jvmprof_samples_emitted",
        "Samples that the kernel program put into the ring buffer",
        |snapshot, values| values.set_events(&[], snapshot.sampler.by_event(Counter::Emitted)),
    )
    .by(&["event"]),
    Metric::counter(
        "jvmprof_samples_lost",
        "Samples that were lost before they had names",
        |snapshot, values| {
            let sampler = &snapshot.sampler;
            for counter in [Counter::RingBufferFull, Counter::UnwinderUnavailable] {
                values.set_events(&[counter.as_str()], sampler.by_event(counter));
            }
            values.set_events(&["shed"], sampler.shed);
            values.set_events(&["malformed_records"], sampler.malformed);
        },
    )
    .by(&["reason", "event"]),
    Metric::counter(
        "jvmprof_ticks_passed_over",
        "Ticks of the clock at which no sample was to be taken",
        |snapshot, values| {
            for counter in [Counter::Filtered, Counter::Idle] {
                values.set_by(counter.as_str(), snapshot.sampler.get(counter));
            }
        },
    )
    .by(&["reason"]),
    Metric::counter(
        "jvmprof_stacks",
        "Samples with names, by how whole their stack is: whole, or why it was truncated",
        |snapshot, values| {
            let whole = snapshot.outcomes.get(&Outcome::Whole).copied().unwrap_or_default();
            values.set_events(&["whole"], whole);
            for (outcome, samples) in &snapshot.outcomes {
                if let Outcome::Truncated(reason) = outcome {
                    values.set_events(&[reason], *samples);
                }
            }
        },
    )
    .by(&["outcome", "event"]),
    Metric::counter(
        "jvmprof_kernel_walks",
        "Walks of user stacks in the kernel, by where they ended; the daemon goes on with those that aren't whole",
        |snapshot, values| {
            for (stop, count) in Stop::ALL.into_iter().zip(snapshot.sampler.stops()) {
                values.set_by(stop.as_str(), count);
            }
        },
    )
    .by(&["stop"]),
    Metric::counter(
        "jvmprof_kernel_stacks_unreadable",
        "Samples without the kernel's frames, since bpf_get_stack gave none",
        |snapshot, values| values.set(snapshot.sampler.get(Counter::KernelStackUnreadable)),
    ),
    Metric::counter(
        "jvmprof_filter_full",
        "Children that aren't sampled, since too many processes were chosen already",
        |snapshot, values| values.set(snapshot.sampler.get(Counter::FilterFull)),
    ),
    Metric::counter(
        "jvmprof_process_events_lost",
        "Process events that found no room; every process is read again then",
        |snapshot, values| values.set(snapshot.sampler.records_lost),
    ),
    Metric::counter(
        "jvmprof_process_events_malformed",
        "Process events of the kernel that could not be parsed; every process is read again then",
        |snapshot, values| values.set(snapshot.sampler.malformed_records),
    ),
    Metric::counter(
        "jvmprof_late_events",
        "Events that came after later ones",
        |snapshot, values| values.set(snapshot.sampler.late),
    ),
    Metric::gauge("jvmprof_processes", "Processes that are known", |snapshot, values| {
        values.set(snapshot.processes);
    }),
    Metric::counter(
        "jvmprof_processes_unreadable",
        "Processes that were gone or not readable when their first sample arrived",
        |snapshot, values| values.set(snapshot.table.unreadable),
    ),
    Metric::counter(
        "jvmprof_process_reads",
        "Times that /proc/PID/maps was read",
        |snapshot, values| values.set(snapshot.table.reads),
    ),
    Metric::counter(
        "jvmprof_mappings_over_limit",
        "Looks at a process that had mapped more code than is remembered of one",
        |snapshot, values| values.set(snapshot.table.mappings_over_limit),
    ),
    Metric::counter(
        "jvmprof_mapping_resets",
        "Times that all processes' mappings were forgotten to make room and read again",
        |snapshot, values| values.set(snapshot.table.resets),
    ),
    Metric::counter(
        "jvmprof_process_contexts_read",
        "Contexts of processes (OTEL_CTX) that were read, again after each change",
        |snapshot, values| values.set(snapshot.table.contexts.read),
    ),
    Metric::counter(
        "jvmprof_process_contexts_refused",
        "Reads of a mapping named OTEL_CTX that held no usable context",
        |snapshot, values| values.set(snapshot.table.contexts.refused),
    ),
    Metric::counter(
        "jvmprof_process_contexts_torn",
        "Reads of a process's context that were given up until later, since it was being written",
        |snapshot, values| values.set(snapshot.table.contexts.torn),
    ),
    Metric::counter(
        "jvmprof_process_context_attributes_left_out",
        "Attributes of processes' contexts that were not kept: too many, too long, or no single value",
        |snapshot, values| values.set(snapshot.table.contexts.left_out),
    ),
    Metric::gauge(
        "jvmprof_samples_waiting",
        "Samples that wait for unwind rows",
        |snapshot, values| values.set(snapshot.waiting),
    ),
    Metric::counter(
        "jvmprof_samples_waiting_full",
        "Samples that were walked without the unwind rows they needed, since too many waited for some",
        |snapshot, values| values.set(snapshot.waiting_full),
    ),
    Metric::counter(
        "jvmprof_kernel_program_seconds",
        "Run time of the sampling program on all CPUs; absent where the kernel doesn't measure it",
        |snapshot, values| {
            if let Some((nanoseconds, _)) = snapshot.kernel_run_time {
                values.set_float(nanoseconds as f64 / 1e9);
            }
        },
    ),
    Metric::counter(
        "jvmprof_kernel_program_runs",
        "Runs of the sampling program; absent where the kernel doesn't measure it",
        |snapshot, values| {
            if let Some((_, runs)) = snapshot.kernel_run_time {
                values.set(runs);
            }
        },
    ),
];
