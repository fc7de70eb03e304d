//! `record -o x.html`: one file with everything in it, that any browser opens without a network.
//!
//! Names come from the profiled processes and may be hostile. They are data in a JSON element,
//! which can't be left because every `<` in it is escaped; the scripts make text nodes of them; and
//! the page's Content-Security-Policy runs only scripts with the nonce of this very file and loads
//! nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::call_tree::{CallTree, PAGE_NODES, TreeBuilder};
use super::model::{Batch, LabelSet};
use super::page_assets::{RECORD_PAGE, RECORD_SCRIPT, STYLE, VIEW_SCRIPTS};
use crate::event_type::{EventType, SampleNumber, ShownUnit};

/// The reason why a flame graph couldn't be written.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    #[error("encoding the flame graph as JSON: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("writing the flame graph: {0}")]
    Write(#[from] io::Error),
}

/// What was recorded, and where. Any text.
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
struct Recorded<'a> {
    #[serde(flatten)]
    title: &'a RecordingTitle,
    start_ms: u64,
    duration_ns: u64,
    types: Vec<RecordedType>,
    trees: Vec<CallTree>,
}

/// What can be counted, and in which tree it is.
#[derive(Debug, Serialize)]
struct RecordedType {
    /// pprof's name of it.
    name: &'static str,
    unit: ShownUnit,
    /// What an event stands for.
    period_ns: u64,
    tree: usize,
}

/// Writes the batches, each of an event, as a page on which one chooses what is counted.
///
/// Where several processes were recorded, each has a node above its stacks.
///
/// # Errors
/// Those of `out`.
pub fn write_html(batches: &[Batch], title: &RecordingTitle, out: &mut impl Write) -> Result<(), HtmlError> {
    let (mut types, mut trees) = (Vec::new(), Vec::new());
    let has_several = has_several_processes(batches);
    for batch in batches {
        let mut add = |name, unit, number: Option<SampleNumber>| {
            trees.extend(number.map(|number| tree(batch, number, has_several)));
            // Each counted number stands for so many nanoseconds.
            let period_ns = if batch.event == EventType::OffCpu { 1 } else { batch.period };
            types.push(RecordedType { name, unit, period_ns, tree: trees.len() - 1 });
        };
        match batch.event {
            EventType::Cpu => {
                add("samples", ShownUnit::Samples, Some(SampleNumber::Count));
                add("cpu", ShownUnit::Nanoseconds, None);
            }
            EventType::Allocation => {
                add("alloc_space", ShownUnit::Bytes, Some(SampleNumber::Value));
                add("alloc_objects", ShownUnit::Objects, Some(SampleNumber::Count));
            }
            EventType::OffCpu => add("off_cpu", ShownUnit::Nanoseconds, Some(SampleNumber::Value)),
        }
    }
    let first = batches.first();
    let recorded = Recorded {
        title,
        start_ms: first.map_or(0, |batch| since_epoch_ms(batch.start)),
        duration_ns: first.map_or(0, |batch| u64::try_from(batch.duration.as_nanos()).unwrap_or(u64::MAX)),
        types,
        trees,
    };
    let data = escape_for_script(&serde_json::to_string(&recorded)?);
    let nonce = format!("{:032x}", rand::random::<u128>());
    fill(&nonce, &data, out)?;
    Ok(())
}

/// Returns what a process is called above its stacks.
fn process(labels: &LabelSet) -> Option<String> {
    let comm = labels.get("comm").or_else(|| labels.get("executable"));
    match (comm, labels.get("pid")) {
        (Some(comm), Some(pid)) => Some(format!("{comm} ({pid})")),
        (Some(name), None) | (None, Some(name)) => Some(name.clone()),
        (None, None) => None,
    }
}

fn has_several_processes(batches: &[Batch]) -> bool {
    let series = batches.iter().flat_map(|batch| &batch.series);
    series.map(|series| process(&series.labels)).collect::<BTreeSet<_>>().len() > 1
}

fn tree(batch: &Batch, number: SampleNumber, has_several: bool) -> CallTree {
    let mut builder = TreeBuilder::default();
    builder.add_batch(batch, number, |labels| if has_several { process(labels) } else { None });
    builder.finish(PAGE_NODES)
}

