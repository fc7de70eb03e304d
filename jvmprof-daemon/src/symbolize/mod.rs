//! Symbolization: from a sample's addresses to frames with names, by the mappings of the process
//! when it was sampled.
//!
//! # Overview
//!
//! A [`Symbolizer`] holds the state of each process's code, and the caches that all share. A
//! sample's stack passes three stages (`stages`), each a value that only the one before returns:
//! [`Symbolizer::identify`] returns an [`IdentifiedSample`], [`IdentifiedSample::complete`] a
//! [`CompletedStack`] (or that the sample is pending), [`CompletedStack::name`] a
//! [`SymbolizedStack`]. [`Symbolizer::cached`] finds the names of most samples before: those of an
//! equal stack. At a window's end [`Symbolizer::end_window`] names what was deferred.
//!
//! Three owners do the work:
//!
//! - `Publisher` (`publish_to_kernel`) fills the tables of the kernel programs with a process's
//!   regions, rows and JVM, and loads rows.
//! - `Completer` (`stack`) continues a stack where the kernel program stopped, and has the whole
//!   stacks that were named before.
//! - `Namer` (`namer`, `java`, `jit`, `native`, `kernel_frames`) names frames: those of Java at
//!   once, those of native and generated code later.

mod counts;
mod frames;
mod inspect;
mod java;
mod jit;
mod kernel_frames;
mod memory_limits;
mod namer;
mod native;
mod publish_to_kernel;
mod stack;
mod stages;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use jvmprof_common::frame::UserFrame;
use jvmprof_common::thread_local::ThreadLocalVariable;

use crate::hotspot::java_heap::HeapLayout;
use crate::hotspot::stubs::analyze_native;
use crate::hotspot::{JavaCache, JvmBlockers, LiveMemory, PauseVariables, SafepointCounters};
use crate::jit::cpython_trampolines::TrampolineArenas;
use crate::memory_budget::{MemoryBudget, MemoryReservation};
use crate::native::file_cache::{FileCache, FileCacheLimits};
use crate::native::file_identity::ContentIdsOnDisk;
use crate::own_process::UrgentCpu;
use crate::process::{MappedCode, Process, ProcessKey};
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{Frame, Mapping};
use crate::sampler::BpfMaps;
use crate::types::{Avma, FastHasher};
pub use counts::jit_counts::JitCounts;
pub use counts::{CacheUsage, SymbolCounts};
use frames::frame_bytes;
pub use inspect::{ModuleReport, NativePlace};
pub use java::jvm_labels::JvmLabels;
pub use java::virtual_threads::{NamedVirtualThreads, NamedWaitingStack};
use java::{Callers, JvmAttachment, JvmState};
use jit::{JitContext, JitNames};
use kernel_frames::KernelFrames;
pub use memory_limits::SymbolMemoryLimits;
use native::deferred_frames::DeferredFrame;
use native::function_names::FunctionNames;
use native::mapped_files::Modules;
pub use native::{NativeOptions, SymbolizationPlace};
use publish_to_kernel::{Publication, PublishContext, Publisher};
use stack::completer::Completer;
use stack::remapped_code::RemappedCode;
use stack::resumed_walk::RuleCache;
use stack::whole_stacks::WholeStackCache;
pub use stages::{CompletedStack, Completion, Deadline, IdentifiedSample, WindowEnd};

/// A stack with names.
#[derive(Clone, Debug)]
pub struct SymbolizedStack {
    pub stack: NamedStack,
    pub outcome: StackOutcome,
}

/// Divisor of the memory for frames: whole stacks take 1/STACKS_PART of it.
const STACKS_PART: usize = 8;

/// Completeness of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackOutcome {
    /// The stack reaches the thread's root.
    Whole,
    Truncated(&'static str),
    /// The stack wasn't walked: its process isn't profiled.
    NotProfiled,
}

