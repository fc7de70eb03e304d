//! The processes of a recording: each sample that is counted says of which one it is.

use std::collections::BTreeSet;

use serde::Serialize;

use super::TreeBuilder;
use crate::profile::model::{Batch, LabelSet, process_name};

/// The most processes that are distinguished. Of more, such as the compilers of a build, nobody
/// compares the stacks of each.
const MAX_PROCESSES: usize = 50;

/// The processes of some batches. The names in JSON are what the page's `record.js` reads.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Processes {
    /// In alphabetical order: the first one has the number 1. Empty if there are too many, or just
    /// one.
    #[serde(rename = "processes")]
    names: Vec<String>,
    /// How many there are.
    #[serde(rename = "process_count")]
    count: usize,
}

impl Processes {
    /// Returns the processes of all series of the batches.
    pub fn of_batches(batches: &[Batch]) -> Self {
        let series = batches.iter().flat_map(|batch| &batch.series);
        let names: BTreeSet<_> = series.filter_map(|series| process_name(&series.labels)).collect();
        let count = names.len();
        let is_listed = (2..=MAX_PROCESSES).contains(&count);
        Self { names: if is_listed { names.into_iter().collect() } else { Vec::new() }, count }
    }

    /// Returns true if there is more than one.
    pub fn are_several(&self) -> bool {
        self.count > 1
    }

    /// Returns true if samples say of which one they are.
    pub(super) fn are_distinguished(&self) -> bool {
        !self.names.is_empty()
    }

    /// Returns the number of the process that a series is of; 0 if it isn't distinguished.
    pub(super) fn number(&self, labels: &LabelSet) -> u16 {
        if !self.are_distinguished() {
            return 0;
        }
        let index = process_name(labels).and_then(|name| self.names.binary_search(&name).ok());
        index.map_or(0, |index| index as u16 + 1)
    }
}

impl TreeBuilder {
    /// Makes the builder count samples by these processes, too.
    pub fn count_processes(&mut self, processes: &Processes) {
        self.activities.processes = processes.clone();
    }
}
