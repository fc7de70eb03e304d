//! Frames of generated code, named by the perf map or jitdump of the process's runtime, as of the
//! sample's time.
//!
//! A name is final once everything that was written before the sample was taken has been read.
//! Until then, and where no entry covers the address yet, a frame waits: it gets its name, or none
//! for good, before its window's profile is made.

pub(super) mod deferred_names;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use jvmprof_common::rows::Row;

use crate::clock::monotonic_ns;
use crate::jit::jitdump::process_jitdump::{ProcessJitDump, jitdump_marker};
use crate::jit::name_formats::{CodeName, code_name};
use crate::jit::perf_map::inotify_thread::PerfMapWatcher;
use crate::jit::perf_map::process_perf_map::{PerfMapWriter, ProcessPerfMap};
use crate::jit::timeline::{CodeEntryId, CodeMatch};
use crate::memory_budget::MemoryBudget;
use crate::process::{Backing, MappedCode, Process};
use crate::profile::model::{Frame, FrameKind, Line, Mapping};
use crate::symbolize::counts::CacheUsage;
use crate::symbolize::counts::jit_counts::{JitCounts, ReportedCounts};
use crate::symbolize::frames::frame_bytes;
use crate::symbolize::jit::deferred_names::{SampledAddress, WaitingFrame, WaitingFrames};
use crate::types::{Avma, FileOffset};

const UNKNOWN_JAVA: &str = "[unknown Java: not in the perf map]";
const UNKNOWN_JIT: &str = "[jit: unknown]";
/// Memory of the cached frames of one process, in bytes.
const MAX_FRAME_BYTES: usize = 2 << 20;
/// Maximum number of reads of a jitdump at a window's end.
const MAX_DUMP_READS: usize = 64;
/// Maximum age of a sample that doesn't wait.
const OLDEST_SAMPLE_NS: u64 = 30_000_000_000;

/// State that the generated code of all processes shares.
#[derive(Debug)]
pub(in crate::symbolize) struct JitContext {
    budget: MemoryBudget,
    watcher: PerfMapWatcher,
}

impl JitContext {
    /// Makes the state. `bytes` is the limit of all perf maps and jitdumps together.
    pub(in crate::symbolize) fn new(bytes: usize) -> Self {
        Self { budget: MemoryBudget::new(bytes), watcher: PerfMapWatcher::default() }
    }

    /// Returns the memory of all perf maps and jitdumps.
    pub(in crate::symbolize) fn size(&self) -> CacheUsage {
        CacheUsage::new("jit_maps", self.budget.used(), self.budget.limit())
    }
}

/// The generated code of one process.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct JitNames {
    map: Option<Arc<Mutex<ProcessPerfMap>>>,
    dump: Option<ProcessJitDump>,
    /// Version of the process's mappings that were searched for the marker of a jitdump.
    searched_version: u64,
    reported: ReportedCounts,
    map_frames: FrameCache,
    dump_frames: FrameCache,
    waiting: WaitingFrames,
}

/// Frames by the entry that names them: another entry at the same address is another frame.
#[derive(Debug, Default)]
struct FrameCache {
    epoch: u64,
    by_entry: HashMap<(CodeEntryId, Avma), Arc<Frame>>,
    bytes: usize,
}

/// A lookup of a sampled address.
#[derive(Clone, Copy, Debug)]
pub(in crate::symbolize) struct AddressLookup<'a> {
    pub(in crate::symbolize) process: &'a Process,
    pub(in crate::symbolize) code: &'a MappedCode,
    pub(in crate::symbolize) address: Avma,
    /// Time of the sample on `CLOCK_MONOTONIC`.
    pub(in crate::symbolize) at_ns: u64,
    pub(in crate::symbolize) now_ns: u64,
}

impl JitNames {
    /// Returns the frame of an address in generated code; an error is a frame without a name yet,
    /// see [`Self::resolved`].
    pub(in crate::symbolize) fn frame(
        &mut self,
        lookup: AddressLookup<'_>,
        shared: &JitContext,
        counts: &mut JitCounts,
    ) -> Result<Arc<Frame>, Arc<Frame>> {
        let AddressLookup { address, at_ns, .. } = lookup;
        let map = self.open_files(lookup.process, shared, counts);
        let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
        let was_read = self.read_up_to(&mut map, at_ns, lookup.now_ns, counts);
        if was_read && !self.waiting.is_empty() {
            self.resolve_deferred(&map, counts, false);
        }
        let entries = map.map().counters().entries;
        let was_known = is_known(&map, self.dump.as_ref(), at_ns);
        if was_known {
            let make = |line| Arc::new(frame_of(lookup, Some(line)));
            if let Some((named, is_ambiguous)) = self.named(&map, address, at_ns, make) {
                counts.ambiguous += u64::from(is_ambiguous);
                return Ok(named);
            }
        }
        // Between two changes of a perf map all samples of an address have the same name, if it has
        // been read to its end.
        let name_version = if self.dump.is_some() || !was_known { at_ns } else { entries };
        let sampled = SampledAddress { address, name_version, at_ns };
        if let Some(frame) = self.waiting.push(sampled, || Arc::new(frame_of(lookup, None))) {
            return Err(frame);
        }
        // Too many frames wait: the entries read so far decide.
        let make = |line| Arc::new(frame_of(lookup, Some(line)));
        if let Some((named, _)) = self.named(&map, address, at_ns, make) {
            counts.ambiguous += 1;
            return Ok(named);
        }
        counts.unknown += 1;
        Ok(Arc::new(frame_of(lookup, None)))
    }