/// Names addresses. There is one for all processes; data of files is shared among them.
#[derive(Debug)]
pub struct Symbolizer {
    files: Arc<FileCache>,
    names: FunctionNames,
    native: NativeOptions,
    kernel: KernelFrames,
    processes: HashMap<ProcessKey, ProcessSymbols, FastHasher>,
    /// Writer of the kernel tables; `None`: nothing is sampled, only inspected.
    publisher: Option<Publisher>,
    completer: Completer,
    java: JavaCache,
    jit: JitContext,
    /// Native frames that wait for their names.
    deferred: Vec<DeferredFrame>,
    memory: FrameMemory,
    /// True if [`ProcessSymbols::named`] is to be cleared at the window's end.
    are_names_old: bool,
    counts: SymbolCounts,
    java_frame_types: bool,
}

/// The memory of the frames and stacks of all processes together. A limit is enforced soon after it
/// is exceeded.
#[derive(Debug)]
struct FrameMemory {
    frames: MemoryBudget,
    stacks: MemoryBudget,
}

/// State of one process.
#[derive(Debug)]
struct ProcessSymbols {
    generation: u64,
    published: Publication,
    frames: HashMap<UserFrame, Arc<Frame>, FastHasher>,
    /// Native frames that have been named, by mapping and address: also of mappings that are gone.
    named: HashMap<(Arc<Mapping>, Avma), Arc<Frame>, FastHasher>,
    frame_memory: MemoryReservation,
    callers: Callers,
    stacks: WholeStackCache,
    modules: Modules,
    rules: RuleCache,
    jit: JitNames,
    arenas: TrampolineArenas,
    remapped: RemappedCode,
    java: JvmAttachment,
}

impl FrameMemory {
    fn new(bytes: usize) -> Self {
        let of_stacks = bytes / STACKS_PART;
        Self { frames: MemoryBudget::new(bytes - of_stacks), stacks: MemoryBudget::new(of_stacks) }
    }
}

impl ProcessSymbols {
    fn new(memory: &FrameMemory) -> Self {
        Self {
            generation: 0,
            published: Publication::default(),
            frames: HashMap::default(),
            named: HashMap::default(),
            frame_memory: MemoryReservation::new(memory.frames.clone()),
            callers: Callers::default(),
            stacks: WholeStackCache::new(memory.stacks.clone()),
            modules: Modules::default(),
            rules: RuleCache::default(),
            jit: JitNames::default(),
            arenas: TrampolineArenas::default(),
            remapped: RemappedCode::default(),
            java: JvmAttachment::default(),
        }
    }
}

fn file_cache(
    limits: FileCacheLimits,
    with_lines: bool,
    content_ids: Option<Arc<ContentIdsOnDisk>>,
) -> Arc<FileCache> {
    let cache = FileCache::new(limits).with_analysis(analyze_native).with_lines(with_lines);
    Arc::new(cache.with_content_ids(content_ids))
}

impl Symbolizer {
    pub fn new(memory: &SymbolMemoryLimits) -> Self {
        let limits =
            FileCacheLimits { bytes: memory.files, line_bytes: memory.lines, ..FileCacheLimits::default() };
        Self {
            files: file_cache(limits, false, None),
            names: FunctionNames::new(memory.names),
            native: NativeOptions::default(),
            kernel: KernelFrames::default(),
            processes: HashMap::default(),
            publisher: None,
            completer: Completer::default(),
            java: JavaCache::new(memory.java),
            jit: JitContext::new(memory.jit),
            deferred: Vec::new(),
            memory: FrameMemory::new(memory.frames),
            are_names_old: false,
            counts: SymbolCounts::default(),
            java_frame_types: false,
        }
    }

    /// Sets whether names of Java methods end in how they ran:
    /// [`crate::profile::model::ExecutionMode::suffix`].
    #[must_use]
    pub fn with_java_frame_types(mut self, shown: bool) -> Self {
        self.java_frame_types = shown;
        self
    }

