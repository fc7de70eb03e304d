//! Wall-clock time in a recording's summary: of each thread, how long it ran and waited for what.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::own_process::stderr_line;
use crate::pipeline::off_cpu::{is_idle, wait_of};
use crate::profile::model::{Batch, Series, label_names};

/// Threads that are printed; the JSON has all.
const PRINTED: usize = 14;

/// The time of all threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::app::record) struct WallSummary {
    /// The sum of all threads' time, in ns.
    elapsed_ns: u64,
    /// The thread that did or waited most, without being idle, first.
    threads: Vec<ThreadSummary>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct ThreadSummary {
    pid: Option<u32>,
    tid: Option<u32>,
    name: String,
    elapsed_ns: u64,
    cpu_ns: u64,
    /// Time in which it had nothing to do.
    idle_ns: u64,
    /// Other waits, by cause.
    waits: BTreeMap<String, u64>,
}

impl WallSummary {
    pub(in crate::app::record) fn new(batch: &Batch) -> Self {
        let mut threads: Vec<ThreadSummary> = batch.series.iter().map(ThreadSummary::new).collect();
        threads.sort_by_key(|thread| Reverse(thread.elapsed_ns - thread.idle_ns));
        Self { elapsed_ns: threads.iter().map(|thread| thread.elapsed_ns).sum(), threads }
    }

    pub(in crate::app::record) fn print(&self) {
        let shown = &self.threads[..self.threads.len().min(PRINTED)];
        stderr_line!(
            "{:.1} s of {} threads; those that were least idle:",
            self.elapsed_ns as f64 / 1e9,
            self.threads.len()
        );
        shown.iter().for_each(|thread| stderr_line!("  {}", thread.line()));
    }
}

impl ThreadSummary {
    fn new(series: &Series) -> Self {
        let number = |name: &str| series.labels.get(name).and_then(|value| value.parse().ok());
        let name = series.labels.get(label_names::THREAD_NAME).cloned().unwrap_or_default();
        let mut thread =
            Self { pid: number("pid"), tid: number(label_names::THREAD_ID), name, ..Self::default() };
        for sample in &series.samples {
            thread.elapsed_ns += sample.value;
            match wait_of(sample) {
                _ if is_idle(sample) => thread.idle_ns += sample.value,
                None => thread.cpu_ns += sample.value,
                Some(_) if sample.value == 0 => {}
                Some(cause) => *thread.waits.entry(cause.to_owned()).or_default() += sample.value,
            }
        }
        thread
    }

    /// `worker (4711): 10.0 s, 40.0 % on the CPU, 60.0 % monitor`
    fn line(&self) -> String {
        let share = |part: u64| part as f64 * 100.0 / self.elapsed_ns.max(1) as f64;
        let mut parts = vec![("on the CPU", self.cpu_ns), ("idle", self.idle_ns)];
        parts.extend(self.waits.iter().map(|(cause, time)| (cause.as_str(), *time)));
        parts.sort_by_key(|(_, time)| Reverse(*time));
        let parts = parts.into_iter().filter(|(_, time)| *time > 0);
        let parts: Vec<String> = parts.map(|(name, time)| format!("{:.1} % {name}", share(time))).collect();
        let tid = self.tid.map_or_else(String::new, |tid| format!(" ({tid})"));
        format!("{}{tid}: {:.1} s, {}", self.name, self.elapsed_ns as f64 / 1e9, parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_type::EventType;
    use crate::profile::model::{FrameKind, SampleLabel, SampleLabels};
    use crate::profile::testing::{batch, frame, series};

    #[test]
    fn a_threads_line_says_where_its_time_went() {
        let stacks = (0..3).map(|_| (vec![frame(FrameKind::Java, "f")], 1)).collect();
        let mut series = series(&[("pid", "7"), ("thread_id", "8"), ("thread_name", "worker")], stacks);
        let label = |name: &str, value: &str| SampleLabel { name: name.into(), value: value.into() };
        let labels =
            [vec![], vec![label("wait", "park")], vec![label("wait", "park"), label("idle", "true")]];
        for ((sample, labels), value) in series.samples.iter_mut().zip(labels).zip([4, 5, 1]) {
            sample.labels = SampleLabels::new(labels);
            sample.value = value * 1_000_000_000;
        }
        let summary = WallSummary::new(&Batch { event: EventType::Wall, ..batch(vec![series]) });
        assert_eq!(summary.elapsed_ns, 10_000_000_000);
        let line = "worker (8): 10.0 s, 50.0 % park, 40.0 % on the CPU, 10.0 % idle";
        assert_eq!(summary.threads[0].line(), line);
    }
}
