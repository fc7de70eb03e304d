//! `record -o x.html`: one file with everything in it, that any browser opens without a network.
//!
//! Names come from the profiled processes and may be hostile. They are gzipped data in base64,
//! which can't leave its element; the scripts make text nodes of them; and the page's
//! Content-Security-Policy runs only scripts with the nonce of this very file and loads nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use serde::Serialize;

use super::call_tree::{CallTree, PAGE_NODES, Processes, SampleTimes, TreeBuilder};
use super::comparison::ComparedSide;
use super::gzip;
use super::model::{Batch, LabelSet, NO_PROGRAM, label_names, process_name, program_name};
use super::page_assets::{RECORD_LOADER, RECORD_PAGE, RECORD_SCRIPT, STYLE, VIEW_SCRIPTS};
use crate::event_type::{EventType, SampleNumber, ShownUnit};

/// The reason why a flame graph couldn't be written.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    #[error("encoding the flame graph as JSON: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("writing the flame graph: {0}")]
    Write(#[from] io::Error),
}

/// The title of a recording: what was recorded, and where. Any text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordingTitle {
    /// The command, or the main classes or programs of the processes.
    pub title: String,
    /// The host; empty if `title` is the host.
    pub host: String,
}

impl fmt::Display for RecordingTitle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)?;
        if self.host.is_empty() { Ok(()) } else { write!(f, " on {}", self.host) }
    }
}

/// The data of the page: trees and what is said beside them. The names in JSON are what the page's
/// `record.js` reads.
#[derive(Debug, Serialize)]
pub(super) struct RecordingPageData<'a> {
    #[serde(flatten)]
    pub(super) title: &'a RecordingTitle,
    /// What the nodes above stacks are, where there are any.
    pub(super) groups: StackGroups,
    /// The processes that stacks can be grouped by instead.
    #[serde(flatten)]
    pub(super) processes: Processes,
    pub(super) start_ms: u64,
    /// When what it is compared with was taken, if it is; 0 if that isn't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base_start_ms: Option<u64>,
    pub(super) duration_ns: u64,
    pub(super) types: Vec<RecordedType>,
    pub(super) trees: Vec<CallTree>,
    /// When the samples of each tree were taken; empty if that isn't known.
    pub(super) times: Vec<SampleTimes>,
    /// When JVMs stopped, if that was followed.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) pauses: &'a [PauseLane],
}

/// The pauses of one JVM. The names in JSON are what the pages' scripts read. Times are since the
/// start of what the page's timeline shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PauseLane {
    /// Main class or command, and process id.
    pub jvm: String,
    /// When the JVM began to be followed, and for how long it was.
    pub followed_from_ms: f64,
    pub followed_ms: f64,
    /// From when to when it was, where that is asked for and there are gaps between.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub followed_spans_ms: Vec<[f64; 2]>,
    /// Sums of all its pauses.
    pub pauses: u64,
    pub stopped_ms: f64,
    pub to_safepoint_ms: f64,
    /// Its pauses, as far as they are kept; none if the JVM's own sums are all that is known.
    pub marks: Vec<PauseMark>,
}

/// One pause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PauseMark {
    /// When the JVM began to stop its threads.
    pub begin_ms: f64,
    /// The time until all threads had stopped, and from then until they went on.
    pub to_safepoint_ms: f64,
    pub stopped_ms: f64,
    /// What the JVM stopped for.
    pub what: String,
}

/// A type of samples that can be counted, and its tree.
#[derive(Debug, Serialize)]
pub(super) struct RecordedType {
    /// pprof's name of it.
    pub(super) name: String,
    pub(super) unit: ShownUnit,
    /// What an event stands for.
    pub(super) period_ns: u64,
    pub(super) tree: usize,
    /// What the numbers of the base and of the tree are compared by, if there is a base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sides: Option<[ComparedSide; 2]>,
}

