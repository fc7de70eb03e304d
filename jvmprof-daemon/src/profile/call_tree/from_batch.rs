//! Stacks of the profile model as paths of a tree.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::{CallStep, NodeKind, TreeBuilder, java_name, kind_of, unnamed_frame};
use crate::event_type::SampleNumber;
use crate::profile::jvm_activity::{JvmThread, SampledActivity, is_jvm, thread_kind_of};
use crate::profile::model::{Batch, Frame, FrameKind, LabelSet, Sample};
use crate::types::FastHasher;

impl From<FrameKind> for NodeKind {
    fn from(kind: FrameKind) -> Self {
        match kind {
            FrameKind::Kernel => Self::Kernel,
            FrameKind::Native => Self::Native,
            FrameKind::Jit => Self::Jit,
            FrameKind::Java => Self::Java,
            FrameKind::Stub => Self::Stub,
            FrameKind::Class => Self::Class,
            FrameKind::Marker => Self::Marker,
        }
    }
}

impl TreeBuilder {
    /// Counts `number` of every stack of the batch. Where `group` names a group for a series'
    /// labels, that is the outermost node of its stacks.
    pub fn add_batch(
        &mut self,
        batch: &Batch,
        number: SampleNumber,
        group: impl Fn(&LabelSet) -> Option<String>,
    ) {
        self.each_path(batch, group, |builder, path, sample, sampled_in| {
            builder.add_in(path, sample.number(number), sampled_in);
        });
    }

    /// Hands the path of each stack of the batch to `take`, and what it was taken in.
    pub(super) fn each_path(
        &mut self,
        batch: &Batch,
        group: impl Fn(&LabelSet) -> Option<String>,
        mut take: impl FnMut(&mut Self, &[CallStep], &Sample, Option<SampledActivity>),
    ) {
        let mut frames = FrameSteps::default();
        let mut path = Vec::new();
        for series in &batch.series {
            let group = group(&series.labels).map(|name| self.label(&name));
            let has_kinds = || series.samples.iter().any(|sample| thread_kind_of(sample).is_some());
            let is_jvm = is_jvm(&series.labels) || has_kinds();
            let process = self.activities.processes.number(&series.labels);
            for sample in &series.samples {
                path.clear();
                path.extend(group);
                for frame in sample.frames.iter().rev() {
                    frames.extend(self, &mut path, frame);
                }
                let thread = JvmThread::new(thread_kind_of(sample), is_jvm);
                let sampled_in = self.sampled_in(&path, thread, process);
                take(self, &path, sample, sampled_in);
            }
        }
    }

    /// The step for a label's value, to stand above the stacks of its series.
    pub(super) fn label(&mut self, value: &str) -> CallStep {
        CallStep { function: self.function(NodeKind::Label, value, "", ""), line: 0, mode: None }
    }

    fn line_steps(&mut self, frame: &Frame, steps: &mut Vec<CallStep>) {
        let kind = frame.kind.into();
        let module = frame.mapping.as_deref().map_or("", |mapping| &*mapping.path);
        for line in frame.lines.iter().rev() {
            let file = line.file.as_deref().unwrap_or_default();
            let kind = kind_of(kind, &line.name);
            let (name, mode) = java_name(kind, &line.name, line.mode);
            let function = self.function(kind, name, file, module);
            steps.push(CallStep { function, line: line.line, mode });
        }
        if frame.lines.is_empty() {
            let name = unnamed_frame(module, frame.address.map(|address| address.0));
            let function = self.function(kind, &name, "", module);
            steps.push(CallStep { function, line: 0, mode: None });
        }
    }
}

/// The steps of frames that were added before. Frames are shared by many stacks, and looking their
/// names up is most of the work.
#[derive(Default)]
struct FrameSteps {
    /// By the frame's place in memory, which is its identity as long as the batch is borrowed.
    known: HashMap<*const Frame, Range<usize>, FastHasher>,
    steps: Vec<CallStep>,
}

impl FrameSteps {
    fn extend(&mut self, tree: &mut TreeBuilder, path: &mut Vec<CallStep>, frame: &Arc<Frame>) {
        let steps = self.known.entry(Arc::as_ptr(frame)).or_insert_with(|| {
            let start = self.steps.len();
            tree.line_steps(frame, &mut self.steps);
            start..self.steps.len()
        });
        path.extend_from_slice(&self.steps[steps.clone()]);
    }
}
