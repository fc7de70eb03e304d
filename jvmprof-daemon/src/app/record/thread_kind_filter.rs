//! Samples of some kinds of threads alone (`--thread-kind`), and how many that leaves out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::app::args::ThreadKindArg;
use crate::event_type::EventType;
use crate::own_process::stderr_line;
use crate::profile::jvm_activity::{ThreadKind, thread_kind_of};
use crate::profile::model::{Batch, Sample, Series};

/// The kinds of threads that a recording is of, and the stacks of others that it leaves out. Names
/// of the fields are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ThreadKindFilter {
    kinds: BTreeSet<&'static str>,
    events: Vec<EventStacks>,
}

/// The stacks of one event. Names of the fields are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct EventStacks {
    /// What `-e` calls it.
    event: &'static str,
    /// Those of threads of these kinds.
    stacks: u64,
    /// Those of other threads, by kind: `unknown` of programs that are no JVMs, and of stacks that
    /// aren't whole.
    left_out: BTreeMap<&'static str, u64>,
}

impl ThreadKindFilter {
    /// Leaves samples of threads of these kinds in the profiles; `None` if no kinds are given, and
    /// all samples stay.
    pub(super) fn apply(kinds: &[ThreadKindArg], batches: &mut [Batch]) -> Option<Self> {
        let kinds: BTreeSet<ThreadKind> = kinds.iter().map(|kind| kind.kind()).collect();
        if kinds.is_empty() {
            return None;
        }
        let events = batches.iter_mut().map(|batch| EventStacks::retain(&kinds, batch)).collect();
        Some(Self { kinds: kinds.into_iter().map(ThreadKind::name).collect(), events })
    }

    pub(super) fn print(&self) {
        self.lines().iter().for_each(|line| stderr_line!("  {line}"));
    }

    /// `120 stacks of cpu are of compiler, gc threads; left out: 2700 java, 180 unknown`
    fn lines(&self) -> Vec<String> {
        let kinds = self.kinds.iter().copied().collect::<Vec<_>>().join(", ");
        let line = |of: &EventStacks| {
            let left_out = of.left_out.iter().map(|(kind, stacks)| format!("{stacks} {kind}"));
            let left_out = left_out.collect::<Vec<_>>().join(", ");
            let left_out = if left_out.is_empty() { "none" } else { left_out.as_str() };
            format!("{} stacks of {} are of {kinds} threads; left out: {left_out}", of.stacks, of.event)
        };
        self.events.iter().map(line).collect()
    }
}

impl EventStacks {
    /// Leaves samples of threads of these kinds in a profile, and counts all.
    fn retain(kinds: &BTreeSet<ThreadKind>, batch: &mut Batch) -> Self {
        let mut counted = Self { event: batch.event.descriptor().name, stacks: 0, left_out: BTreeMap::new() };
        let is_wall = batch.event == EventType::Wall;
        for series in &mut batch.series {
            let of_thread = if is_wall { most_common_kind(series) } else { ThreadKind::Unknown };
            series.samples.retain(|sample| {
                let kind = match kind_of(sample) {
                    // Time of which no stack was taken is the thread's.
                    ThreadKind::Unknown if sample.events == 0 => of_thread,
                    kind => kind,
                };
                let is_wanted = kinds.contains(&kind);
                let stacks = if is_wanted {
                    &mut counted.stacks
                } else {
                    counted.left_out.entry(kind.name()).or_default()
                };
                *stacks += sample.events;
                is_wanted
            });
        }
        batch.series.retain(|series| !series.samples.is_empty());
        counted
    }
}

fn kind_of(sample: &Sample) -> ThreadKind {
    thread_kind_of(sample).and_then(ThreadKind::of_name).unwrap_or(ThreadKind::Unknown)
}

