//! Pauses in a recording's summary: for how long each JVM stopped its threads, and what for.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::own_process::stderr_line;
use crate::pipeline::jvm_totals::{PauseTotals, jvm_name};
use crate::pipeline::pauses::{JvmPauses, Pause};
use crate::profile::model::{Batch, label_names};
use crate::profile::recording_page::{PauseLane, PauseMark};

/// JVMs and pauses of each that are printed; the rest is in the JSON.
const PRINTED_JVMS: usize = 8;
const PRINTED_PAUSES: usize = 3;

/// The pauses of one JVM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::app::record) struct JvmPauseSummary {
    pid: u32,
    /// Its main class, else its command.
    name: String,
    /// When it began to be followed, since the recording's start, and for how long it was.
    followed_from_ms: f64,
    followed_ms: f64,
    /// Sums of all pauses.
    #[serde(flatten)]
    totals: TotalsSummary,
    /// Pauses that the kernel program saw and that aren't in the sums.
    lost: u64,
    by_operation: BTreeMap<String, TotalsSummary>,
    /// In the order of time: the first ones, if not all are kept.
    events: Vec<PauseEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct TotalsSummary {
    pauses: u64,
    stopped_ms: f64,
    to_safepoint_ms: f64,
}

impl TotalsSummary {
    /// `stopped for 3.02 % of 9.8 s, 12 pauses; 0.41 % to reach safepoints`
    pub(super) fn shares(&self, followed_ms: f64) -> String {
        let share = |ms: f64| ms * 100.0 / followed_ms.max(1e-6);
        format!(
            "stopped for {:.2} % of {:.1} s, {} pause{}; {:.2} % to reach safepoints",
            share(self.stopped_ms),
            followed_ms / 1e3,
            self.pauses,
            if self.pauses == 1 { "" } else { "s" },
            share(self.to_safepoint_ms),
        )
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct PauseEvent {
    /// Since the recording's start, which a pause may be older than.
    begin_ms: f64,
    /// `None`: the recording ended first.
    end_ms: Option<f64>,
    to_safepoint_ms: f64,
    stopped_ms: f64,
    operation: Option<String>,
    cause: Option<String>,
}

pub(super) fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Returns the milliseconds since another time; negative before it.
fn milliseconds_since(ns: u64, start_ns: u64) -> f64 {
    if ns < start_ns { -milliseconds(start_ns - ns) } else { milliseconds(ns - start_ns) }
}

impl From<PauseTotals> for TotalsSummary {
    fn from(totals: PauseTotals) -> Self {
        Self {
            pauses: totals.pauses,
            stopped_ms: milliseconds(totals.stopped_ns),
            to_safepoint_ms: milliseconds(totals.to_safepoint_ns),
        }
    }
}

impl PauseEvent {
    fn new(pause: &Pause, start_ns: u64) -> Self {
        Self {
            begin_ms: milliseconds_since(pause.began_ns, start_ns),
            end_ms: pause.is_over.then(|| milliseconds_since(pause.ended_ns, start_ns)),
            to_safepoint_ms: milliseconds(pause.to_safepoint_ns()),
            stopped_ms: milliseconds(pause.stopped_ns()),
            operation: pause.operation.as_deref().map(str::to_owned),
            cause: pause.cause.as_deref().map(str::to_owned),
        }
    }

    /// `G1CollectForAllocation (G1 Evacuation Pause)`
    fn what(&self) -> String {
        let operation = self.operation.as_deref().unwrap_or("unknown operation");
        self.cause.as_ref().map_or_else(|| operation.to_owned(), |cause| format!("{operation} ({cause})"))
    }
}

/// Returns the names of processes by their ids: their main classes, else their commands.
pub(in crate::app::record) fn jvm_names(batches: &[Batch]) -> HashMap<String, String> {
    let mut names: HashMap<String, String> = HashMap::new();
    for series in batches.iter().flat_map(|batch| &batch.series) {
        let name = jvm_name(&series.labels);
        // A JVM's first samples can be older than what is known of its arguments.
        let has_class = series.labels.get(label_names::MAIN_CLASS).is_some_and(|class| !class.is_empty());
        if has_class || !names.contains_key(&name.pid) {
            names.insert(name.pid, name.name);
        }
    }
    names
}

impl JvmPauseSummary {
    /// Returns the JVMs of a recording that began at `start_ns` of `CLOCK_MONOTONIC`, the one that
    /// stopped for longest first.
    pub(in crate::app::record) fn of_jvms(jvms: &[JvmPauses], batches: &[Batch], start_ns: u64) -> Vec<Self> {
        let names = jvm_names(batches);
        let summary = |jvm: &JvmPauses| Self {
            pid: jvm.pid,
            name: names.get(&jvm.pid.to_string()).cloned().unwrap_or_else(|| "a JVM".to_owned()),
            followed_from_ms: milliseconds_since(jvm.since_ns, start_ns),
            followed_ms: milliseconds(jvm.until_ns.saturating_sub(jvm.since_ns)),
            totals: jvm.totals.into(),
            lost: jvm.lost,
            by_operation: jvm
                .by_operation
                .iter()
                .map(|(operation, totals)| (operation.to_string(), (*totals).into()))
                .collect(),
            events: jvm.events.iter().map(|pause| PauseEvent::new(pause, start_ns)).collect(),
        };
        let mut jvms: Vec<Self> = jvms.iter().map(summary).collect();
        jvms.sort_by(|one, two| two.totals.stopped_ms.total_cmp(&one.totals.stopped_ms));
        jvms
    }

    /// Returns the lane of the page's timeline.
    pub(in crate::app::record) fn lanes(jvms: &[Self]) -> Vec<PauseLane> {
        let mark = |event: &PauseEvent| PauseMark {
            begin_ms: event.begin_ms,
            to_safepoint_ms: event.to_safepoint_ms,
            stopped_ms: event.stopped_ms,
            what: event.what(),
        };
        let lane = |jvm: &Self| PauseLane {
            jvm: format!("{} ({})", jvm.name, jvm.pid),
            followed_from_ms: jvm.followed_from_ms,
            followed_ms: jvm.followed_ms,
            followed_spans_ms: Vec::new(),
            pauses: jvm.totals.pauses,
            stopped_ms: jvm.totals.stopped_ms,
            to_safepoint_ms: jvm.totals.to_safepoint_ms,
            marks: jvm.events.iter().map(mark).collect(),
        };
        jvms.iter().map(lane).collect()
    }

    /// Prints the first JVMs with their longest pauses.
    pub(in crate::app::record) fn print(jvms: &[Self]) {
        for jvm in &jvms[..jvms.len().min(PRINTED_JVMS)] {
            stderr_line!("  {}", jvm.line());
            for event in jvm.longest() {
                stderr_line!("  {event}");
            }
        }
    }

    /// `Shop (4711): stopped for 3.02 % of 9.8 s, 12 pauses; 0.41 % to reach safepoints`
    fn line(&self) -> String {
        let kept = match self.events.len() {
            all if all as u64 == self.totals.pauses => String::new(),
            kept => format!("; the first {kept} are kept"),
        };
        format!("{} ({}): {}{kept}", self.name, self.pid, self.totals.shares(self.followed_ms))
    }

    /// `  20.13 ms at 3.210 s, 0.02 ms to the safepoint: G1CollectForAllocation (System.gc())`
    fn longest(&self) -> Vec<String> {
        let mut events: Vec<&PauseEvent> = self.events.iter().collect();
        events.sort_by(|one, two| two.stopped_ms.total_cmp(&one.stopped_ms));
        events.truncate(PRINTED_PAUSES);
        let line = |event: &&PauseEvent| {
            let (at, to_safepoint) = (event.begin_ms / 1e3, event.to_safepoint_ms);
            let what = event.what();
            format!(
                "{:>8.2} ms at {at:.3} s, {to_safepoint:.2} ms to the safepoint: {what}",
                event.stopped_ms
            )
        };
        events.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::FrameKind;
    use crate::profile::testing::{batch, frame, series};

    #[test]
    fn a_jvms_pauses_are_told_with_what_they_were_for() {
        let pause = |began_ns, cause: Option<&str>| Pause {
            began_ns,
            reached_ns: began_ns + 1_000_000,
            ended_ns: began_ns + 31_000_000,
            is_over: true,
            operation: Some("G1CollectFull".into()),
            cause: cause.map(Into::into),
        };
        let events = vec![pause(1_500_000_000, None), pause(900_000_000, Some("System.gc()"))];
        let totals = PauseTotals { pauses: 2, to_safepoint_ns: 2_000_000, stopped_ns: 60_000_000 };
        let jvm = JvmPauses {
            pid: 7,
            since_ns: 1_000_000_000,
            until_ns: 3_000_000_000,
            totals,
            by_operation: BTreeMap::from([("G1CollectFull".into(), totals)]),
            events,
            lost: 0,
        };
        let of_jvm =
            series(&[("pid", "7"), ("jvm_main_class", "Shop")], vec![(vec![frame(FrameKind::Java, "f")], 1)]);
        let jvms = JvmPauseSummary::of_jvms(&[jvm], &[batch(vec![of_jvm])], 1_000_000_000);
        assert_eq!(
            jvms[0].line(),
            "Shop (7): stopped for 3.00 % of 2.0 s, 2 pauses; 0.10 % to reach safepoints"
        );
        assert_eq!(
            jvms[0].longest(),
            [
                "   30.00 ms at 0.500 s, 1.00 ms to the safepoint: G1CollectFull",
                "   30.00 ms at -0.100 s, 1.00 ms to the safepoint: G1CollectFull (System.gc())"
            ]
        );
        let totals = TotalsSummary { pauses: 9, ..jvms[0].totals };
        let cut = JvmPauseSummary { totals, ..jvms[0].clone() };
        assert_eq!(
            cut.line(),
            "Shop (7): stopped for 3.00 % of 2.0 s, 9 pauses; 0.10 % to reach safepoints; the first 2 are kept"
        );
        let lanes = JvmPauseSummary::lanes(&jvms);
        assert_eq!((&*lanes[0].jvm, lanes[0].marks.len()), ("Shop (7)", 2));
        // It was followed since the recording's start.
        assert_eq!([lanes[0].followed_from_ms, lanes[0].followed_ms], [0.0, 2_000.0]);
    }
}