    /// Returns whether the process's code may have unwinding information, so that its stacks are
    /// walked by [`Self::row`].
    pub(in crate::symbolize) fn may_have_rows(
        &mut self,
        process: &Process,
        shared: &JitContext,
        counts: &mut JitCounts,
    ) -> bool {
        self.find_dump(process, shared, counts);
        self.has_rows()
    }

    /// Returns whether the code has unwinding information, as far as it has been read.
    pub(in crate::symbolize) fn has_rows(&self) -> bool {
        self.dump.as_ref().is_some_and(|dump| dump.dump().has_unwinding_info() != Some(false))
    }

    /// Returns the time up to which stacks can be walked. Reads new records if that may advance it.
    pub(in crate::symbolize) fn walkable_until(&mut self, at_ns: u64, counts: &mut JitCounts) -> u64 {
        if !self.has_rows() {
            return u64::MAX;
        }
        read_dump(&mut self.dump, at_ns, false, counts);
        match self.dump.as_ref().map(ProcessJitDump::dump) {
            Some(dump) if dump.has_unwinding_info().is_none() => 0,
            Some(dump) => dump.complete_until_ns(),
            None => u64::MAX,
        }
    }

    /// Returns the unwind row of the code at this address at this time, and whether the record is
    /// certainly that of this code; `None` without a record.
    pub(in crate::symbolize) fn row(&self, address: Avma, at_ns: u64) -> Option<(Row, bool)> {
        let dump = self.dump.as_ref()?.dump();
        let found = dump.lookup(address, at_ns)?;
        let row = found.rows?.at(u32::try_from(address.0 - found.start.0).ok()?)?;
        Some((row, dump.is_complete_until(at_ns) && !found.is_ambiguous))
    }

    /// Opens the files of the process's runtime: by the time that its samples are named it may have
    /// ended.
    pub(in crate::symbolize) fn begin(
        &mut self,
        process: &Process,
        shared: &JitContext,
        now_ns: u64,
        counts: &mut JitCounts,
    ) {
        let has_code = process.mappings.iter().any(|mapping| mapping.backing == Backing::Anonymous);
        if self.map.is_some() || !has_code {
            return;
        }
        self.find_dump(process, shared, counts);
        let map = self.map.insert(new_map(process, shared));
        map.lock().unwrap_or_else(PoisonError::into_inner).read_new(now_ns);
    }

    /// Reads everything, for the inspection of a process that isn't sampled.
    pub(in crate::symbolize) fn read_all(
        &mut self,
        process: &Process,
        shared: &JitContext,
        now_ns: u64,
        counts: &mut JitCounts,
    ) {
        let map = self.open_files(process, shared, counts);
        map.lock().unwrap_or_else(PoisonError::into_inner).read_all(now_ns);
    }

    /// Opens the process's jitdump, if there is a new one, and returns its perf map.
    fn open_files(
        &mut self,
        process: &Process,
        shared: &JitContext,
        counts: &mut JitCounts,
    ) -> Arc<Mutex<ProcessPerfMap>> {
        self.find_dump(process, shared, counts);
        Arc::clone(self.map.get_or_insert_with(|| new_map(process, shared)))
    }

    /// Returns the named frame for one that had no name.
    pub(in crate::symbolize) fn resolved(&self, frame: &Arc<Frame>) -> Option<Arc<Frame>> {
        self.waiting.resolved(frame)
    }

    /// Reads new records, and resolves the waiting frames: those without an entry have no name for
    /// good.
    pub(in crate::symbolize) fn refresh(&mut self, process: &Process, now_ns: u64, counts: &mut JitCounts) {
        let Some(map) = self.map.clone() else { return };
        let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
        map.read_before_naming(now_ns);
        self.read_dump_to_end(process, now_ns, counts);
        self.resolve_deferred(&map, counts, true);
        let horizon_ns = now_ns.saturating_sub(OLDEST_SAMPLE_NS);
        map.map_mut().expire(horizon_ns);
        if let Some(dump) = &mut self.dump {
            // Buffered records may be of any time since the last window.
            let collected_ns = if dump.dump().is_buffering() { 4 * OLDEST_SAMPLE_NS } else { 0 };
            dump.dump_mut().expire(horizon_ns.saturating_sub(collected_ns));
        }
        self.reported.report(&map, self.dump.as_ref(), counts);
    }

