//! Samples by function: its own, those of the JVM and the kernel on its behalf, and all with it on
//! the stack; by line and by how it ran.

use super::{CallStep, EXECUTION_MODES, NodeKind, TreeBuilder, UNKNOWN_CODE};

/// Different lines counted for one function.
const MAX_LINES: usize = 256;

/// Samples of a function, or of one of its lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    /// Samples with the function as the leaf.
    pub(super) own: u64,
    /// Samples with the function as the nearest Java caller of the leaf, or the leaf itself: what
    /// the kernel, native code and stubs did for it is its own. Where no Java method called, the
    /// leaf's.
    pub(super) attributed: u64,
    /// Samples with the function anywhere in the stack; recursion counts once.
    pub(super) total: u64,
}

impl SampleCounts {
    fn add(&mut self, other: Self) {
        self.own += other.own;
        self.attributed += other.attributed;
        self.total += other.total;
    }
}

/// Counts of the tree, and of the base that it is compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ComparedCounts {
    pub(super) main: SampleCounts,
    pub(super) base: SampleCounts,
}

impl ComparedCounts {
    fn add(&mut self, counts: SampleCounts, is_base: bool) {
        if is_base { &mut self.base } else { &mut self.main }.add(counts);
    }

    pub(super) fn add_all(&mut self, other: Self) {
        self.main.add(other.main);
        self.base.add(other.base);
    }

    /// Returns the weights that decide which functions and lines are listed: attributed, own and
    /// total samples.
    pub(super) fn weights(&self) -> [u64; 3] {
        let Self { main, base } = self;
        [main.attributed + base.attributed, main.own + base.own, main.total + base.total]
    }
}

/// Samples of one function.
#[derive(Clone, Debug, Default)]
pub(super) struct FunctionSamples {
    pub(super) counts: ComparedCounts,
    /// By line: of several calls on one stack, the innermost one's. In a caller it is the line of
    /// the call.
    pub(super) lines: Vec<(u32, ComparedCounts)>,
    /// Samples by how the innermost call ran, in the order of `ExecutionMode`.
    pub(super) how: [u64; EXECUTION_MODES],
    /// The last stack that counted towards `total`.
    pub(super) stamp: u64,
}

impl FunctionSamples {
    fn add(&mut self, step: &CallStep, counts: SampleCounts, is_base: bool) {
        self.counts.add(counts, is_base);
        if let Some(mode) = step.mode.filter(|_| !is_base) {
            self.how[mode as usize] += counts.total;
        }
        if step.line == 0 {
            return;
        }
        let mut of_line = ComparedCounts::default();
        of_line.add(counts, is_base);
        self.add_line(step.line, of_line);
    }

    pub(super) fn add_line(&mut self, line: u32, counts: ComparedCounts) {
        if let Some((_, known)) = self.lines.iter_mut().find(|(known, _)| *known == line) {
            known.add_all(counts);
        } else if self.lines.len() < MAX_LINES {
            self.lines.push((line, counts));
        }
    }
}

impl TreeBuilder {
    /// Counts a stack for each of its functions, once, by its innermost call.
    pub(super) fn count_functions(&mut self, path: &[CallStep], count: u64) {
        let leaf = path.len().wrapping_sub(1);
        let attributed = path.iter().rposition(|step| self.takes_callees(step)).unwrap_or(leaf);
        for (at, step) in path.iter().enumerate().rev() {
            let samples = &mut self.samples[step.function.0 as usize];
            if samples.stamp == self.stacks {
                continue;
            }
            samples.stamp = self.stacks;
            let counts = SampleCounts {
                own: if at == leaf { count } else { 0 },
                attributed: if at == attributed { count } else { 0 },
                total: count,
            };
            samples.add(step, counts, self.is_base);
        }
    }

    /// Returns true if a function is what the time of the kernel, the JVM and native code below it
    /// is attributed to. A Java method without a name is; the cause of a wait isn't, which is that
    /// of its caller.
    pub(super) fn takes_callees(&self, step: &CallStep) -> bool {
        let function = self.functions[step.function.0 as usize];
        match function.kind {
            NodeKind::Java | NodeKind::Jit => true,
            NodeKind::Marker => self.strings[function.name as usize].starts_with(UNKNOWN_CODE),
            _ => false,
        }
    }
}
