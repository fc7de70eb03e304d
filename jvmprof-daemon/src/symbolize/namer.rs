//! The names of one sample's frames.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jvmprof_common::frame::UserFrame;

use super::ProcessSymbols;
use super::counts::SymbolCounts;
use super::frames::{enter_special_frame, frame, frame_bytes, java_frame, stub_frame, unknown_java};
use super::jit::{AddressLookup, JitContext};
use super::native::deferred_frames::DeferredFrame;
use super::native::function_names::FunctionNames;
use super::stack::completer::kernel_walked_frames;
use crate::hotspot::{JavaCache, ReadTimes};
use crate::native::file_cache::FileCache;
use crate::process::{Backing, MappedCode, Process};
use crate::profile::model::{Frame, FrameKind, Mapping};
use crate::sampler::StackSample;
use crate::types::{Avma, FastHasher};

const TOO_LATE: &str = "read too late";
const DEOPTIMIZED: &str = "being deoptimized";
/// Reason of a stack that ends where the frame that was taken for the caller can't be it.
pub(super) const FALSE_CALLER: &str = "caller calls something else";
/// Stubs that call other code than their caller (openjdk
/// src/hotspot/share/runtime/deoptimization.cpp, `unpack_frames`).
const UNPACKING: [&str; 2] = ["[DeoptimizationBlob]", "[UncommonTrapBlob]"];

/// The naming of one sample's frames.
pub(super) struct Namer<'a> {
    pub(super) files: &'a FileCache,
    pub(super) names: &'a FunctionNames,
    pub(super) java: &'a JavaCache,
    pub(super) jit: &'a JitContext,
    pub(super) deferred: &'a mut Vec<DeferredFrame>,
    pub(super) counts: &'a mut SymbolCounts,
    pub(super) process: &'a Process,
    pub(super) java_frame_types: bool,
    /// Time of the sample on `CLOCK_MONOTONIC`.
    pub(super) at_ns: u64,
    pub(super) now_ns: u64,
    pub(super) pending: bool,
    /// True if a frame has a name for this sample only.
    pub(super) is_passing: bool,
    /// Index of the first frame that was walked so long after the sample that other code may be
    /// there by now.
    pub(super) late_from: Option<usize>,
}

/// Names of a stack's frames, each in its place, and why some Java frames have none.
struct ReadFrames {
    frames: Vec<Option<Arc<Frame>>>,
    unnamed: HashMap<UserFrame, &'static str>,
}

fn is_java(frame: &UserFrame) -> bool {
    matches!(frame, UserFrame::Compiled { .. } | UserFrame::Interpreted { .. })
}

