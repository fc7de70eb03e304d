//! Completion of a stack: its walk goes on where the kernel program stopped, over the part of the
//! stack that it copied.

use std::time::Duration;

use jvmprof_common::abi::Stop;
use jvmprof_common::frame::UserFrame;

use super::code_rules::{GeneratedCodeRules, NativeRules};
use super::remapped_code::REMAPPED;
use super::resumed_walk::{self, WalkEnd};
use crate::budget::TimeBudget;
use crate::native::file_cache::FileCache;
use crate::process::Process;
use crate::sampler::StackSample;
use crate::symbolize::counts::SymbolCounts;
use crate::symbolize::java::AttachedJvm;
use crate::symbolize::native::function_names::{FunctionNames, NativeLines};
use crate::symbolize::native::load_budget::load_budget;
use crate::symbolize::native::mapped_files::{self, Modules};
use crate::symbolize::native::single_row_lookup::SingleRowLookup;
use crate::symbolize::publish_to_kernel::Publisher;
use crate::symbolize::{ProcessSymbols, StackOutcome};
use crate::types::Avma;

/// Age of a sample up to which Java code is taken to be that of the sample's time: frames that are
/// walked here use the code that is there now. It takes a garbage collection to put other code in
/// its place.
const MAX_DELAY_NS: u64 = 30_000_000;

/// State and budgets of completing the stacks of all processes.
#[derive(Debug)]
pub(in crate::symbolize) struct Completer {
    /// Budget of reading whole files' rows while a stack is walked.
    pub(in crate::symbolize) budget: TimeBudget,
    /// Single rows of files that are being read by the loader.
    pub(in crate::symbolize) single_row_lookup: SingleRowLookup,
}

impl Default for Completer {
    fn default() -> Self {
        Self { budget: load_budget(), single_row_lookup: SingleRowLookup::default() }
    }
}

/// A user's stack, as far as it can be walked.
#[derive(Debug)]
pub(in crate::symbolize) struct WalkedStack {
    pub(in crate::symbolize) frames: Vec<UserFrame>,
    pub(in crate::symbolize) outcome: StackOutcome,
    /// Index of the first frame that was walked so long after the sample that other code may be
    /// there by now.
    pub(in crate::symbolize) late_from: Option<usize>,
    /// Time that reading unwind rows took.
    pub(in crate::symbolize) reading: Duration,
}

/// The walk of one sample's stack.
pub(in crate::symbolize) struct StackWalk<'a> {
    pub(in crate::symbolize) files: &'a FileCache,
    pub(in crate::symbolize) names: &'a FunctionNames,
    /// The publisher whose rows are used; rows that it has yet to load aren't waited for here.
    pub(in crate::symbolize) publisher: Option<&'a Publisher>,
    pub(in crate::symbolize) single_row_lookup: &'a mut SingleRowLookup,
    pub(in crate::symbolize) counts: &'a mut SymbolCounts,
    pub(in crate::symbolize) process: &'a Process,
    pub(in crate::symbolize) now_ns: u64,
    /// True if unwind rows that the loader is reading are read here too, if they are few.
    pub(in crate::symbolize) reads_rows: bool,
    pub(in crate::symbolize) late_from: Option<usize>,
    pub(in crate::symbolize) reading: Duration,
}

/// Returns the frames of a sample that the kernel program walked, and whether their words are
/// well-formed.
pub(in crate::symbolize) fn kernel_walked_frames(sample: &StackSample) -> (Vec<UserFrame>, bool) {
    let mut words = sample.user();
    let mut stack = Vec::with_capacity(words.len());
    while let Some(frame) = UserFrame::take(&mut words) {
        stack.push(frame);
    }
    (stack, words.is_empty())
}

/// Returns true if nothing could be read where the user's stack pointer leads.
pub(in crate::symbolize) fn has_unreadable_stack(sample: &StackSample) -> bool {
    let is_copied = matches!(
        sample.stop,
        Stop::StackUnreadable | Stop::UnknownCode | Stop::UnknownProcess | Stop::RowsMissing
    );
    is_copied && sample.tail().is_empty() && kernel_walked_frames(sample).0.len() == 1
}

