//! The title of a recording on its page and in its pictures.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::app::pipeline_options::node_name;
use crate::profile::model::{Batch, LabelSet, label_names};
use crate::profile::recording_page::RecordingTitle;

/// Processes that a title names; of more it says how many.
const NAMED: usize = 5;

/// Returns the title of a recording of a command, of processes, or of the whole host.
pub(super) fn recording_title(command: &[OsString], pids: &[u32], batches: &[Batch]) -> RecordingTitle {
    let host = node_name();
    if !command.is_empty() {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        return RecordingTitle { title: words.join(" "), host };
    }
    if pids.is_empty() {
        return RecordingTitle { title: host, host: String::new() };
    }
    let mut names: Vec<_> = pids.iter().take(NAMED).map(|pid| process_name(*pid, batches)).collect();
    if pids.len() > NAMED {
        names.push(format!("{} more", pids.len() - NAMED));
    }
    RecordingTitle { title: names.join(", "), host }
}

/// Returns what is known of a process by its samples: `com.acme.Shop (4711)`, by its main class or
/// its name.
fn process_name(pid: u32, batches: &[Batch]) -> String {
    let series = batches.iter().flat_map(|batch| &batch.series).map(|series| &series.labels);
    let is_its = |labels: &&LabelSet| labels.get("pid").is_some_and(|of| *of == pid.to_string());
    let labels: Vec<_> = series.filter(is_its).collect();
    let values = |name: &str| -> BTreeSet<&str> {
        labels.iter().filter_map(|labels| labels.get(name)).map(String::as_str).collect()
    };
    let names = [values(label_names::MAIN_CLASS), values("comm")];
    match names.iter().find_map(|names| names.first()) {
        Some(name) => format!("{name} ({pid})"),
        None => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::testing::{batch, series};

    #[test]
    fn a_jvm_is_called_by_its_main_class_and_others_by_their_names() {
        let batch = batch(vec![
            series(&[("pid", "7"), ("comm", "java")], vec![]),
            series(&[("pid", "7"), ("comm", "java"), ("jvm_main_class", "com.acme.Shop")], vec![]),
            series(&[("pid", "8"), ("comm", "postgres")], vec![]),
        ]);
        let title = |pids: &[u32]| recording_title(&[], pids, std::slice::from_ref(&batch)).title;
        assert_eq!(title(&[7, 8]), "com.acme.Shop (7), postgres (8)");
        assert_eq!(title(&[9]), "process 9");
        assert_eq!(title(&[7, 7, 7, 7, 7, 7, 7]).rsplit(", ").next(), Some("2 more"));
    }

    #[test]
    fn the_host_is_named_once() {
        let command = ["make".into(), "-j8".into()];
        let title = recording_title(&command, &[], &[]);
        assert_eq!((title.title.as_str(), title.host), ("make -j8", node_name()));
        let title = recording_title(&[], &[], &[]);
        assert_eq!((title.title, title.host.as_str()), (node_name(), ""));
    }
}