/// Returns the kind that a thread has most of its time: carriers are `virtual` while a virtual
/// thread is mounted.
fn most_common_kind(series: &Series) -> ThreadKind {
    let mut times: BTreeMap<ThreadKind, u64> = BTreeMap::new();
    for sample in &series.samples {
        let time = times.entry(kind_of(sample)).or_default();
        *time = time.saturating_add(sample.value);
    }
    let known = times.into_iter().filter(|(kind, _)| *kind != ThreadKind::Unknown);
    known.max_by_key(|(_, time)| *time).map_or(ThreadKind::Unknown, |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::jvm_activity::THREAD_KIND_LABEL;
    use crate::profile::model::{FrameKind, SampleLabel, SampleLabels};
    use crate::profile::testing::{batch, frame, series};

    /// A series with a sample of each of these kinds, of so many events; empty: it has none.
    fn of_kinds(kinds: &[(&str, u64)]) -> Series {
        let stacks = kinds.iter().map(|(_, count)| (vec![frame(FrameKind::Native, "f")], *count));
        let mut series = series(&[("pid", "7")], stacks.collect());
        for (sample, (kind, _)) in series.samples.iter_mut().zip(kinds) {
            if !kind.is_empty() {
                let label = SampleLabel { name: THREAD_KIND_LABEL.into(), value: (*kind).into() };
                sample.labels = SampleLabels::new([label]);
            }
        }
        series
    }

    fn kinds_in(batch: &Batch) -> Vec<Vec<ThreadKind>> {
        batch.series.iter().map(|series| series.samples.iter().map(kind_of).collect()).collect()
    }

    #[test]
    fn samples_of_other_kinds_are_left_out_and_counted() {
        let jvm = of_kinds(&[("java", 80), ("gc", 10), ("compiler", 4), ("", 2)]);
        let mut batches = [
            batch(vec![jvm, of_kinds(&[("", 500)]), of_kinds(&[("gc", 7)])]),
            Batch { event: EventType::Allocation, ..batch(vec![of_kinds(&[("java", 3)])]) },
        ];
        let kinds = [ThreadKindArg::Gc, ThreadKindArg::Compiler, ThreadKindArg::Gc];
        let filter = ThreadKindFilter::apply(&kinds, &mut batches).expect("there are kinds");
        let [gc, compiler] = [ThreadKind::Gc, ThreadKind::Compiler];
        assert_eq!(kinds_in(&batches[0]), [vec![gc, compiler], vec![gc]]);
        assert_eq!(kinds_in(&batches[1]), Vec::<Vec<ThreadKind>>::new());
        assert_eq!(
            filter.lines(),
            [
                "21 stacks of cpu are of compiler, gc threads; left out: 80 java, 502 unknown",
                "0 stacks of alloc are of compiler, gc threads; left out: 3 java",
            ]
        );
        let json = serde_json::to_value(&filter).expect("JSON");
        let first =
            serde_json::json!({"event": "cpu", "stacks": 21, "left_out": {"java": 80, "unknown": 502}});
        assert_eq!((&json["kinds"], &json["events"][0]), (&serde_json::json!(["compiler", "gc"]), &first));
    }

    #[test]
    fn without_kinds_all_samples_stay() {
        let mut batches = [batch(vec![of_kinds(&[("java", 80), ("", 2)])])];
        assert_eq!(ThreadKindFilter::apply(&[], &mut batches), None);
        assert_eq!(batches[0].samples(), 82);
    }

    #[test]
    fn time_without_a_stack_is_of_the_kind_that_its_thread_mostly_has() {
        let thread = |kinds: &[(&str, u64)]| {
            let mut series = of_kinds(kinds);
            // What isn't sampled has a time only.
            series
                .samples
                .iter_mut()
                .filter(|sample| sample.labels.iter().next().is_none())
                .for_each(|sample| sample.events = 0);
            series
        };
        let carrier = thread(&[("java", 1), ("virtual", 9), ("", 5)]);
        let threads = vec![carrier, thread(&[("java", 3), ("", 20)]), thread(&[("", 4)])];
        let of_event = |event| [Batch { event, ..batch(threads.clone()) }];
        let mut wall = of_event(EventType::Wall);
        let filter = ThreadKindFilter::apply(&[ThreadKindArg::Virtual], &mut wall).expect("a kind");
        assert_eq!(kinds_in(&wall[0]), [[ThreadKind::Virtual, ThreadKind::Unknown]]);
        assert_eq!(wall[0].series[0].samples[1].value, 50_000_000, "of the same thread");
        assert_eq!(filter.lines(), ["9 stacks of wall are of virtual threads; left out: 4 java, 0 unknown"]);
        let mut waits = of_event(EventType::OffCpu);
        ThreadKindFilter::apply(&[ThreadKindArg::Virtual], &mut waits);
        assert_eq!(kinds_in(&waits[0]), [[ThreadKind::Virtual]]);
    }

    #[test]
    fn each_kind_is_called_as_the_label_calls_it() {
        use clap::ValueEnum as _;
        let names = |kind: &ThreadKindArg| {
            let argument = kind.to_possible_value().expect("none is hidden");
            (argument.get_name().to_owned(), kind.kind().name())
        };
        for (argument, label) in ThreadKindArg::value_variants().iter().map(names) {
            assert_eq!(argument, label);
        }
        let kinds = ThreadKind::names().filter(|name| *name != ThreadKind::Unknown.name());
        assert_eq!(kinds.count(), ThreadKindArg::value_variants().len());
    }
}