fn since_epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// JSON that can stand in a script element: `</script>` and `<!--` end or change it wherever they
/// stand. All four characters occur in JSON only inside strings, where an escape means the same.
fn escape_for_script(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len() + json.len() / 16);
    for character in json.chars() {
        match character {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Fills the template in one pass, so that a placeholder inside the data stays what it is.
fn fill(nonce: &str, data: &str, out: &mut impl Write) -> io::Result<()> {
    let mut rest = RECORD_PAGE.text;
    while let Some((before, placeholder, after)) = next_placeholder(rest) {
        out.write_all(before.as_bytes())?;
        match placeholder {
            "nonce" => out.write_all(nonce.as_bytes())?,
            "style" => out.write_all(STYLE.text.as_bytes())?,
            "data" => out.write_all(data.as_bytes())?,
            _ => write_scripts(nonce, out)?,
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

fn write_scripts(nonce: &str, out: &mut impl Write) -> io::Result<()> {
    for script in VIEW_SCRIPTS.iter().chain([&RECORD_SCRIPT]) {
        writeln!(out, "<script nonce=\"{nonce}\">\n{}\n</script>", script.text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::profile::model::{Frame, FrameKind, Line, Sample, Series};

    fn batch(names: &[&str], processes: &[(&str, &str)]) -> Batch {
        let frames: Vec<_> = names
            .iter()
            .map(|&name| {
                let lines = vec![Line::named(name)];
                Arc::new(Frame { kind: FrameKind::Native, address: None, mapping: None, lines })
            })
            .collect();
        let series = processes.iter().map(|(comm, pid)| Series {
            labels: [("comm", comm), ("pid", pid)].map(|(k, v)| (k.to_owned(), (*v).to_owned())).into(),
            samples: vec![Sample::of_events(frames.clone().into(), 3, 3 * 10_101_010)],
        });
        Batch {
            event: EventType::Cpu,
            start: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            duration: Duration::from_secs(10),
            period: 10_101_010,
            series: series.collect(),
        }
    }

    fn page(batch: &Batch, title: &str) -> String {
        let title = RecordingTitle { title: title.to_owned(), host: "worker-1".to_owned() };
        let mut out = Vec::new();
        write_html(std::slice::from_ref(batch), &title, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn data(page: &str) -> Value {
        let (_, rest) = page.split_once("id=\"profile\"").unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        let (json, _) = rest.split_once("</script>").unwrap();
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn hostile_names_stay_data() {
        let hostile = [
            "</script><script>alert(1)</script>",
            "<!--<script>",
            "{{scripts}}",
            "\u{2028}'\"\\&amp;",
            "]]>",
        ];
        let page = page(&batch(&hostile, &[("java", "1")]), "</title></script><img src=x onerror=alert(1)>");
        let scripts = VIEW_SCRIPTS.len() + 1;
        assert_eq!(page.matches("<script").count(), scripts + 1, "the scripts and the data");
        assert_eq!(page.matches("</script").count(), scripts + 1);
        assert!(!page.contains("<img") && !page.contains("<!--"));
        let data = data(&page);
        assert_eq!(data["title"], "</title></script><img src=x onerror=alert(1)>");
        for name in hostile {
            assert!(data["trees"][0]["strings"].as_array().unwrap().contains(&name.into()), "{name}");
        }
    }

    #[test]
    fn every_script_has_the_nonce_of_its_file() {
        let (one, two) = (page(&batch(&["main"], &[("a", "1")]), "t"), page(&batch(&["main"], &[]), "t"));
        let nonce = |page: &str| page.split_once("'nonce-").unwrap().1.split_once('\'').unwrap().0.to_owned();
        assert_ne!(nonce(&one), nonce(&two), "a known nonce would let injected scripts run");
        assert_eq!(
            one.matches("<script").count(),
            one.matches(&format!("nonce=\"{}\"", nonce(&one))).count()
        );
        assert!(!one.contains("{{nonce}}"));
    }

    #[test]
    fn several_processes_have_a_node_each_and_one_has_none() {
        let has = |page: &str, name: &str| {
            data(page)["trees"][0]["strings"].as_array().unwrap().contains(&Value::from(name))
        };
        let two = page(&batch(&["main"], &[("java", "1"), ("java", "2")]), "t");
        assert!(has(&two, "java (1)") && has(&two, "java (2)"));
        assert!(!has(&page(&batch(&["main"], &[("java", "1")]), "t"), "java (1)"));
    }

    #[test]
    fn a_page_of_two_events_has_what_each_counts() {
        let cpu = batch(&["main"], &[("java", "1"), ("java", "1")]);
        let mut allocation = batch(&["byte[]"], &[("java", "1")]);
        allocation.event = EventType::Allocation;
        let title = RecordingTitle { title: "java".to_owned(), host: String::new() };
        let mut out = Vec::new();
        write_html(&[cpu, allocation], &title, &mut out).unwrap();
        let data = data(&String::from_utf8(out).unwrap());
        let types: Vec<_> =
            data["types"].as_array().unwrap().iter().map(|of| (&of["name"], &of["unit"])).collect();
        let expected = [
            ("samples", "samples"),
            ("cpu", "nanoseconds"),
            ("alloc_space", "bytes"),
            ("alloc_objects", "objects"),
        ];
        let expected = expected.map(|(name, unit)| (Value::from(name), Value::from(unit)));
        assert!(types.iter().copied().eq(expected.iter().map(|(name, unit)| (name, unit))), "{types:?}");
        let total = |of: usize| &data["trees"][data["types"][of]["tree"].as_u64().unwrap() as usize]["total"];
        assert_eq!([total(0), total(1), total(2), total(3)], [6, 6, 30_303_030, 3]);
    }

    #[test]
    fn an_empty_batch_is_a_page_too() {
        let data = data(&page(&batch(&[], &[]), "nothing"));
        assert_eq!(data["trees"][0]["total"], 0);
        assert_eq!(data["start_ms"], 1_700_000_000_000_u64);
    }
}
