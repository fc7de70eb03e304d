//! The stages of a sample's stack: identified, completed, named. Each is a value that only the
//! stage before it returns, so that none can be left out or come too early.

use std::sync::Arc;
use std::time::Duration;

use jvmprof_common::abi::Stop;

use super::frames::marker;
use super::namer::{FALSE_CALLER, Namer};
use super::stack::completer::{StackWalk, WalkedStack, has_unreadable_stack, kernel_walked_frames};
use super::{ProcessSymbols, StackOutcome, SymbolizedStack, Symbolizer};
use crate::process::{Process, ProcessKey};
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{Frame, SampleLabels};
use crate::sampler::StackSample;
use crate::types::Avma;

/// Reason of a stack that was walked before its rows were there, since too many samples waited.
const TOO_MANY_WAIT: &str = "no room to wait";
const SIGNAL_DELIVERY: &str = "signal being delivered";

/// Time that a sample can wait for what its stack needs: unwind rows that are being read, or
/// records that its process's runtime has still to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// The sample waits until all is there.
    Open,
    /// All is there: the sample has waited.
    Ready,
    /// The sample waits no longer: its process's mappings are about to change, or nothing more will
    /// arrive. Missing unwind rows are read now, within limits.
    Expired,
    /// The sample waits no longer: too many samples wait.
    OverCapacity,
}

/// A sample of a known process, with its present mappings.
#[derive(Debug)]
pub struct IdentifiedSample<'a> {
    symbolizer: &'a mut Symbolizer,
    process: &'a Process,
    sample: &'a StackSample,
    now_ns: u64,
    /// The names of an equal stack.
    cached: Option<SymbolizedStack>,
}

/// Result of completing a stack.
#[derive(Debug)]
pub enum Completion<'a> {
    Completed(CompletedStack<'a>),
    /// The sample is to be completed once more, when what it needs is there.
    Pending,
}

/// A stack that is walked as far as it can be.
#[derive(Debug)]
pub struct CompletedStack<'a> {
    identified: IdentifiedSample<'a>,
    deadline: Deadline,
    /// The walked frames; `None`: an equal stack has the names.
    walked: Option<WalkedStack>,
}

impl Symbolizer {
    /// Returns the names of an equal stack of the same process, if they still hold.
    pub fn cached(&self, process: &Process, sample: &StackSample) -> Option<SymbolizedStack> {
        self.processes.get(&process.key)?.stacks.find(process.version, sample)
    }

    /// Updates the state of a sample's process to its mappings, and publishes it to the kernel
    /// programs. `cached` is the result of [`Self::cached`].
    pub fn identify<'a>(
        &'a mut self,
        process: &'a Process,
        sample: &'a StackSample,
        cached: Option<SymbolizedStack>,
        now_ns: u64,
    ) -> IdentifiedSample<'a> {
        let is_code_unknown = matches!(
            sample.stop,
            Stop::UnknownStub | Stop::UnknownCode | Stop::UnknownProcess | Stop::Frozen
        );
        if sample.stop == Stop::Frozen
            && let Some(symbols) = self.processes.get_mut(&process.key)
        {
            symbols.java.expect_virtual_threads();
        }
        self.refresh(process, now_ns, is_code_unknown);
        IdentifiedSample { symbolizer: self, process, sample, now_ns, cached }
    }
}

