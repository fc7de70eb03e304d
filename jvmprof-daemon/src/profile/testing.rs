//! Small profiles for tests.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::model::{Batch, Frame, FrameKind, LabelSet, Line, Mapping, Sample, SampleLabels, Series};
use crate::event_type::EventType;
use crate::types::{Avma, BuildId, FileOffset};

pub(crate) fn line(name: &str, number: u32) -> Line {
    let file = (number != 0).then(|| "Order.java".into());
    Line { file, line: number, ..Line::named(name) }
}

pub(crate) fn frame(kind: FrameKind, name: &str) -> Arc<Frame> {
    inlined(kind, &[name])
}

/// A frame with these functions, innermost first.
pub(crate) fn inlined(kind: FrameKind, names: &[&str]) -> Arc<Frame> {
    let lines = names.iter().map(|name| line(name, 0)).collect();
    Arc::new(Frame { kind, address: None, mapping: None, lines })
}

/// A frame at an address of a mapped file.
pub(crate) fn located(mapping: &Arc<Mapping>, address: u64, lines: Vec<Line>) -> Arc<Frame> {
    let (address, mapping) = (Some(Avma(address)), Some(Arc::clone(mapping)));
    Arc::new(Frame { kind: FrameKind::Native, address, mapping, lines })
}

pub(crate) fn mapping(path: &str, start: u64) -> Arc<Mapping> {
    Arc::new(Mapping {
        start: Avma(start),
        limit: Avma(start + 0x10_000),
        offset: FileOffset(0x1000),
        path: path.into(),
        build_id: BuildId::new(&path.as_bytes()[path.len().saturating_sub(4)..]),
    })
}

pub(crate) fn labels(labels: &[(&str, &str)]) -> LabelSet {
    labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub(crate) fn series(names: &[(&str, &str)], samples: Vec<(Vec<Arc<Frame>>, u64)>) -> Series {
    let samples = samples
        .into_iter()
        .map(|(frames, count)| Sample {
            times: Vec::new(),
            frames: frames.into(),
            labels: SampleLabels::default(),
            events: count,
            count,
            value: count.saturating_mul(10_000_000),
        })
        .collect();
    Series { labels: labels(names), samples }
}

/// Ten seconds at 100 Hz, from a fixed time on.
pub(crate) fn batch(series: Vec<Series>) -> Batch {
    Batch {
        event: EventType::Cpu,
        start: SystemTime::UNIX_EPOCH + Duration::from_secs(1_732_195_500),
        duration: Duration::from_secs(10),
        period: 10_000_000,
        series,
    }
}