/// Nodes of each tree beside the first one: a page is to have less than a megabyte.
const NODES_BESIDE: usize = PAGE_NODES / 2;

/// The groups that have a node of their own above their stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StackGroups {
    /// Programs, where there are several: main classes of JVMs, or else commands.
    Programs,
    /// Threads, by the labels `thread_name` and `thread_id`.
    Threads,
}

/// Writes the batches, each of an event, as a page on which one chooses what is counted.
///
/// Where several programs were recorded, each has a node above its stacks; or else each thread, if
/// `groups` says so. `pauses`: those of JVMs, if they were followed.
///
/// # Errors
/// Those of `out`.
pub fn write_html(
    batches: &[Batch],
    pauses: &[PauseLane],
    groups: StackGroups,
    title: &RecordingTitle,
    out: &mut impl Write,
) -> Result<(), HtmlError> {
    let (mut types, mut trees, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let processes = Processes::of_batches(batches);
    let grouping = Grouping { groups, has_programs: has_several_programs(batches), processes: &processes };
    for batch in batches {
        for &(name, unit, number) in shown_types(batch.event) {
            if let Some(number) = number {
                let nodes = if trees.is_empty() { PAGE_NODES } else { NODES_BESIDE };
                let (tree, times_of_tree) = tree(batch, number, &grouping, nodes);
                // Bytes and times are shown with three digits, and objects are estimates.
                let is_rounded = number == SampleNumber::Value || batch.event == EventType::Allocation;
                trees.push(tree.packed(is_rounded));
                times.push(times_of_tree);
            }
            let (name, tree) = (name.to_owned(), trees.len() - 1);
            types.push(RecordedType { name, unit, period_ns: batch.period, tree, sides: None });
        }
    }
    let first = batches.first();
    let recorded = RecordingPageData {
        title,
        groups,
        processes,
        start_ms: first.map_or(0, |batch| since_epoch_ms(batch.start)),
        base_start_ms: None,
        duration_ns: first.map_or(0, |batch| u64::try_from(batch.duration.as_nanos()).unwrap_or(u64::MAX)),
        types,
        trees,
        times,
        pauses,
    };
    write_page(&recorded, out)
}

/// A type of an event's samples: its name, its unit, and the number that its tree is of; `None`:
/// the tree of the type before.
type ShownType = (&'static str, ShownUnit, Option<SampleNumber>);

/// Returns the types of an event's samples, in the order in which the page offers them.
const fn shown_types(event: EventType) -> &'static [ShownType] {
    use SampleNumber::{Count, Value};
    match event {
        EventType::Cpu => {
            &[("samples", ShownUnit::Samples, Some(Count)), ("cpu", ShownUnit::Nanoseconds, None)]
        }
        EventType::Allocation => &[
            ("alloc_space", ShownUnit::Bytes, Some(Value)),
            ("alloc_objects", ShownUnit::Objects, Some(Count)),
        ],
        EventType::OffCpu => &[("off_cpu", ShownUnit::WaitingTime, Some(Value))],
        EventType::Lock => &[
            ("delay", ShownUnit::LockTime, Some(Value)),
            ("contentions", ShownUnit::Contentions, Some(Count)),
        ],
        EventType::LockHolder => &[
            ("caused_delay", ShownUnit::LockTime, Some(Value)),
            ("caused_contentions", ShownUnit::Contentions, Some(Count)),
        ],
        EventType::Pause => {
            &[("pause", ShownUnit::PauseTime, Some(Value)), ("pauses", ShownUnit::Pauses, Some(Count))]
        }
        EventType::Wall => &[("wall", ShownUnit::WallTime, Some(Value))],
    }
}

/// Writes the page of this data.
pub(super) fn write_page(recorded: &RecordingPageData<'_>, out: &mut impl Write) -> Result<(), HtmlError> {
    let data = packed(&serde_json::to_vec(recorded)?)?;
    let nonce = format!("{:032x}", rand::random::<u128>());
    fill(&nonce, &data, out)?;
    Ok(())
}

fn has_several_programs(batches: &[Batch]) -> bool {
    let series = batches.iter().flat_map(|batch| &batch.series);
    series.map(|series| program_name(&series.labels)).collect::<BTreeSet<_>>().len() > 1
}

/// Returns what a thread is called above its stacks; `None` where series aren't of threads.
fn thread(labels: &LabelSet) -> Option<String> {
    let name = labels.get(label_names::THREAD_NAME).map_or("", String::as_str);
    labels.get(label_names::THREAD_ID).map(|tid| format!("{name} ({tid})"))
}

/// The grouping of stacks: the nodes above them.
struct Grouping<'a> {
    groups: StackGroups,
    has_programs: bool,
    processes: &'a Processes,
}