    /// Resolves the waiting frames of a program in whose place another one has begun, by what was
    /// read while it ran: its perf map may be the other one's by now.
    pub(in crate::symbolize) fn resolve_unread(&mut self, counts: &mut JitCounts) {
        let Some(map) = self.map.clone() else { return };
        let map = map.lock().unwrap_or_else(PoisonError::into_inner);
        self.resolve_deferred(&map, counts, true);
        self.reported.report(&map, self.dump.as_ref(), counts);
    }

    /// Reads a dump to its end, within limits: there is no later chance.
    pub(in crate::symbolize) fn read_dump_to_end(
        &mut self,
        process: &Process,
        now_ns: u64,
        counts: &mut JitCounts,
    ) {
        let has_ended = !Path::new("/proc").join(process.pid.to_string()).exists();
        for _ in 0..MAX_DUMP_READS {
            let has_read = read_dump(&mut self.dump, now_ns, true, counts);
            if !has_read || self.dump.as_ref().is_none_or(|dump| !dump.dump().has_more()) {
                break;
            }
        }
        if let Some(dump) = self.dump.as_mut().filter(|_| has_ended) {
            dump.dump_mut().mark_writer_ended();
        }
    }

    /// Drops resolved names, which are in the profile now: the next window begins.
    pub(in crate::symbolize) fn clear_resolved(&mut self) {
        self.waiting.clear_resolved();
    }

    fn find_dump(&mut self, process: &Process, shared: &JitContext, counts: &mut JitCounts) {
        if self.dump.is_some() || self.searched_version == process.version {
            return;
        }
        self.searched_version = process.version;
        let Some(marker) = jitdump_marker(process) else { return };
        match ProcessJitDump::open(process, marker, shared.budget.clone()) {
            Ok(dump) => self.dump = Some(dump),
            Err(error) => {
                counts.refuse_dump(process.pid, None, error.reason());
                tracing::debug!(pid = process.pid, %error, "a jitdump can't be opened");
            }
        }
    }

    /// Reads new records if they may be of code that was generated up to `at_ns`. Returns true if
    /// it read any. A map that takes many turns is left to the watcher: samples don't wait for it
    /// here.
    fn read_up_to(
        &mut self,
        map: &mut ProcessPerfMap,
        at_ns: u64,
        now_ns: u64,
        counts: &mut JitCounts,
    ) -> bool {
        let is_map_old = map.read_until_ns() <= at_ns;
        let has_read_map = is_map_old && !map.has_more() && map.read_new(now_ns);
        read_dump(&mut self.dump, at_ns, false, counts) || has_read_map
    }

    /// Returns the frame of the code that was there at the time, and whether it is ambiguous. A
    /// jitdump records times, a perf map doesn't.
    fn named(
        &mut self,
        map: &ProcessPerfMap,
        address: Avma,
        at_ns: u64,
        make: impl FnOnce(Line) -> Arc<Frame>,
    ) -> Option<(Arc<Frame>, bool)> {
        let dump = self.dump.as_ref().map(ProcessJitDump::dump);
        if let Some((dump, found)) = dump.and_then(|dump| Some((dump, dump.lookup(address, at_ns)?))) {
            let is_ambiguous = found.is_ambiguous || !dump.is_complete_until(at_ns);
            return Some((self.dump_frames.get(dump.epoch(), &found, address, make), is_ambiguous));
        }
        let found = map.map().lookup(address, at_ns)?;
        let is_ambiguous = found.is_ambiguous || !is_read_up_to(map, at_ns);
        Some((self.map_frames.get(map.map().epoch(), &found, address, make), is_ambiguous))
    }

    /// Resolves the waiting frames, as far as possible. `is_end`: the others have no name for good.
    fn resolve_deferred(&mut self, map: &ProcessPerfMap, counts: &mut JitCounts, is_end: bool) {
        let dump = self.dump.as_ref();
        let ready = self.waiting.take(|waiting| is_end || is_known(map, dump, waiting.last_ns));
        for waiting in ready {
            match self.named_of_waiting(map, &waiting) {
                Some((named, is_ambiguous)) => {
                    counts.ambiguous += if is_ambiguous { waiting.samples } else { 0 };
                    self.waiting.resolve(waiting, named);
                }
                None if is_end => counts.unknown += waiting.samples,
                None => self.waiting.defer_again(waiting),
            }
        }
    }

