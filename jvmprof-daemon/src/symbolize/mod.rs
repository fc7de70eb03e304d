//! From a sample's addresses to frames with names, by what the process had mapped when it was
//! sampled.

mod counts;
mod frames;
mod generated;
mod inspect;
mod java;
mod kernel_frames;
mod memory_limits;
mod namer;
mod native;
mod publish;
mod stack;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jvmprof_common::abi::Stop;
use jvmprof_common::frame::UserFrame;

use crate::hotspot::JavaCache;
use crate::hotspot::stubs::analyze_native;
use crate::jit::cpython_trampolines::TrampolineArenas;
use crate::kernel_tables::{CodeTables, FileRows};
use crate::native::file_cache::{FileCache, FileCacheLimits};
use crate::native::file_identity::FileKey;
use crate::process::{Process, ProcessKey};
use crate::profile::model::{Frame, Mapping};
use crate::sampler::{BpfMaps, Sample};
use crate::types::{Avma, FastHasher};
pub use counts::{CacheSize, SymbolCounts};
use frames::{frame_bytes, marker};
pub use generated::jit_counts::JitCounts;
use generated::{JitNames, JitShared};
pub use inspect::{ModuleReport, NativePlace};
pub use java::jvm_labels::JvmFacts;
use java::{Callers, Java, Look};
use kernel_frames::KernelFrames;
pub use memory_limits::SymbolMemory;
use namer::{Namer, frames_of};
use native::deferred_frames::Unnamed;
use native::function_names::FunctionNames;
use native::mapped_files::Modules;
pub use native::{NativeOptions, Symbolize};
use publish::row_loader::RowsLoader;
use stack::fde_lookup::Sought;
use stack::load_budget::EarlyRows;
use stack::remapped_code::Replaced;
use stack::resumed_walk::Rules;
use stack::whole_stacks::Stacks;

/// A stack with names.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Leaf first; ends in a marker if the stack isn't whole.
    pub frames: Arc<[Arc<Frame>]>,
    pub outcome: Outcome,
    /// Some frames have no name yet that a perf map may still tell: see [`Symbolizer::retry`].
    pub pending: bool,
}

/// Of the memory for frames, whole stacks take one part in so many.
const STACKS_PART: usize = 8;
/// Why a stack isn't whole that was walked before what it needs was there.
const NO_ROOM_TO_WAIT: &str = "no room to wait";

/// Is the stack whole?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It reaches the thread's root.
    Whole,
    Truncated(&'static str),
    /// Nobody looked: its process is one that isn't wanted.
    Unwanted,
}

/// Names addresses. One for all processes; what belongs to files is shared among them.
#[derive(Debug)]
pub struct Symbolizer {
    files: Arc<FileCache>,
    names: FunctionNames,
    native: NativeOptions,
    kernel: KernelFrames,
    processes: HashMap<ProcessKey, ProcessSymbols, FastHasher>,
    /// `None`: nothing is sampled, only looked at.
    kernel_side: Option<KernelSide>,
    early: EarlyRows,
    sought: Sought,
    java: JavaCache,
    jit: JitShared,
    /// Native frames that wait for their names.
    unnamed: Vec<Unnamed>,
    cached_bytes: usize,
    /// The limit of the frames of all processes together, soon after it is exceeded.
    max_cached_bytes: usize,
    /// Of the stacks of all processes, and their limit.
    stack_bytes: usize,
    max_stack_bytes: usize,
    /// [`ProcessSymbols::named`] is to be forgotten at the window's end.
    are_names_old: bool,
    counts: SymbolCounts,
    java_frame_types: bool,
}

/// Nothing could be read where the user's stack pointer leads.
fn has_unreadable_stack(sample: &Sample) -> bool {
    let is_copied = matches!(
        sample.stop,
        Stop::StackUnreadable | Stop::UnknownCode | Stop::UnknownProcess | Stop::RowsMissing
    );
    is_copied && sample.tail().is_empty() && frames_of(sample).0.len() == 1
}

/// What the kernel program is told of code.
#[derive(Debug)]
struct KernelSide {
    tables: CodeTables,
    loader: RowsLoader,
}

/// What is remembered of one process.
#[derive(Debug, Default)]
struct ProcessSymbols {
    generation: u64,
    /// The version of its mappings that the kernel was told.
    told_version: u64,
    /// The kernel leaves its generated code to us.
    told_jit_rows: bool,
    /// Files whose rows are being read.
    awaited: Vec<FileKey>,
    frames: HashMap<UserFrame, Arc<Frame>, FastHasher>,
    /// Native frames that have got their names, by mapping and address: also of mappings that are
    /// gone.
    named: HashMap<(Arc<Mapping>, Avma), Arc<Frame>, FastHasher>,
    frame_bytes: usize,
    callers: Callers,
    stacks: Stacks,
    modules: Modules,
    rules: Rules,
    jit: JitNames,
    arenas: TrampolineArenas,
    replaced: Replaced,
    java: Java,
}

