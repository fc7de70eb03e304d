//! Threads apart (`--threads`): a frame at the root of each stack, and the summary's list.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::own_process::stderr_line;
use crate::pipeline::labels::ThreadLabel;
use crate::profile::model::label_names::{THREAD_ID, THREAD_NAME};
use crate::profile::model::{Batch, Frame, FrameKind, LabelSet, Line, Sample, Series};

/// The labels that distinguish threads.
pub(in crate::app::record) const THREAD_LABELS: [ThreadLabel; 2] =
    [ThreadLabel::ThreadName, ThreadLabel::ThreadId];
pub(in crate::app::record) const PID: &str = "pid";
/// The row of what no thread was found for, such as objects that the JVM itself allocates.
const UNKNOWN_THREAD: &str = "[unknown thread]";
/// Threads that are printed; the rest is in the JSON.
const PRINTED: usize = 10;

/// The share of a thread in one event. Names of the fields are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::app::record) struct ThreadShare {
    pub(in crate::app::record) pid: Option<u32>,
    pub(in crate::app::record) tid: u32,
    pub(in crate::app::record) name: String,
    /// Samples of CPU time, bytes of allocation, nanoseconds of other events.
    pub(in crate::app::record) value: u64,
}

impl ThreadShare {
    /// Returns the threads of a profile whose samples have [`THREAD_LABELS`], the one with the most
    /// first.
    pub(in crate::app::record) fn of_batch(batch: &Batch) -> Vec<Self> {
        let mut threads = BTreeMap::<(Option<u32>, u32), Self>::new();
        for series in &batch.series {
            let Some((name, tid)) = thread_of(&series.labels) else { continue };
            let pid = series.labels.get(PID).and_then(|pid| pid.parse().ok());
            let value = series.samples.iter().fold(0, |sum: u64, it| sum.saturating_add(batch.shown(it)));
            let thread = Self { pid, tid, name: name.to_owned(), value: 0 };
            let thread = threads.entry((pid, tid)).or_insert(thread);
            thread.value = thread.value.saturating_add(value);
        }
        let mut threads: Vec<Self> = threads.into_values().collect();
        threads.sort_by_key(|thread| Reverse(thread.value));
        threads
    }

    /// Prints the first threads.
    pub(in crate::app::record) fn print(threads: &[Self]) {
        Self::lines(threads).iter().for_each(|line| stderr_line!("{line}"));
    }

    /// Returns a heading and a line for each of the first threads.
    fn lines(threads: &[Self]) -> Vec<String> {
        let sum = threads.iter().fold(0, |sum: u64, thread| sum.saturating_add(thread.value)).max(1);
        let line = |thread: &Self| {
            format!("{:>6.2} %  {}", thread.value as f64 * 100.0 / sum as f64, thread.title())
        };
        let heading = (!threads.is_empty()).then(|| "   share  thread (id of process)".to_owned());
        let more = threads.len().checked_sub(PRINTED + 1);
        let more = more.map(|more| format!("          and {} more", more + 1));
        heading.into_iter().chain(threads.iter().take(PRINTED).map(line)).chain(more).collect()
    }

    /// `worker-1 (4711 of 4700)`
    fn title(&self) -> String {
        let of_process = self.pid.map_or_else(String::new, |pid| format!(" of {pid}"));
        match (&*self.name, self.tid) {
            ("", 0) => format!("{UNKNOWN_THREAD} (?{of_process})"),
            ("", tid) => format!("[no name] ({tid}{of_process})"),
            (name, tid) => format!("{name} ({tid}{of_process})"),
        }
    }
}

/// Returns the batch with a frame of its thread at the root of each stack, named as
/// async-profiler does: `[worker-1 tid=4711]`.
pub(in crate::app::record) fn with_thread_frames(batch: &Batch) -> Batch {
    let series = batch.series.iter().map(|series| {
        let Some((name, tid)) = thread_of(&series.labels) else { return series.clone() };
        let named = match (name, tid) {
            ("", 0) => UNKNOWN_THREAD.to_owned(),
            (name, tid) => format!("[{name} tid={tid}]"),
        };
        let lines = vec![Line::named(named)];
        let root = Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines });
        let below_root = |sample: &Sample| {
            let frames = sample.frames.iter().chain([&root]).cloned().collect();
            Sample { frames, ..sample.clone() }
        };
        Series { labels: series.labels.clone(), samples: series.samples.iter().map(below_root).collect() }
    });
    let Batch { event, start, duration, period, .. } = *batch;
    Batch { event, start, duration, period, series: series.collect() }
}

/// Returns the name and the id of a series' thread.
fn thread_of(labels: &LabelSet) -> Option<(&str, u32)> {
    let tid = labels.get(THREAD_ID)?.parse().ok()?;
    Some((labels.get(THREAD_NAME).map_or("", String::as_str), tid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::folded_stacks::{Annotation, lines};
    use crate::profile::testing::{batch, frame, series};

    fn two_threads() -> Batch {
        let stack =
            || vec![frame(FrameKind::Java, "com.acme.Order.total"), frame(FrameKind::Native, "start")];
        let labels = |name, tid| [(PID, "7"), (THREAD_NAME, name), (THREAD_ID, tid)];
        batch(vec![
            series(&labels("worker-1", "8"), vec![(stack(), 2)]),
            series(&labels("worker-2", "9"), vec![(stack(), 3)]),
            // The thread has got another name.
            series(&labels("renamed", "8"), vec![(stack(), 4)]),
            series(&[(PID, "1")], vec![(stack(), 5)]),
        ])
    }

    #[test]
    fn stacks_begin_with_their_thread() {
        assert_eq!(
            lines(&with_thread_frames(&two_threads()), Annotation::Kernel),
            [
                "[renamed tid=8];start;com.acme.Order.total 4",
                "[worker-1 tid=8];start;com.acme.Order.total 2",
                "[worker-2 tid=9];start;com.acme.Order.total 3",
                "start;com.acme.Order.total 5",
            ]
        );
    }

    #[test]
    fn each_row_has_a_name() {
        let title =
            |name: &str, tid| ThreadShare { pid: Some(7), tid, name: name.to_owned(), value: 1 }.title();
        assert_eq!(title("worker-1", 8), "worker-1 (8 of 7)");
        assert_eq!(title("", 8), "[no name] (8 of 7)");
        assert_eq!(title("", 0), "[unknown thread] (? of 7)");
    }

    #[test]
    fn threads_are_listed_by_what_they_did() {
        let threads = ThreadShare::of_batch(&two_threads());
        let listed: Vec<_> = threads.iter().map(|thread| (thread.title(), thread.value)).collect();
        assert_eq!(listed, [("worker-1 (8 of 7)".to_owned(), 6), ("worker-2 (9 of 7)".to_owned(), 3)]);
    }

    #[test]
    fn the_list_has_a_heading_and_says_what_is_left_out() {
        let thread = |tid| ThreadShare { pid: Some(7), tid, name: "worker".to_owned(), value: 1 };
        let lines = |threads: u32| ThreadShare::lines(&(0..threads).map(thread).collect::<Vec<_>>());
        assert_eq!(lines(0), [""; 0]);
        assert_eq!(
            lines(2),
            ["   share  thread (id of process)", " 50.00 %  worker (0 of 7)", " 50.00 %  worker (1 of 7)"]
        );
        assert_eq!(
            (lines(10).len(), lines(12).last().map(String::as_str)),
            (11, Some("          and 2 more"))
        );
    }
}
