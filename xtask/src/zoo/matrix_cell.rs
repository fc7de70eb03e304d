//! One cell of the matrix: a program on a JDK in a mode, recorded and checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::expected_stacks::{ChainFit, Expectations};
use super::modes::JvmMode;
use super::profile::{self, Code, CountedStack};
use super::recorder::RecordedEvent;
use super::stack_check::{Checker, StackError, StackFault};

/// Maximum number of examples of each kind in a report.
const EXAMPLES: usize = 5;

/// Beginning of the names of errors, among the kinds of examples and the shares.
const WRONG: &str = "wrong";

/// Number of frames shown around a wrong one.
const AROUND: usize = 3;

/// Stacks of waits with Java frames of which one may be cut off: 99.9 % are whole. Fewer stacks say
/// nothing about that.
const WAITS_PER_CUT: u64 = 1000;

/// Measurements of one cell.
#[derive(Debug, Default, Serialize)]
pub(super) struct MatrixCell {
    pub(super) jdk: u32,
    pub(super) jdk_version: String,
    pub(super) mode: String,
    pub(super) program: String,
    /// Least number of samples with Java frames for a valid cell.
    pub(super) least: u64,
    /// All samples of the profile.
    pub(super) samples: u64,
    /// Samples with a frame of Java code, be it without a name.
    pub(super) java: u64,
    /// Samples with Java frames whose stack is whole.
    pub(super) java_whole: u64,
    /// Samples without a Java frame whose stack isn't whole: threads of the JVM, or Java threads
    /// whose stack was cut early.
    pub(super) cut_outside_java: u64,
    /// Samples with a truncated stack, by reason.
    pub(super) truncated: BTreeMap<String, u64>,
    /// Java frames with a name, weighted by samples as all that follow.
    pub(super) frames: u64,
    /// Java frames without a name.
    pub(super) nameless: u64,
    /// Frames without a name, native ones too, by their placeholder.
    pub(super) unnamed: BTreeMap<String, u64>,
    /// Frames of classes without a class file.
    pub(super) unchecked: u64,
    /// Frames without a line whose method has lines.
    pub(super) lines_missing: u64,
    pub(super) edges: u64,
    pub(super) wrong_names: u64,
    /// Frames whose file isn't their class's source file.
    pub(super) wrong_files: u64,
    pub(super) wrong_lines: u64,
    pub(super) wrong_edges: u64,
    pub(super) wrong_roots: u64,
    /// Stacks of allocations whose youngest method can't allocate.
    pub(super) wrong_allocations: u64,
    /// Each stack of another event than CPU time counts once, whatever it stands for.
    pub(super) event: RecordedEvent,
    /// Stacks that differ from their expected chain.
    pub(super) wrong_chains: u64,
    /// Stacks that differ only in what is inlined at the running instruction.
    pub(super) guessed_inlining: u64,
    pub(super) chains: u64,
    pub(super) shares: Vec<String>,
    pub(super) wrong_shares: u64,
    /// Samples with anything wrong in their stack.
    pub(super) wrong_stacks: u64,
    /// Losses that the recording reports.
    pub(super) losses: BTreeMap<String, u64>,
    /// Examples of each kind of error, five at most.
    pub(super) examples: BTreeMap<String, Vec<String>>,
    /// The error of a recording that failed.
    pub(super) error: Option<String>,
    /// Path of the profile.
    pub(super) profile: PathBuf,
}

impl MatrixCell {
    /// Returns the JDK, the mode and the program.
    pub(super) fn name(&self) -> String {
        format!("JDK {} {} {}", self.jdk, self.mode, self.program)
    }

    /// Returns what is wrong, with examples, or `None`. What is missing isn't wrong, but shown.
    pub(super) fn error_text(&self) -> Option<String> {
        let mut errors: Vec<String> = self.error.iter().cloned().collect();
        errors.extend(self.too_few_java_samples());
        errors.extend(self.too_few_whole_stacks());
        if self.wrong_stacks > 0 {
            errors.push(format!("{} of {} samples have a wrong stack", self.wrong_stacks, self.samples));
            for (kind, examples) in self.examples.iter().filter(|(kind, _)| kind.starts_with(WRONG)) {
                errors.extend(examples.iter().map(|example| format!("{kind}\n{example}")));
            }
        }
        errors.extend(self.shares.iter().filter(|share| share.starts_with(WRONG)).cloned());
        if errors.is_empty() {
            return None;
        }
        Some(format!("{}: {}", self.name(), errors.join("\n").replace('\n', "\n  ")))
    }