impl<'a> IdentifiedSample<'a> {
    /// Continues the stack where the kernel program stopped.
    pub fn complete(mut self, deadline: Deadline) -> Completion<'a> {
        let walked = if self.cached.is_some() {
            None
        } else if deadline == Deadline::Open && self.must_wait() {
            let Some(walked) = self.walk_by_single_rows() else { return Completion::Pending };
            Some(walked)
        } else {
            let reads_rows = matches!(deadline, Deadline::Expired | Deadline::OverCapacity)
                && self.symbolizer.completer.budget.has_time(self.now_ns);
            Some(self.walk(reads_rows))
        };
        if let Some(walked) = &walked {
            let is_longer = walked.frames.len() > kernel_walked_frames(self.sample).0.len();
            self.symbolizer.counts.completed_by_daemon += u64::from(is_longer);
        }
        Completion::Completed(CompletedStack { identified: self, deadline, walked })
    }

    /// Returns true if the stack needs unwind rows that are being read, or that the process's
    /// runtime has still to write. Data that may be gone by then is read now.
    fn must_wait(&mut self) -> bool {
        let Self { symbolizer, process, sample, now_ns, .. } = self;
        let is_walked = matches!(
            sample.stop,
            Stop::Root | Stop::KernelThread | Stop::NoMemory | Stop::DepthReached | Stop::Not64Bit
        );
        let at_ns = sample.header.time_ns;
        if is_walked || symbolizer.walkable_until(process.key, at_ns) >= at_ns {
            return false;
        }
        if let Some(symbols) = symbolizer.processes.get_mut(&process.key).filter(|_| !process.is_jvm()) {
            symbols.jit.begin(process, &symbolizer.jit, *now_ns, &mut symbolizer.counts.perf_maps);
        }
        let (mut namer, symbols) = symbolizer.namer(process, sample, *now_ns);
        namer.read_java(symbols, sample);
        true
    }

    /// Walks a stack that should wait for unwind rows: single lookups may find the few that it
    /// needs. Returns `None` if it isn't whole with them.
    fn walk_by_single_rows(&mut self) -> Option<WalkedStack> {
        let at_ns = self.sample.header.time_ns;
        let symbolizer = &mut *self.symbolizer;
        let symbols = symbolizer.processes.get_mut(&self.process.key)?;
        let awaits_more = symbols.jit.walkable_until(at_ns, &mut symbolizer.counts.perf_maps) < at_ns;
        if awaits_more
            || symbols.java.is_awaited(self.process)
            || !symbolizer.completer.budget.has_time(self.now_ns)
        {
            return None;
        }
        Some(self.walk(false)).filter(|walked| walked.outcome == StackOutcome::Whole)
    }

    fn walk(&mut self, reads_rows: bool) -> WalkedStack {
        let Self { symbolizer, process, sample, now_ns, .. } = self;
        // The stack is gone with the program that it belonged to, and the new one's doesn't begin
        // yet.
        if sample.in_kernel() && has_unreadable_stack(sample) && symbolizer.kernel.is_in_exec(sample.kernel())
        {
            let (frames, outcome) = (Vec::new(), StackOutcome::Whole);
            return WalkedStack { frames, outcome, late_from: None, reading: Duration::ZERO };
        }
        let new = || ProcessSymbols::new(&symbolizer.memory);
        let symbols = symbolizer.processes.entry(process.key).or_insert_with(new);
        let walk = StackWalk {
            files: &symbolizer.files,
            names: &symbolizer.names,
            publisher: symbolizer.publisher.as_ref(),
            single_row_lookup: &mut symbolizer.completer.single_row_lookup,
            counts: &mut symbolizer.counts,
            process,
            now_ns: *now_ns,
            reads_rows,
            late_from: None,
            reading: Duration::ZERO,
        };
        let walked = walk.walk(symbols, sample);
        symbolizer.completer.budget.charge(walked.reading);
        // One that is whole had all of its registers.
        if walked.outcome != StackOutcome::Whole
            && sample.in_kernel()
            && symbolizer.kernel.is_in_signal_delivery(sample.kernel())
        {
            let outcome = StackOutcome::Truncated(SIGNAL_DELIVERY);
            return WalkedStack { frames: Vec::new(), outcome, late_from: None, reading: Duration::ZERO };
        }
        walked
    }
}

impl CompletedStack<'_> {
    /// Names the frames.
    pub fn name(self) -> SymbolizedStack {
        let Self { identified, deadline, walked } = self;
        let IdentifiedSample { symbolizer, process, sample, now_ns, cached } = identified;
        match (cached, walked) {
            (Some(cached), _) => cached,
            (None, walked) => symbolizer.name_walked(process, sample, now_ns, walked, deadline),
        }
    }
}

