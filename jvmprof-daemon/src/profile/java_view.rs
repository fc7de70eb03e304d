//! The Java view of a profile: stacks with Java's frames only, as the pages show them by `j`.
//!
//! What the kernel, native code and the JVM's stubs did is their nearest Java caller's: their
//! frames are left out, so that the caller is the leaf. `assets/tree/frames.js` is the same for
//! the pages.

use std::collections::HashMap;
use std::sync::Arc;

use super::model::{Batch, ExecutionMode, Frame, FrameKind, Line, Sample, Series};
use crate::types::FastHasher;

/// The leaf of stacks that have no frame of Java or of other generated code.
pub const NO_JAVA_CALLER: &str = "[no Java caller]";

/// A batch with Java's frames only, and how many of its samples changed by that.
#[derive(Clone, Debug)]
pub struct JavaView {
    pub batch: Batch,
    /// The sum of [`Batch::shown`] of samples that ended in a frame which was left out, and have a
    /// Java caller.
    pub attributed: u64,
    /// The same of samples without a Java caller.
    pub without_caller: u64,
}

impl JavaView {
    /// Makes the view. No sample is left out.
    pub fn new(batch: &Batch) -> Self {
        let mut frames = FrameViews::default();
        let (mut attributed, mut without_caller) = (0_u64, 0_u64);
        let mut view_of = |sample: &Sample| {
            let stack = frames.stack(&sample.frames);
            let shown = batch.shown(sample);
            match stack.leaf {
                Leaf::Kept => {}
                Leaf::Caller => attributed = attributed.saturating_add(shown),
                Leaf::NoCaller => without_caller = without_caller.saturating_add(shown),
            }
            Sample { frames: stack.frames.into(), ..sample.clone() }
        };
        let series = batch.series.iter().map(|Series { labels, samples }| Series {
            labels: labels.clone(),
            samples: samples.iter().map(&mut view_of).collect(),
        });
        let series = series.collect();
        let Batch { event, start, duration, period, .. } = *batch;
        Self { batch: Batch { event, start, duration, period, series }, attributed, without_caller }
    }
}

/// The result for a stack's leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaf {
    Kept,
    /// It was left out: the nearest Java caller is the leaf.
    Caller,
    NoCaller,
}

struct StackView {
    frames: Vec<Arc<Frame>>,
    leaf: Leaf,
}

/// Views of frames that were made before: many stacks share a frame.
#[derive(Default)]
struct FrameViews {
    /// By the frame's place in memory, which is its identity as long as the batch is borrowed, and
    /// by whether it is above all code of its thread.
    known: HashMap<(*const Frame, bool), Option<Arc<Frame>>, FastHasher>,
    no_caller: Option<Arc<Frame>>,
}

impl FrameViews {
    fn stack(&mut self, whole: &[Arc<Frame>]) -> StackView {
        let mut frames = Vec::with_capacity(whole.len());
        let mut is_above_code = true;
        let mut leaf = Leaf::NoCaller;
        for frame in whole.iter().rev() {
            let key = (Arc::as_ptr(frame), is_above_code);
            let shown = self.known.entry(key).or_insert_with(|| shown_frame(frame, is_above_code)).clone();
            leaf = match shown {
                Some(shown) => {
                    is_above_code &= is_truncation(&shown);
                    let is_leaf_kept = has_same_first_line(frame, &shown);
                    frames.push(shown);
                    if is_leaf_kept { Leaf::Kept } else { Leaf::Caller }
                }
                None => Leaf::Caller,
            };
        }
        if is_above_code && leaf != Leaf::Kept {
            leaf = Leaf::NoCaller;
            let no_caller = self.no_caller.get_or_insert_with(no_caller_frame);
            frames.push(Arc::clone(no_caller));
        }
        frames.reverse();
        StackView { frames, leaf }
    }
}

/// Returns true if nothing that was called last in the frame is left out of its view.
fn has_same_first_line(frame: &Frame, shown: &Frame) -> bool {
    let name = |frame: &Frame| frame.lines.first().map(|line| Arc::clone(&line.name));
    name(frame) == name(shown)
}

/// Returns what is shown of a frame; `None` for nothing.
fn shown_frame(frame: &Arc<Frame>, is_above_code: bool) -> Option<Arc<Frame>> {
    match frame.kind {
        FrameKind::Kernel | FrameKind::Native | FrameKind::Stub => return None,
        FrameKind::Jit | FrameKind::Class | FrameKind::Marker => return Some(Arc::clone(frame)),
        FrameKind::Java => {}
    }
    if frame.lines.is_empty() {
        return Some(Arc::clone(frame));
    }
    let mut lines: Vec<&Line> = frame.lines.iter().filter(|line| !is_stub(&line.name)).collect();
    while is_above_code && lines.last().is_some_and(|line| is_thread_start(&line.name)) {
        lines.pop();
    }
    if lines.len() == frame.lines.len() {
        return Some(Arc::clone(frame));
    }
    let lines: Vec<Line> = lines.into_iter().cloned().collect();
    (!lines.is_empty()).then(|| Arc::new(Frame { lines, ..Frame::clone(frame) }))
}

