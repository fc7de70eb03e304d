//! The JVM of a process: attaching, refreshing, and names of its frames.

pub(super) mod jvm_labels;
pub(super) mod virtual_threads;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use jvmprof_common::frame::UserFrame;
use jvmprof_common::jvm::Jvm;

use crate::hotspot::JvmBlockers;
use crate::hotspot::java_heap::HeapLayout;
use crate::hotspot::stubs::StubRows;
use crate::hotspot::{
    Callee, Hotspot, HotspotError, JavaCache, JavaFrame, LiveMemory, NamingError, PauseVariables,
    PhysicalFrame, ProcessMemory, ReadTimes, SafepointCounters, images,
};
use crate::process::{Backing, Process};
use crate::profile::model::Mapping;
use crate::symbolize::java::jvm_labels::JvmLabels;
use crate::types::{Avma, FastHasher, FileOffset, hex};

/// Interval of attempts to attach to a JVM that isn't ready: nothing of it can be walked before.
const ATTACH_INTERVAL_NS: u64 = 2_000_000;
/// Number of attempts in that interval.
const FAST_ATTEMPTS: u32 = 500;
/// Interval of further attempts, for a minute: a JVM starts slowly on a busy machine.
const SLOW_INTERVAL_NS: u64 = 20_000_000;
const LAST_ATTEMPT: u32 = FAST_ATTEMPTS + 3_000;
/// Number of attempts in [`SLOW_INTERVAL_NS`] for a process with generated code and no JVM, if its
/// mappings change; later ones are seldom.
const YOUNG_ATTEMPTS: u32 = 16;
const SELDOM_NS: u64 = 1_000_000_000;
/// First interval of searching new stubs: at first they come quickly. A sample with an unknown stub
/// may shorten the interval.
const FIRST_REFRESH_NS: u64 = 20_000_000;
const LAST_REFRESH_NS: u64 = 300_000_000_000;
const UNKNOWN_CODE_REFRESH_NS: u64 = 20_000_000;
/// Interval of searching the data of virtual threads, some of which is there with the first of them
/// only.
const THREADS_REFRESH_NS: u64 = 2_000_000;
/// Maximum number of such searches: a JVM that never has the data must not cost one with each
/// sample.
const MAX_THREAD_REFRESHES: u32 = 200;
/// Maximum number of reads of the main class. The JVM sets it at the end of its start; the reads go
/// on for some minutes, and then it has none.
const MAX_LABEL_READS: u32 = 12;

/// Checks of the youngest Java frames and their callers, valid as long as the frames are cached.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct Callers {
    /// Callees of frames that were found below an interrupted one.
    pub(in crate::symbolize) calls: HashMap<UserFrame, Callee, FastHasher>,
    /// Interrupted frames of code that called itself, which were in no stub of it.
    bodies: HashSet<UserFrame, FastHasher>,
}

impl Callers {
    /// Returns the memory of the checks in bytes.
    pub(in crate::symbolize) fn bytes(&self) -> usize {
        /// Bytes of a slot in the map, and of the two names that a call mostly has.
        const CALL_BYTES: usize = 200;
        const BODY_BYTES: usize = 50;
        self.calls.len() * CALL_BYTES + self.bodies.len() * BODY_BYTES
    }
}

/// State of the JVM in a process.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct JvmAttachment {
    attached: Option<Box<AttachedJvm>>,
    attempts: u32,
    next_inspection_ns: u64,
    /// Reason why it can't be read, if it is a JVM.
    problem: Option<&'static str>,
    /// Version of the process's mappings that contained no JVM.
    none_in: Option<u64>,
}

/// A JVM that can be read.
#[derive(Debug)]
pub(in crate::symbolize) struct AttachedJvm {
    hotspot: Hotspot<LiveMemory>,
    stubs: StubRows,
    /// Range of the interpreter whose rows are among the stubs.
    interpreter: Range<Avma>,
    labels: Arc<JvmLabels>,
    /// Mapping of all Java frames.
    mapping: Arc<Mapping>,
    /// Remaining number of reads of the labels.
    label_reads: u32,
    refresh_ns: u64,
    /// Number of searches that samples of virtual threads have caused.
    thread_refreshes: u32,
    names: HashMap<Avma, Arc<str>>,
}

/// Result of inspecting a JVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::symbolize) enum JvmState {
    Unchanged,
    /// The kernel tables are out of date.
    Changed,
    /// A JVM that can't be read. Returned once for each reason.
    Unreadable(&'static str),
}