    /// Returns whether more samples may end all that is wrong. A wrong stack stays one.
    pub(super) fn has_too_few_samples(&self) -> bool {
        let is_short = self.too_few_java_samples().is_some() || self.wrong_shares > 0;
        is_short && self.wrong_stacks == 0 && self.error.is_none()
    }

    /// Returns the error of samples that are too few for the rest to mean anything.
    pub(super) fn too_few_java_samples(&self) -> Option<String> {
        let text = || format!("too few: {} samples with Java frames of at least {}", self.java, self.least);
        (self.java < self.least).then(text)
    }

    /// Returns the error of waits whose stacks are cut off too often.
    pub(super) fn too_few_whole_stacks(&self) -> Option<String> {
        let cut = self.java - self.java_whole;
        let is_judged = self.event == RecordedEvent::Offcpu && self.java >= WAITS_PER_CUT;
        let text =
            || format!("too few are whole: {cut} of {} stacks with Java frames are cut off", self.java);
        (is_judged && cut * WAITS_PER_CUT > self.java).then(text)
    }

    /// Checks the cell's profile.
    ///
    /// # Errors
    /// It can't be read.
    pub(super) fn check(&mut self, checker: &Checker, expected: &Expectations) -> anyhow::Result<()> {
        let mut stacks = profile::read(&self.profile)?;
        if self.event != RecordedEvent::Cpu {
            stacks.iter_mut().for_each(|stack| stack.count = 1);
        }
        self.check_stacks(&stacks, checker, expected);
        Ok(())
    }

    fn check_stacks(&mut self, stacks: &[CountedStack], checker: &Checker, expected: &Expectations) {
        for stack in stacks {
            self.count(stack);
            self.check_stack(stack, checker, expected);
        }
        let has_time_shares = self.event == RecordedEvent::Cpu
            && JvmMode::named(&self.mode).is_none_or(JvmMode::has_time_shares);
        for share in expected.shares(stacks) {
            let is_wrong = !share.is_right && has_time_shares;
            self.wrong_shares += u64::from(is_wrong);
            self.shares.push(format!(
                "{}{} {:.3}, expected {:.3} ({} samples)",
                if is_wrong { format!("{WRONG}: ") } else { String::new() },
                share.what,
                share.seen,
                share.expected,
                share.samples
            ));
        }
    }

    fn count(&mut self, stack: &CountedStack) {
        let is_java = stack.frames.iter().any(|frame| frame.is_jvm_code);
        let mut is_whole = true;
        for frame in &stack.frames {
            match &frame.code {
                Code::Truncated(reason) => {
                    is_whole = false;
                    *self.truncated.entry(reason.clone()).or_default() += stack.count;
                    if is_java {
                        self.example("truncated", || excerpt(stack, 0, stack.frames.len()));
                    }
                }
                Code::Unknown(name) => {
                    *self.unnamed.entry(name.clone()).or_default() += stack.count;
                    self.nameless += if frame.is_jvm_code { stack.count } else { 0 };
                }
                _ => {}
            }
        }
        self.samples += stack.count;
        self.java += if is_java { stack.count } else { 0 };
        self.java_whole += if is_java && is_whole { stack.count } else { 0 };
        self.cut_outside_java += if is_java || is_whole { 0 } else { stack.count };
    }

    fn check_stack(&mut self, stack: &CountedStack, checker: &Checker, expected: &Expectations) {
        let mut report = checker.check(stack);
        if self.event == RecordedEvent::Alloc {
            report.findings.extend(checker.check_allocation(stack));
        }
        self.frames += report.java_frames * stack.count;
        self.unchecked += report.unchecked * stack.count;
        self.lines_missing += report.lines_missing * stack.count;
        self.edges += report.edges * stack.count;
        let mut is_wrong = !report.findings.is_empty();
        for StackError { fault, at } in report.findings {
            let (count, kind) = match fault {
                StackFault::Name => (&mut self.wrong_names, "wrong name"),
                StackFault::File => (&mut self.wrong_files, "wrong file"),
                StackFault::Line => (&mut self.wrong_lines, "wrong line"),
                StackFault::Edge => (&mut self.wrong_edges, "wrong edge"),
                StackFault::Root => (&mut self.wrong_roots, "wrong root"),
                StackFault::Allocation => (&mut self.wrong_allocations, "wrong allocation"),
            };
            *count += stack.count;
            self.example(kind, || excerpt(stack, at.saturating_sub(AROUND), end_of_example(stack, at)));
        }
        if let Some(chain) = expected.chain_of(stack) {
            self.chains += stack.count;
            let shown = || excerpt(stack, 0, stack.frames.len());
            match chain.compare(stack) {
                ChainFit::Whole => {}
                ChainFit::ButForInlining => {
                    self.guessed_inlining += stack.count;
                    self.example("guessed inlining", shown);
                }
                ChainFit::Wrong => {
                    is_wrong = true;
                    self.wrong_chains += stack.count;
                    self.example("wrong chain", shown);
                }
            }
        }
        self.wrong_stacks += if is_wrong { stack.count } else { 0 };
    }