impl StackWalk<'_> {
    /// Walks the whole stack, as far as it can be walked.
    pub(in crate::symbolize) fn walk(
        mut self,
        symbols: &mut ProcessSymbols,
        sample: &StackSample,
    ) -> WalkedStack {
        let (mut frames, is_well_formed) = kernel_walked_frames(sample);
        let trusted = symbols.remapped.trusted(&frames, sample.header.time_ns);
        let outcome = match (trusted, is_well_formed) {
            (Some(trusted), _) => {
                frames.truncate(trusted);
                StackOutcome::Truncated(REMAPPED)
            }
            (None, true) => self.complete(symbols, sample, &mut frames),
            (None, false) => StackOutcome::Truncated("malformed frame"),
        };
        WalkedStack { frames, outcome, late_from: self.late_from, reading: self.reading }
    }

    /// Continues the walk where the kernel program stopped, if it didn't stop for good.
    fn complete(
        &mut self,
        symbols: &mut ProcessSymbols,
        sample: &StackSample,
        stack: &mut Vec<UserFrame>,
    ) -> StackOutcome {
        match sample.stop {
            // Without user memory there is no user stack.
            Stop::KernelThread | Stop::NoMemory | Stop::Root => return StackOutcome::Whole,
            Stop::DepthReached | Stop::Not64Bit | Stop::Frozen | Stop::FrozenMoving => {
                return StackOutcome::Truncated(sample.stop.as_str());
            }
            Stop::UnknownProcess => {}
            stop => {
                tracing::trace!(pid = self.process.pid, ?stop, last = ?stack.last(), "walking on");
            }
        }
        let before = stack.len();
        let (end, is_missing) = self.walk_on(symbols, sample, stack);
        if self.now_ns.saturating_sub(sample.header.time_ns) > MAX_DELAY_NS {
            self.late_from = before.checked_sub(1);
        }
        let last_address = Avma(stack.last().and_then(UserFrame::lookup_address).unwrap_or(0));
        match end.stop {
            Stop::Root => StackOutcome::Whole,
            // A frame pointer of zero is no mark of a root: code that keeps none has whatever it
            // likes in `rbp`. Where programs and threads begin has a row.
            stop if self.is_go_root(&symbols.modules, last_address, stop) => StackOutcome::Whole,
            _ if is_missing => StackOutcome::Truncated(Stop::RowsMissing.as_str()),
            stop => {
                log_truncated(self.process, sample, stack, symbols.java.attached_jvm(), &end);
                // The copy ended before the stack did: the first reason is the true one.
                let reason = if stop == Stop::StackUnreadable { sample.stop } else { stop };
                StackOutcome::Truncated(reason.as_str())
            }
        }
    }

    /// Walks on by the rules of all code of the process. Returns the end, and true if rows were
    /// needed that the loader has still to read.
    fn walk_on(
        &mut self,
        symbols: &mut ProcessSymbols,
        sample: &StackSample,
        stack: &mut Vec<UserFrame>,
    ) -> (WalkEnd, bool) {
        let mut native = NativeRules {
            process: self.process,
            modules: &mut symbols.modules,
            files: self.files,
            publisher: self.publisher,
            single_row_lookup: self.single_row_lookup,
            counts: self.counts,
            reads_rows: self.reads_rows,
            is_missing: false,
            reading: Duration::ZERO,
        };
        let mut generated = GeneratedCodeRules {
            process: self.process,
            jit: &symbols.jit,
            arenas: &symbols.arenas,
            at_ns: sample.header.time_ns,
            is_ambiguous: false,
        };
        let end = resumed_walk::complete(
            sample,
            symbols.java.attached_jvm(),
            stack,
            &mut symbols.rules,
            |address| native.at(address),
            |address| generated.at(address),
        );
        let is_missing = native.is_missing;
        self.reading = native.reading;
        self.counts.perf_maps.ambiguous_stacks += u64::from(generated.is_ambiguous);
        (end, is_missing)
    }

    /// Returns whether the walk has reached the root of a Go stack: goroutines and the first thread
    /// have a zero return address (go src/runtime/asm_amd64.s, `goexit`, `rt0_go`), other threads
    /// none at all (sys_linux_amd64.s, `clone`). Programs of Go may hold C, too.
    fn is_go_root(&self, modules: &Modules, address: Avma, stop: Stop) -> bool {
        let Some(module) = mapped_files::go_module(self.process, modules, address) else { return false };
        let named = module.name(self.process, self.files, self.names, address);
        let is_root = |lines: &NativeLines| {
            lines.last().is_some_and(|line| match &*line.system_name {
                "runtime.clone" | "runtime.clone.abi0" => true,
                name => {
                    stop == Stop::ChainEnded && (name.starts_with("runtime.") || name.starts_with("_rt0_"))
                }
            })
        };
        named.ok().flatten().as_ref().is_some_and(is_root)
    }
}

/// Logs all that is known of a stack that isn't whole.
fn log_truncated(
    process: &Process,
    sample: &StackSample,
    stack: &[UserFrame],
    java: Option<&AttachedJvm>,
    end: &WalkEnd,
) {
    let (header, last) = (&sample.header, stack.last());
    tracing::debug!(
        pid = process.pid,
        tid = header.tid,
        kernel = ?sample.stop,
        daemon = ?end.stop,
        frames = stack.len(),
        ?last,
        rule = ?end.rule,
        tail_sp = header.tail_sp,
        tail_fp = header.tail_fp,
        cursor = ?end.cursor,
        code = ?java.zip(last).map(|(java, last)| java.code_around(resumed_walk::frame_pc(last, Some(java)).0)),
        tail = sample.tail().len(),
        registers = ?header.registers,
        "a stack isn't whole"
    );
}
