//! Locks in a recording's summary: how long threads waited for each, and for whom.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use crate::own_process::{one_line, stderr_line};
use crate::pipeline::off_cpu::{holder_method_of, holder_of};
use crate::profile::model::{Batch, Frame, Line, Sample};

/// Rows of the table, and stacks of holders, at most.
const ROWS: usize = 14;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::app::record) struct LockSummary {
    /// Contentions that the profile stands for, and the time that threads waited for locks.
    contentions: u64,
    delay_ns: u64,
    /// Contentions whose stacks were taken.
    events: u64,
    locks: Vec<LockRow>,
    /// The stacks for which others waited longest.
    holders: Vec<HolderRow>,
}

/// A stack of a thread that had a lock for which others waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct HolderRow {
    /// The lock's class.
    lock: String,
    thread: String,
    contentions: u64,
    delay_ns: u64,
    /// Its functions, leaf first, with their lines where these are known.
    stack: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct LockRow {
    /// The lock's class.
    name: String,
    /// The first Java method that waited for it.
    method: String,
    contentions: u64,
    delay_ns: u64,
    /// The thread that had it when the waits with most of that time began, and that time; `None` if
    /// it is known of none.
    holder: Option<HolderSummary>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct HolderSummary {
    name: String,
    delay_ns: u64,
    /// The method with its line in which it had the lock while others waited most of that time, as
    /// far as that is known, and that time.
    method: Option<HolderMethod>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct HolderMethod {
    name: String,
    delay_ns: u64,
}

#[derive(Debug, Default)]
struct Delays<'a> {
    contentions: u64,
    delay_ns: u64,
    by_holder: HashMap<&'a str, HolderDelays<'a>>,
}

#[derive(Debug, Default)]
struct HolderDelays<'a> {
    delay_ns: u64,
    by_method: HashMap<&'a str, u64>,
}

impl HolderSummary {
    fn new(name: &str, delays: HolderDelays<'_>) -> Self {
        let method = delays.by_method.into_iter().max_by_key(|(method, delay)| (*delay, *method));
        let method = method.map(|(name, delay_ns)| HolderMethod { name: name.to_owned(), delay_ns });
        Self { name: name.to_owned(), delay_ns: delays.delay_ns, method }
    }
}

impl HolderRow {
    fn longest(batch: &Batch) -> Vec<Self> {
        let samples = batch.series.iter().flat_map(|series| &series.samples);
        let mut rows: Vec<Self> = samples.filter_map(Self::new).collect();
        rows.sort_by(|a, b| b.delay_ns.cmp(&a.delay_ns).then_with(|| a.stack.cmp(&b.stack)));
        rows.truncate(ROWS);
        rows
    }

    fn new(sample: &Sample) -> Option<Self> {
        let (lock, frames) = sample.frames.split_first()?;
        let of_frame = |frame: &Arc<Frame>| {
            let name = |line: &Line| match line.line {
                0 => line.name.to_string(),
                number => format!("{}:{number}", line.name),
            };
            frame.lines.iter().map(name).collect::<Vec<_>>()
        };
        Some(Self {
            lock: lock.lines.first()?.name.to_string(),
            thread: holder_of(sample).unwrap_or_default().to_owned(),
            contentions: sample.count,
            delay_ns: sample.value,
            stack: frames.iter().flat_map(of_frame).collect(),
        })
    }
}

impl LockSummary {
    /// Sums a profile of contentions. `holders`: the profile by the stacks of those that had the
    /// locks.
    pub(in crate::app::record) fn new(batch: &Batch, holders: Option<&Batch>) -> Self {
        let mut locks: HashMap<(&str, &str), Delays<'_>> = HashMap::new();
        for sample in batch.series.iter().flat_map(|series| &series.samples) {
            let delays = locks.entry(lock_and_method(sample)).or_default();
            delays.contentions += sample.count;
            delays.delay_ns += sample.value;
            if let Some(holder) = holder_of(sample) {
                let of_holder = delays.by_holder.entry(holder).or_default();
                of_holder.delay_ns += sample.value;
                if let Some(method) = holder_method_of(sample) {
                    *of_holder.by_method.entry(method).or_default() += sample.value;
                }
            }
        }
        let (contentions, delay_ns) =
            locks.values().fold((0, 0), |(count, delay), it| (count + it.contentions, delay + it.delay_ns));
        let row = |((name, method), delays): ((&str, &str), Delays<'_>)| {
            let longest = delays.by_holder.into_iter().max_by_key(|(name, of)| (of.delay_ns, *name));
            LockRow {
                name: name.to_owned(),
                method: method.to_owned(),
                contentions: delays.contentions,
                delay_ns: delays.delay_ns,
                holder: longest.map(|(name, delays)| HolderSummary::new(name, delays)),
            }
        };
        let mut locks: Vec<LockRow> = locks.into_iter().map(row).collect();
        locks.sort_unstable_by(|a, b| b.delay_ns.cmp(&a.delay_ns).then_with(|| a.name.cmp(&b.name)));
        locks.truncate(ROWS);
        let holders = holders.map(HolderRow::longest).unwrap_or_default();
        Self { contentions, delay_ns, events: batch.samples(), locks, holders }
    }

