//! Frames and labels that name what a thread waited for.

use std::collections::HashMap;
use std::sync::Arc;

use super::blockers::NamedBlocker;
use super::cause::Cause;
use super::cause_classifier::{DescriptorKind, Evidence, cause_of, without_scheduler};
use super::idle_waits::IdleRules;
use jvmprof_common::blocker::BlockerKind;

use crate::event_type::EventType;
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{Batch, Frame, FrameKind, Line, Sample, SampleLabel, SampleLabels};

/// The label of a sample with its [`Cause`].
pub const WAIT_LABEL: &str = "wait";
/// The label of a wait in which the thread had nothing to do: `true`.
pub(super) const IDLE_LABEL: &str = "idle";
/// The text that the leaf of such a wait has after its cause. Pages know idle waits by it
/// (`assets/tree/edits.js`): a tree has functions, no labels.
const IDLE_LEAF: &str = ", idle";
/// The label with the class of the monitor or blocker that the thread waited for.
const BLOCKER_LABEL: &str = "blocker";
/// The label with the name of the thread that had the monitor when the wait began.
pub(super) const HOLDER_LABEL: &str = "holder";
/// The label with the method in which that thread was while it had it, and its line.
const HOLDER_METHOD_LABEL: &str = "holder_method";
/// Labels that keep the evidence until the window ends.
const EVIDENCE_LABEL: &str = "__wait_evidence";
const BLOCKER_KIND_LABEL: &str = "__blocker_kind";

/// The labels that [`WaitLabels::mark`] sets.
const OWN_LABELS: [&str; 5] =
    [EVIDENCE_LABEL, BLOCKER_KIND_LABEL, BLOCKER_LABEL, HOLDER_LABEL, HOLDER_METHOD_LABEL];

/// The contents of the leaf frame of a wait: the cause, the class of what it is for, and if it is
/// idle.
type LeafText = (Cause, Option<Arc<str>>, bool);

/// Evidence, causes and frames, each once: stacks are compared by their addresses.
#[derive(Debug, Default)]
pub(super) struct WaitLabels {
    evidence: HashMap<(Evidence, NamedBlocker), SampleLabels>,
    leaves: HashMap<LeafText, Arc<Frame>>,
    labels: HashMap<(Cause, NamedBlocker, bool), SampleLabels>,
}

impl WaitLabels {
    /// Marks a stack with the evidence of its cause.
    pub(super) fn mark(
        &mut self,
        evidence: Evidence,
        blocker: NamedBlocker,
        stack: NamedStack,
    ) -> NamedStack {
        let labels = self.evidence.entry((evidence, blocker)).or_insert_with_key(|(evidence, blocker)| {
            let value = match evidence {
                Evidence::Runnable => Cause::Runnable.as_str().to_owned(),
                Evidence::OutOfQuota => Cause::CpuQuota.as_str().to_owned(),
                Evidence::SystemCall(number) => number.to_string(),
                Evidence::NoSystemCall => String::new(),
                Evidence::Descriptor(kind) => kind.cause().as_str().to_owned(),
            };
            let is_named = blocker.class.is_some() || blocker.holder.is_some();
            let kind = is_named.then(|| label(BLOCKER_KIND_LABEL, &blocker.kind.to_string()));
            let evidence = [label(EVIDENCE_LABEL, &value)].into_iter().chain(kind);
            SampleLabels::new(evidence.chain(blocker.labels()).collect::<Vec<_>>())
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
        let blocker = NamedBlocker::of_sample(sample).filter(|blocker| blocker.is_of(cause));
        let blocker = blocker.unwrap_or_default();
        let is_idle = rules.is_idle(cause, blocker.class.as_deref(), frames);
        let leaf = self.leaves.entry((cause, blocker.class.clone(), is_idle));
        let leaf = leaf.or_insert_with_key(|(cause, class, is_idle)| {
            let idle = if *is_idle { IDLE_LEAF } else { "" };
            let class = class.as_ref().map_or_else(String::new, |class| format!(": {class}"));
            let lines = vec![Line::named(format!("[wait: {}{idle}{class}]", cause.as_str()))];
            Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines })
        });
        let key = (cause, blocker, is_idle);
        let labels = self.labels.entry(key).or_insert_with_key(|(cause, blocker, is_idle)| {
            let idle = is_idle.then(|| label(IDLE_LABEL, "true"));
            let labels = [label(WAIT_LABEL, cause.as_str())].into_iter().chain(idle).chain(blocker.labels());
            SampleLabels::new(labels.collect::<Vec<_>>())
        });
        sample.frames = std::iter::once(&*leaf).chain(frames).cloned().collect();
        let mut all: Vec<SampleLabel> = labels.iter().cloned().collect();
        all.extend(sample.labels.iter().filter(|label| !OWN_LABELS.contains(&&*label.name)).cloned());
        let has_others = all.len() > labels.iter().count();
        sample.labels = if has_others { SampleLabels::new(all) } else { labels.clone() };
    }
}