    /// Adds an example unless there are enough, or the same is there.
    fn example(&mut self, kind: &str, text: impl FnOnce() -> String) {
        let examples = self.examples.entry(kind.to_owned()).or_default();
        if examples.len() < EXAMPLES {
            let text = text();
            if !examples.contains(&text) {
                examples.push(text);
            }
        }
    }
}

/// Returns the position past the frame's caller and some more; the JVM's own frames may lie
/// between.
fn end_of_example(stack: &CountedStack, at: usize) -> usize {
    let above = stack.frames.iter().skip(at + 1);
    at + 2 + AROUND + above.take_while(|frame| frame.java().is_none()).count()
}

/// Formats frames of a stack, leaf first, with their positions. Equal ones in a row are counted,
/// and long runs are cut in the middle.
fn excerpt(stack: &CountedStack, from: usize, to: usize) -> String {
    const ENDS: usize = 12;
    let frames = &stack.frames[..to.min(stack.frames.len())];
    let mut lines: Vec<String> = Vec::new();
    let mut at = from;
    while let Some(frame) = frames.get(at) {
        let times = frames[at..].iter().take_while(|next| *next == frame).count();
        let more = if times > 1 { format!(" ({times} times)") } else { String::new() };
        lines.push(format!("#{at} {}{more}", frame.report_line()));
        at += times;
    }
    if lines.len() > 2 * ENDS {
        let cut = lines.len() - 2 * ENDS;
        lines.splice(ENDS..ENDS + cut, [format!("... {cut} more")]);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::test_stacks::{java, stack};
    use super::*;

    #[test]
    fn an_error_names_the_cell_and_what_is_wrong() {
        let cell =
            MatrixCell { jdk: 17, mode: "int".to_owned(), program: "Known".to_owned(), ..Default::default() };
        assert_eq!(cell.error_text(), None);
        let kinds = ["truncated", "wrong edge"];
        let examples = kinds.map(|kind| (kind.to_owned(), vec!["#0 a\n#1 b".to_owned()])).into();
        let shares = ["wrong: spin 0.8", "twice 0.25"].map(str::to_owned).into();
        let cell = MatrixCell { least: 5, java: 3, samples: 4, wrong_stacks: 1, examples, shares, ..cell };
        let expected = "JDK 17 int Known: too few: 3 samples with Java frames of at least 5\n  \
                        1 of 4 samples have a wrong stack\n  wrong edge\n  #0 a\n  #1 b\n  wrong: spin 0.8";
        assert_eq!(cell.error_text().as_deref(), Some(expected));
        assert!(!cell.has_too_few_samples(), "a wrong stack doesn't go away");
        assert!(MatrixCell { wrong_stacks: 0, ..cell }.has_too_few_samples());
    }

    #[test]
    fn of_a_thousand_stacks_of_waits_one_may_be_cut_off() {
        let cell = |event, java, java_whole| MatrixCell { event, java, java_whole, ..Default::default() };
        let waits = |java, java_whole| cell(RecordedEvent::Offcpu, java, java_whole).error_text();
        assert_eq!((waits(1000, 999), waits(999, 900)), (None, None));
        let error = waits(1999, 1997).expect("too many are cut off");
        assert!(error.contains("2 of 1999 stacks with Java frames are cut off"), "{error}");
        assert_eq!(cell(RecordedEvent::Cpu, 1999, 1997).error_text(), None, "shown in the table");
    }

    #[test]
    fn examples_are_short() {
        let deep = std::iter::repeat_n(java("A", "deep", "()V", 2), 500);
        let shown = excerpt(&stack([java("A", "spin", "()V", 1)].into_iter().chain(deep), 1), 0, 501);
        assert_eq!(shown, "#0 A.spin()V :1\n#1 A.deep()V :2 (500 times)");
        let varied = (0..100).map(|line| java("A", "f", "()V", line));
        assert_eq!(excerpt(&stack(varied, 1), 0, 100).lines().count(), 25);
        assert_eq!(excerpt(&stack([java("A", "f", "()V", 1)], 1), 0, 9), "#0 A.f()V :1");
    }
}
