//! Sinks that settings have replaced: their counts, and what they left in the folders of spools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::event_type::SamplesByEvent;
use crate::export::delivery::DeliveryCounts;

/// Each sink's name and counts.
type SinkCounts = Vec<(String, DeliveryCounts)>;

/// The counts of sinks that are closed.
#[derive(Debug, Default)]
pub(super) struct ReplacedSinks {
    counts: BTreeMap<String, DeliveryCounts>,
    /// Samples in spools that nobody uses, since another `--spool-directory` was set: by the former
    /// one and the sink.
    left_behind: BTreeMap<(PathBuf, String), SamplesByEvent>,
}

impl ReplacedSinks {
    /// Adds sinks that are closed.
    pub(super) fn close(&mut self, ended: SinkCounts) {
        self.counts = self.since_start(ended);
    }

    /// Takes note of sinks that have been opened, and of their counts then. `from` and `to`:
    /// `--spool-directory` before and now.
    pub(super) fn open(&mut self, from: &Path, to: &Path, opened: SinkCounts) {
        if from != to {
            for (sink, counts) in &mut self.counts {
                if !counts.spooled.is_none() {
                    let place = (from.to_owned(), sink.clone());
                    *self.left_behind.entry(place).or_default() += counts.spooled;
                }
                *counts = counts.with_orphaned_spool();
            }
        }
        for (sink, now) in opened {
            let left = self.left_behind.remove(&(to.to_owned(), sink.clone()));
            if let (Some(left), Some(counts)) = (left, self.counts.get_mut(&sink)) {
                *counts = counts.with_found_spool(left, now.found);
            }
        }
    }

    /// Returns the counts of sinks since the daemon's start: those of now added to those of sinks
    /// that are closed.
    pub(super) fn since_start(&self, now: SinkCounts) -> BTreeMap<String, DeliveryCounts> {
        let mut all = self.counts.clone();
        for (sink, counts) in now {
            let before = all.entry(sink).or_default();
            *before = counts.after(before);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_type::EventType;

    const HERE: &str = "/here";

    fn cpu(samples: u64) -> SamplesByEvent {
        SamplesByEvent::of(EventType::Cpu, samples)
    }

    fn named(name: &str, counts: DeliveryCounts) -> SinkCounts {
        vec![(name.to_owned(), counts)]
    }

    /// Counts of a sink that has found, taken, delivered and kept so many.
    fn counts(found: u64, delivered: u64, spooled: u64) -> DeliveryCounts {
        let [found, delivered, spooled] = [found, delivered, spooled].map(cpu);
        let handed_over = delivered + spooled - found;
        DeliveryCounts { found, handed_over, delivered, spooled, ..DeliveryCounts::default() }
    }

    /// Counts of a sink that has just found so many.
    fn opened(name: &str, found: u64) -> SinkCounts {
        named(name, counts(found, 0, found))
    }

    /// Closes the only sink, and opens it with another `--spool-directory`.
    fn change(replaced: &mut ReplacedSinks, closed: DeliveryCounts, from: &str, to: &str, found: u64) {
        replaced.close(named("a", closed));
        replaced.open(Path::new(from), Path::new(to), opened("a", found));
    }

    #[test]
    fn counts_of_a_sink_go_on_when_it_is_opened_anew() {
        let mut replaced = ReplacedSinks::default();
        replaced.close(named("a", counts(0, 5, 2)));
        replaced.close(named("b", counts(0, 1, 0)));
        replaced.open(Path::new(HERE), Path::new(HERE), opened("a", 2));
        let now = replaced.since_start(named("a", counts(2, 10, 0)));
        assert_eq!(now["a"], counts(0, 15, 0));
        assert_eq!(now["b"], counts(0, 1, 0));
    }

    #[test]
    fn what_a_replaced_spool_keeps_stays_in_the_books() {
        let allocated = SamplesByEvent::of(EventType::Allocation, 4);
        let closed = DeliveryCounts {
            handed_over: cpu(7) + allocated,
            delivered: cpu(5),
            spooled: cpu(2) + allocated,
            ..DeliveryCounts::default()
        };
        let mut replaced = ReplacedSinks::default();
        // Another one, in which there was something already.
        change(&mut replaced, closed, HERE, "/there", 9);
        let now = replaced.since_start(named("a", counts(9, 0, 10)));
        let now_a = (now["a"].found, now["a"].spooled, now["a"].orphaned);
        assert_eq!(now_a, (cpu(9), cpu(10), cpu(2) + allocated));
        assert_eq!(now["a"].unaccounted(), 0);
    }

    #[test]
    fn a_spool_whose_folder_comes_back_is_left_behind_no_longer() {
        let mut replaced = ReplacedSinks::default();
        change(&mut replaced, counts(0, 5, 2), HERE, "/there", 0);
        change(&mut replaced, counts(0, 1, 3), "/there", HERE, 2);
        // It is written in another way, and another sink comes and goes.
        change(&mut replaced, counts(2, 0, 2), HERE, "/here/", 2);
        replaced.open(Path::new(HERE), Path::new(HERE), opened("b", 0));
        let now = replaced.since_start(named("a", counts(2, 1, 1)));
        let a = now["a"];
        assert_eq!((a.found, a.spooled, a.orphaned), (cpu(0), cpu(1), cpu(3)));
        assert_eq!((a.handed_over, a.delivered, a.unaccounted()), (cpu(11), cpu(7), 0));
        change(&mut replaced, counts(2, 1, 1), HERE, "/there", 3);
        let a = replaced.since_start(named("a", counts(3, 3, 0)))["a"];
        assert_eq!((a.found, a.delivered, a.orphaned), (cpu(0), cpu(10), cpu(1)));
        assert_eq!(a.unaccounted(), 0);
    }

    #[test]
    fn what_is_missing_in_a_folder_that_comes_back_is_a_loss() {
        let mut replaced = ReplacedSinks::default();
        change(&mut replaced, counts(0, 5, 4), HERE, "none", 0);
        // Meanwhile somebody has removed files, and the sink comes later than the folder.
        replaced.close(named("a", counts(0, 1, 0)));
        replaced.open(Path::new("none"), Path::new(HERE), opened("b", 0));
        let before = replaced.since_start(Vec::new());
        assert_eq!((before["a"].orphaned, before["a"].unaccounted()), (cpu(4), 0));
        replaced.open(Path::new(HERE), Path::new(HERE), opened("a", 3));
        let a = replaced.since_start(opened("a", 3))["a"];
        assert_eq!((a.found, a.spooled, a.orphaned), (cpu(0), cpu(3), cpu(0)));
        assert_eq!((a.losses.spool_damaged, a.losses.total(), a.unaccounted()), (cpu(1), cpu(1), 0));
    }
}
