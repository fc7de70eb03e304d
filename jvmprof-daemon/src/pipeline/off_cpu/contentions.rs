//! Contended locks: the waits for monitors and for locks of `java.util.concurrent`.

use std::collections::HashMap;
use std::sync::Arc;

use super::cause::Cause;
use super::wait_labels::{blocker_of, wait_of};
use crate::event_type::EventType;
use crate::profile::model::{Batch, Frame, FrameKind, Line, Sample, Series};

/// The leaf of a wait for a monitor whose class isn't known.
const UNKNOWN_CLASS: &str = "[unknown class]";

/// The period of contentions, of which values are multiples: their type is contentions, and each is
/// one.
pub(in crate::pipeline) const CONTENTION_PERIOD: u64 = 1;

/// Returns the leaf of a contention: the lock's class, if it is known.
pub(super) fn lock_frame(class: Option<&str>) -> Arc<Frame> {
    let lines = vec![Line::named(class.unwrap_or(UNKNOWN_CLASS))];
    Arc::new(Frame { kind: FrameKind::Class, address: None, mapping: None, lines })
}

/// Returns the contentions among a profile's waits, with the lock's class as their leaf.
pub(super) fn contentions(waits: &Batch) -> Batch {
    let mut leaves: HashMap<&str, Arc<Frame>> = HashMap::new();
    let series = waits.series.iter().filter_map(|series| {
        let samples = series.samples.iter().filter_map(|sample| {
            let class = lock_of(sample)?;
            let leaf = leaves.entry(class).or_insert_with(|| lock_frame(Some(class)));
            // The leaf of a wait is its cause.
            let callers = sample.frames.iter().skip(1).cloned();
            let frames = std::iter::once(Arc::clone(leaf)).chain(callers).collect();
            Some(Sample { frames, ..sample.clone() })
        });
        let samples: Vec<Sample> = samples.collect();
        (!samples.is_empty()).then(|| Series { labels: series.labels.clone(), samples })
    });
    let series = series.collect();
    // Its numbers are estimates of all contentions, as Go's.
    Batch { event: EventType::Lock, period: CONTENTION_PERIOD, series, ..*waits }
}

/// Returns the class of the lock that a wait is for; `None` if it is for something else.
fn lock_of(sample: &Sample) -> Option<&str> {
    let cause = Cause::named(wait_of(sample)?)?;
    let class = blocker_of(sample);
    cause.is_contention(class).then(|| class.unwrap_or(UNKNOWN_CLASS))
}