impl NamedBlocker {
    /// Returns what was kept of a sample's blocker.
    fn of_sample(sample: &Sample) -> Option<Self> {
        let kind = text_of(sample, BLOCKER_KIND_LABEL)?.parse().ok()?;
        let of = |name| sample.labels.iter().find(|label| &*label.name == name);
        let value = |name| of(name).map(|label| Arc::from(&*label.value));
        let [class, holder, holder_method] = [BLOCKER_LABEL, HOLDER_LABEL, HOLDER_METHOD_LABEL].map(value);
        Some(Self { kind, class, holder, holder_method })
    }

    /// Returns true if a wait of this cause is for such an object.
    fn is_of(&self, cause: Cause) -> bool {
        const ENTERED: u64 = BlockerKind::Entered as u64;
        const WAITED_ON: u64 = BlockerKind::WaitedOn as u64;
        const PARKED: u64 = BlockerKind::Parked as u64;
        matches!(
            (cause, self.kind),
            (Cause::Monitor, ENTERED | WAITED_ON) | (Cause::ObjectWait, WAITED_ON) | (Cause::Park, PARKED)
        )
    }

    fn labels(&self) -> impl Iterator<Item = SampleLabel> + '_ {
        let class = self.class.iter().map(|class| label(BLOCKER_LABEL, class));
        let holder = self.holder.iter().map(|holder| label(HOLDER_LABEL, holder));
        let method = self.holder_method.iter().map(|method| label(HOLDER_METHOD_LABEL, method));
        class.chain(holder).chain(method)
    }
}

fn parse(value: &str) -> Evidence {
    match value {
        "runnable" => Evidence::Runnable,
        "cpu_quota" => Evidence::OutOfQuota,
        "socket" => Evidence::Descriptor(DescriptorKind::Socket),
        "file" => Evidence::Descriptor(DescriptorKind::File),
        number => number.parse().map_or(Evidence::NoSystemCall, Evidence::SystemCall),
    }
}

fn label(name: &str, value: &str) -> SampleLabel {
    SampleLabel { name: name.into(), value: value.into() }
}

/// Returns the cause of a sample's waits.
pub fn wait_of(sample: &Sample) -> Option<&str> {
    text_of(sample, WAIT_LABEL)
}

/// Returns the class of the monitor or blocker that a sample's waits were for.
pub fn blocker_of(sample: &Sample) -> Option<&str> {
    text_of(sample, BLOCKER_LABEL)
}

/// Returns the name of the thread that had the monitor which a sample's waits were for.
pub fn holder_of(sample: &Sample) -> Option<&str> {
    text_of(sample, HOLDER_LABEL)
}

/// Returns the method in which that thread was while it had the monitor, with its line.
pub fn holder_method_of(sample: &Sample) -> Option<&str> {
    text_of(sample, HOLDER_METHOD_LABEL)
}

fn text_of<'a>(sample: &'a Sample, name: &str) -> Option<&'a str> {
    sample.labels.iter().find(|label| &*label.name == name).map(|label| &*label.value)
}

