//! Frames and labels that name what a thread waited for.

use std::collections::HashMap;
use std::sync::Arc;

use super::cause::Cause;
use super::causes::{Evidence, cause_of};
use super::idle::IdleRules;
use crate::event_type::EventType;
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{Batch, Frame, FrameKind, Line, Sample, SampleLabel, SampleLabels};

/// The label of a sample with its [`Cause`].
pub(super) const WAIT_LABEL: &str = "wait";
/// The label of a wait in which the thread had nothing to do: `true`.
pub(super) const IDLE_LABEL: &str = "idle";
/// The label that keeps the evidence until the window ends.
const EVIDENCE_LABEL: &str = "__wait_evidence";

/// The kernel's functions by which a thread leaves its CPU: the frames up to the last of them say
/// nothing of the wait.
const SCHEDULER: [&str; 6] = [
    "__schedule",
    "schedule",
    "schedule_idle",
    "schedule_preempt_disabled",
    "preempt_schedule_common",
    "preempt_schedule_irq",
];
/// Frames from the leaf on that may be the scheduler's.
const SCHEDULER_FRAMES: usize = 16;

/// Evidence, causes and frames, each once: stacks are compared by their addresses.
#[derive(Debug, Default)]
pub(super) struct WaitFrames {
    evidence: HashMap<Evidence, SampleLabels>,
    leaves: HashMap<Cause, Arc<Frame>>,
    labels: HashMap<(Cause, bool), SampleLabels>,
}

impl WaitFrames {
    /// Marks a stack with the evidence of its cause.
    pub(super) fn mark(&mut self, evidence: Evidence, stack: NamedStack) -> NamedStack {
        let labels = self.evidence.entry(evidence).or_insert_with(|| {
            let value = match evidence {
                Evidence::Runnable => "runnable".to_owned(),
                Evidence::SystemCall(number) => number.to_string(),
                Evidence::NoSystemCall => String::new(),
            };
            SampleLabels::new([label(EVIDENCE_LABEL, &value)])
        });
        NamedStack { labels: labels.clone(), ..stack }
    }

    /// Names the causes of the waits whose evidence was kept.
    pub(super) fn name_causes(&mut self, batch: &mut Batch, rules: &IdleRules) {
        if batch.event != EventType::OffCpu {
            return;
        }
        for sample in batch.series.iter_mut().flat_map(|series| &mut series.samples) {
            self.finish_sample(sample, rules);
        }
    }

    fn finish_sample(&mut self, sample: &mut Sample, rules: &IdleRules) {
        let evidence = sample.labels.iter().find(|label| &*label.name == EVIDENCE_LABEL);
        let Some(evidence) = evidence.map(|label| parse(&label.value)) else { return };
        let frames = without_scheduler(&sample.frames);
        let cause = cause_of(evidence, frames.iter().map(|frame| &**frame));
        let leaf = self.leaves.entry(cause).or_insert_with(|| {
            let lines = vec![Line::named(format!("[wait: {}]", cause.as_str()))];
            Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines })
        });
        let is_idle = rules.is_idle(cause, frames);
        let labels = self.labels.entry((cause, is_idle)).or_insert_with(|| {
            let idle = is_idle.then(|| label(IDLE_LABEL, "true"));
            let labels = [label(WAIT_LABEL, cause.as_str())].into_iter().chain(idle);
            SampleLabels::new(labels.collect::<Vec<_>>())
        });
        sample.frames = std::iter::once(&*leaf).chain(frames).cloned().collect();
        sample.labels = labels.clone();
    }
}

fn parse(value: &str) -> Evidence {
    match value {
        "runnable" => Evidence::Runnable,
        number => number.parse().map_or(Evidence::NoSystemCall, Evidence::SystemCall),
    }
}

fn label(name: &str, value: &str) -> SampleLabel {
    SampleLabel { name: name.into(), value: value.into() }
}

/// Returns the cause of a sample's waits.
pub fn wait_of(sample: &Sample) -> Option<&str> {
    sample.labels.iter().find(|label| &*label.name == WAIT_LABEL).map(|label| &*label.value)
}

/// Returns true if the threads of a sample had nothing to do.
pub fn is_idle(sample: &Sample) -> bool {
    sample.labels.iter().any(|label| &*label.name == IDLE_LABEL)
}

/// Returns the frames without those by which the thread left its CPU.
fn without_scheduler(frames: &[Arc<Frame>]) -> &[Arc<Frame>] {
    let is_scheduler = |frame: &Arc<Frame>| {
        frame.kind == FrameKind::Kernel && frame.lines.iter().any(|line| SCHEDULER.contains(&&*line.name))
    };
    let last = frames.iter().take(SCHEDULER_FRAMES).rposition(is_scheduler);
    last.map_or(frames, |last| &frames[last + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::LabelSet;
    use crate::profile::model::Series;
    use crate::profile::testing::batch;

    fn kernel(name: &str) -> Arc<Frame> {
        let lines = vec![Line::named(name)];
        Arc::new(Frame { kind: FrameKind::Kernel, address: None, mapping: None, lines })
    }

    fn waits(evidence: Evidence, names: &[&str]) -> Batch {
        let frames: Arc<[Arc<Frame>]> = names.iter().map(|name| kernel(name)).collect();
        let stack = NamedStack { frames, labels: SampleLabels::default(), pending: false };
        let stack = WaitFrames::default().mark(evidence, stack);
        let sample = Sample { labels: stack.labels, ..Sample::of_events(stack.frames, 1, 1) };
        let series = Series { labels: LabelSet::new(), samples: vec![sample] };
        Batch { event: EventType::OffCpu, ..batch(vec![series]) }
    }

    fn names(batch: &Batch) -> Vec<&str> {
        let frames = &batch.series[0].samples[0].frames;
        frames.iter().map(|frame| &*frame.lines[0].name).collect()
    }

    #[test]
    fn the_cause_is_the_leaf_and_the_label_once() {
        let mut batch =
            waits(Evidence::SystemCall(202), &["bpf_prog", "__schedule", "schedule", "futex_do_wait", "f"]);
        let mut frames = WaitFrames::default();
        for _ in 0..2 {
            frames.name_causes(&mut batch, &IdleRules::with(&[]));
            assert_eq!(names(&batch), ["[wait: futex]", "futex_do_wait", "f"]);
            let labels: Vec<_> = batch.series[0].samples[0].labels.iter().collect();
            assert_eq!((labels.len(), &*labels[0].value), (1, "futex"));
            assert_eq!(wait_of(&batch.series[0].samples[0]), Some("futex"));
        }
    }

    #[test]
    fn evidence_is_read_as_it_was_kept() {
        for (evidence, expected) in [
            (Evidence::Runnable, "[wait: runnable]"),
            (Evidence::NoSystemCall, "[wait: other]"),
            (Evidence::SystemCall(7), "[wait: poll]"),
        ] {
            let mut batch = waits(evidence, &["f"]);
            WaitFrames::default().name_causes(&mut batch, &IdleRules::with(&[]));
            assert_eq!(names(&batch), [expected, "f"]);
        }
    }
}
