//! Leaves that the stacks of holders of contended monitors have in a profile.

use std::collections::HashMap;
use std::sync::Arc;

use super::blockers::NamedBlocker;
use super::contentions::lock_frame;
use super::wait_labels::HOLDER_LABEL;
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{Frame, SampleLabel, SampleLabels};

/// Leaves and labels of the holders' stacks of a window, each once: stacks are compared by their
/// addresses.
#[derive(Debug, Default)]
pub(super) struct HolderLeaves {
    leaves: HashMap<Option<Arc<str>>, Arc<Frame>>,
    labels: HashMap<Option<Arc<str>>, SampleLabels>,
}

impl HolderLeaves {
    /// Returns a holder's stack as its profile has it: the class of the monitor is the leaf, the
    /// name of the thread a label.
    pub(super) fn named(&mut self, stack: &NamedStack, blocker: &NamedBlocker) -> NamedStack {
        let leaf = self.leaves.entry(blocker.class.clone());
        let leaf = leaf.or_insert_with_key(|class| lock_frame(class.as_deref()));
        let labels = self.labels.entry(blocker.holder.clone()).or_insert_with_key(|holder| {
            let label = |name: &Arc<str>| SampleLabel { name: HOLDER_LABEL.into(), value: (**name).into() };
            SampleLabels::new(holder.iter().map(label).collect::<Vec<_>>())
        });
        let frames = std::iter::once(&*leaf).chain(&*stack.frames).cloned().collect();
        NamedStack { frames, labels: labels.clone(), pending: stack.pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, Line};

    #[test]
    fn a_holders_stack_begins_with_the_monitors_class_and_is_counted_as_one() {
        let blocker = NamedBlocker {
            kind: 1,
            class: Some("Stock".into()),
            holder: Some("seller".into()),
            holder_method: None,
        };
        let mut leaves = HolderLeaves::default();
        let line = Line::named("Shop.sell");
        let frame = Frame { kind: FrameKind::Java, address: None, mapping: None, lines: vec![line] };
        let frames = Arc::from([Arc::new(frame)]);
        let stack = NamedStack { frames, labels: SampleLabels::default(), pending: false };
        let [first, second] = [(); 2].map(|()| leaves.named(&stack, &blocker));
        let names: Vec<_> = first.frames.iter().map(|frame| &*frame.lines[0].name).collect();
        assert_eq!(names, ["Stock", "Shop.sell"]);
        let labels: Vec<_> = first.labels.iter().map(|label| (&*label.name, &*label.value)).collect();
        assert_eq!(labels, [("holder", "seller")]);
        assert!(Arc::ptr_eq(&first.frames[0], &second.frames[0]));
        assert_eq!(first.labels.address(), second.labels.address());
        let unknown = leaves.named(&stack, &NamedBlocker::default());
        assert_eq!(&*unknown.frames[0].lines[0].name, "[unknown class]");
        assert_eq!(unknown.labels.iter().count(), 0);
    }
}
