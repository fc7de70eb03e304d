//! Folded stacks: `root;...;leaf count`, one line a stack, for every flame-graph tool.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::model::{Batch, Frame, FrameKind, Line};

/// The frames that get a suffix with their kind, as `flamegraph.pl --colors java` and inferno
/// read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Annotation {
    /// Kernel frames only: `_[k]`. All other names are as `go tool pprof` has them.
    Kernel,
    /// Also `_[j]` for Java and other generated code, and `_[i]` for what was inlined into such a
    /// frame.
    Every,
}

/// Writes all stacks of the batch, sorted, equal ones added up.
///
/// # Errors
/// The writer's.
pub fn write(batch: &Batch, annotation: Annotation, to: &mut impl Write) -> io::Result<()> {
    lines(batch, annotation).iter().try_for_each(|line| writeln!(to, "{line}"))
}

/// Returns the lines that [`write()`] writes.
pub fn lines(batch: &Batch, annotation: Annotation) -> Vec<String> {
    let mut stacks = BTreeMap::<String, u64>::new();
    for sample in batch.series.iter().flat_map(|series| &series.samples) {
        let mut stack = String::new();
        for frame in sample.frames.iter().rev() {
            push_frame(&mut stack, frame, annotation);
        }
        let sum = stacks.entry(stack).or_default();
        *sum = sum.saturating_add(batch.shown(sample));
    }
    stacks.into_iter().map(|(stack, count)| format!("{stack} {count}")).collect()
}

fn push_frame(stack: &mut String, frame: &Frame, annotation: Annotation) {
    if frame.lines.is_empty() {
        return push_name(stack, &unnamed(frame), suffix(frame.kind, false, annotation));
    }
    let outermost = frame.lines.len() - 1;
    for (at, Line { name, mode, .. }) in frame.lines.iter().enumerate().rev() {
        // The name may have it already.
        let is_told = mode.is_some_and(|mode| name.ends_with(mode.suffix()));
        let suffix = if is_told { "" } else { suffix(frame.kind, at != outermost, annotation) };
        push_name(stack, name, suffix);
    }
}

/// A frame that was left to a server to name.
fn unnamed(frame: &Frame) -> String {
    match &frame.mapping {
        Some(mapping) => format!("[unknown {}]", mapping.path.rsplit('/').next().unwrap_or(&mapping.path)),
        None => "[unknown]".to_owned(),
    }
}

fn suffix(kind: FrameKind, inlined: bool, annotation: Annotation) -> &'static str {
    match (kind, annotation) {
        (FrameKind::Kernel, _) => "_[k]",
        (FrameKind::Java | FrameKind::Jit, Annotation::Every) if inlined => "_[i]",
        (FrameKind::Java | FrameKind::Jit, Annotation::Every) => "_[j]",
        _ => "",
    }
}

/// Appends a frame's name. `;` separates frames and a line break stacks: in names (`[u8; 4]`) they
/// become `:` and a space.
fn push_name(stack: &mut String, name: &str, suffix: &str) {
    if !stack.is_empty() {
        stack.push(';');
    }
    stack.extend(name.chars().map(|letter| match letter {
        ';' => ':',
        '\n' | '\r' => ' ',
        other => other,
    }));
    stack.push_str(suffix);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::testing::{batch, frame, inlined, series};

    #[test]
    fn stacks_are_written_from_the_root_with_inlined_lines_as_frames_of_their_own() {
        let leaf = inlined(FrameKind::Java, &["com.acme.Order.price", "com.acme.Order.total"]);
        let root = frame(FrameKind::Native, "start_thread");
        let kernel = frame(FrameKind::Kernel, "do_syscall_64");
        let batch = batch(vec![
            series(&[], vec![(vec![leaf.clone(), root.clone()], 3), (vec![kernel, root.clone()], 1)]),
            series(&[("pid", "2")], vec![(vec![leaf, root], 4)]),
        ]);
        assert_eq!(
            lines(&batch, Annotation::Kernel),
            ["start_thread;com.acme.Order.total;com.acme.Order.price 7", "start_thread;do_syscall_64_[k] 1",]
        );
        assert_eq!(
            lines(&batch, Annotation::Every)[0],
            "start_thread;com.acme.Order.total_[j];com.acme.Order.price_[i] 7"
        );
    }

    #[test]
    fn what_a_name_tells_is_not_told_twice() {
        let mut told = (*frame(FrameKind::Java, "com.acme.Order.total_[0]")).clone();
        told.lines[0].mode = Some(crate::profile::model::ExecutionMode::Interpreted);
        let batch = batch(vec![series(&[], vec![(vec![told.into()], 1)])]);
        assert_eq!(lines(&batch, Annotation::Every), ["com.acme.Order.total_[0] 1"]);
    }

    #[test]
    fn separators_in_names_do_not_make_frames() {
        let batch = batch(vec![series(&[], vec![(vec![frame(FrameKind::Native, "drop<[u8; 4]>\n")], 1)])]);
        assert_eq!(lines(&batch, Annotation::Kernel), ["drop<[u8: 4]>  1"]);
    }
}
