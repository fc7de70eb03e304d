//! The functions with the most samples.

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
}

/// Returns the functions with the most samples of their own, at most `limit`.
pub(super) fn hottest_functions(batch: &Batch, limit: usize) -> Vec<TopRow> {
    let mut counts: HashMap<&str, (u64, u64)> = HashMap::new();
    let mut seen = HashSet::new();
    for sample in batch.series.iter().flat_map(|series| &series.samples) {
        seen.clear();
        let frames = sample.frames.iter().filter(|frame| frame.kind != FrameKind::Marker);
        let names = frames.flat_map(|frame| &frame.lines).map(|line| &*line.name);
        for (index, name) in names.enumerate() {
            let (own, total) = counts.entry(name).or_default();
            *own += if index == 0 { sample.count } else { 0 };
            // A recursive function is on the stack once.
            *total += if seen.insert(name) { sample.count } else { 0 };
        }
    }
    let mut rows: Vec<TopRow> =
        counts.into_iter().map(|(name, (own, total))| TopRow { name: name.to_owned(), own, total }).collect();
    rows.sort_by(|a, b| (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| a.name.cmp(&b.name)));
    rows.truncate(limit);
    rows
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
        let row = |name: &str, own, total| TopRow { name: name.to_owned(), own, total };
        assert_eq!(
            hottest_functions(&batch, 10),
            [row("inlined", 3, 3), row("main", 1, 4), row("caller", 0, 3)]
        );
        assert_eq!(hottest_functions(&batch, 1).len(), 1);
    }
}
