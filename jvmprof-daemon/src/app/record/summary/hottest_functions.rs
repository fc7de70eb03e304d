//! The functions with the most samples.

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use crate::profile::model::{Batch, FrameKind, Series};

/// The samples of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::app::record) struct TopRow {
    pub name: String,
    /// Samples in which it was the leaf.
    #[serde(rename = "self")]
    pub own: u64,
    /// Samples in which it was anywhere on the stack.
    pub total: u64,
    /// The line with the most of its own samples; `None` where no line is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<HottestLine>,
}

/// A line of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::app::record) struct HottestLine {
    pub file: String,
    pub line: u32,
    /// Samples of the leaf at this line.
    #[serde(rename = "self")]
    pub own: u64,
}

impl TopRow {
    /// The hottest line with its share of the function's own samples: `Order.java:57 61 %`.
    pub(in crate::app::record) fn line_text(&self) -> Option<String> {
        let HottestLine { file, line, own } = self.line.as_ref()?;
        let file = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{file}:{line} {:.0} %", *own as f64 * 100.0 / self.own.max(1) as f64))
    }
}

/// Functions that a sum over time keeps apart; further ones share a row.
const MAX_FUNCTIONS: usize = 20_000;
/// The row of those.
const OTHERS: &str = "[other functions]";

/// The order of rows: the largest first, names from A on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::app::record) enum RowOrder {
    #[default]
    Own,
    Total,
    Name,
}

#[derive(Clone, Debug, Default)]
struct FunctionCounts {
    own: u64,
    total: u64,
    /// Own samples by line.
    lines: HashMap<(Arc<str>, u32), u64>,
}

impl FunctionCounts {
    fn hottest_line(&self) -> Option<HottestLine> {
        let heaviest = self.lines.iter().max_by_key(|&(place, own)| (own, Reverse(place)));
        heaviest.map(|((file, line), own)| HottestLine { file: file.to_string(), line: *line, own: *own })
    }

    fn add(&mut self, other: &Self) {
        self.own += other.own;
        self.total += other.total;
        for ((file, line), own) in &other.lines {
            *self.lines.entry((Arc::clone(file), *line)).or_default() += own;
        }
    }
}

/// Samples by function, summed up over series and over time.
#[derive(Clone, Debug, Default)]
pub(in crate::app::record) struct FunctionTable {
    functions: HashMap<Arc<str>, FunctionCounts>,
}

impl FunctionTable {
    pub(in crate::app::record) fn add(&mut self, series: &Series) {
        let mut seen = HashSet::new();
        for sample in &series.samples {
            seen.clear();
            let frames = sample.frames.iter().filter(|frame| frame.kind != FrameKind::Marker);
            for (index, line) in frames.flat_map(|frame| &frame.lines).enumerate() {
                let function = match self.functions.get_mut(&line.name) {
                    Some(function) => function,
                    None => self.functions.entry(Arc::clone(&line.name)).or_default(),
                };
                if index == 0 {
                    function.own += sample.count;
                    if let Some(file) = line.file.as_ref().filter(|_| line.line > 0) {
                        *function.lines.entry((Arc::clone(file), line.line)).or_default() += sample.count;
                    }
                }
                // A recursive function is on the stack once.
                function.total += if seen.insert(&*line.name) { sample.count } else { 0 };
            }
        }
    }

    /// Adds another table's samples.
    pub(in crate::app::record) fn merge(&mut self, other: &Self) {
        for (name, counts) in &other.functions {
            let is_one_more = self.functions.len() >= MAX_FUNCTIONS && !self.functions.contains_key(name);
            let name = if is_one_more { OTHERS.into() } else { Arc::clone(name) };
            let function = self.functions.entry(name).or_default();
            if is_one_more {
                function.own += counts.own;
                function.total += counts.total;
            } else {
                function.add(counts);
            }
        }
    }