    /// Fills these tables of kernel programs from now on. A thread reads unwind rows, with this
    /// share of urgent CPU time.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn fill(&mut self, mut tables: BpfMaps, urgent_cpu: UrgentCpu) -> io::Result<()> {
        self.kernel.set_symbolizer(tables.kernel_symbolizer.take());
        let (files, on_disk) = (Arc::clone(&self.files), self.native.rows_on_disk.clone());
        self.publisher = Some(Publisher::start(tables, files, on_disk, urgent_cpu)?);
        Ok(())
    }

    /// Updates the state of a process, and its kernel tables, to its mappings. `has_unknown_code`:
    /// a sample contains unknown code.
    pub fn refresh(&mut self, process: &Process, now_ns: u64, has_unknown_code: bool) {
        let symbols = self.processes.entry(process.key).or_insert_with(|| ProcessSymbols::new(&self.memory));
        if symbols.generation != process.generation {
            let named = std::mem::take(&mut symbols.named);
            let named_bytes = named.values().map(|frame| frame_bytes(frame)).sum();
            *symbols = ProcessSymbols {
                generation: process.generation,
                named,
                jit: std::mem::take(&mut symbols.jit),
                remapped: std::mem::take(&mut symbols.remapped),
                java: std::mem::take(&mut symbols.java),
                ..ProcessSymbols::new(&self.memory)
            };
            symbols.frame_memory.add(named_bytes);
        }
        let jvm = symbols.java.inspect(process, now_ns, has_unknown_code, &self.java);
        if let JvmState::Unreadable(reason) = jvm {
            *self.counts.unreadable_jvms.entry(reason).or_default() += 1;
        }
        let Some(publisher) = &mut self.publisher else { return };
        if jvm == JvmState::Changed {
            publisher.publish_jvm(process.key, symbols);
        }
        let (files, jit, counts) = (&self.files, &self.jit, &mut self.counts);
        publisher.refresh(process, symbols, PublishContext { files, jit, counts });
    }

    /// Records that a process has mapped code over other code that the kernel program may have rows
    /// of.
    pub fn record_code_replaced(&mut self, key: ProcessKey, code: &MappedCode, mapped_ns: u64) {
        if let Some(symbols) = self.processes.get_mut(&key) {
            symbols.remapped.add(code.start..code.end, mapped_ns);
        }
    }

    /// Returns the time up to which this process's stacks can be walked: its unwind rows are there,
    /// and its runtime's records are read up to then. Reads new ones if that isn't `at_ns`.
    pub fn walkable_until(&mut self, key: ProcessKey, at_ns: u64) -> u64 {
        match self.processes.get_mut(&key) {
            Some(symbols) if symbols.published.awaited.is_empty() => {
                symbols.jit.walkable_until(at_ns, &mut self.counts.perf_maps)
            }
            Some(_) => 0,
            None => u64::MAX,
        }
    }

    /// Reads the records of the process's runtime to the end. Later ones come too late for the
    /// samples of the window.
    pub fn read_dump_to_end(&mut self, process: &Process, now_ns: u64) {
        if let Some(symbols) = self.processes.get_mut(&process.key) {
            symbols.jit.read_dump_to_end(process, now_ns, &mut self.counts.perf_maps);
        }
    }

    /// Reads new records of runtimes, and resolves frames without a name: see
    /// [`WindowEnd::finalize_names`]. The results are kept until [`Self::retain`].
    fn refresh_perf_maps<'a>(&mut self, find: impl Fn(ProcessKey) -> Option<&'a Process>, now_ns: u64) {
        for (key, symbols) in &mut self.processes {
            let Some(process) = find(*key).filter(|process| !process.is_replaced()) else {
                symbols.jit.resolve_unread(&mut self.counts.perf_maps);
                continue;
            };
            symbols.jit.refresh(process, now_ns, &mut self.counts.perf_maps);
            // Memory may be used for something else without a sign.
            if !symbols.arenas.is_empty() && symbols.arenas.drop_changed(&LiveMemory::new(process.pid)) {
                symbols.published.invalidate();
            }
        }
    }

    /// Returns whether frames wait for names, or stacks for rows.
    pub fn has_work(&self) -> bool {
        self.is_loading() || !self.deferred.is_empty()
    }

    /// Drops all other processes.
    fn retain(&mut self, is_alive: impl Fn(ProcessKey) -> bool) {
        self.java.age();
        self.names.evict_unused();
        if let Some(publisher) = &mut self.publisher {
            publisher.tables.retain(&is_alive);
            for key in publisher.tables.processes_lacking_rows() {
                if let Some(symbols) = self.processes.get_mut(&key) {
                    symbols.published.invalidate();
                }
            }
        }
        let are_names_old = std::mem::take(&mut self.are_names_old);
        self.processes.retain(|key, symbols| {
            let alive = is_alive(*key);
            if are_names_old {
                symbols.named = HashMap::default();
            }
            symbols.jit.clear_resolved();
            alive
        });
    }

    pub fn counts(&self) -> SymbolCounts {
        let tables = self.publisher.as_ref().map(Publisher::counts).unwrap_or_default();
        SymbolCounts { files: self.files.counters(), tables, ..self.counts.clone() }
    }

    /// Returns the memory of the caches.
    pub fn cache_sizes(&self) -> Vec<CacheUsage> {
        let [headers, parts, lines] = self.files.sizes();
        let FrameMemory { frames, stacks } = &self.memory;
        let of = |name, (bytes, limit_bytes)| CacheUsage { name, bytes, limit_bytes };
        vec![
            of("file_headers", headers),
            of("file_symbols_and_rows", parts),
            of("file_lines", lines),
            of("function_names", self.names.size()),
            of("java", self.java.size()),
            CacheUsage::new("frames", frames.used(), frames.limit()),
            CacheUsage::new("stacks", stacks.used(), stacks.limit()),
            self.jit.size(),
        ]
    }

    /// Returns the labels of the JVM in a process; `None` if there is none that can be read.
    /// Another `Arc` once they have changed.
    pub fn jvm_labels(&self, key: ProcessKey) -> Option<&Arc<JvmLabels>> {
        Some(self.processes.get(&key)?.java.attached_jvm()?.labels())
    }

    /// Returns the layout of the objects of a process's JVM, and its memory; `None` if the JVM
    /// doesn't export it.
    pub fn java_heap(&self, key: ProcessKey) -> Option<(HeapLayout, LiveMemory)> {
        self.processes.get(&key)?.java.attached_jvm()?.heap()
    }

    /// Returns where the threads of a process's JVM say what they wait for; `None` if that isn't
    /// known.
    pub fn java_blockers(&self, key: ProcessKey) -> Option<JvmBlockers> {
        self.processes.get(&key)?.java.attached_jvm()?.blockers()
    }

    /// Returns where a process's JVM says why it stops its threads; `None` if it can't be read.
    pub fn pause_variables(&self, key: ProcessKey) -> Option<PauseVariables> {
        Some(self.processes.get(&key)?.java.attached_jvm()?.pause_variables())
    }

    /// Returns where a process's JVM says how long it has stopped its threads, and its memory;
    /// `None` if it doesn't say, or while it starts.
    pub fn safepoint_counters(&self, key: ProcessKey) -> Option<(SafepointCounters, LiveMemory)> {
        self.processes.get(&key)?.java.attached_jvm()?.safepoint_counters()
    }

    /// Publishes where a process has the variable of its threads' contexts; `None`: it has none.
    pub fn set_context_variable(&mut self, key: ProcessKey, variable: Option<ThreadLocalVariable>) {
        if let Some(publisher) = &mut self.publisher {
            publisher.tables.set_context_variable(key, variable);
        }
    }

    /// Returns the error for which the kernel's frames have no names.
    pub fn kernel_error(&self) -> Option<String> {
        self.kernel.error()
    }

    /// Drops cached frames. The names of native frames stay until the window's end, when its
    /// samples get them.
    fn clear_frames(&mut self) {
        for symbols in self.processes.values_mut() {
            symbols.frames = HashMap::default();
            symbols.callers = Callers::default();
            symbols.frame_memory.set(0);
            symbols.rules = RuleCache::default();
        }
        self.kernel.clear();
        self.clear_stacks();
        self.are_names_old = true;
        self.counts.frame_cache_resets += 1;
    }

    fn clear_stacks(&mut self) {
        for symbols in self.processes.values_mut() {
            symbols.stacks.clear();
        }
    }
}
