//! The samples that are shown: sums by process, of the last seconds and since the begin.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use crate::app::record::summary::hottest_functions::{FunctionTable, RowOrder, TopRow};
use crate::app::record::summary::jvm_time::JvmTime;
use crate::pipeline::jvm_totals::jvm_name;
use crate::profile::java_view::JavaView;
use crate::profile::model::Batch;

/// Processes that a sum keeps apart; further ones are one, and as many JVMs.
pub(super) const MAX_PROCESSES: usize = 500;

/// The functions of a process: with all frames, and with Java's alone.
#[derive(Clone, Debug, Default)]
struct ProcessFunctions {
    samples: u64,
    all: FunctionTable,
    java: FunctionTable,
}

/// The samples of some time.
#[derive(Clone, Debug, Default)]
pub(super) struct SampleSlice {
    pub(super) duration: Duration,
    pub(super) samples: u64,
    /// CPU time that a sample stands for, in ns.
    period: u64,
    /// By pid.
    jvms: BTreeMap<Option<u32>, JvmTime>,
    /// Samples of JVMs for which there was no room among these.
    pub(super) other_jvms: u64,
    functions: BTreeMap<Option<u32>, ProcessFunctions>,
}

impl SampleSlice {
    /// Adds a profile of CPU time that followed on what there is.
    pub(super) fn add(&mut self, batch: &Batch) {
        self.duration += batch.duration;
        self.period = batch.period;
        for jvm in JvmTime::of_batch(batch) {
            self.add_jvm(&jvm);
        }
        let java = JavaView::new(batch).batch;
        for (series, java) in batch.series.iter().zip(&java.series) {
            let samples: u64 = series.samples.iter().map(|sample| sample.count).sum();
            self.samples += samples;
            let functions = self.functions_of(jvm_name(&series.labels).pid.parse().ok());
            functions.samples += samples;
            functions.all.add(series);
            functions.java.add(java);
        }
    }

    /// Adds what was later.
    pub(super) fn merge(&mut self, later: &Self) {
        self.duration += later.duration;
        self.samples += later.samples;
        self.period = later.period;
        later.jvms.values().for_each(|jvm| self.add_jvm(jvm));
        self.other_jvms += later.other_jvms;
        for (pid, functions) in &later.functions {
            let sum = self.functions_of(*pid);
            sum.samples += functions.samples;
            sum.all.merge(&functions.all);
            sum.java.merge(&functions.java);
        }
    }

    fn add_jvm(&mut self, jvm: &JvmTime) {
        let is_full = self.jvms.len() >= MAX_PROCESSES;
        match self.jvms.get_mut(&jvm.pid) {
            Some(sum) => sum.merge(jvm),
            None if is_full => self.other_jvms += jvm.samples,
            None => {
                self.jvms.insert(jvm.pid, jvm.clone());
            }
        }
    }

    fn functions_of(&mut self, pid: Option<u32>) -> &mut ProcessFunctions {
        let is_full = self.functions.len() >= MAX_PROCESSES && !self.functions.contains_key(&pid);
        // A JVM that begins late is one of those that can be chosen.
        let is_one_more = is_full && !self.jvms.contains_key(&pid);
        self.functions.entry(if is_one_more { None } else { pid }).or_default()
    }

    /// The JVMs, the one with the most samples first.
    pub(super) fn jvms(&self) -> Vec<&JvmTime> {
        let mut jvms: Vec<_> = self.jvms.values().collect();
        jvms.sort_by_key(|jvm| (std::cmp::Reverse(jvm.samples), jvm.pid));
        jvms
    }

    /// The CPUs that so many samples stand for.
    pub(super) fn cores(&self, samples: u64) -> f64 {
        samples as f64 * self.period as f64 / self.duration.as_nanos().max(1) as f64
    }

    /// The rows of a process or of all, and the samples that they are shares of.
    pub(super) fn rows(
        &self,
        chosen: Option<u32>,
        java: bool,
        order: RowOrder,
        limit: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> (Vec<TopRow>, u64) {
        let mut sum = FunctionTable::default();
        let mut samples = 0;
        for (pid, functions) in &self.functions {
            if chosen.is_none() || *pid == chosen {
                samples += functions.samples;
                sum.merge(if java { &functions.java } else { &functions.all });
            }
        }
        (sum.rows(order, limit, is_shown), samples)
    }
}

/// The samples of the last seconds, and of all the time.
#[derive(Clone, Debug, Default)]
pub(super) struct TopTotals {
    pub(super) window: Rc<SampleSlice>,
    pub(super) since_begin: Rc<SampleSlice>,
}

/// The samples slice by slice, and their sums: of a slice that comes, not of a picture that is
/// drawn.
#[derive(Debug)]
pub(super) struct TopSamples {
    slices: VecDeque<SampleSlice>,
    limit: usize,
    totals: TopTotals,
}

impl TopSamples {
    /// Makes an empty window of so many slices.
    pub(super) fn new(limit: usize) -> Self {
        Self { slices: VecDeque::new(), limit, totals: TopTotals::default() }
    }