    pub(in crate::app::record) fn print(&self) {
        let seconds = |ns: u64| ns as f64 / 1e9;
        stderr_line!(
            "{:.1} s of waiting for locks, in {} contentions; {} stacks taken",
            seconds(self.delay_ns),
            self.contentions,
            self.events
        );
        if !self.locks.is_empty() {
            stderr_line!("  waited  contentions");
        }
        for lock in &self.locks {
            let percent = lock.delay_ns as f64 * 100.0 / self.delay_ns.max(1) as f64;
            let holder = lock.holder.as_ref().map_or_else(String::new, |holder| {
                let share = holder.delay_ns as f64 * 100.0 / lock.delay_ns.max(1) as f64;
                let method = holder.method.as_ref().map(|method| format!(" in {}", one_line(&method.name)));
                format!(", held by {} ({share:.0} %){}", one_line(&holder.name), method.unwrap_or_default())
            });
            stderr_line!(
                "{percent:>6.2} % {:>11}  {} in {}{holder}",
                lock.contentions,
                one_line(&lock.name),
                one_line(&lock.method)
            );
        }
    }
}

fn lock_and_method(sample: &Sample) -> (&str, &str) {
    let lock = sample.frames.first().and_then(|leaf| leaf.lines.first()).map_or("", |line| &*line.name);
    let mut lines = sample.frames.iter().flat_map(|frame| &frame.lines);
    let is_callers =
        |name: &str| !name.starts_with("java.util.concurrent.") && !name.ends_with("Unsafe.park");
    let method = lines.find(|line| line.mode.is_some() && is_callers(&line.name));
    (lock, method.map_or("[unknown]", |line| &*line.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_type::EventType;
    use crate::profile::model::{ExecutionMode, Frame, FrameKind, Line, SampleLabel, SampleLabels};
    use crate::profile::testing::{batch, frame, series};

    #[test]
    fn a_lock_is_of_its_class_and_the_method_that_wants_it() {
        let java = |name: &str| {
            let line = Line { mode: Some(ExecutionMode::C2), ..Line::named(name) };
            std::sync::Arc::new(Frame {
                kind: FrameKind::Java,
                address: None,
                mapping: None,
                lines: vec![line],
            })
        };
        let leaf = frame(FrameKind::Class, "java.util.concurrent.locks.ReentrantLock$NonfairSync");
        let stack = |count| {
            let acquire = java("java.util.concurrent.locks.AbstractQueuedSynchronizer.acquire");
            (vec![leaf.clone(), acquire, java("Shop.buy")], count)
        };
        let mut series = series(&[("pid", "7")], vec![stack(3), stack(1), stack(1)]);
        let label = |name: &str, value: &str| SampleLabel { name: name.into(), value: value.into() };
        let labels = [
            vec![label("holder", "a"), label("holder_method", "Shop.sell:7")],
            vec![label("holder", "b")],
            vec![],
        ];
        for (sample, labels) in series.samples.iter_mut().zip(labels) {
            sample.value = sample.count * 1_000;
            sample.labels = SampleLabels::new(labels);
        }
        let summary = LockSummary::new(&Batch { event: EventType::Lock, ..batch(vec![series]) }, None);
        assert_eq!((summary.contentions, summary.delay_ns), (5, 5_000));
        let [lock] = &summary.locks[..] else { panic!("{summary:?}") };
        assert_eq!((&*lock.method, lock.contentions), ("Shop.buy", 5));
        let method = HolderMethod { name: "Shop.sell:7".to_owned(), delay_ns: 3_000 };
        let holder = HolderSummary { name: "a".to_owned(), delay_ns: 3_000, method: Some(method) };
        assert_eq!(lock.holder, Some(holder));
        assert_eq!(summary.holders, []);
    }

    #[test]
    fn the_stacks_for_which_others_waited_longest_come_first() {
        let line = |name: &str, line| Line { mode: Some(ExecutionMode::C2), line, ..Line::named(name) };
        let compiled = Arc::new(Frame {
            kind: FrameKind::Java,
            address: None,
            mapping: None,
            lines: vec![line("Shop.price", 57), line("Shop.sell", 12)],
        });
        let stack = |leaf: &str, count| {
            let frames =
                vec![frame(FrameKind::Class, "Stock"), frame(FrameKind::Native, leaf), Arc::clone(&compiled)];
            (frames, count)
        };
        let mut series = series(&[("pid", "7")], vec![stack("read", 1), stack("write", 3)]);
        for sample in &mut series.samples {
            sample.value = sample.count * 1_000;
            let label = SampleLabel { name: "holder".into(), value: "seller".into() };
            sample.labels = SampleLabels::new(vec![label]);
        }
        let holders = Batch { event: EventType::LockHolder, ..batch(vec![series]) };
        let locks = Batch { event: EventType::Lock, ..batch(Vec::new()) };
        let summary = LockSummary::new(&locks, Some(&holders));
        let stacks: Vec<_> = summary.holders.iter().map(|row| (row.delay_ns, row.stack.join(" "))).collect();
        let expected = ["write Shop.price:57 Shop.sell:12", "read Shop.price:57 Shop.sell:12"];
        assert_eq!(stacks, [(3_000, expected[0].to_owned()), (1_000, expected[1].to_owned())]);
        let row = &summary.holders[0];
        assert_eq!((&*row.lock, &*row.thread, row.contentions), ("Stock", "seller", 3));
    }
}
