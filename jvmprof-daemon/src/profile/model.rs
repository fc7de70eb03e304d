//! The symbolized profile that every output format and every sink is made from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::event_type::{EventType, SampleNumber, SamplesByEvent};
use crate::types::{Avma, BuildId, FileOffset};

/// The kind of code that a frame ran; decides its colour in flame graphs and its mapping in pprof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameKind {
    /// The kernel or one of its modules.
    Kernel,
    /// Code of an ELF file.
    Native,
    /// Code that a runtime generated, named by its perf map (or not named).
    Jit,
    /// Java code, wherever its name came from.
    Java,
    /// Code that HotSpot generated for itself: its stubs.
    Stub,
    /// Not code: the class of an object.
    Class,
    /// Not code: `[truncated: reason]` and its like.
    Marker,
}

/// A mapped file (or `[kernel.kallsyms]`, `jvm`, `[vdso]`) as pprof's `Mapping` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    pub start: Avma,
    /// First address behind the mapping.
    pub limit: Avma,
    pub offset: FileOffset,
    /// The path as the process saw it, or a name in brackets.
    pub path: Arc<str>,
    pub build_id: Option<BuildId>,
}

impl Mapping {
    /// Returns true if the file is a JVM's, by its name.
    pub fn is_libjvm(&self) -> bool {
        self.path.rsplit('/').next() == Some("libjvm.so")
    }
}

/// The way in which a Java method ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExecutionMode {
    Interpreted,
    C1,
    /// C2, or Graal in its place.
    C2,
    /// Compiled into its caller.
    Inlined,
    /// A native method: the JVM's way into it.
    Native,
}

impl ExecutionMode {
    /// Returns the suffix that `--java-frame-types` appends to the method's name. `_[0]`, `_[1]`,
    /// `_[j]` and `_[i]` are those of async-profiler's `ann` option.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Interpreted => "_[0]",
            Self::C1 => "_[1]",
            Self::C2 => "_[j]",
            Self::Inlined => "_[i]",
            Self::Native => "_[n]",
        }
    }

    /// Splits a name as `--java-frame-types` writes it into the method's name and the mode. No
    /// method's own name has brackets.
    pub fn split_suffix(name: &str) -> (&str, Option<Self>) {
        let all = [Self::Interpreted, Self::C1, Self::C2, Self::Inlined, Self::Native];
        let found = all.into_iter().find_map(|mode| Some((name.strip_suffix(mode.suffix())?, mode)));
        found.map_or((name, None), |(name, mode)| (name, Some(mode)))
    }
}

/// One function at one place of its source. Several of them in one frame are inlined calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// For people: demangled, Java as `com.acme.Order.total`.
    pub name: Arc<str>,
    /// As the runtime or linker calls it: mangled, Java with signature. Equal to `name` if there is
    /// only one.
    pub system_name: Arc<str>,
    pub file: Option<Arc<str>>,
    /// 1-based; 0 if unknown.
    pub line: u32,
    /// Index of the bytecode in a Java method whose class file has no line for it.
    pub bci: Option<u16>,
    /// `None` for what isn't a Java method, or where it isn't known.
    pub mode: Option<ExecutionMode>,
}

impl Line {
    /// Makes a line of which nothing but its name is known.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        Self { system_name: Arc::clone(&name), name, file: None, line: 0, bci: None, mode: None }
    }
}

/// One physical frame: pprof's `Location`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub kind: FrameKind,
    /// The address that was looked up (return addresses already adjusted to the call); `None` for
    /// markers.
    pub address: Option<Avma>,
    pub mapping: Option<Arc<Mapping>>,
    /// Innermost first. Empty means: not symbolized here on purpose, a server may do it.
    pub lines: Vec<Line>,
}

/// A label of a sample, beside those of its series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SampleLabel {
    pub name: Arc<str>,
    pub value: Arc<str>,
}

/// The labels of a sample, beside those of its series: they are in the profile, and make no series.
#[derive(Clone, Debug, Default)]
pub struct SampleLabels(Option<Arc<[SampleLabel]>>);