impl Grouping<'_> {
    /// Returns the name of the node above the stacks of a series, if they have one.
    fn group(&self, labels: &LabelSet) -> Option<String> {
        if self.groups == StackGroups::Programs {
            let program = program_name(labels).unwrap_or(NO_PROGRAM);
            return self.has_programs.then(|| program.to_owned());
        }
        let process = if self.processes.are_several() { process_name(labels) } else { None };
        match (process, thread(labels)) {
            (Some(process), Some(thread)) => Some(format!("{process}: {thread}")),
            (process, thread) => process.or(thread),
        }
    }
}

fn tree(
    batch: &Batch,
    number: SampleNumber,
    grouping: &Grouping<'_>,
    max_nodes: usize,
) -> (CallTree, SampleTimes) {
    let mut builder = TreeBuilder::default();
    if !matches!(batch.event, EventType::Allocation | EventType::Pause) {
        builder.count_activities();
    }
    builder.count_processes(grouping.processes);
    let group = |labels: &LabelSet| grouping.group(labels);
    builder.add_batch(batch, number, group);
    // Of wall-clock time only samples on the CPU have one: a part by these would have no waits, and
    // counts instead of nanoseconds.
    let times = match batch.event {
        EventType::Wall => SampleTimes::default(),
        _ => builder.sample_times(batch, group, max_nodes),
    };
    (builder.finish(max_nodes), times)
}

fn since_epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Fills the template in one pass.
fn fill(nonce: &str, data: &str, out: &mut impl Write) -> io::Result<()> {
    let mut rest = RECORD_PAGE.text;
    while let Some((before, placeholder, after)) = next_placeholder(rest) {
        out.write_all(before.as_bytes())?;
        match placeholder {
            "nonce" => out.write_all(nonce.as_bytes())?,
            "style" => out.write_all(STYLE.text.as_bytes())?,
            "data" => out.write_all(data.as_bytes())?,
            "loader" => out.write_all(RECORD_LOADER.text.as_bytes())?,
            _ => out.write_all(packed(scripts().as_bytes())?.as_bytes())?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("{{")?;
    let (placeholder, after) = rest.split_once("}}")?;
    Some((before, placeholder, after))
}

/// All scripts as one.
fn scripts() -> String {
    let scripts = VIEW_SCRIPTS.iter().chain([&RECORD_SCRIPT]);
    scripts.map(|script| script.text).collect::<Vec<_>>().join("\n;\n")
}

/// Gzip in base64, which the page's loader unpacks.
fn packed(bytes: &[u8]) -> io::Result<String> {
    Ok(base64::engine::general_purpose::STANDARD.encode(gzip::compress_well(bytes)?))
}

/// The data of a page.
#[cfg(test)]
pub(super) fn data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"profile\"").expect("the page has data");
    let (_, rest) = rest.split_once('>').expect("the element begins");
    let (packed, _) = rest.split_once("</script>").expect("the element ends");
    let packed = base64::engine::general_purpose::STANDARD.decode(packed).expect("it is base64");
    serde_json::from_slice(&gzip::decompress(&packed, 1 << 28).expect("it is gzip")).expect("it is JSON")
}

#[cfg(test)]
mod tests;