impl JvmAttachment {
    pub(in crate::symbolize) fn attached_jvm(&self) -> Option<&AttachedJvm> {
        self.attached.as_deref()
    }

    /// Returns whether there is a JVM that isn't ready yet.
    pub(in crate::symbolize) fn is_awaited(&self, process: &Process) -> bool {
        self.attached.is_none() && self.problem.is_none() && self.attempts < LAST_ATTEMPT && process.is_jvm()
    }

    pub(in crate::symbolize) fn attached_mut(&mut self) -> Option<&mut AttachedJvm> {
        self.attached.as_deref_mut()
    }

    /// Schedules a search for the data of virtual threads: a sample had frames of one in the heap.
    pub(in crate::symbolize) fn expect_virtual_threads(&mut self) {
        if let Some(attached) = &mut self.attached
            && attached.hotspot.awaits_virtual_threads()
            && attached.thread_refreshes < MAX_THREAD_REFRESHES
        {
            attached.thread_refreshes += 1;
            let inspected_ns = self.next_inspection_ns.saturating_sub(attached.refresh_ns);
            self.next_inspection_ns = inspected_ns + THREADS_REFRESH_NS;
            attached.refresh_ns = THREADS_REFRESH_NS;
        }
    }

    /// Attaches to the JVM, or reads what is new in it, if that is due. `has_unknown_code`: a
    /// sample contains unknown code. Data that JVMs share is kept in `cache`.
    pub(in crate::symbolize) fn inspect(
        &mut self,
        process: &Process,
        now_ns: u64,
        has_unknown_code: bool,
        cache: &JavaCache,
    ) -> JvmState {
        let due = self.next_inspection_ns <= now_ns;
        if let Some(attached) = &mut self.attached {
            let is_early = has_unknown_code
                && now_ns + attached.refresh_ns >= self.next_inspection_ns + UNKNOWN_CODE_REFRESH_NS;
            if !due && !is_early {
                return JvmState::Unchanged;
            }
            let factor = if attached.refresh_ns < SELDOM_NS { 2 } else { 4 };
            attached.refresh_ns = (attached.refresh_ns * factor).min(LAST_REFRESH_NS);
            self.next_inspection_ns = now_ns + attached.refresh_ns;
            return attached.refresh(process.pid);
        }
        if !due || self.none_in == Some(process.version) || !may_be_jvm(process) {
            return JvmState::Unchanged;
        }
        self.attempts += 1;
        let interval = match self.attempts {
            ..FAST_ATTEMPTS => ATTACH_INTERVAL_NS,
            FAST_ATTEMPTS..LAST_ATTEMPT => SLOW_INTERVAL_NS,
            _ => SELDOM_NS,
        };
        self.next_inspection_ns = now_ns + interval;
        match AttachedJvm::new(process.pid, cache) {
            Ok(attached) => {
                self.next_inspection_ns = now_ns + attached.refresh_ns;
                self.attached = Some(Box::new(attached));
                self.problem = None;
                JvmState::Changed
            }
            Err(error) => {
                tracing::debug!(pid = process.pid, %error, attempts = self.attempts, "no JVM can be read");
                if error.is_transient() {
                    return JvmState::Unchanged;
                }
                // A JVM whose maps could not be read is one all the same, and is tried again.
                let is_none = matches!(error, HotspotError::NotHotspot(_)) && !process.is_jvm();
                self.none_in = is_none.then_some(process.version);
                // A program that has just begun may be about to load it.
                let is_young = is_none && self.attempts < YOUNG_ATTEMPTS;
                self.next_inspection_ns = now_ns + if is_young { SLOW_INTERVAL_NS } else { SELDOM_NS };
                let is_hotspot = !matches!(error, HotspotError::NotHotspot(_) | HotspotError::Mappings(_));
                let is_news = self.problem.replace(error.reason()) != Some(error.reason());
                if !is_news || !is_hotspot {
                    return JvmState::Unchanged;
                }
                tracing::warn!(pid = process.pid, %error, "a JVM whose Java frames can't be named");
                JvmState::Unreadable(error.reason())
            }
        }
    }
}

/// Returns whether the process generates code, as each JVM does.
fn may_be_jvm(process: &Process) -> bool {
    process.mappings.iter().any(|mapping| mapping.backing == Backing::Anonymous)
}