fn file_cache(limits: FileCacheLimits, with_lines: bool) -> Arc<FileCache> {
    Arc::new(FileCache::new(limits).with_analysis(analyze_native).with_lines(with_lines))
}

impl Symbolizer {
    pub fn new(memory: &SymbolMemory) -> Self {
        let limits =
            FileCacheLimits { bytes: memory.files, line_bytes: memory.lines, ..FileCacheLimits::default() };
        Self {
            files: file_cache(limits, false),
            names: FunctionNames::new(memory.names),
            native: NativeOptions::default(),
            kernel: KernelFrames::default(),
            processes: HashMap::default(),
            kernel_side: None,
            early: EarlyRows::default(),
            sought: Sought::default(),
            java: JavaCache::new(memory.java),
            jit: JitShared::new(memory.jit),
            unnamed: Vec::new(),
            cached_bytes: 0,
            max_cached_bytes: memory.frames - memory.frames / STACKS_PART,
            stack_bytes: 0,
            max_stack_bytes: memory.frames / STACKS_PART,
            are_names_old: false,
            counts: SymbolCounts::default(),
            java_frame_types: false,
        }
    }

    /// Whether names of Java methods end in how they ran: [`crate::profile::model::How::suffix`].
    #[must_use]
    pub fn with_java_frame_types(mut self, shown: bool) -> Self {
        self.java_frame_types = shown;
        self
    }

    /// Names a sample's frames and finishes its stack, by what [`Self::look`] saw.
    pub fn resolve(&mut self, process: &Process, sample: &Sample, now_ns: u64) -> Resolved {
        self.resolve_by(process, sample, now_ns, false)
    }

    /// As [`Self::resolve`], of a sample that should wait ([`Self::must_wait`]) but can't, since
    /// what its process has mapped is about to change: unwind rows that are missing are read now,
    /// within limits.
    pub fn resolve_last(&mut self, process: &Process, sample: &Sample, now_ns: u64) -> Resolved {
        let has_time = self.early.has_time(Instant::now());
        self.resolve_by(process, sample, now_ns, has_time)
    }

    fn resolve_by(&mut self, process: &Process, sample: &Sample, now_ns: u64, reads_rows: bool) -> Resolved {
        if self.cached_bytes > self.max_cached_bytes {
            self.forget_frames();
        }
        let mut frames =
            Vec::with_capacity(usize::from(sample.header.kernel_frames + sample.header.user_words) + 4);
        for (index, address) in sample.kernel().iter().enumerate() {
            let lookup = if index == 0 { *address } else { address.saturating_sub(1) };
            frames.push(self.kernel.frame(Avma(lookup)));
        }
        // The stack is gone with the program that it belonged to, and the new one's doesn't begin
        // yet.
        let is_replaced =
            sample.in_kernel() && has_unreadable_stack(sample) && self.kernel.is_in_exec(sample.kernel());
        let (mut namer, symbols) = self.namer(process, sample, now_ns);
        namer.reads_rows = reads_rows;
        let outcome = match is_replaced {
            true => Outcome::Whole,
            false => namer.user_stack(symbols, sample, &mut frames),
        };
        let pending = namer.pending || frames.iter().any(|frame| frame.lines.is_empty());
        if let Outcome::Truncated(reason) = outcome {
            frames.push(marker(reason));
        }
        let stays = !pending && !namer.is_passing && outcome == Outcome::Whole;
        let frames = Arc::from(frames);
        let reading = namer.reading;
        if stays {
            let more = symbols.stacks.keep(process.version, sample, &frames);
            self.stack_bytes = self.stack_bytes.saturating_add_signed(more);
            if self.stack_bytes > self.max_stack_bytes {
                self.forget_stacks();
            }
        }
        self.early.took(reading);
        Resolved { frames, outcome, pending }
    }

    /// What [`Self::resolve`] said of a sample with the same stack, if that still holds.
    pub fn known(&self, process: &Process, sample: &Sample) -> Option<Resolved> {
        self.processes.get(&process.key)?.stacks.find(process.version, sample)
    }

