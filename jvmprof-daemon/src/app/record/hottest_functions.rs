//! The functions with the most samples.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::profile::model::{Batch, FrameKind};

/// The samples of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TopRow {
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
pub(super) struct HottestLine {
    pub file: String,
    pub line: u32,
    /// Samples of the leaf at this line.
    #[serde(rename = "self")]
    pub own: u64,
}

impl TopRow {
    /// The hottest line with its share of the function's own samples: `Order.java:57 61 %`.
    pub(super) fn line_text(&self) -> Option<String> {
        let HottestLine { file, line, own } = self.line.as_ref()?;
        let file = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{file}:{line} {:.0} %", *own as f64 * 100.0 / self.own as f64))
    }
}

#[derive(Default)]
struct FunctionCounts<'a> {
    own: u64,
    total: u64,
    /// Own samples by line.
    lines: HashMap<(&'a str, u32), u64>,
}

impl FunctionCounts<'_> {
    fn hottest_line(self) -> Option<HottestLine> {
        let heaviest = self.lines.into_iter().max_by_key(|&(place, own)| (own, Reverse(place)));
        heaviest.map(|((file, line), own)| HottestLine { file: file.to_owned(), line, own })
    }
}

/// Returns the functions with the most samples of their own, at most `limit`.
pub(super) fn hottest_functions(batch: &Batch, limit: usize) -> Vec<TopRow> {
    let mut counts: HashMap<&str, FunctionCounts<'_>> = HashMap::new();
    let mut seen = HashSet::new();
    for sample in batch.series.iter().flat_map(|series| &series.samples) {
        seen.clear();
        let frames = sample.frames.iter().filter(|frame| frame.kind != FrameKind::Marker);
        for (index, line) in frames.flat_map(|frame| &frame.lines).enumerate() {
            let function = counts.entry(&line.name).or_default();
            if index == 0 {
                function.own += sample.count;
                if let Some(file) = line.file.as_deref().filter(|_| line.line > 0) {
                    *function.lines.entry((file, line.line)).or_default() += sample.count;
                }
            }
            // A recursive function is on the stack once.
            function.total += if seen.insert(&*line.name) { sample.count } else { 0 };
        }
    }
    let mut hottest: Vec<_> = counts.into_iter().collect();
    hottest.sort_by(|(a_name, a), (b_name, b)| {
        (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| a_name.cmp(b_name))
    });
    hottest.truncate(limit);
    let row = |(name, counts): (&str, FunctionCounts<'_>)| TopRow {
        name: name.to_owned(),
        own: counts.own,
        total: counts.total,
        line: counts.hottest_line(),
    };
    hottest.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::event_type::EventType;
    use crate::profile::model::{Frame, LabelSet, Line, Sample, Series};

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