impl AttachedJvm {
    fn new(pid: u32, cache: &JavaCache) -> Result<Self, HotspotError> {
        let began = Instant::now();
        let images = images(pid).unwrap_or_default();
        let mut hotspot = Hotspot::attach(&images, LiveMemory::new(pid))?;
        let mut stubs = cache.new_stub_rows();
        let attached = began.elapsed();
        hotspot.locate_stub_names(pid, cache);
        let blobs = hotspot.stub_blobs()?;
        let (codelets, bytes) = hotspot.codelets()?;
        stubs.update(&blobs, &codelets, interpreter(hotspot.jvm()).start, &bytes);
        tracing::debug!(pid, ?attached, taken = ?began.elapsed(), "a JVM can be read");
        let (labels, is_final) = JvmLabels::read(&hotspot, pid);
        let label_reads = if is_final { 0 } else { MAX_LABEL_READS };
        let (labels, names) = (Arc::new(labels), HashMap::new());
        let mapping = Arc::new(code_mapping(hotspot.jvm()));
        let interpreter = interpreter(hotspot.jvm());
        Ok(Self {
            hotspot,
            stubs,
            interpreter,
            labels,
            mapping,
            label_reads,
            refresh_ns: FIRST_REFRESH_NS,
            thread_refreshes: 0,
            names,
        })
    }

    fn refresh(&mut self, pid: u32) -> JvmState {
        self.refresh_labels(pid);
        let jvm = self.hotspot.refresh().unwrap_or(false);
        let stubs = self.update_stubs().unwrap_or(false);
        let mapping = code_mapping(self.jvm());
        if mapping != *self.mapping {
            self.mapping = Arc::new(mapping);
        }
        if jvm || stubs { JvmState::Changed } else { JvmState::Unchanged }
    }

    /// Reads new stubs. Returns true if there are any.
    fn update_stubs(&mut self) -> Result<bool, HotspotError> {
        self.hotspot.refresh_stub_names();
        let blobs = self.hotspot.stub_blobs()?;
        let interpreter = interpreter(self.hotspot.jvm());
        if interpreter == self.interpreter {
            return Ok(self.stubs.update_blobs(&blobs, &interpreter));
        }
        let (codelets, bytes) = self.hotspot.codelets()?;
        let changed = self.stubs.update(&blobs, &codelets, interpreter.start, &bytes);
        self.interpreter = interpreter;
        Ok(changed)
    }

    pub(in crate::symbolize) fn jvm(&self) -> &Jvm {
        self.hotspot.jvm()
    }

    pub(in crate::symbolize) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the labels: another `Arc` once they have changed.
    pub(in crate::symbolize) fn labels(&self) -> &Arc<JvmLabels> {
        &self.labels
    }

    fn refresh_labels(&mut self, pid: u32) {
        if self.label_reads == 0 {
            return;
        }
        let (labels, is_final) = JvmLabels::read(&self.hotspot, pid);
        self.label_reads = if is_final { 0 } else { self.label_reads - 1 };
        // A JVM that has ended has nothing new.
        if labels.main_class.is_some() && labels != *self.labels {
            self.labels = Arc::new(labels);
        }
    }

    pub(in crate::symbolize) fn stubs(&self) -> &StubRows {
        &self.stubs
    }

    /// Returns the layout of its objects; `None` if it doesn't export it.
    pub(in crate::symbolize) fn heap(&self) -> Option<(HeapLayout, LiveMemory)> {
        Some((self.hotspot.heap_layout()?, self.hotspot.memory))
    }

    /// Returns where its threads say what they wait for; `None` if that isn't known.
    pub(in crate::symbolize) fn blockers(&self) -> Option<JvmBlockers> {
        self.hotspot.blockers()
    }

    /// Returns where it says why it stops its threads.
    pub(in crate::symbolize) fn pause_variables(&self) -> PauseVariables {
        self.hotspot.pause_variables()
    }

    /// Returns where it says how long it has stopped its threads, and its memory; `None` if it
    /// doesn't say, or while it starts.
    pub(in crate::symbolize) fn safepoint_counters(&self) -> Option<(SafepointCounters, LiveMemory)> {
        Some((self.hotspot.safepoint_counters()?, self.hotspot.memory))
    }

    pub(in crate::symbolize) fn memory(&self) -> LiveMemory {
        self.hotspot.memory
    }

