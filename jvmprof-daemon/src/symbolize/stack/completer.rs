//! Completion of a stack: its walk goes on where the kernel program stopped, over the part of the
//! stack that it copied.

use std::time::{Duration, Instant};

use jvmprof_common::abi::Stop;
use jvmprof_common::frame::UserFrame;
use jvmprof_common::unwind::UnwindRule;

use super::remapped_code::REMAPPED;
use super::resumed_walk;
use crate::budget::TimeBudget;
use crate::native::file_cache::FileCache;
use crate::process::Process;
use crate::sampler::StackSample;
use crate::symbolize::counts::SymbolCounts;
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

    /// Continues the walk where the kernel program stopped.
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
            _ => {}
        }
        let process = self.process;
        let (modules, files, counts) = (&mut symbols.modules, self.files, &mut *self.counts);
        let single_row_lookup = &mut *self.single_row_lookup;
        let tables = self.publisher.map(|publisher| &publisher.tables);
        let before = stack.len();
        let java = symbols.java.attached_jvm();
        if !matches!(sample.stop, Stop::UnknownProcess) {
            tracing::trace!(pid = process.pid, stop = ?sample.stop, last = ?stack.last(), "walking on");
        }
        let (mut is_missing, mut is_ambiguous) = (false, false);
        let generated = |address| {
            if let Some((row, is_known)) = symbols.jit.row(address, sample.header.time_ns) {
                is_ambiguous |= !is_known;
                return Some(UnwindRule::Row(row));
            }
            let code = process.mappings.find(address)?;
            let trampolines = symbols.arenas.at(code.start, code.end)?;
            Some(UnwindRule::Row(trampolines.row(u32::try_from(address.0 - code.start.0).ok()?)?))
        };
        let (reads_rows, mut reading) = (self.reads_rows, Duration::ZERO);
        let native = |address| {
            let is_read_elsewhere = self.publisher.is_some_and(|publisher| {
                mapped_files::is_missing(process, modules, &publisher.loader, address)
            });
            let began = is_read_elsewhere.then(Instant::now);
            if is_read_elsewhere {
                let row = mapped_files::fde_row(process, modules, (files, &mut *single_row_lookup), address);
                reading += began.map(|began| began.elapsed()).unwrap_or_default();
                if let Some(row) = row {
                    return UnwindRule::Row(row);
                }
                if !(reads_rows && mapped_files::is_small_enough_to_read(process, modules, address)) {
                    is_missing = true;
                    return UnwindRule::Unknown;
                }
            }
            let rule = mapped_files::rule(process, modules, (files, tables), counts, address);
            reading += began.map(|began| began.elapsed()).unwrap_or_default();
            rule
        };
        let end = resumed_walk::complete(sample, java, stack, &mut symbols.rules, native, generated);
        self.reading = reading;
        self.counts.perf_maps.ambiguous_stacks += u64::from(is_ambiguous);
        if self.now_ns.saturating_sub(sample.header.time_ns) > MAX_DELAY_NS {
            self.late_from = before.checked_sub(1);
        }
        let last_address = Avma(stack.last().and_then(UserFrame::lookup_address).unwrap_or(0));
        match (end.stop, end.rule) {
            (Stop::Root, _) => StackOutcome::Whole,
            // A frame pointer of zero is no mark of a root: code that keeps none has whatever it
            // likes in `rbp`. Where programs and threads begin has a row.
            (stop, _) if self.is_go_root(modules, last_address, stop) => StackOutcome::Whole,
            _ if is_missing => StackOutcome::Truncated(Stop::RowsMissing.as_str()),
            // The copy ended before the stack did: the first reason is the true one.
            (stop, rule) => {
                let (header, last) = (&sample.header, stack.last());
                tracing::debug!(
                    pid = process.pid,
                    tid = header.tid,
                    kernel = ?sample.stop,
                    daemon = ?stop,
                    frames = stack.len(),
                    ?last,
                    ?rule,
                    tail_sp = header.tail_sp,
                    tail_fp = header.tail_fp,
                    cursor = ?end.cursor,
                    code = ?java.zip(last).map(|(java, last)| java.code_around(resumed_walk::place(last, Some(java)).0)),
                    tail = sample.tail().len(),
                    registers = ?header.registers,
                    "a stack isn't whole"
                );
                let reason = if stop == Stop::StackUnreadable { sample.stop } else { stop };
                StackOutcome::Truncated(reason.as_str())
            }
        }
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
