//! Counting equal stacks of equal label sets.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::model::{Batch, Frame, LabelSet, Sample, Series};

/// The samples of one window.
///
/// `K` tells whose stack it is, for those that look at it again before it goes out.
#[derive(Debug)]
pub struct Aggregator<K> {
    series: HashMap<Arc<LabelSet>, HashMap<StackKey, Counted<K>>>,
    started: SystemTime,
}

#[derive(Debug)]
struct Counted<K> {
    count: u64,
    owner: K,
    pending: bool,
}

/// A stack, equal to another if it is made of the very same frames.
#[derive(Debug)]
struct StackKey(Vec<Arc<Frame>>);

impl PartialEq for StackKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

impl Eq for StackKey {}

impl Hash for StackKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for frame in &self.0 {
            state.write_usize(Arc::as_ptr(frame).addr());
        }
    }
}

impl<K> Aggregator<K> {
    /// A window that begins at this time.
    pub fn new(started: SystemTime) -> Self {
        Self { series: HashMap::new(), started }
    }

    /// Counts a stack (leaf first). `pending`: some of its frames may still get names.
    pub fn add(&mut self, labels: &Arc<LabelSet>, owner: K, frames: Vec<Arc<Frame>>, pending: bool) {
        let stacks = match self.series.get_mut(labels) {
            Some(stacks) => stacks,
            None => self.series.entry(Arc::clone(labels)).or_default(),
        };
        let counted = stacks.entry(StackKey(frames)).or_insert(Counted { count: 0, owner, pending });
        counted.count += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Ends the window and begins the next one at `now`. `finish` sees each pending stack a last time.
    pub fn flush(
        &mut self,
        now: SystemTime,
        duration: Duration,
        period_ns: u64,
        mut finish: impl FnMut(K, &mut [Arc<Frame>]),
    ) -> Batch {
        let series = std::mem::take(&mut self.series)
            .into_iter()
            .map(|(labels, stacks)| {
                let samples = stacks
                    .into_iter()
                    .map(|(StackKey(mut frames), counted)| {
                        if counted.pending {
                            finish(counted.owner, &mut frames);
                        }
                        Sample { frames, count: counted.count }
                    })
                    .collect();
                Series { labels: Arc::unwrap_or_clone(labels), samples }
            })
            .collect();
        let start = std::mem::replace(&mut self.started, now);
        Batch { start, duration, period_ns, series }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, Line};

    fn frame(name: &str) -> Arc<Frame> {
        let line = Line { name: name.into(), system_name: name.into(), file: None, line: 0 };
        Arc::new(Frame { kind: FrameKind::Native, address: None, mapping: None, lines: vec![line] })
    }

    fn labels(pid: &str) -> Arc<LabelSet> {
        Arc::new(LabelSet::from([("pid".to_owned(), pid.to_owned())]))
    }

    #[test]
    fn equal_stacks_of_equal_labels_are_counted_together() {
        let (main, leaf, other) = (frame("main"), frame("leaf"), frame("other"));
        let mut aggregator = Aggregator::new(SystemTime::UNIX_EPOCH);
        for _ in 0..3 {
            // Label sets are equal by value, also when they aren't the same one.
            aggregator.add(&labels("1"), 1, vec![leaf.clone(), main.clone()], false);
        }
        aggregator.add(&labels("1"), 1, vec![other, main.clone()], false);
        aggregator.add(&labels("2"), 2, vec![leaf, main], false);
        let batch = aggregator.flush(SystemTime::UNIX_EPOCH, Duration::from_secs(1), 10, |_, _| {});
        assert_eq!(batch.samples(), 5);
        assert_eq!(batch.series.len(), 2);
        let first = batch.series.iter().find(|series| series.labels["pid"] == "1").expect("pid 1 was added");
        let mut counts: Vec<u64> = first.samples.iter().map(|sample| sample.count).collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 3]);
        assert!(aggregator.is_empty());
    }

    #[test]
    fn pending_stacks_are_shown_once_more_with_their_owner() {
        let mut aggregator = Aggregator::new(SystemTime::UNIX_EPOCH);
        aggregator.add(&labels("1"), 7, vec![frame("later")], true);
        aggregator.add(&labels("1"), 7, vec![frame("known")], false);
        let mut seen = Vec::new();
        let named = frame("named");
        let batch = aggregator.flush(SystemTime::UNIX_EPOCH, Duration::from_secs(1), 10, |owner, frames| {
            seen.push((owner, frames[0].lines[0].name.to_string()));
            frames[0] = Arc::clone(&named);
        });
        assert_eq!(seen, [(7, "later".to_owned())]);
        let samples = &batch.series[0].samples;
        assert!(samples.iter().any(|sample| Arc::ptr_eq(&sample.frames[0], &named)));
    }
}
