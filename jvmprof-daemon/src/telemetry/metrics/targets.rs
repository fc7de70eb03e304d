//! Metrics of targets: dropped samples, labels, and queries of container runtimes.

use jvmprof_common::abi::Counter;

use super::Metric;
use super::ValueSource::Count;
use crate::symbolize::StackOutcome;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter_by("jvmprof_samples_dropped", &["where", "event"], |snapshot, values| {
        let at_arrival =
            snapshot.pipeline.outcomes.get(&StackOutcome::NotProfiled).copied().unwrap_or_default();
        values.set_events(&["arrival"], at_arrival);
        values.set_events(&["daemon"], snapshot.pipeline.targets.dropped.saturating_sub(at_arrival));
        values.set_events(&["kernel"], snapshot.pipeline.sampler.by_event(Counter::Dropped));
    })
    .help(
        "Samples that rules dropped: by the daemon, before it named them (arrival) or behind that \
         (daemon), or at once in the kernel, where they don't count as taken",
    ),
    Metric::counter("jvmprof_kernel_drops_refused", Count(|counts| counts.targets.kernel_drops_refused))
        .help("Times that a dropped process could not be published to the kernel, which sampled it on"),
    Metric::counter("jvmprof_samples_over_series_limit", Count(|counts| counts.over_series_limit))
        .help("Samples that went into the series labelled overflow, since a window had too many series"),
    Metric::counter("jvmprof_samples_window_full", Count(|counts| counts.window_full))
        .help("Samples whose stacks found no room in the memory of their window"),
    Metric::counter("jvmprof_samples_other_threads", Count(|counts| counts.targets.other_threads)).help(
        "Samples whose label thread_name is [other], since too many names of threads were there \
         already",
    ),
    Metric::counter("jvmprof_label_values_cut", Count(|counts| counts.targets.cut_labels)).help(
        "Values that were cut at 1,024 characters, in label sets of processes and their samples \
         as they were made; those that only rules see among them",
    ),
    Metric::counter(
        "jvmprof_samples_without_container_metadata",
        Count(|counts| counts.targets.without_container_metadata),
    )
    .help("Samples of a container that went out without what its runtime knows of it"),
    Metric::gauge("jvmprof_stacks_held", Count(|counts| counts.unlabelled_stacks))
        .help("Different stacks that wait for their labels"),
    Metric::counter("jvmprof_container_requests", Count(|counts| counts.targets.containers.queries))
        .help("Questions that container runtimes were sent"),
    Metric::counter_by("jvmprof_container_results", &["result"], |snapshot, values| {
        let counts = &snapshot.pipeline.targets.containers;
        values.set_by("answered", counts.found);
        values.set_by("not_found", counts.not_found);
        values.set_by("failed", counts.failed);
        values.set_by("turned_away", counts.over_limit);
    })
    .help(
        "What became of containers that were asked for: answered, or not_found, failed or \
         turned_away to be asked for again",
    ),
];
