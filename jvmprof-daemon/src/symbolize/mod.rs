//! From a sample's addresses to frames with names, by what the process had mapped when it was sampled.

mod inspect;
mod jit;
mod kernel;
mod modules;
mod names;
mod tail;

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::abi::{FrameWord, Stop};

use crate::native::cache::{CacheCounters, FileCache, FileCacheLimits};
use crate::process::{Backing, MappedCode, Process, ProcessKey};
use crate::profile::model::{Frame, FrameKind, Line, Mapping};
use crate::sampler::Sample;
use crate::types::Avma;
pub use inspect::ModuleReport;
use jit::JitNames;
use kernel::KernelFrames;
use modules::Modules;
use names::FunctionNames;
use tail::Rules;

/// Memory for the frames that are remembered of all processes together, bytes.
const MAX_CACHED_BYTES: usize = 16 << 20;
/// What a remembered frame takes beside its text: itself, its line, its slot in the map.
const FRAME_BYTES: usize = 240;

/// A stack with names.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Leaf first; ends in a marker if the stack isn't whole.
    pub frames: Vec<Arc<Frame>>,
    pub outcome: Outcome,
    /// Some frames have no name yet that a perf map may still tell: see [`Symbolizer::retry`].
    pub pending: bool,
}

/// Is the stack whole?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It reaches the thread's root.
    Whole,
    Truncated(&'static str),
}

/// What went wrong or was saved, for counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolCounts {
    pub files: CacheCounters,
    /// Mapped files that could not be used, by reason. A file counts once a process.
    pub unusable_files: HashMap<&'static str, u64>,
    /// Frames without a name, by reason. A frame counts once a process while it is remembered.
    pub unnamed: HashMap<&'static str, u64>,
    /// Frames that had to be named anew since too many were remembered.
    pub frame_cache_resets: u64,
    /// Samples whose frame-pointer chain was finished by unwind rows.
    pub finished_by_rows: u64,
    /// Samples with a return address in no mapped code: the stack is cut there.
    pub stray_return_addresses: u64,
    pub perf_maps: jit::JitCounts,
}

/// Names addresses. One for all processes; what belongs to files is shared among them.
#[derive(Debug)]
pub struct Symbolizer {
    files: FileCache,
    names: FunctionNames,
    kernel: KernelFrames,
    processes: HashMap<ProcessKey, ProcessSymbols>,
    cached_bytes: usize,
    counts: SymbolCounts,
}

/// What is remembered of one process.
#[derive(Debug, Default)]
struct ProcessSymbols {
    generation: u64,
    frames: HashMap<FrameWord, Arc<Frame>>,
    frame_bytes: usize,
    modules: Modules,
    rules: Rules,
    jit: JitNames,
}

impl Symbolizer {
    /// `file_bytes`: memory for symbols and unwind rows of files; a quarter more goes to names that were found.
    pub fn new(file_bytes: u64) -> Self {
        let limits = FileCacheLimits { bytes: file_bytes, ..FileCacheLimits::default() };
        Self {
            files: FileCache::new(limits),
            names: FunctionNames::new(file_bytes / 4),
            kernel: KernelFrames::default(),
            processes: HashMap::new(),
            cached_bytes: 0,
            counts: SymbolCounts::default(),
        }
    }

    /// Names a sample's frames and finishes its stack.
    pub fn resolve(&mut self, process: &Process, sample: &Sample, now_ns: u64) -> Resolved {
        if self.cached_bytes > MAX_CACHED_BYTES {
            self.forget_frames();
        }
        let mut frames =
            Vec::with_capacity(usize::from(sample.header.kernel_frames + sample.header.user_words) + 4);
        for (index, address) in sample.kernel().iter().enumerate() {
            let lookup = if index == 0 { *address } else { address.saturating_sub(1) };
            frames.push(self.kernel.frame(Avma(lookup)));
        }
        let symbols = self.processes.entry(process.key).or_default();
        if symbols.generation != process.generation {
            self.cached_bytes -= symbols.frame_bytes;
            *symbols = ProcessSymbols {
                generation: process.generation,
                jit: std::mem::take(&mut symbols.jit),
                ..ProcessSymbols::default()
            };
        }
        let mut namer = Namer {
            files: &self.files,
            names: &self.names,
            counts: &mut self.counts,
            cached: &mut self.cached_bytes,
            process,
            now_ns,
            pending: false,
        };
        let outcome = namer.user_stack(symbols, sample, &mut frames);
        let pending = namer.pending;
        if let Outcome::Truncated(reason) = outcome {
            frames.push(marker(reason));
        }
        Resolved { frames, outcome, pending }
    }