    /// As [`Self::resolve_last`], of a sample that should have waited, which is why its stack may
    /// not be whole: [`Self::must_wait`].
    pub fn resolve_early(&mut self, process: &Process, sample: &Sample, now_ns: u64) -> Resolved {
        let mut resolved = self.resolve_last(process, sample, now_ns);
        if let Outcome::Truncated(_) = resolved.outcome {
            resolved.outcome = Outcome::Truncated(NO_ROOM_TO_WAIT);
            if let Some(last) = Arc::make_mut(&mut resolved.frames).last_mut() {
                *last = marker(NO_ROOM_TO_WAIT);
            }
        }
        resolved
    }

    /// Looks at what a sample's process has mapped by now.
    pub fn look(&mut self, process: &Process, sample: &Sample, now_ns: u64) {
        let is_asked = matches!(
            sample.stop,
            Stop::UnknownStub | Stop::UnknownCode | Stop::UnknownProcess | Stop::Frozen
        );
        if sample.stop == Stop::Frozen
            && let Some(symbols) = self.processes.get_mut(&process.key)
        {
            symbols.java.expect_virtual_threads();
        }
        self.refresh(process, now_ns, is_asked);
    }

    /// True if a sample's stack needs unwind rows that are being read, or that the process's
    /// runtime has still to tell: it is to be resolved once they have arrived. What may be gone by
    /// then is read now.
    pub fn must_wait(&mut self, process: &Process, sample: &Sample, now_ns: u64) -> bool {
        let is_walked = matches!(
            sample.stop,
            Stop::Root | Stop::KernelThread | Stop::NoMemory | Stop::DepthReached | Stop::Not64Bit
        );
        let at_ns = sample.header.time_ns;
        if is_walked || self.walkable_until(process.key, at_ns) >= at_ns {
            return false;
        }
        if let Some(symbols) = self.processes.get_mut(&process.key).filter(|_| !process.is_jvm()) {
            symbols.jit.begin(process, &self.jit, now_ns, &mut self.counts.perf_maps);
        }
        let (mut namer, symbols) = self.namer(process, sample, now_ns);
        namer.read_java(symbols, sample);
        true
    }