    /// Returns the first rows, at most `limit`, of the functions whose name `is_shown`.
    pub(in crate::app::record) fn rows(
        &self,
        order: RowOrder,
        limit: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> Vec<TopRow> {
        let mut hottest: Vec<_> = self.functions.iter().filter(|(name, _)| is_shown(name)).collect();
        hottest.sort_by(|(a_name, a), (b_name, b)| {
            let by_count = match order {
                RowOrder::Own => (b.own, b.total).cmp(&(a.own, a.total)),
                RowOrder::Total => (b.total, b.own).cmp(&(a.total, a.own)),
                RowOrder::Name => Ordering::Equal,
            };
            by_count.then_with(|| a_name.cmp(b_name))
        });
        hottest.truncate(limit);
        let row = |(name, counts): (&Arc<str>, &FunctionCounts)| TopRow {
            name: name.to_string(),
            own: counts.own,
            total: counts.total,
            line: counts.hottest_line(),
        };
        hottest.into_iter().map(row).collect()
    }
}

/// Returns the functions with the most samples of their own, at most `limit`.
pub(in crate::app::record) fn hottest_functions(batch: &Batch, limit: usize) -> Vec<TopRow> {
    let mut table = FunctionTable::default();
    batch.series.iter().for_each(|series| table.add(series));
    table.rows(RowOrder::Own, limit, |_| true)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::event_type::EventType;
    use crate::profile::model::{Frame, LabelSet, Line, Sample};

    fn frame(kind: FrameKind, names: &[&str]) -> Arc<Frame> {
        let lines = names.iter().map(|name| Line::named(*name)).collect();
        Arc::new(Frame { kind, address: None, mapping: None, lines })
    }

    #[test]
    fn recursion_counts_once_and_markers_not_at_all() {
        let leaf = frame(FrameKind::Java, &["inlined", "caller"]);
        let main = frame(FrameKind::Native, &["main"]);
        let cut = frame(FrameKind::Marker, &["[truncated: x]"]);
        let samples = vec![
            Sample::of_events(vec![leaf.clone(), leaf, main.clone()].into(), 3, 3),
            Sample::of_events(vec![main, cut].into(), 1, 1),
        ];
        let batch = Batch {
            event: EventType::Cpu,
            start: SystemTime::UNIX_EPOCH,
            duration: Duration::from_secs(1),
            period: 1,
            series: vec![Series { labels: LabelSet::new(), samples }],
        };
        let row = |name: &str, own, total| TopRow { name: name.to_owned(), own, total, line: None };
        assert_eq!(
            hottest_functions(&batch, 10),
            [row("inlined", 3, 3), row("main", 1, 4), row("caller", 0, 3)]
        );
        assert_eq!(hottest_functions(&batch, 1).len(), 1);
    }

    #[test]
    fn sums_are_sorted_filtered_and_bounded() {
        let of = |name: &str, own| {
            let frames = vec![frame(FrameKind::Java, &[name]), frame(FrameKind::Java, &["main"])];
            let samples = vec![Sample::of_events(frames.into(), own, own)];
            let mut table = FunctionTable::default();
            table.add(&Series { labels: LabelSet::new(), samples });
            table
        };
        let mut sum = of("b", 3);
        sum.merge(&of("a", 2));
        sum.merge(&of("a", 2));
        let names = |order, filter: &str| {
            let rows = sum.rows(order, 10, |name| name.contains(filter));
            rows.into_iter().map(|row| (row.name, row.own, row.total)).collect::<Vec<_>>()
        };
        let [a, b, main] = [("a".to_owned(), 4, 4), ("b".to_owned(), 3, 3), ("main".to_owned(), 0, 7)];
        assert_eq!(names(RowOrder::Own, ""), [a.clone(), b.clone(), main.clone()]);
        assert_eq!(names(RowOrder::Total, ""), [main.clone(), a.clone(), b.clone()]);
        assert_eq!(names(RowOrder::Name, "a"), [a, main]);
        (0..MAX_FUNCTIONS).for_each(|number| sum.merge(&of(&format!("f{number}"), 1)));
        assert_eq!(sum.functions.len(), MAX_FUNCTIONS + 1);
        let others = &sum.functions[OTHERS];
        assert_eq!(others.own, 3, "a, b and main leave room for three less");
    }

    #[test]
    fn the_hottest_line_is_that_of_most_leaves() {
        let at = |line| {
            let line = Line { file: Some("acme/Order.java".into()), line, ..Line::named("acme.Order.total") };
            Arc::new(Frame { kind: FrameKind::Java, address: None, mapping: None, lines: vec![line] })
        };
        let samples = vec![
            Sample::of_events(vec![at(57)].into(), 61, 61),
            Sample::of_events(vec![at(60), at(12)].into(), 39, 39),
        ];
        let batch = Batch {
            event: EventType::Cpu,
            start: SystemTime::UNIX_EPOCH,
            duration: Duration::from_secs(1),
            period: 1,
            series: vec![Series { labels: LabelSet::new(), samples }],
        };
        let rows = hottest_functions(&batch, 10);
        assert_eq!((rows[0].own, rows[0].total), (100, 100));
        assert_eq!(rows[0].line_text().as_deref(), Some("Order.java:57 61 %"));
        let json = serde_json::to_value(&rows[0].line).expect("it is JSON");
        assert_eq!(json, serde_json::json!({"file": "acme/Order.java", "line": 57, "self": 61}));
    }
}
