//! The class of an object in its stack: a frame, or a label.

use std::collections::HashMap;
use std::sync::Arc;

use super::{CLASS_LABEL, ClassPlace};
use crate::hotspot::java_heap::JavaClass;
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{Frame, FrameKind, Line, Mapping, SampleLabel, SampleLabels};
use crate::types::{Avma, FileOffset};

/// Classes that are kept beyond a window.
const MAX_CLASSES: usize = 4096;
const UNKNOWN_CLASS: &str = "[unknown class]";

/// The frames or labels of classes: one for all objects of a class, so that equal stacks are equal.
#[derive(Debug)]
pub(super) struct ClassFrames {
    place: ClassPlace,
    by_name: HashMap<Arc<str>, PlacedClass>,
    unknown: PlacedClass,
    /// The mapping of all classes: pprof has no other place for the kind of a frame.
    mapping: Arc<Mapping>,
}

#[derive(Clone, Debug)]
struct PlacedClass {
    frame: Arc<Frame>,
    labels: SampleLabels,
}

impl ClassFrames {
    pub(super) fn new(place: ClassPlace) -> Self {
        let mapping = Arc::new(Mapping {
            start: Avma(0),
            limit: Avma(0),
            offset: FileOffset(0),
            path: "[class]".into(),
            build_id: None,
        });
        let unknown =
            PlacedClass { frame: marker(UNKNOWN_CLASS), labels: class_label(&UNKNOWN_CLASS.into()) };
        Self { place, by_name: HashMap::new(), unknown, mapping }
    }

    /// Adds the class of an event's object to its stack.
    pub(super) fn place(&mut self, class: Option<&JavaClass>, stack: NamedStack) -> NamedStack {
        let Some(class) = class else { return apply(self.place, &self.unknown, stack) };
        if !self.by_name.contains_key(&class.name) {
            let placed = self.placed(&class.name, &class.internal_name);
            self.by_name.insert(Arc::clone(&class.name), placed);
        }
        apply(self.place, self.by_name.get(&class.name).unwrap_or(&self.unknown), stack)
    }

    /// Adds a class of which nothing but the name is known to a stack.
    pub(super) fn place_named(&self, name: &Arc<str>, stack: NamedStack) -> NamedStack {
        match self.by_name.get(name) {
            Some(known) => apply(self.place, known, stack),
            None => apply(self.place, &self.placed(name, name), stack),
        }
    }

    /// Forgets all classes if they are too many.
    pub(super) fn limit(&mut self) {
        if self.by_name.len() > MAX_CLASSES {
            self.by_name.clear();
        }
    }

    fn placed(&self, name: &Arc<str>, internal: &Arc<str>) -> PlacedClass {
        let line = Line { system_name: Arc::clone(internal), ..Line::named(Arc::clone(name)) };
        let mapping = Some(Arc::clone(&self.mapping));
        let frame = Frame { kind: FrameKind::Class, address: None, mapping, lines: vec![line] };
        PlacedClass { frame: Arc::new(frame), labels: class_label(name) }
    }
}

/// Returns a frame that is none of the program's.
pub(super) fn marker(name: &str) -> Arc<Frame> {
    let lines = vec![Line::named(name)];
    Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines })
}

fn class_label(name: &Arc<str>) -> SampleLabels {
    SampleLabels::new([SampleLabel { name: CLASS_LABEL.into(), value: Arc::clone(name) }])
}

fn apply(place: ClassPlace, class: &PlacedClass, stack: NamedStack) -> NamedStack {
    match place {
        ClassPlace::Leaf => {
            let frames = std::iter::once(&class.frame).chain(&*stack.frames).cloned().collect();
            NamedStack { frames, ..stack }
        }
        ClassPlace::Label => NamedStack { labels: class.labels.clone(), ..stack },
        ClassPlace::Off => stack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_leaf_or_a_label_or_nowhere() {
        let class = JavaClass::named("byte[]");
        for (place, leaf, label) in [
            (ClassPlace::Leaf, Some("byte[]"), None),
            (ClassPlace::Label, None, Some("byte[]")),
            (ClassPlace::Off, None, None),
        ] {
            let stack = || {
                let frames = Arc::from([marker("Boxing.arrays")]);
                NamedStack { frames, labels: SampleLabels::default(), pending: false }
            };
            let mut classes = ClassFrames::new(place);
            let known = classes.place(Some(&class), stack());
            for placed in [classes.place_named(&class.name, stack()), known] {
                let names = placed.frames.iter().map(|frame| &*frame.lines[0].name);
                assert!(names.eq(leaf.into_iter().chain(["Boxing.arrays"])), "{place:?}: {placed:?}");
                let labels = placed.labels.iter().map(|label| (&*label.name, &*label.value));
                assert!(labels.eq(label.map(|class| (CLASS_LABEL, class))), "{place:?}: {placed:?}");
            }
            let unknown = classes.place(None, stack());
            assert_eq!(unknown.frames.len(), if leaf.is_some() { 2 } else { 1 }, "{place:?}");
        }
    }
}
