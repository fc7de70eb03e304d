//! The CPU time of each JVM by the kind of thread that it went to, and for how long it was stopped,
//! as it says.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::pauses::{TotalsSummary, milliseconds};
use crate::event_type::EventType;
use crate::own_process::stderr_line;
use crate::pipeline::jvm_totals::{JvmName, jvm_name};
use crate::pipeline::pauses::JvmStops;
use crate::profile::jvm_activity::thread_kind_of;
use crate::profile::model::{Batch, label_names};
use crate::profile::recording_page::PauseLane;

/// JVMs that are printed, those with the most samples; the rest is in the JSON.
const PRINTED: usize = 8;
/// The key of samples whose threads' kinds aren't known: their stacks aren't whole.
const UNKNOWN: &str = "unknown";

/// The samples of CPU time of one JVM, by the kinds of its threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::app::record) struct JvmTime {
    pub(in crate::app::record) pid: Option<u32>,
    /// Its main class, else its command.
    pub(in crate::app::record) name: String,
    pub(in crate::app::record) samples: u64,
    pub(in crate::app::record) thread_kinds: BTreeMap<String, u64>,
    /// `None`: its pauses are followed one by one, or it doesn't say.
    #[serde(skip_serializing_if = "Option::is_none")]
    stops: Option<StopSummary>,
}

/// The sums of a JVM's pauses that it keeps itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct StopSummary {
    /// Time between the first and the last read of them.
    followed_ms: f64,
    #[serde(flatten)]
    totals: TotalsSummary,
}

impl StopSummary {
    /// `stopped for 3.10 % of 29.6 s, 42 pauses; 0.40 % to reach safepoints`
    fn text(&self) -> String {
        self.totals.shares(self.followed_ms)
    }
}

impl JvmTime {
    /// Returns the JVMs of the profile of CPU time, if it is one of these.
    pub(in crate::app::record) fn of_batches(batches: &[Batch]) -> Vec<Self> {
        let cpu = batches.iter().find(|batch| batch.event == EventType::Cpu);
        cpu.map(Self::of_batch).unwrap_or_default()
    }

    /// Returns the JVMs of a profile of CPU time, the one with the most samples first.
    pub(in crate::app::record) fn of_batch(batch: &Batch) -> Vec<Self> {
        let mut jvms: BTreeMap<String, Self> = BTreeMap::new();
        for series in &batch.series {
            if series.samples.iter().all(|sample| thread_kind_of(sample).is_none()) {
                continue;
            }
            let JvmName { pid, name } = jvm_name(&series.labels);
            let key = if pid.is_empty() { &name } else { &pid }.clone();
            let jvm = jvms.entry(key).or_insert_with(|| Self {
                pid: pid.parse().ok(),
                name: name.clone(),
                samples: 0,
                thread_kinds: BTreeMap::new(),
                stops: None,
            });
            // A JVM's first samples can be older than what is known of its arguments.
            if series.labels.get(label_names::MAIN_CLASS).is_some_and(|class| !class.is_empty()) {
                jvm.name = name;
            }
            for sample in &series.samples {
                let kind = thread_kind_of(sample).unwrap_or(UNKNOWN);
                *jvm.thread_kinds.entry(kind.to_owned()).or_default() += sample.count;
                jvm.samples += sample.count;
            }
        }
        let mut jvms: Vec<Self> = jvms.into_values().collect();
        jvms.sort_by_key(|jvm| std::cmp::Reverse(jvm.samples));
        jvms
    }

    /// Adds for how long the JVMs were stopped to `jvms`; those without samples of CPU time get
    /// their names from `names`, by process id.
    pub(in crate::app::record) fn add_stops(
        jvms: &mut Vec<Self>,
        stops: &[JvmStops],
        names: &HashMap<String, String>,
    ) {
        for stops in stops.iter().filter(|stops| stops.followed_ns > 0) {
            let summary =
                StopSummary { followed_ms: milliseconds(stops.followed_ns), totals: stops.totals.into() };
            let known = jvms.iter_mut().find(|jvm| jvm.pid == Some(stops.pid) && jvm.stops.is_none());
            match (known, names.get(&stops.pid.to_string())) {
                (Some(jvm), _) => jvm.stops = Some(summary),
                (None, Some(name)) => jvms.push(Self {
                    pid: Some(stops.pid),
                    name: name.clone(),
                    samples: 0,
                    thread_kinds: BTreeMap::new(),
                    stops: Some(summary),
                }),
                // It has no samples in this recording.
                (None, None) => {}
            }
        }
    }

    /// Returns the lanes that the page has of these JVMs: sums without marks, those that were
    /// stopped for longest first.
    pub(in crate::app::record) fn stop_lanes(
        stops: &[JvmStops],
        names: &HashMap<String, String>,
    ) -> Vec<PauseLane> {
        let lane = |stops: &JvmStops| {
            Some(PauseLane {
                jvm: format!("{} ({})", names.get(&stops.pid.to_string())?, stops.pid),
                followed_from_ms: 0.0,
                followed_ms: milliseconds(stops.followed_ns),
                followed_spans_ms: Vec::new(),
                pauses: stops.totals.pauses,
                stopped_ms: milliseconds(stops.totals.stopped_ns),
                to_safepoint_ms: milliseconds(stops.totals.to_safepoint_ns),
                marks: Vec::new(),
            })
        };
        let stopped = stops.iter().filter(|stops| stops.followed_ns > 0 && stops.totals.pauses > 0);
        let mut lanes: Vec<PauseLane> = stopped.filter_map(lane).collect();
        lanes.sort_by(|one, two| two.stopped_ms.total_cmp(&one.stopped_ms));
        lanes
    }

