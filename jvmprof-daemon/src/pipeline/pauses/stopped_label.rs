//! The label of samples of CPU time that fall in a pause of their JVM.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::profile::model::{SampleLabel, SampleLabels};

/// The label's name; its value is what the JVM has stopped for.
pub const STOPPED_LABEL: &str = "stw";

static NAME: LazyLock<Arc<str>> = LazyLock::new(|| STOPPED_LABEL.into());

/// Different labels that are remembered, at most: equal stacks with others are counted apart.
const MAX_LABELS: usize = 4096;

/// The labels of a window: equal ones are one, by which equal stacks are found.
#[derive(Debug, Default)]
pub(super) struct StoppedLabels(HashMap<(usize, Arc<str>), [SampleLabels; 2]>);

impl StoppedLabels {
    /// Adds the label to those that a sample has.
    pub(super) fn add(&mut self, operation: &Arc<str>, labels: &mut SampleLabels) {
        let key = (labels.address(), Arc::clone(operation));
        if let Some([_, with]) = self.0.get(&key) {
            *labels = with.clone();
            return;
        }
        let label = SampleLabel { name: Arc::clone(&NAME), value: Arc::clone(operation) };
        let with: Vec<SampleLabel> = labels.iter().cloned().chain([label]).collect();
        // The former are kept, so that no others get their address.
        let before = std::mem::replace(labels, SampleLabels::new(with));
        if self.0.len() < MAX_LABELS {
            self.0.insert(key, [before, labels.clone()]);
        }
    }

    /// Begins the next window.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_are_one() {
        let mut stopped = StoppedLabels::default();
        let operation = |name: &str| -> Arc<str> { name.into() };
        let (mut first, mut second, mut other) = Default::default();
        stopped.add(&operation("Cleanup"), &mut first);
        stopped.add(&operation("Cleanup"), &mut second);
        stopped.add(&operation("HeapDumper"), &mut other);
        assert_eq!(first.address(), second.address());
        assert_ne!(first.address(), other.address());
        let labels: Vec<_> = other.iter().map(|label| (&*label.name, &*label.value)).collect();
        assert_eq!(labels, [(STOPPED_LABEL, "HeapDumper")]);
    }
}