impl SampleLabels {
    pub fn new(labels: impl Into<Arc<[SampleLabel]>>) -> Self {
        Self(Some(labels.into()).filter(|labels: &Arc<[SampleLabel]>| !labels.is_empty()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &SampleLabel> {
        self.0.iter().flat_map(|labels| labels.iter())
    }

    /// Returns a number that is the same for clones of the same labels only.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ref().map_or(0, |labels| Arc::as_ptr(labels).addr())
    }
}

/// A stack, and what was measured of it. Leaf first; a stack that isn't whole ends in a marker
/// frame.
#[derive(Clone, Debug)]
pub struct Sample {
    pub frames: Arc<[Arc<Frame>]>,
    pub labels: SampleLabels,
    /// Number of events that were sampled.
    pub events: u64,
    /// What they stand for: the same number for CPU time, objects for allocation.
    pub count: u64,
    /// The sum of their values, in the unit of the batch's event: nanoseconds of CPU time, bytes of
    /// objects.
    pub value: u64,
    /// When the events were, as far as that is kept, in milliseconds since the batch's start: below
    /// zero for one that was taken before and came late.
    pub times: Vec<i32>,
}

impl Sample {
    /// Returns one of the sample's numbers.
    pub fn number(&self, of: SampleNumber) -> u64 {
        match of {
            SampleNumber::Count => self.count,
            SampleNumber::Value => self.value,
        }
    }

    /// A stack with events that stand for themselves alone.
    pub fn of_events(frames: Arc<[Arc<Frame>]>, events: u64, value: u64) -> Self {
        let labels = SampleLabels::default();
        Self { frames, labels, events, count: events, value, times: Vec::new() }
    }
}

/// Names of labels that several parts of the program know.
pub mod label_names {
    /// A JVM's main class, where its arguments were read.
    pub const MAIN_CLASS: &str = "jvm_main_class";
    pub const THREAD_NAME: &str = "thread_name";
    pub const THREAD_ID: &str = "thread_id";
    /// The ids of the span that a sample's thread worked on, in hexadecimal digits, as Pyroscope's
    /// pages know them.
    pub const TRACE_ID: &str = "trace_id";
    pub const SPAN_ID: &str = "span_id";
}

/// Label names and values of a series, without `__name__`.
pub type LabelSet = BTreeMap<String, String>;

/// Labels that say which program a series is of, the best first.
const PROGRAM_LABELS: [&str; 3] = [label_names::MAIN_CLASS, "comm", "executable"];

/// The name of a group of series whose program isn't known.
pub const NO_PROGRAM: &str = "(no program)";

/// Returns the program that a series is of: the main class, or else the command.
pub fn program_name(labels: &LabelSet) -> Option<&str> {
    let values = PROGRAM_LABELS.iter().filter_map(|label| labels.get(*label));
    values.map(String::as_str).find(|value| !value.is_empty())
}

/// Returns the process that a series is of: `com.acme.Shop (4711)`.
pub fn process_name(labels: &LabelSet) -> Option<String> {
    match (program_name(labels), labels.get("pid")) {
        (Some(program), Some(pid)) => Some(format!("{program} ({pid})")),
        (Some(name), None) => Some(name.to_owned()),
        (None, pid) => pid.cloned(),
    }
}

/// The samples of one label set.
#[derive(Clone, Debug)]
pub struct Series {
    pub labels: LabelSet,
    pub samples: Vec<Sample>,
}

impl Series {
    /// Number of sampled events.
    pub fn events(&self) -> u64 {
        self.samples.iter().map(|sample| sample.events).sum()
    }
}

/// All series of one event in one aggregation window.
#[derive(Clone, Debug)]
pub struct Batch {
    pub event: EventType,
    pub start: SystemTime,
    pub duration: Duration,
    /// The value that one event stands for: 1e9 / Hz nanoseconds of CPU time, the mean distance of
    /// allocations in bytes.
    pub period: u64,
    pub series: Vec<Series>,
}

impl Batch {
    /// Returns what pictures show of a sample: samples of CPU time, bytes of allocation.
    pub fn shown(&self, sample: &Sample) -> u64 {
        sample.number(self.event.shown_number())
    }

    /// Number of sampled events in all series.
    pub fn samples(&self) -> u64 {
        self.series.iter().map(Series::events).sum()
    }

    /// The same, as samples of the batch's event.
    pub fn samples_by_event(&self) -> SamplesByEvent {
        SamplesByEvent::of(self.event, self.samples())
    }
}