    /// Names what had no name at the time: perf maps are written later than the code they name.
    pub fn retry(&mut self, key: ProcessKey, frames: &mut [Arc<Frame>]) {
        let Some(symbols) = self.processes.get_mut(&key) else {
            return;
        };
        for frame in frames.iter_mut().filter(|frame| jit::is_unnamed(frame)) {
            if let Some(named) = frame.address.and_then(|address| symbols.jit.named(address, frame)) {
                *frame = named;
            }
        }
    }

    /// Reads on in the perf maps of all processes that have one.
    pub fn refresh_perf_maps<'a>(&mut self, find: impl Fn(ProcessKey) -> Option<&'a Process>, now_ns: u64) {
        for (key, symbols) in &mut self.processes {
            if let Some(process) = find(*key) {
                symbols.jit.refresh(process, now_ns, &mut self.counts.perf_maps);
            }
        }
    }

    /// Forgets all other processes.
    pub fn retain(&mut self, is_alive: impl Fn(ProcessKey) -> bool) {
        self.processes.retain(|key, symbols| {
            let alive = is_alive(*key);
            if !alive {
                self.cached_bytes -= symbols.frame_bytes;
            }
            alive
        });
    }

    pub fn counts(&self) -> SymbolCounts {
        SymbolCounts { files: self.files.counters(), ..self.counts.clone() }
    }

    /// Why the kernel's frames have no names, if they have none.
    pub fn kernel_error(&self) -> Option<String> {
        self.kernel.error()
    }

    fn forget_frames(&mut self) {
        for symbols in self.processes.values_mut() {
            symbols.frames = HashMap::new();
            symbols.frame_bytes = 0;
            symbols.rules = Rules::default();
        }
        self.kernel.forget();
        self.cached_bytes = 0;
        self.counts.frame_cache_resets += 1;
    }
}

/// One sample's naming.
struct Namer<'a> {
    files: &'a FileCache,
    names: &'a FunctionNames,
    counts: &'a mut SymbolCounts,
    cached: &'a mut usize,
    process: &'a Process,
    now_ns: u64,
    pending: bool,
}

