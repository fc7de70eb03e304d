//! Allocation in a recording's summary: the classes and the methods that allocate most.

use std::collections::HashMap;

use serde::Serialize;

use crate::own_process::{one_line, stderr_line};
use crate::pipeline::Counts;
use crate::pipeline::allocation::{CLASS_LABEL, ClassErrors};
use crate::profile::model::{Batch, FrameKind};
use crate::sampler::ProgramRunTime;

/// Rows of each table.
const ROWS: usize = 10;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::app::record) struct AllocationSummary {
    /// Objects and bytes that JVMs have allocated while they were followed.
    objects: u64,
    bytes: u64,
    /// Events whose stacks were taken.
    events: u64,
    /// Events of equal weight that would say as much: a share *q* that stacks have of a class of
    /// *n* of them has a relative standard error of √((1 − *q*) / (*q* *n*)).
    effective_events: u64,
    /// The mean distance of events at the end, bytes.
    interval: u64,
    /// Buffers whose objects were counted, and those that were screened only.
    censuses: u64,
    screened_buffers: u64,
    /// Those of the uprobes' programs.
    #[serde(flatten)]
    runs: Option<ProgramRunTime>,
    classes: Vec<ClassRow>,
    methods: Vec<AllocationRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct AllocationRow {
    name: String,
    objects: u64,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ClassRow {
    #[serde(flatten)]
    row: AllocationRow,
    /// Those bytes of objects that are each an event, which are exact.
    counted_bytes: u64,
    /// One standard error of `bytes`, in percent; absent if it isn't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_percent: Option<f64>,
}

impl ClassRow {
    fn new(row: AllocationRow, errors: Option<&ClassErrors>) -> Self {
        let error = errors.and_then(|errors| errors.get(&row.name));
        let percent = error.and_then(|error| error.percent(row.bytes));
        Self {
            counted_bytes: error.map_or(0, |error| error.counted_bytes as u64),
            // Two digits behind the point, since nobody knows an error better.
            error_percent: percent.map(|percent| (percent * 100.0).round() / 100.0),
            row,
        }
    }
}

impl AllocationSummary {
    pub(in crate::app::record) fn new(batch: &Batch, counts: &Counts, errors: Option<&ClassErrors>) -> Self {
        let (mut classes, mut methods) = (HashMap::new(), HashMap::new());
        let (mut objects, mut bytes) = (0, 0);
        for sample in batch.series.iter().flat_map(|series| &series.samples) {
            objects += sample.count;
            bytes += sample.value;
            let add = |rows: &mut HashMap<String, (u64, u64)>, name: &str| {
                let (objects, bytes) = rows.entry(name.to_owned()).or_default();
                *objects += sample.count;
                *bytes += sample.value;
            };
            let leaf = sample.frames.first().filter(|frame| frame.kind == FrameKind::Class);
            let leaf = leaf.and_then(|frame| frame.lines.first()).map(|line| &line.name);
            let label = || sample.labels.iter().find(|label| &*label.name == CLASS_LABEL);
            if let Some(class) = leaf.or_else(|| label().map(|label| &label.value)) {
                add(&mut classes, class);
            }
            let lines = sample.frames.iter().flat_map(|frame| &frame.lines);
            if let Some(line) = lines.into_iter().find(|line| line.mode.is_some()) {
                add(&mut methods, &line.name);
            }
        }
        Self {
            objects,
            bytes,
            events: batch.samples(),
            effective_events: counts.allocation.effective_events(),
            interval: batch.period,
            censuses: counts.allocation.censuses,
            screened_buffers: counts.allocation.screened_buffers,
            runs: counts.run_times.allocation,
            classes: rows(classes).into_iter().map(|row| ClassRow::new(row, errors)).collect(),
            methods: rows(methods),
        }
    }

    pub(in crate::app::record) fn print(&self) {
        stderr_line!(
            "{} bytes allocated in {} objects, by {} stacks and {} buffers that were counted",
            self.bytes,
            self.objects,
            self.events,
            self.censuses
        );
        let classes: Vec<&AllocationRow> = self.classes.iter().map(|class| &class.row).collect();
        for (title, rows) in [("class", classes), ("method", self.methods.iter().collect())] {
            if !rows.is_empty() {
                stderr_line!("   bytes        objects  {title}");
            }
            for row in rows {
                let percent = row.bytes as f64 * 100.0 / self.bytes.max(1) as f64;
                stderr_line!("{percent:>6.2} % {:>14}  {}", row.objects, one_line(&row.name));
            }
        }
    }
}

fn rows(of: HashMap<String, (u64, u64)>) -> Vec<AllocationRow> {
    let row = |(name, (objects, bytes))| AllocationRow { name, objects, bytes };
    let mut rows: Vec<AllocationRow> = of.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    rows.truncate(ROWS);
    rows
}