/// Returns true if the threads of a sample had nothing to do.
pub fn is_idle(sample: &Sample) -> bool {
    sample.labels.iter().any(|label| &*label.name == IDLE_LABEL)
}

#[cfg(test)]
mod tests {
    use super::super::idle_waits::IdleRule;
    use super::*;
    use crate::profile::model::{ExecutionMode, LabelSet, Series};
    use crate::profile::testing::batch;

    fn kernel(name: &str) -> Arc<Frame> {
        let lines = vec![Line::named(name)];
        Arc::new(Frame { kind: FrameKind::Kernel, address: None, mapping: None, lines })
    }

    fn waits(evidence: Evidence, names: &[&str]) -> Batch {
        let frames: Arc<[Arc<Frame>]> = names.iter().map(|name| kernel(name)).collect();
        let stack = NamedStack { frames, labels: SampleLabels::default(), pending: false };
        batch_of(WaitLabels::default().mark(evidence, NamedBlocker::default(), stack))
    }

    fn batch_of(stack: NamedStack) -> Batch {
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
        let mut frames = WaitLabels::default();
        for _ in 0..2 {
            frames.name_causes(&mut batch, &IdleRules::with(&[]));
            assert_eq!(names(&batch), ["[wait: futex]", "futex_do_wait", "f"]);
            let labels: Vec<_> = batch.series[0].samples[0].labels.iter().collect();
            assert_eq!((labels.len(), &*labels[0].value), (1, "futex"));
            assert_eq!(wait_of(&batch.series[0].samples[0]), Some("futex"));
        }
    }

    #[test]
    fn the_leaf_of_an_idle_wait_says_so_before_the_class_as_the_label_does() {
        let rule: IdleRule = r#"{ frames = ["takeTask"] }"#.parse().expect("valid");
        let (rules, mut labels) = (IdleRules::with(&[rule]), WaitLabels::default());
        let mode = Some(ExecutionMode::Native);
        let lines = vec![Line { mode, ..Line::named("jdk.internal.misc.Unsafe.park") }];
        let park = Arc::new(Frame { kind: FrameKind::Java, address: None, mapping: None, lines });
        for (caller, class, leaf, expected) in [
            ("takeTask", Some("acme.Queue"), "[wait: park, idle: acme.Queue]", true),
            ("takeTask", None, "[wait: park, idle]", true),
            ("work", Some("acme.Queue"), "[wait: park: acme.Queue]", false),
            ("work", None, "[wait: park]", false),
        ] {
            let class = class.map(Arc::from);
            let blocker = NamedBlocker { kind: BlockerKind::Parked as u64, class, ..NamedBlocker::default() };
            let frames = Arc::from([Arc::clone(&park), kernel(caller)]);
            let stack = NamedStack { frames, labels: SampleLabels::default(), pending: false };
            let mut batch = batch_of(labels.mark(Evidence::SystemCall(202), blocker, stack));
            labels.name_causes(&mut batch, &rules);
            assert_eq!(names(&batch)[0], leaf);
            assert_eq!(is_idle(&batch.series[0].samples[0]), expected, "{leaf}");
        }
    }

    #[test]
    fn evidence_is_read_as_it_was_kept() {
        for (evidence, expected) in [
            (Evidence::Runnable, "[wait: runnable]"),
            (Evidence::OutOfQuota, "[wait: cpu_quota]"),
            (Evidence::NoSystemCall, "[wait: other]"),
            (Evidence::SystemCall(7), "[wait: poll]"),
            (Evidence::Descriptor(DescriptorKind::Socket), "[wait: socket]"),
            (Evidence::Descriptor(DescriptorKind::File), "[wait: file]"),
        ] {
            let mut batch = waits(evidence, &["f"]);
            WaitLabels::default().name_causes(&mut batch, &IdleRules::with(&[]));
            assert_eq!(names(&batch), [expected, "f"]);
        }
    }
}