    /// Returns the frame of samples that wait together: if the first and the last have the same
    /// name, those between them have it, too.
    fn named_of_waiting(
        &mut self,
        map: &ProcessPerfMap,
        waiting: &WaitingFrame,
    ) -> Option<(Arc<Frame>, bool)> {
        let WaitingFrame { frame, address, first_ns, last_ns, .. } = waiting;
        let make = |line| Arc::new(Frame { lines: vec![line], ..(**frame).clone() });
        let first = self.named(map, *address, *first_ns, make);
        if first_ns == last_ns {
            return first;
        }
        match (first, self.named(map, *address, *last_ns, make)) {
            (Some((first, is_first_ambiguous)), Some((last, is_last_ambiguous))) => {
                let is_ambiguous = is_first_ambiguous || is_last_ambiguous || !Arc::ptr_eq(&first, &last);
                Some((first, is_ambiguous))
            }
            (one, other) => one.or(other).map(|(named, _)| (named, true)),
        }
    }
}

/// Returns whether everything has been read that was generated up to this time.
fn is_known(map: &ProcessPerfMap, dump: Option<&ProcessJitDump>, at_ns: u64) -> bool {
    is_read_up_to(map, at_ns) && dump.is_none_or(|dump| dump.dump().is_complete_until(at_ns))
}

/// Returns whether everything has been read of a map that was written up to this time.
fn is_read_up_to(map: &ProcessPerfMap, at_ns: u64) -> bool {
    map.read_until_ns() > at_ns && !map.map().may_have_unread_entries(at_ns)
}

/// Reads new records of a dump if they may be of code that was generated up to `at_ns`. Returns
/// true if it read any. `is_last_chance`: see [`ProcessJitDump::read_new`].
fn read_dump(
    dump: &mut Option<ProcessJitDump>,
    at_ns: u64,
    is_last_chance: bool,
    counts: &mut JitCounts,
) -> bool {
    let dump = dump
        .as_mut()
        .filter(|dump| dump.dump().read_until_ns() <= at_ns && !dump.dump().is_complete_until(at_ns));
    let Some(dump) = dump else { return false };
    dump.read_new(monotonic_ns(), is_last_chance).unwrap_or_else(|error| {
        counts.refuse_dump(dump.pid(), dump.dump().file_id(), error.reason());
        tracing::debug!(pid = dump.pid(), %error, "a jitdump can't be used");
        true
    })
}

/// Makes the perf map of a process, which is read as it is written from now on.
fn new_map(process: &Process, shared: &JitContext) -> Arc<Mutex<ProcessPerfMap>> {
    let map = Arc::new(Mutex::new(ProcessPerfMap::new(PerfMapWriter::of(process), shared.budget.clone())));
    if let Err(error) = shared.watcher.watch(&map) {
        tracing::warn!(%error, "it is known less exactly when code was generated");
    }
    map
}

impl FrameCache {
    fn get(
        &mut self,
        epoch: u64,
        found: &CodeMatch<'_>,
        address: Avma,
        make: impl FnOnce(Line) -> Arc<Frame>,
    ) -> Arc<Frame> {
        if self.epoch != epoch || self.bytes > MAX_FRAME_BYTES {
            *self = Self { epoch, ..Self::default() };
        }
        let bytes = &mut self.bytes;
        let frame = self.by_entry.entry((found.id, address)).or_insert_with(|| {
            let frame = make(line(found, address));
            *bytes += frame_bytes(&frame);
            frame
        });
        Arc::clone(frame)
    }
}

/// Converts an entry to the line for an address of its code.
fn line(found: &CodeMatch<'_>, address: Avma) -> Line {
    let CodeName { name, file, line } = code_name(found.name);
    let offset = u32::try_from(address.0 - found.start.0).unwrap_or(u32::MAX);
    let place = found.lines.and_then(|lines| lines.at(offset));
    let (file, line) = match place {
        Some((file, line)) => (Some(Arc::clone(file)), line),
        None => (file.map(Arc::from), line),
    };
    let raw: Arc<str> = found.name.into();
    let name = if *name == *raw { Arc::clone(&raw) } else { name.into() };
    Line { system_name: raw, file, line, ..Line::named(name) }
}

/// Makes a frame of generated code, with this line or as unknown.
fn frame_of(lookup: AddressLookup<'_>, line: Option<Line>) -> Frame {
    let AddressLookup { process, code, address, .. } = lookup;
    let (kind, path, unknown) = if process.is_jvm() {
        (FrameKind::Java, "jvm", UNKNOWN_JAVA)
    } else {
        (FrameKind::Jit, "[jit]", UNKNOWN_JIT)
    };
    let mapping = Mapping {
        start: code.start,
        limit: code.end,
        offset: FileOffset(code.offset.0),
        path: path.into(),
        build_id: None,
    };
    let line = line.unwrap_or_else(|| Line::named(unknown));
    Frame { kind, address: Some(address), mapping: Some(Arc::new(mapping)), lines: vec![line] }
}