impl Namer<'_> {
    fn user_stack(
        &mut self,
        symbols: &mut ProcessSymbols,
        sample: &Sample,
        frames: &mut Vec<Arc<Frame>>,
    ) -> Outcome {
        let mut last = None;
        for word in sample.user() {
            // The interrupted pc may be anywhere (a jump through a null pointer), a return address may not.
            if !word.is_exact() && self.process.mappings.find(Avma(word.lookup_address())).is_none() {
                self.counts.stray_return_addresses += 1;
                return Outcome::Truncated("return address outside code");
            }
            frames.push(self.frame(symbols, word));
            last = Some(word);
        }
        match (sample.stop, last) {
            (Stop::KernelThread, _) => Outcome::Whole,
            (Stop::DepthReached | Stop::Not64Bit, _) | (_, None) => Outcome::Truncated(sample.stop.as_str()),
            (_, Some(last)) => self.finish(symbols, sample, last, frames),
        }
    }

    /// Goes on from the last frame of the kernel program's walk, by unwind rows over the copied stack.
    fn finish(
        &mut self,
        symbols: &mut ProcessSymbols,
        sample: &Sample,
        last: FrameWord,
        frames: &mut Vec<Arc<Frame>>,
    ) -> Outcome {
        let mut walk = tail::Walk::new(sample, last);
        let before = frames.len();
        let outcome = loop {
            let cursor = walk.cursor();
            let process = self.process;
            let rule = symbols.rules.at(&cursor, |address| {
                modules::rule(process, &mut symbols.modules, self.files, self.counts, address)
            });
            match walk.step(rule) {
                Ok(word) => {
                    if frames.len() - before >= tail::MAX_FRAMES {
                        break Outcome::Truncated(Stop::DepthReached.as_str());
                    }
                    if self.process.mappings.find(Avma(word.lookup_address())).is_none() {
                        self.counts.stray_return_addresses += 1;
                        break Outcome::Truncated("return address outside code");
                    }
                    frames.push(self.frame(symbols, word));
                }
                Err(end) => break end.outcome(sample.stop),
            }
        };
        if frames.len() > before {
            self.counts.finished_by_rows += 1;
        }
        outcome
    }

    fn frame(&mut self, symbols: &mut ProcessSymbols, word: FrameWord) -> Arc<Frame> {
        if let Some(frame) = symbols.frames.get(&word) {
            return Arc::clone(frame);
        }
        let address = Avma(word.lookup_address());
        let Some(mapping) = self.process.mappings.find(address).cloned() else {
            return self.unnamed(address, FrameKind::Native, None, "no mapping", "[unknown: no mapping]");
        };
        let frame = match mapping.backing {
            Backing::Anonymous => {
                match symbols.jit.frame(
                    self.process,
                    &mapping,
                    address,
                    self.now_ns,
                    &mut self.counts.perf_maps,
                ) {
                    Ok(frame) => frame,
                    Err(unnamed) => {
                        // Not remembered: the next look may find it.
                        *self.counts.unnamed.entry("jit").or_default() += 1;
                        self.pending = true;
                        return unnamed;
                    }
                }
            }
            Backing::File | Backing::Vdso => self.file_frame(symbols, &mapping, address),
        };
        let bytes = frame_bytes(&frame);
        *self.cached += bytes;
        symbols.frame_bytes += bytes;
        symbols.frames.insert(word, Arc::clone(&frame));
        frame
    }

    fn file_frame(
        &mut self,
        symbols: &mut ProcessSymbols,
        mapping: &Arc<MappedCode>,
        address: Avma,
    ) -> Arc<Frame> {
        let module = symbols.modules.get(self.process, mapping, self.files, self.counts);
        let name = match module.name(self.process, self.files, self.names, address) {
            Ok(Some(named)) => {
                return frame(FrameKind::Native, address, Some(module.mapping()), named.name, named.raw);
            }
            Ok(None) => {
                *self.counts.unnamed.entry("no symbol").or_default() += 1;
                module.offset_name(address)
            }
            Err(reason) => {
                *self.counts.unnamed.entry(reason).or_default() += 1;
                module.offset_name(address)
            }
        };
        let name: Arc<str> = name.into();
        frame(FrameKind::Native, address, Some(module.mapping()), Arc::clone(&name), name)
    }

    fn unnamed(
        &mut self,
        address: Avma,
        kind: FrameKind,
        mapping: Option<Arc<Mapping>>,
        reason: &'static str,
        name: &'static str,
    ) -> Arc<Frame> {
        *self.counts.unnamed.entry(reason).or_default() += 1;
        frame(kind, address, mapping, name.into(), name.into())
    }
}

fn frame(
    kind: FrameKind,
    address: Avma,
    mapping: Option<Arc<Mapping>>,
    name: Arc<str>,
    system_name: Arc<str>,
) -> Arc<Frame> {
    let line = Line { name, system_name, file: None, line: 0 };
    Arc::new(Frame { kind, address: Some(address), mapping, lines: vec![line] })
}

/// Memory of a remembered frame. Names may be shared with other frames; counted each time, the limit is on the safe side.
fn frame_bytes(frame: &Frame) -> usize {
    let text = |line: &Line| line.name.len() + line.system_name.len();
    FRAME_BYTES + frame.lines.iter().map(text).sum::<usize>()
}

/// The root of a stack that isn't whole, so that no flame graph hides it.
fn marker(reason: &str) -> Arc<Frame> {
    let name: Arc<str> = format!("[truncated: {reason}]").into();
    let line = Line { name: Arc::clone(&name), system_name: name, file: None, line: 0 };
    Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines: vec![line] })
}