    fn namer<'a>(
        &'a mut self,
        process: &'a Process,
        sample: &Sample,
        now_ns: u64,
    ) -> (Namer<'a>, &'a mut ProcessSymbols) {
        let symbols = self.processes.entry(process.key).or_default();
        let namer = Namer {
            files: &self.files,
            names: &self.names,
            java: &self.java,
            kernel: self.kernel_side.as_ref(),
            jit: &self.jit,
            unnamed: &mut self.unnamed,
            counts: &mut self.counts,
            cached: &mut self.cached_bytes,
            process,
            java_frame_types: self.java_frame_types,
            at_ns: sample.header.time_ns,
            now_ns,
            pending: false,
            is_passing: false,
            late_from: None,
            reads_rows: false,
            sought: &mut self.sought,
            reading: Duration::ZERO,
        };
        (namer, symbols)
    }

    /// Keeps these tables of kernel programs filled from now on.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn fill(&mut self, mut tables: BpfMaps) -> io::Result<()> {
        self.kernel.ask(tables.take_kernel_symbolizer());
        let loader = RowsLoader::start(Arc::clone(&self.files))?;
        self.kernel_side = Some(KernelSide { tables: CodeTables::new(tables), loader });
        Ok(())
    }

    /// Makes what is remembered of a process, and what the kernel was told of it, fit its mappings.
    /// `is_asked`: a sample met code that isn't known.
    pub fn refresh(&mut self, process: &Process, now_ns: u64, is_asked: bool) {
        let symbols = self.processes.entry(process.key).or_default();
        if symbols.generation != process.generation {
            let named = std::mem::take(&mut symbols.named);
            let frame_bytes = named.values().map(|frame| frame_bytes(frame)).sum();
            self.cached_bytes = self.cached_bytes - symbols.frame_bytes + frame_bytes;
            self.stack_bytes -= symbols.stacks.forget();
            *symbols = ProcessSymbols {
                generation: process.generation,
                named,
                frame_bytes,
                jit: std::mem::take(&mut symbols.jit),
                replaced: std::mem::take(&mut symbols.replaced),
                java: std::mem::take(&mut symbols.java),
                ..ProcessSymbols::default()
            };
        }
        let look = symbols.java.look(process, now_ns, is_asked, &self.java);
        if let Look::Unreadable(reason) = look {
            *self.counts.unreadable_jvms.entry(reason).or_default() += 1;
        }
        if let (Look::Changed, Some(java), Some(kernel)) =
            (look, symbols.java.attached(), &mut self.kernel_side)
        {
            let jvm = java.jvm();
            let rows = FileRows::new(|handle| java.stubs().for_each(jvm.code_start, handle));
            kernel.tables.add_jvm(process.key, jvm, rows);
            symbols.told_version = 0;
        }
        if self.kernel_side.as_mut().is_some_and(|kernel| kernel.tables.touch(process.key)) {
            symbols.told_version = 0;
        }
        if symbols.told_version != process.version || symbols.told_jit_rows != symbols.jit.has_rows() {
            self.tell(process);
        }
    }

    /// Reads on in what runtimes wrote of their code, and settles what had no name yet: see
    /// [`Self::retry`]. What has become of it is known until [`Self::retain`].
    pub fn refresh_perf_maps<'a>(&mut self, find: impl Fn(ProcessKey) -> Option<&'a Process>, now_ns: u64) {
        for (key, symbols) in &mut self.processes {
            if let Some(process) = find(*key) {
                symbols.jit.refresh(process, now_ns, &mut self.counts.perf_maps);
            }
        }
        let keys: Vec<ProcessKey> = self.processes.keys().copied().collect();
        keys.into_iter().filter_map(find).for_each(|process| self.verify_trampolines(process));
    }

    /// Frames wait for names, or stacks for rows.
    pub fn has_work(&self) -> bool {
        self.is_loading() || !self.unnamed.is_empty()
    }

    /// Unwind rows are being read, or wait for [`Self::take_rows`].
    pub fn is_loading(&self) -> bool {
        self.kernel_side.as_ref().is_some_and(|kernel| kernel.loader.is_busy())
    }

    /// Forgets all other processes.
    pub fn retain(&mut self, is_alive: impl Fn(ProcessKey) -> bool) {
        self.java.age();
        self.names.age();
        if let Some(kernel) = &mut self.kernel_side {
            kernel.tables.retain(&is_alive);
            for key in kernel.tables.lacking() {
                // It is told of again when it is sampled next.
                if let Some(symbols) = self.processes.get_mut(&key) {
                    symbols.told_version = 0;
                }
            }
        }
        let are_names_old = std::mem::take(&mut self.are_names_old);
        self.processes.retain(|key, symbols| {
            let alive = is_alive(*key);
            if are_names_old {
                symbols.named = HashMap::default();
            }
            symbols.jit.forget_settled();
            if !alive {
                self.cached_bytes -= symbols.frame_bytes;
                self.stack_bytes -= symbols.stacks.forget();
            }
            alive
        });
    }

    pub fn counts(&self) -> SymbolCounts {
        let tables = self.kernel_side.as_ref().map(|kernel| kernel.tables.counts()).unwrap_or_default();
        SymbolCounts { files: self.files.counters(), tables, ..self.counts.clone() }
    }

    /// The memory of what is remembered.
    pub fn cache_sizes(&self) -> Vec<CacheSize> {
        let [headers, parts, lines] = self.files.sizes();
        let of = |name, (bytes, limit_bytes)| CacheSize { name, bytes, limit_bytes };
        vec![
            of("file_headers", headers),
            of("file_symbols_and_rows", parts),
            of("file_lines", lines),
            of("function_names", self.names.size()),
            of("java", self.java.size()),
            CacheSize::new("frames", self.cached_bytes, self.max_cached_bytes),
            CacheSize::new("stacks", self.stack_bytes, self.max_stack_bytes),
            self.jit.size(),
        ]
    }

    /// What is known of the JVM in a process; `None` if there is none that can be read. Another
    /// `Arc` once it has changed.
    pub fn jvm_facts(&self, key: ProcessKey) -> Option<&Arc<JvmFacts>> {
        Some(self.processes.get(&key)?.java.attached()?.facts())
    }

    /// Why the kernel's frames have no names, if they have none.
    pub fn kernel_error(&self) -> Option<String> {
        self.kernel.error()
    }

    /// What native frames are named stays until the window's end: its samples still get their names
    /// there.
    fn forget_frames(&mut self) {
        for symbols in self.processes.values_mut() {
            symbols.frames = HashMap::default();
            symbols.callers = Callers::default();
            symbols.frame_bytes = 0;
            symbols.rules = Rules::default();
        }
        self.kernel.forget();
        self.forget_stacks();
        self.are_names_old = true;
        self.cached_bytes = 0;
        self.counts.frame_cache_resets += 1;
    }

    fn forget_stacks(&mut self) {
        for symbols in self.processes.values_mut() {
            symbols.stacks.forget();
        }
        self.stack_bytes = 0;
    }
}