impl Symbolizer {
    fn name_walked(
        &mut self,
        process: &Process,
        sample: &StackSample,
        now_ns: u64,
        walked: Option<WalkedStack>,
        deadline: Deadline,
    ) -> SymbolizedStack {
        if self.memory.frames.is_exceeded() {
            self.clear_frames();
        }
        let mut frames: Vec<Arc<Frame>> =
            Vec::with_capacity(usize::from(sample.header.head_words + sample.header.user_words) + 4);
        for (index, address) in sample.kernel().iter().enumerate() {
            let lookup = if index == 0 { *address } else { address.saturating_sub(1) };
            frames.push(self.kernel.frame(Avma(lookup)));
        }
        let (mut namer, symbols) = self.namer(process, sample, now_ns);
        let mut outcome = StackOutcome::Whole;
        if let Some(walked) = walked {
            namer.late_from = walked.late_from;
            let is_true = namer.user_stack(symbols, &walked.frames, &mut frames);
            outcome = if is_true { walked.outcome } else { StackOutcome::Truncated(FALSE_CALLER) };
        }
        if deadline == Deadline::OverCapacity && matches!(outcome, StackOutcome::Truncated(_)) {
            outcome = StackOutcome::Truncated(TOO_MANY_WAIT);
        }
        let pending = namer.pending || frames.iter().any(|frame| frame.lines.is_empty());
        if let StackOutcome::Truncated(reason) = outcome {
            frames.push(marker(reason));
        }
        let stays = !pending && !namer.is_passing && outcome == StackOutcome::Whole;
        let frames = Arc::from(frames);
        if stays {
            symbols.stacks.insert(process.version, sample, &frames);
            if self.memory.stacks.is_exceeded() {
                self.clear_stacks();
            }
        }
        SymbolizedStack { stack: NamedStack { frames, labels: SampleLabels::default(), pending }, outcome }
    }

    fn namer<'a>(
        &'a mut self,
        process: &'a Process,
        sample: &StackSample,
        now_ns: u64,
    ) -> (Namer<'a>, &'a mut ProcessSymbols) {
        let new = || ProcessSymbols::new(&self.memory);
        let symbols = self.processes.entry(process.key).or_insert_with(new);
        let namer = Namer {
            files: &self.files,
            names: &self.names,
            java: &self.java,
            jit: &self.jit,
            deferred: &mut self.deferred,
            counts: &mut self.counts,
            process,
            java_frame_types: self.java_frame_types,
            at_ns: sample.header.time_ns,
            now_ns,
            pending: false,
            is_passing: false,
            late_from: None,
        };
        (namer, symbols)
    }
}

/// The end of a window: all that could be deferred has its names, or never will.
#[derive(Debug)]
pub struct WindowEnd<'a> {
    symbolizer: &'a mut Symbolizer,
}

impl Symbolizer {
    /// Names the deferred frames, before the window's profiles are made: new records of runtimes
    /// are read for it.
    pub fn end_window<'p>(
        &mut self,
        find: impl Fn(ProcessKey) -> Option<&'p Process>,
        now_ns: u64,
    ) -> WindowEnd<'_> {
        self.name_rest(&find);
        self.refresh_perf_maps(&find, now_ns);
        WindowEnd { symbolizer: self }
    }
}

impl WindowEnd<'_> {
    /// Replaces frames that had no name when their sample was taken: perf maps are written later
    /// than the code they name.
    pub fn finalize_names(&mut self, key: ProcessKey, frames: &mut [Arc<Frame>]) {
        self.symbolizer.finalize_names(key, frames);
    }

    /// Drops all other processes: the next window begins.
    pub fn retain(self, is_alive: impl Fn(ProcessKey) -> bool) {
        self.symbolizer.retain(is_alive);
        self.symbolizer.java.store_stub_analyses();
    }
}
