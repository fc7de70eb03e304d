//! Waits in a recording's summary: how long threads waited, for what, and where.

use std::collections::HashMap;

use serde::Serialize;

use crate::own_process::{one_line, stderr_line};
use crate::pipeline::off_cpu::{OffCpuCounts, is_idle, wait_of};
use crate::profile::model::{Batch, Sample};

/// Rows of each table.
const ROWS: usize = 14;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::app::record) struct WaitSummary {
    /// Waits that the profile stands for, and their time.
    waits: u64,
    waited_ns: u64,
    /// Those of them in which threads had nothing to do, which the tables leave out.
    idle_waits: u64,
    idle_ns: u64,
    /// Waits whose stacks were taken, and the mean distance of their points at the end.
    events: u64,
    interval_ns: u64,
    /// Waits that have ended while their threads were followed, long enough for the profile or not.
    ended_waits: u64,
    ended_ns: u64,
    /// Those that were too short for it.
    short_waits: u64,
    short_ns: u64,
    causes: Vec<WaitRow>,
    methods: Vec<WaitRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct WaitRow {
    name: String,
    waits: u64,
    waited_ns: u64,
}

impl WaitSummary {
    pub(in crate::app::record) fn new(batch: &Batch, counts: &OffCpuCounts) -> Self {
        let (mut causes, mut methods) = (WaitRows::default(), WaitRows::default());
        let (mut waits, mut waited_ns) = (0, 0);
        let (mut idle_waits, mut idle_ns) = (0, 0);
        for sample in batch.series.iter().flat_map(|series| &series.samples) {
            waits += sample.count;
            waited_ns += sample.value;
            if is_idle(sample) {
                idle_waits += sample.count;
                idle_ns += sample.value;
                continue;
            }
            causes.add(wait_of(sample).unwrap_or_default(), sample);
            let lines = sample.frames.iter().flat_map(|frame| &frame.lines);
            if let Some(line) = lines.into_iter().find(|line| line.mode.is_some()) {
                methods.add(&line.name, sample);
            }
        }
        Self {
            waits,
            waited_ns,
            idle_waits,
            idle_ns,
            events: batch.samples(),
            interval_ns: batch.period,
            ended_waits: counts.waits,
            ended_ns: counts.waited_ns,
            short_waits: counts.short_waits,
            short_ns: counts.short_ns,
            causes: causes.largest(),
            methods: methods.largest(),
        }
    }

    pub(in crate::app::record) fn print(&self) {
        stderr_line!(
            "{} waited, in {} waits; {} stacks taken; {} in {} waits too short for a profile",
            seconds(self.waited_ns),
            self.waits,
            self.events,
            seconds(self.short_ns),
            self.short_waits
        );
        if self.idle_ns > 0 {
            stderr_line!(
                "  not shown: {} of threads that had nothing to do, in {} waits (label idle=true)",
                seconds(self.idle_ns),
                self.idle_waits
            );
        }
        let shown = self.waited_ns - self.idle_ns;
        let percent = |part: u64| if shown == 0 { 0.0 } else { part as f64 * 100.0 / shown as f64 };
        for rows in [&self.causes, &self.methods] {
            if !rows.is_empty() {
                stderr_line!("  waited       waits");
            }
            for row in rows {
                stderr_line!("{:>6.2} % {:>11}  {}", percent(row.waited_ns), row.waits, one_line(&row.name));
            }
        }
    }
}

fn seconds(ns: u64) -> String {
    format!("{:.1} s", ns as f64 / 1e9)
}

/// Waits and their time by something.
#[derive(Debug, Default)]
struct WaitRows<'a>(HashMap<&'a str, (u64, u64)>);

impl<'a> WaitRows<'a> {
    fn add(&mut self, name: &'a str, sample: &Sample) {
        let (waits, waited) = self.0.entry(name).or_default();
        *waits += sample.count;
        *waited += sample.value;
    }

    fn largest(self) -> Vec<WaitRow> {
        let row = |(name, (waits, waited_ns)): (&str, (u64, u64))| WaitRow {
            name: name.to_owned(),
            waits,
            waited_ns,
        };
        let mut rows: Vec<WaitRow> = self.0.into_iter().map(row).collect();
        rows.sort_unstable_by(|a, b| b.waited_ns.cmp(&a.waited_ns).then_with(|| a.name.cmp(&b.name)));
        rows.truncate(ROWS);
        rows
    }
}
