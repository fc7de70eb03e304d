//! Metrics of the kernel programs, and of the way of samples and process events to the daemon.

use jvmprof_common::abi::{Counter, Stop};

use super::Metric;
use super::ValueSource::{Count, Optional};
use crate::symbolize::StackOutcome;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter_by("jvmprof_samples_taken", &["event"], |snapshot, values| {
        values.set_events(&[], snapshot.pipeline.taken());
    })
    .help(
        "Samples that were taken; of event lock, waits that contentions were made of, of lock_holder \
         those of which the holder's stack is known",
    ),
    Metric::counter_by("jvmprof_samples_emitted", &["event"], |snapshot, values| {
        values.set_events(&[], snapshot.pipeline.sampler.by_event(Counter::Emitted));
    })
    .help("Samples that the kernel program put into the ring buffer"),
    Metric::counter_by("jvmprof_samples_lost", &["reason", "event"], |snapshot, values| {
        let sampler = &snapshot.pipeline.sampler;
        for counter in [Counter::RingBufferFull, Counter::UnwinderUnavailable] {
            values.set_events(&[counter.as_str()], sampler.by_event(counter));
        }
        values.set_events(&["shed"], sampler.shed);
        values.set_events(&["malformed_records"], sampler.malformed);
    })
    .help("Samples that were lost before they had names"),
    Metric::counter_by("jvmprof_ticks_passed_over", &["reason"], |snapshot, values| {
        for counter in [Counter::Filtered, Counter::Idle] {
            values.set_by(counter.as_str(), snapshot.pipeline.sampler.get(counter));
        }
    })
    .help("Ticks of the clock at which no sample was to be taken"),
    Metric::counter_by("jvmprof_stacks", &["outcome", "event"], |snapshot, values| {
        let whole = snapshot.pipeline.outcomes.get(&StackOutcome::Whole).copied().unwrap_or_default();
        values.set_events(&["whole"], whole);
        for (outcome, samples) in &snapshot.pipeline.outcomes {
            if let StackOutcome::Truncated(reason) = outcome {
                values.set_events(&[reason], *samples);
            }
        }
    })
    .help("Samples with names, by how whole their stack is: whole, or why it was truncated"),
    Metric::counter_by("jvmprof_kernel_walks", &["stop"], |snapshot, values| {
        for (stop, count) in Stop::ALL.into_iter().zip(snapshot.pipeline.sampler.stops()) {
            values.set_by(stop.as_str(), count);
        }
    })
    .help(
        "Walks of user stacks in the kernel, by where they ended; the daemon goes on with those \
         that aren't whole",
    ),
    Metric::counter(
        "jvmprof_kernel_stacks_unreadable",
        Count(|counts| counts.sampler.get(Counter::KernelStackUnreadable)),
    )
    .help("Samples without the kernel's frames, since bpf_get_stack gave none"),
    Metric::counter("jvmprof_filter_full", Count(|counts| counts.sampler.get(Counter::FilterFull)))
        .help("Children that aren't sampled, since too many processes were chosen already"),
    Metric::counter("jvmprof_process_events_lost", Count(|counts| counts.sampler.records_lost))
        .help("Process events that found no room; every process is read again then"),
    Metric::counter("jvmprof_process_events_malformed", Count(|counts| counts.sampler.malformed_records))
        .help("Process events of the kernel that could not be parsed; every process is read again then"),
    Metric::counter("jvmprof_late_events", Count(|counts| counts.sampler.late))
        .help("Events that came after later ones"),
    Metric::gauge("jvmprof_processes", Count(|counts| counts.processes)).help("Processes that are known"),
    Metric::counter("jvmprof_processes_unreadable", Count(|counts| counts.table.unreadable))
        .help("Processes that were gone or not readable when their first sample arrived"),
    Metric::counter("jvmprof_process_reads", Count(|counts| counts.table.reads))
        .help("Times that /proc/PID/maps was read"),
    Metric::counter("jvmprof_mappings_over_limit", Count(|counts| counts.table.mappings_over_limit))
        .help("Looks at a process that had mapped more code than is remembered of one"),
    Metric::counter("jvmprof_mapping_resets", Count(|counts| counts.table.resets))
        .help("Times that all processes' mappings were forgotten to make room and read again"),
    Metric::counter("jvmprof_process_contexts_read", Count(|counts| counts.table.contexts.read))
        .help("Contexts of processes (OTEL_CTX) that were read, again after each change"),
    Metric::counter("jvmprof_process_contexts_refused", Count(|counts| counts.table.contexts.refused))
        .help("Reads of a mapping named OTEL_CTX that held no usable context"),
    Metric::counter("jvmprof_process_contexts_torn", Count(|counts| counts.table.contexts.torn))
        .help("Reads of a process's context that were given up until later, since it was being written"),
    Metric::counter(
        "jvmprof_process_context_attributes_left_out",
        Count(|counts| counts.table.contexts.left_out),
    )
    .help("Attributes of processes' contexts that were not kept: too many, too long, or no single value"),
    Metric::counter("jvmprof_thread_context_samples", Count(|counts| counts.thread_contexts.labelled))
        .help("Samples that were labelled with the request of their thread"),
    Metric::counter(
        "jvmprof_thread_contexts_unreadable",
        Count(|counts| counts.sampler.get(Counter::ThreadContextUnreadable)),
    )
    .help("Samples without the context of their thread, or its attributes, since it was unreadable"),
    Metric::counter("jvmprof_thread_contexts_left_out", Count(|counts| counts.thread_contexts.left_out))
        .help("Samples without labels of a request, since their window had too many different ones"),
    Metric::counter(
        "jvmprof_thread_contexts_without_variable",
        Count(|counts| counts.thread_contexts.without_variable),
    )
    .help("Processes whose thread contexts were not found when they were searched for first"),
    Metric::counter("jvmprof_thread_contexts_over_limit", Count(|counts| counts.thread_contexts.over_limit))
        .help("Processes whose thread contexts were not read, since too many others publish some"),
    Metric::counter("jvmprof_thread_contexts_refused", Count(|counts| counts.thread_contexts.refused))
        .help("Processes whose thread contexts were not read, since the kernel's map refused them"),
    Metric::counter_by("jvmprof_jvm_cpu_seconds", &["jvm", "pid", "thread_kind"], |snapshot, values| {
        for (jvm, totals) in &snapshot.pipeline.jvms {
            values.set_seconds(jvm, &totals.cpu);
        }
    })
    .help("CPU time of a running JVM by the kind of its threads, as it was sampled"),
    Metric::counter_by("jvmprof_jvm_wait_seconds", &["jvm", "pid", "wait"], |snapshot, values| {
        for (jvm, totals) in &snapshot.pipeline.jvms {
            values.set_seconds(jvm, &totals.waits);
        }
    })
    .help("Time that threads of a running JVM waited and weren't idle, by cause, if waits are profiled"),
    Metric::counter_by("jvmprof_jvm_pauses", &["jvm", "pid"], |snapshot, values| {
        values.set_pauses(&snapshot.pipeline.jvms, |pauses| pauses.pauses as f64);
    })
    .help("Times that a running JVM stopped all of its Java threads, by its own sums or by --pauses"),
    Metric::counter_by("jvmprof_jvm_stopped_seconds", &["jvm", "pid"], |snapshot, values| {
        values.set_pauses(&snapshot.pipeline.jvms, |pauses| pauses.stopped_ns as f64 / 1e9);
    })
    .help("Time in which all Java threads of a running JVM were stopped, by its own sums or by --pauses"),
    Metric::counter_by("jvmprof_jvm_to_safepoint_seconds", &["jvm", "pid"], |snapshot, values| {
        values.set_pauses(&snapshot.pipeline.jvms, |pauses| pauses.to_safepoint_ns as f64 / 1e9);
    })
    .help("Time that a running JVM took to stop its Java threads, by its own sums or by --pauses"),
    Metric::counter("jvmprof_pauses_lost", Count(|counts| counts.pauses.lost))
        .help("Pauses of JVMs that are in no sum: their records found no room or were dropped"),
    Metric::counter(
        "jvmprof_pause_probe_seconds",
        Optional(|snapshot| snapshot.pipeline.run_times.pauses.map(|time| time.run_time_ns as f64 / 1e9)),
    )
    .help("Run time of the uprobes of pauses; absent where the kernel doesn't measure it"),
    Metric::counter(
        "jvmprof_pause_probe_runs",
        Optional(|snapshot| snapshot.pipeline.run_times.pauses.map(|time| time.run_count as f64)),
    )
    .help("Runs of the uprobes of pauses, two a pause, or three; absent where the kernel doesn't measure it"),
    Metric::gauge("jvmprof_samples_waiting", Count(|counts| counts.waiting))
        .help("Samples that wait for unwind rows"),
    Metric::counter("jvmprof_samples_waiting_full", Count(|counts| counts.waiting_full))
        .help("Samples that were walked without the unwind rows they needed, since too many waited for some"),
    Metric::counter(
        "jvmprof_kernel_program_seconds",
        Optional(|snapshot| snapshot.pipeline.run_times.clock.map(|time| time.run_time_ns as f64 / 1e9)),
    )
    .help("Run time of the sampling program on all CPUs; absent where the kernel doesn't measure it"),
    Metric::counter(
        "jvmprof_kernel_program_runs",
        Optional(|snapshot| snapshot.pipeline.run_times.clock.map(|time| time.run_count as f64)),
    )
    .help("Runs of the sampling program; absent where the kernel doesn't measure it"),
];
