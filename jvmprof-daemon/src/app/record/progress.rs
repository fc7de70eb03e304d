//! Progress of a recording on a terminal, and the methods that are hottest so far.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::own_process::one_line;
use crate::pipeline::Pipeline;
use crate::profile::model::{Frame, FrameKind};

/// Methods that are shown.
const METHODS: usize = 5;
/// Characters of a name that are shown: rows that wrap would be left behind on the screen.
const MAX_NAME: usize = 60;
/// Shortest time between two counts of all stacks, and the time that passes before the next one, by
/// the time that a count takes.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
const COUNT_SHARE: u32 = 100;

/// The progress on a terminal; nothing elsewhere.
pub(super) struct RecordingProgress(Option<TerminalProgress>);

struct TerminalProgress {
    bar: ProgressBar,
    /// False where the recorded command writes to the same terminal.
    has_methods: bool,
    methods: String,
    next_count: Instant,
}

impl RecordingProgress {
    pub(super) fn new(duration: Option<Duration>, has_methods: bool) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let (bar, template) = match duration {
            Some(duration) => (
                ProgressBar::new(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
                "{bar:30.cyan} {elapsed} {msg}",
            ),
            None => (ProgressBar::new_spinner(), "{spinner} {elapsed} {msg}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let methods = String::new();
        Self(Some(TerminalProgress {
            bar,
            has_methods,
            methods,
            next_count: Instant::now() + COUNT_INTERVAL,
        }))
    }

    pub(super) fn show(&mut self, elapsed: Duration, pipeline: &Pipeline) {
        let Some(TerminalProgress { bar, has_methods, methods, next_count }) = &mut self.0 else { return };
        let now = Instant::now();
        if *has_methods && now >= *next_count {
            *methods = rows(pipeline.cpu_stacks());
            *next_count = now + COUNT_INTERVAL.max(now.elapsed() * COUNT_SHARE);
        }
        bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        bar.set_message(format!("{} samples (Ctrl-C ends){methods}", pipeline.samples()));
    }

    pub(super) fn finish(&self) {
        if let Some(TerminalProgress { bar, .. }) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Returns a row for each of the hottest Java methods, or elsewhere of the functions of leaves:
/// time of the kernel and of native code counts for the Java method that called it.
fn rows<'a>(stacks: impl Iterator<Item = (&'a [Arc<Frame>], u64)>) -> String {
    let mut counts: HashMap<Arc<str>, u64> = HashMap::new();
    let mut all = 0;
    for (frames, count) in stacks {
        all += count;
        let java = frames.iter().find(|frame| frame.kind == FrameKind::Java);
        let leaf = || frames.iter().find(|frame| frame.kind != FrameKind::Marker);
        if let Some(line) = java.or_else(leaf).and_then(|frame| frame.lines.first()) {
            *counts.entry(Arc::clone(&line.name)).or_default() += count;
        }
    }
    let mut hottest: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    hottest.sort_unstable_by(|(a_name, a), (b_name, b)| b.cmp(a).then_with(|| a_name.cmp(b_name)));
    let mut text = String::new();
    for (name, count) in hottest.into_iter().take(METHODS) {
        let share = count as f64 * 100.0 / all as f64;
        let name: String = one_line(&name).chars().take(MAX_NAME).collect();
        let _ = write!(text, "\n{share:>7.1} %  {name}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::testing::frame;

    #[test]
    fn the_hottest_methods_have_what_they_call() {
        let copy = [frame(FrameKind::Native, "memcpy"), frame(FrameKind::Java, "acme.Order.copy")];
        let main = [frame(FrameKind::Java, "acme.Shop.main")];
        let other = [frame(FrameKind::Native, "write"), frame(FrameKind::Native, "\u{1b}[2J")];
        let cut = [frame(FrameKind::Marker, "[truncated: x]")];
        let stacks = [(&copy[..], 5), (&main[..], 2), (&other[..], 2), (&cut[..], 1)];
        let expected = "\n   50.0 %  acme.Order.copy\n   20.0 %  acme.Shop.main\n   20.0 %  write";
        assert_eq!(rows(stacks.into_iter()), expected);
        assert_eq!(rows(std::iter::empty()), "");
        let long = [frame(FrameKind::Java, &"\u{1b}x".repeat(100))];
        let row = rows(std::iter::once((&long[..], 1)));
        assert_eq!(row, format!("\n  100.0 %  {}", &"\\u{1b}x".repeat(MAX_NAME)[..MAX_NAME]));
    }
}