/// Returns true for a stub in the JVM's code cache. A Java method without a name isn't one.
fn is_stub(name: &str) -> bool {
    name.starts_with('[') && !name.starts_with("[unknown")
}

fn is_truncation(frame: &Frame) -> bool {
    frame.kind == FrameKind::Marker && frame.lines.iter().any(|line| line.name.starts_with("[truncated"))
}

/// Returns true for what a stack of a Java thread begins with, before anything of a program:
/// `java/lang/Thread.java`, `java/lang/VirtualThread.java`, `java/lang/ThreadBuilders.java` and
/// `jdk/internal/vm/Continuation.java` of the JDK.
fn is_thread_start(name: &str) -> bool {
    let (name, _) = ExecutionMode::split_suffix(name);
    let Some((class, method)) = name.rsplit_once('.') else { return false };
    let runs = matches!(method, "run" | "runWith");
    match class {
        "jdk.internal.vm.Continuation" => true,
        "java.lang.Thread" | "java.lang.VirtualThread" | "java.lang.ThreadBuilders$BoundVirtualThread" => {
            runs
        }
        _ => {
            let number = class.strip_prefix("java.lang.VirtualThread$VThreadContinuation$");
            runs && number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        }
    }
}

fn no_caller_frame() -> Arc<Frame> {
    let lines = vec![Line::named(NO_JAVA_CALLER)];
    Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::folded_stacks::{Annotation, lines};
    use crate::profile::testing::{batch, frame, inlined, series};

    fn thread_start() -> Vec<Arc<Frame>> {
        vec![
            frame(FrameKind::Java, "java.lang.Thread.run_[0]"),
            frame(FrameKind::Stub, "[call_stub]"),
            frame(FrameKind::Native, "JavaCalls::call_helper"),
            frame(FrameKind::Native, "start_thread"),
        ]
    }

    fn stack(leaf_first: Vec<Arc<Frame>>) -> Vec<Arc<Frame>> {
        leaf_first.into_iter().chain(thread_start()).collect()
    }

    #[test]
    fn time_of_the_kernel_and_of_the_jvm_is_the_nearest_java_callers() {
        let total = inlined(FrameKind::Java, &["acme.Order.price", "acme.Order.total"]);
        let view = JavaView::new(&batch(vec![series(
            &[],
            vec![
                (
                    stack(vec![
                        frame(FrameKind::Kernel, "clear_page_erms"),
                        frame(FrameKind::Native, "ZCollectedHeap::mem_allocate"),
                        frame(FrameKind::Stub, "[new_array]"),
                        total.clone(),
                    ]),
                    70,
                ),
                (stack(vec![frame(FrameKind::Java, "[jlong_disjoint_arraycopy]"), total.clone()]), 10),
                (stack(vec![total]), 20),
                (vec![frame(FrameKind::Native, "ZMark::work"), frame(FrameKind::Native, "start_thread")], 5),
            ],
        )]));
        assert_eq!(
            lines(&view.batch, Annotation::Kernel),
            ["[no Java caller] 5", "acme.Order.total;acme.Order.price 100"]
        );
        assert_eq!((view.attributed, view.without_caller), (80, 5));
    }

    #[test]
    fn a_thread_that_runs_no_code_of_a_program_has_no_java_caller() {
        let view = JavaView::new(&batch(vec![series(&[], vec![(stack(vec![]), 3)])]));
        assert_eq!(lines(&view.batch, Annotation::Kernel), ["[no Java caller] 3"]);
        assert_eq!((view.attributed, view.without_caller), (0, 3));
    }

    #[test]
    fn only_the_first_frames_of_a_thread_are_its_start() {
        let inner = frame(FrameKind::Java, "java.lang.Thread.run");
        let outer = frame(FrameKind::Java, "acme.Pool.execute");
        let virtual_thread = inlined(
            FrameKind::Java,
            &[
                "java.lang.VirtualThread.run",
                "java.lang.VirtualThread$VThreadContinuation$1.run",
                "jdk.internal.vm.Continuation.enter0",
            ],
        );
        let view = JavaView::new(&batch(vec![series(&[], vec![(vec![inner, outer, virtual_thread], 1)])]));
        assert_eq!(lines(&view.batch, Annotation::Kernel), ["acme.Pool.execute;java.lang.Thread.run 1"]);
        assert_eq!(view.attributed, 0);
    }

    #[test]
    fn reasons_of_truncated_stacks_and_methods_without_a_name_stay() {
        let cut = frame(FrameKind::Marker, "[truncated: no rows]");
        let unnamed = frame(FrameKind::Java, "[unknown Java]");
        let native = frame(FrameKind::Native, "memcpy");
        let view = JavaView::new(&batch(vec![series(
            &[],
            vec![
                (vec![native.clone(), unnamed, cut.clone()], 2),
                (vec![native, cut.clone()], 1),
                (vec![cut], 4),
            ],
        )]));
        assert_eq!(
            lines(&view.batch, Annotation::Kernel),
            [
                "[truncated: no rows] 4",
                "[truncated: no rows];[no Java caller] 1",
                "[truncated: no rows];[unknown Java] 2"
            ]
        );
        assert_eq!((view.attributed, view.without_caller), (2, 1));
    }
}