impl Namer<'_> {
    /// Names the frames of a user's stack. Returns false if the stack ends before its last frame,
    /// after one that the next can't have called.
    pub(super) fn user_stack(
        &mut self,
        symbols: &mut ProcessSymbols,
        stack: &[UserFrame],
        frames: &mut Vec<Arc<Frame>>,
    ) -> bool {
        let callers_bytes = symbols.callers.bytes();
        let is_true = self.name_java(symbols, stack, frames);
        let more = symbols.callers.bytes() - callers_bytes;
        symbols.frame_memory.add(more);
        is_true
    }

    /// Reads the names of a sample's Java frames that the kernel program walked.
    pub(super) fn read_java(&mut self, symbols: &mut ProcessSymbols, sample: &StackSample) {
        let (stack, _) = kernel_walked_frames(sample);
        self.read_new(symbols, &stack);
    }

    /// Names a stack; uncached Java frames are read all at once. Returns false if it ends before
    /// its last frame, after one that the next can't have called.
    fn name_java(
        &mut self,
        symbols: &mut ProcessSymbols,
        stack: &[UserFrame],
        frames: &mut Vec<Arc<Frame>>,
    ) -> bool {
        let ReadFrames { frames: known, unnamed } = self.read_new(symbols, stack);
        let (java, callers) = (symbols.java.attached_jvm(), &mut symbols.callers);
        let on_the_way = java.is_some_and(|java| java.has_false_leaf(self.java, stack, callers));
        // A compiled frame is being replaced by interpreted ones, which keep what was there before
        // until they are filled.
        let mut is_unpacking = false;
        let youngest = (usize::from(on_the_way)..stack.len()).find(|index| is_java(&stack[*index]));
        let is_sure = |index: usize| {
            known.get(index).is_some_and(Option::is_some) && self.late_from.is_none_or(|from| index < from)
        };
        let checked = youngest.filter(|index| is_sure(index + 1));
        for (index, (which, known)) in stack.iter().zip(known).enumerate().skip(usize::from(on_the_way)) {
            is_unpacking &= matches!(which, UserFrame::Interpreted { .. });
            let frame = match known {
                _ if is_unpacking => self.unknown(symbols, which, DEOPTIMIZED),
                _ if is_java(which) && self.late_from.is_some_and(|from| index >= from) => {
                    self.unknown(symbols, which, TOO_LATE)
                }
                Some(frame) => frame,
                None if is_java(which) => {
                    let reason = unnamed.get(which).copied().unwrap_or("JVM not readable");
                    self.unknown(symbols, which, reason)
                }
                None => self.frame(symbols, *which),
            };
            is_unpacking |= matches!(which, UserFrame::Stub { .. })
                && frame.lines.first().is_some_and(|line| UNPACKING.contains(&&*line.name));
            frames.push(frame);
            let is_checked = checked == Some(index) && !is_unpacking;
            if is_checked && self.is_false_caller(symbols, &stack[index..], frames.last()) {
                tracing::debug!(pid = self.process.pid, stack = ?&stack[index..(index + 2)], "a false caller");
                return false;
            }
        }
        true
    }

    /// Returns whether the second of these frames can't have called the first, the youngest of
    /// Java's, whose name is known. That one may have been interrupted, or have called native code,
    /// at any instruction, and the end of its own frame is less certain there than for all frames
    /// below.
    fn is_false_caller(
        &self,
        symbols: &mut ProcessSymbols,
        stack: &[UserFrame],
        callee: Option<&Arc<Frame>>,
    ) -> bool {
        let [_, caller, ..] = stack else { return false };
        let (Some(java), Some(method)) =
            (symbols.java.attached_jvm(), callee.and_then(|frame| frame.lines.last()))
        else {
            return false;
        };
        if !is_java(caller) || method.mode.is_none() {
            return false;
        }
        let called = symbols.callers.calls.entry(*caller).or_insert_with(|| java.called(self.java, caller));
        !called.may_be(&method.system_name)
    }

    fn unknown(&mut self, symbols: &ProcessSymbols, which: &UserFrame, reason: &'static str) -> Arc<Frame> {
        self.is_passing = true;
        *self.counts.unnamed.entry(reason).or_default() += 1;
        unknown_java(which, reason, symbols.java.attached_jvm())
    }

    /// Returns the names of these frames, after reading the uncached Java frames among them.
    fn read_new(&mut self, symbols: &mut ProcessSymbols, stack: &[UserFrame]) -> ReadFrames {
        let mut frames: Vec<Option<Arc<Frame>>> =
            stack.iter().map(|frame| symbols.frames.get(frame).cloned()).collect();
        let is_new = |(frame, known): &(&UserFrame, &Option<_>)| known.is_none() && is_java(frame);
        // Recursion makes many frames of one.
        let new: HashSet<UserFrame, FastHasher> =
            stack.iter().zip(&frames).filter(is_new).map(|(frame, _)| *frame).collect();
        let mut unnamed = HashMap::new();
        if new.is_empty() {
            return ReadFrames { frames, unnamed };
        }
        let new: Vec<UserFrame> = new.into_iter().collect();
        let times = ReadTimes { sampled_ns: self.at_ns, now_ns: self.now_ns };
        let named =
            symbols.java.attached_jvm().map(|java| java.resolve(self.java, &new, times)).unwrap_or_default();
        for (which, result) in new.iter().zip(named) {
            match result {
                Ok(methods) => {
                    let frame = Arc::new(java_frame(
                        which,
                        &methods,
                        symbols.java.attached_jvm(),
                        self.java_frame_types,
                    ));
                    self.cache_frame(symbols, *which, &frame);
                }
                Err(error) => _ = unnamed.insert(*which, error.reason()),
            }
        }
        for (which, known) in stack.iter().zip(&mut frames) {
            if known.is_none() && is_java(which) {
                *known = symbols.frames.get(which).cloned();
            }
        }
        ReadFrames { frames, unnamed }
    }

    fn frame(&mut self, symbols: &mut ProcessSymbols, which: UserFrame) -> Arc<Frame> {
        if let Some(frame) = symbols.frames.get(&which) {
            return Arc::clone(frame);
        }
        let address = Avma(which.lookup_address().unwrap_or(0));
        if which == UserFrame::ENTER_SPECIAL {
            symbols.java.expect_virtual_threads();
            let frame = Arc::new(enter_special_frame(symbols.java.attached_jvm(), self.java_frame_types));
            self.cache_frame(symbols, which, &frame);
            return frame;
        }
        if let UserFrame::Stub { name, .. } = which {
            let frame = Arc::new(stub_frame(address, Avma(name), &mut symbols.java));
            self.cache_frame(symbols, which, &frame);
            return frame;
        }
        let Some(mapping) = self.process.mappings.find(address).cloned() else {
            return self.unnamed(address, FrameKind::Native, None, "no mapping", "[unknown: no mapping]");
        };
        let frame = match mapping.backing {
            Backing::Anonymous => return self.jit_frame(symbols, &mapping, address),
            Backing::File | Backing::Vdso => self.file_frame(symbols, &mapping, address, which),
        };
        self.cache_frame(symbols, which, &frame);
        frame
    }

    /// Returns the frame of generated code. It is cached by the entry that names it, not by its
    /// address: other code may be there later.
    fn jit_frame(&mut self, symbols: &mut ProcessSymbols, code: &MappedCode, address: Avma) -> Arc<Frame> {
        self.is_passing = true;
        let (process, at_ns, now_ns) = (self.process, self.at_ns, self.now_ns);
        let lookup = AddressLookup { process, code, address, at_ns, now_ns };
        symbols.jit.frame(lookup, self.jit, &mut self.counts.perf_maps).unwrap_or_else(|unnamed| {
            self.pending = true;
            unnamed
        })
    }

    fn cache_frame(&mut self, symbols: &mut ProcessSymbols, which: UserFrame, frame: &Arc<Frame>) {
        symbols.frame_memory.add(frame_bytes(frame));
        symbols.frames.insert(which, Arc::clone(frame));
    }

    fn file_frame(
        &mut self,
        symbols: &mut ProcessSymbols,
        mapping: &Arc<MappedCode>,
        address: Avma,
        which: UserFrame,
    ) -> Arc<Frame> {
        let module = symbols.modules.get(self.process, mapping, self.files, self.counts);
        if let Some(named) = symbols.named.get(&(module.mapping(), address)) {
            return Arc::clone(named);
        }
        module.keep_open(self.process, self.files, self.names);
        let mapping = Some(module.mapping());
        let (key, generation) = (self.process.key, symbols.generation);
        self.deferred.push(DeferredFrame { key, generation, which, address, module });
        Arc::new(Frame { kind: FrameKind::Native, address: Some(address), mapping, lines: Vec::new() })
    }

    fn unnamed(
        &mut self,
        address: Avma,
        kind: FrameKind,
        mapping: Option<Arc<Mapping>>,
        reason: &'static str,
        name: &'static str,
    ) -> Arc<Frame> {
        self.is_passing = true;
        *self.counts.unnamed.entry(reason).or_default() += 1;
        frame(kind, address, mapping, name.into(), name.into())
    }
}