    /// Returns the bytes around a pc, 32 before and after it, to debug a stack that isn't whole.
    pub(in crate::symbolize) fn code_around(&self, pc: Avma) -> Option<String> {
        let bytes = self.hotspot.memory.read_bytes(Avma(pc.0.checked_sub(32)?), 64)?;
        Some(hex(&bytes))
    }

    /// Names the Java frames among these; others are no frames of this JVM's methods.
    pub(in crate::symbolize) fn resolve(
        &self,
        cache: &JavaCache,
        frames: &[UserFrame],
        times: ReadTimes,
    ) -> Vec<Result<Arc<[JavaFrame]>, NamingError>> {
        let requests: Vec<PhysicalFrame> =
            frames.iter().filter_map(|frame| physical_frame(frame, self.jvm())).collect();
        self.hotspot.resolve_as_of(cache, &requests, times)
    }

    /// Returns true if the first of these frames, the interrupted one, is no frame of its own: it
    /// is code of the second, on the way to its callee.
    pub(in crate::symbolize) fn has_false_leaf(
        &self,
        cache: &JavaCache,
        frames: &[UserFrame],
        callers: &mut Callers,
    ) -> bool {
        let [leaf @ UserFrame::Compiled { exact: true, .. }, caller, ..] = frames else { return false };
        if !is_same_nmethod(leaf, caller) || callers.bodies.contains(leaf) {
            return false;
        }
        let (leaf_frame, caller_frame) =
            (physical_frame(leaf, self.jvm()), physical_frame(caller, self.jvm()));
        let Some((of_leaf, caller)) = leaf_frame.zip(caller_frame) else { return false };
        match self.hotspot.is_past_last_desc(cache, &of_leaf) {
            Some(true) => self.hotspot.is_in_static_call_stub(&of_leaf, &caller),
            Some(false) => {
                callers.bodies.insert(*leaf);
                false
            }
            None => false,
        }
    }

    /// Returns the callee at the place where a named frame waits.
    pub(in crate::symbolize) fn called(&self, cache: &JavaCache, caller: &UserFrame) -> Callee {
        let caller = physical_frame(caller, self.jvm());
        caller.map_or(Callee::Anything, |caller| self.hotspot.called(cache, &caller))
    }

    /// Returns HotSpot's name of a stub.
    pub(in crate::symbolize) fn stub_name(&mut self, pc: Avma, name_at: Avma) -> Arc<str> {
        if let Some(name) = self.hotspot.stub_name(&self.stubs, pc) {
            return name;
        }
        let memory = self.hotspot.memory;
        let name = self.names.entry(name_at).or_insert_with(|| {
            memory.read_c_string(name_at, 64).map_or_else(|| "unknown JVM stub".into(), Into::into)
        });
        Arc::clone(name)
    }
}

/// Makes the mapping of Java frames.
fn code_mapping(jvm: &Jvm) -> Mapping {
    Mapping {
        start: Avma(jvm.code_start),
        limit: Avma(jvm.code_end),
        offset: FileOffset(0),
        path: "jvm".into(),
        build_id: None,
    }
}

/// Returns the range of the interpreter's code.
fn interpreter(jvm: &Jvm) -> Range<Avma> {
    Avma(jvm.interpreter_start)..Avma(jvm.interpreter_end)
}

fn is_same_nmethod(one: &UserFrame, other: &UserFrame) -> bool {
    let nmethod = |frame: &UserFrame| match *frame {
        UserFrame::Compiled { blob, compile_id, is_osr, .. } => Some((blob, compile_id, is_osr)),
        _ => None,
    };
    nmethod(one).is_some() && nmethod(one) == nmethod(other)
}

/// Returns a Java frame as HotSpot's names are asked for; `None` for native code and stubs.
fn physical_frame(frame: &UserFrame, jvm: &Jvm) -> Option<PhysicalFrame> {
    match *frame {
        UserFrame::Compiled { pc, exact: _, blob, compile_id, is_osr } => {
            Some(PhysicalFrame::Compiled { pc: Avma(pc), blob: Avma(blob), compile_id, osr: is_osr })
        }
        UserFrame::Interpreted { method, exact, bcp, pc, check } => Some(PhysicalFrame::Interpreted {
            method: Avma(method),
            check,
            bcp_offset: bcp,
            codelet_pc: Some(Avma(jvm.interpreter_start + u64::from(pc))),
            leaf: exact,
        }),
        UserFrame::Native { .. } | UserFrame::Stub { .. } => None,
    }
}