    pub(super) fn push(&mut self, slice: SampleSlice) {
        Rc::make_mut(&mut self.totals.since_begin).merge(&slice);
        if self.slices.len() < self.limit {
            Rc::make_mut(&mut self.totals.window).merge(&slice);
            self.slices.push_back(slice);
            return;
        }
        self.slices.pop_front();
        self.slices.push_back(slice);
        let mut window = SampleSlice::default();
        self.slices.iter().for_each(|slice| window.merge(slice));
        self.totals.window = Rc::new(window);
    }

    /// The totals as they are now; what comes later doesn't change them.
    pub(super) fn totals(&self) -> &TopTotals {
        &self.totals
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, SampleLabel, SampleLabels, Series};
    use crate::profile::testing::{batch, frame, series};

    fn with_kind(mut series: Series, kind: &str) -> Series {
        for sample in &mut series.samples {
            let label = SampleLabel { name: "thread_kind".into(), value: kind.into() };
            sample.labels = SampleLabels::new([label]);
        }
        series
    }

    /// A JVM that copies for a method, its collector, and another program.
    pub(in crate::app::record::top) fn slice(copies: u64) -> SampleSlice {
        let shop = [("pid", "7"), ("comm", "java"), ("jvm_main_class", "Shop")];
        let copy = vec![
            frame(FrameKind::Native, "memcpy"),
            frame(FrameKind::Java, "com.acme.Order.copy"),
            frame(FrameKind::Java, "com.acme.Shop.main"),
        ];
        let mut slice = SampleSlice::default();
        slice.add(&batch(vec![
            with_kind(series(&shop, vec![(copy, copies)]), "java"),
            with_kind(series(&shop, vec![(vec![frame(FrameKind::Native, "mark")], 100)]), "gc"),
            series(&[("pid", "9"), ("comm", "cat")], vec![(vec![frame(FrameKind::Native, "read")], 50)]),
        ]));
        slice
    }

    #[test]
    fn the_window_slides_and_the_whole_time_does_not() {
        let mut samples = TopSamples::new(2);
        [300, 400, 500].into_iter().for_each(|copies| samples.push(slice(copies)));
        let of = |slice: &SampleSlice, chosen, java| {
            let (rows, all) = slice.rows(chosen, java, RowOrder::Own, 1, |_| true);
            (rows[0].name.clone(), rows[0].own, all)
        };
        let TopTotals { window, since_begin } = samples.totals();
        assert_eq!(of(window, None, false), ("memcpy".to_owned(), 900, 1200));
        assert_eq!(of(window, Some(7), true), ("com.acme.Order.copy".to_owned(), 900, 1100));
        assert_eq!(of(since_begin, Some(9), false), ("read".to_owned(), 150, 150));
        assert_eq!(window.duration, Duration::from_secs(20));
        let jvms = window.jvms();
        assert_eq!((jvms.len(), jvms[0].samples), (1, 1100));
        // 1,100 samples of 10 ms in 20 s.
        assert!((window.cores(jvms[0].samples) - 0.55).abs() < 1e-9);
    }

    #[test]
    fn processes_without_end_are_one() {
        let mut sum = SampleSlice::default();
        for pid in 0..MAX_PROCESSES + 10 {
            let pid = pid.to_string();
            let stack = vec![frame(FrameKind::Native, "f")];
            sum.add(&batch(vec![series(&[("pid", &pid), ("comm", "x")], vec![(stack, 1)])]));
        }
        assert_eq!(sum.functions.len(), MAX_PROCESSES + 1);
        assert_eq!((sum.functions[&None].samples, sum.samples), (10, MAX_PROCESSES as u64 + 10));
    }

    /// So many JVMs that ten find no room, each with a sample.
    pub(in crate::app::record::top) fn crowd() -> SampleSlice {
        let jvms = (0..MAX_PROCESSES + 10).map(|pid| {
            let labels = [("pid", &*pid.to_string()), ("comm", "java"), ("jvm_main_class", "Shop")]
                .map(|(name, value)| (name, value.to_owned()));
            let labels = labels.each_ref().map(|(name, value)| (*name, value.as_str()));
            with_kind(series(&labels, vec![(vec![frame(FrameKind::Java, "A.main")], 1)]), "java")
        });
        let mut slice = SampleSlice::default();
        slice.add(&batch(jvms.collect()));
        slice
    }

    #[test]
    fn jvms_without_room_are_counted_together() {
        let mut sum = crowd();
        sum.merge(&crowd());
        assert_eq!((sum.jvms().len(), sum.other_jvms), (MAX_PROCESSES, 20));
    }
}
