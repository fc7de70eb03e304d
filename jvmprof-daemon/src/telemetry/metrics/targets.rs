//! Metrics of targets: dropped samples, labels, and queries of container runtimes.

use jvmprof_common::abi::Counter;

use super::Metric;
use crate::symbolize::Outcome;

pub(super) const METRICS: &[Metric] = &[
    Metric::counter(
        "jvmprof_samples_dropped",
        "Samples that rules dropped: by the daemon, before it named them (arrival) or behind that (daemon), or at once in the kernel, where they don't count as taken",
        |snapshot, values| {
            let at_arrival = snapshot.outcomes.get(&Outcome::Unwanted).copied().unwrap_or_default();
            values.set_events(&["arrival"], at_arrival);
            values.set_events(&["daemon"], snapshot.targets.dropped.saturating_sub(at_arrival));
            values.set_events(&["kernel"], snapshot.sampler.by_event(Counter::Dropped));
        },
    )
    .by(&["where", "event"]),
    Metric::counter(
        "jvmprof_kernel_drops_refused",
        "Times that a dropped process could not be published to the kernel, which sampled it on",
        |snapshot, values| values.set(snapshot.targets.kernel_drops_refused),
    ),
    Metric::counter(
        "jvmprof_samples_over_series_limit",
        "Samples that went into the series labelled overflow, since a window had too many series",
        |snapshot, values| values.set(snapshot.over_series_limit),
    ),
    Metric::counter(
        "jvmprof_samples_window_full",
        "Samples whose stacks found no room in the memory of their window",
        |snapshot, values| values.set(snapshot.window_full),
    ),
    Metric::counter(
        "jvmprof_samples_other_threads",
        "Samples whose label thread_name is [other], since too many names of threads were there already",
        |snapshot, values| values.set(snapshot.targets.other_threads),
    ),
    Metric::counter(
        "jvmprof_label_values_cut",
        "Values that were cut at 1,024 characters, in label sets of processes and their samples as they were made; those that only rules see among them",
        |snapshot, values| values.set(snapshot.targets.cut_labels),
    ),
    Metric::counter(
        "jvmprof_samples_without_container_metadata",
        "Samples of a container that went out without what its runtime knows of it",
        |snapshot, values| values.set(snapshot.targets.without_container_metadata),
    ),
    Metric::gauge("jvmprof_stacks_held", "Different stacks that wait for their labels", |snapshot, values| {
        values.set(snapshot.unlabelled_stacks);
    }),
    Metric::counter(
        "jvmprof_container_requests",
        "Questions that container runtimes were sent",
        |snapshot, values| values.set(snapshot.targets.containers.queries),
    ),
    Metric::counter(
        "jvmprof_container_results",
        "What became of containers that were asked for: answered, or not_found, failed or turned_away to be asked for again",
        |snapshot, values| {
            let counts = &snapshot.targets.containers;
            values.set_by("answered", counts.found);
            values.set_by("not_found", counts.not_found);
            values.set_by("failed", counts.failed);
            values.set_by("turned_away", counts.over_limit);
        },
    )
    .by(&["result"]),
];