    /// Adds what the same JVM took later.
    pub(in crate::app::record) fn merge(&mut self, later: &Self) {
        // Its main class isn't known at once.
        self.name.clone_from(&later.name);
        self.samples += later.samples;
        for (kind, samples) in &later.thread_kinds {
            *self.thread_kinds.entry(kind.clone()).or_default() += samples;
        }
    }

    /// `81.0 % java, 11.0 % gc, 8.0 % compiler`
    pub(in crate::app::record) fn shares(&self) -> String {
        let mut kinds: Vec<_> = self.thread_kinds.iter().collect();
        kinds.sort_by_key(|(_, samples)| std::cmp::Reverse(**samples));
        let share = |samples: u64| samples as f64 * 100.0 / self.samples.max(1) as f64;
        let shares = kinds.iter().map(|(kind, samples)| format!("{:.1} % {kind}", share(**samples)));
        shares.collect::<Vec<_>>().join(", ")
    }

    /// Prints a line for each of the first JVMs.
    pub(in crate::app::record) fn print(jvms: &[Self]) {
        for jvm in &jvms[..jvms.len().min(PRINTED)] {
            stderr_line!("  {}", jvm.line());
        }
    }

    /// `Shop (4711): 81.0 % java, 19.0 % gc; stopped for 3.10 % of 29.6 s, 42 pauses; 0.40 % to
    /// reach safepoints`
    fn line(&self) -> String {
        let pid = self.pid.map_or_else(String::new, |pid| format!(" ({pid})"));
        let shares = Some(self.shares()).filter(|shares| !shares.is_empty());
        let parts: Vec<String> = shares.into_iter().chain(self.stops.map(|stops| stops.text())).collect();
        format!("{}{pid}: {}", self.name, parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::jvm_totals::PauseTotals;
    use crate::profile::model::{FrameKind, SampleLabel, SampleLabels, Series};
    use crate::profile::testing::{batch, frame, series};

    fn jvm(labels: &[(&str, &str)], kinds: &[(&str, u64)]) -> Series {
        let stack = |count| (vec![frame(FrameKind::Native, "f")], count);
        let mut series = series(labels, kinds.iter().map(|(_, count)| stack(*count)).collect());
        for (sample, (kind, _)) in series.samples.iter_mut().zip(kinds) {
            if !kind.is_empty() {
                let label = SampleLabel { name: "thread_kind".into(), value: (*kind).into() };
                sample.labels = SampleLabels::new([label]);
            }
        }
        series
    }

    #[test]
    fn a_jvms_time_is_that_of_all_its_series_by_kind() {
        let shop = [("pid", "7"), ("comm", "java"), ("jvm_main_class", "Shop")];
        let batch = batch(vec![
            jvm(&[("pid", "9"), ("comm", "cat")], &[("", 500)]),
            jvm(&[("pid", "8"), ("comm", "java")], &[("java", 3)]),
            jvm(&shop, &[("java", 80), ("gc", 10)]),
            jvm(&[&shop[..], &[("cpu", "1")]].concat(), &[("gc", 2), ("", 4)]),
            jvm(&[("pid", "7"), ("comm", "java")], &[("native", 4)]),
        ]);
        let jvms = JvmTime::of_batch(&batch);
        let lines: Vec<String> = jvms.iter().map(JvmTime::line).collect();
        assert_eq!(
            lines,
            ["Shop (7): 80.0 % java, 12.0 % gc, 4.0 % native, 4.0 % unknown", "java (8): 100.0 % java"]
        );
        assert_eq!((jvms[0].samples, jvms[0].thread_kinds["gc"]), (100, 12));
    }

    #[test]
    fn the_time_in_which_a_jvm_was_stopped_stands_beside_its_threads() {
        let shop = [("pid", "7"), ("comm", "java"), ("jvm_main_class", "Shop")];
        let mut jvms = JvmTime::of_batch(&batch(vec![jvm(&shop, &[("java", 3)])]));
        let totals = PauseTotals { pauses: 1, to_safepoint_ns: 4_000_000, stopped_ns: 31_000_000 };
        let stops = |pid, followed_ns| JvmStops { pid, followed_ns, totals };
        let second = 1_000_000_000;
        let names = HashMap::from([("8".to_owned(), "Till".to_owned()), ("10".to_owned(), "No".to_owned())]);
        let all = [stops(7, second), stops(8, 2 * second), stops(9, second), stops(10, 0)];
        JvmTime::add_stops(&mut jvms, &all, &names);
        let lines: Vec<String> = jvms.iter().map(JvmTime::line).collect();
        assert_eq!(
            lines,
            [
                "Shop (7): 100.0 % java; stopped for 3.10 % of 1.0 s, 1 pause; 0.40 % to reach safepoints",
                "Till (8): stopped for 1.55 % of 2.0 s, 1 pause; 0.20 % to reach safepoints",
            ]
        );
        let json = serde_json::to_value(&jvms[0]).expect("JSON");
        assert_eq!((&json["stops"]["pauses"], &json["stops"]["stopped_ms"]), (&1.into(), &31.0.into()));
        let lanes = JvmTime::stop_lanes(&all, &names);
        let lanes: Vec<_> = lanes.iter().map(|lane| (&*lane.jvm, lane.stopped_ms, lane.pauses)).collect();
        assert_eq!(lanes, [("Till (8)", 31.0, 1)]);
    }
}
