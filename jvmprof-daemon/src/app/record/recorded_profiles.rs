//! The profiles of a recording that has ended, as files and as a summary.

use std::path::PathBuf;
use std::time::Duration;

use super::output_files::OutputFile;
use super::recorded_events::RecordedEvents;
use super::recording_title::recording_title;
use super::summary::RecordingSummary;
use super::summary::java_frames::ShownBatches;
use super::summary::jvm_time::JvmTime;
use super::summary::pauses::{JvmPauseSummary, jvm_names};
use super::summary::threads::{ThreadShare, with_thread_frames};
use super::thread_kind_filter::ThreadKindFilter;
use super::wall_clock::ThreadSpans;
use crate::app::args::RecordArgs;
use crate::app::errors::with_causes;
use crate::own_process::stderr_line;
use crate::pipeline::{Counts, Pipeline};
use crate::profile::model::Batch;
use crate::profile::recording_page::{PauseLane, RecordingTitle, StackGroups};

/// The profiles of a recording, with what is said of its JVMs.
pub(super) struct RecordedProfiles {
    batches: Vec<Batch>,
    /// The same with the frames that tables and pictures show.
    shown: ShownBatches,
    /// The same as `shown` with each thread as the root of its stacks, where that was asked for.
    by_thread: Option<Vec<Batch>>,
    thread_kind_filter: Option<ThreadKindFilter>,
    title: RecordingTitle,
    counts: Counts,
    jvms: Vec<JvmTime>,
    /// The pauses of JVMs, where they were followed.
    pauses: Option<Vec<JvmPauseSummary>>,
    /// The pauses of all JVMs on the page's timeline.
    lanes: Vec<PauseLane>,
}

impl RecordedProfiles {
    /// Takes the profiles of a pipeline that has stopped. `spans`: the threads' times, if
    /// wall-clock time is recorded.
    pub(super) fn take(
        pipeline: &mut Pipeline,
        args: &RecordArgs,
        events: &RecordedEvents,
        targets: &[u32],
        spans: Option<&ThreadSpans>,
    ) -> Self {
        let (pauses, began_ns) = (pipeline.take_pauses(), pipeline.window_began_ns());
        let stops = pipeline.take_stops();
        let flushed = pipeline.flush();
        let counts = pipeline.counts();
        let mut batches = events.batches(flushed, spans);
        // What is said of whole JVMs is of all their threads.
        let pauses = pauses.map(|pauses| JvmPauseSummary::of_jvms(&pauses, &batches, began_ns));
        let names = jvm_names(&batches);
        let mut jvms = JvmTime::of_batches(&batches);
        JvmTime::add_stops(&mut jvms, &stops, &names);
        let mut lanes = pauses.as_deref().map(JvmPauseSummary::lanes).unwrap_or_default();
        lanes.extend(JvmTime::stop_lanes(&stops, &names));
        let title = recording_title(&args.command, targets, &batches);
        let thread_kind_filter = ThreadKindFilter::apply(&args.thread_kinds, &mut batches);
        let shown = ShownBatches::new(&batches, args.java);
        let by_thread = args.threads.then(|| shown.batches.iter().map(with_thread_frames).collect());
        Self { batches, shown, by_thread, thread_kind_filter, title, counts, jvms, pauses, lanes }
    }

    /// Writes the outputs: one that can't be written loses nothing of the others. Returns the paths
    /// of those that were written, and the last error.
    pub(super) fn write(&self, outputs: Vec<OutputFile>) -> (Vec<PathBuf>, Option<anyhow::Error>) {
        let (drawn, groups) = match &self.by_thread {
            Some(by_thread) => (by_thread, StackGroups::Threads),
            None => (&self.shown.batches, StackGroups::Programs),
        };
        let (mut written, mut failed) = (Vec::new(), None);
        for output in outputs {
            match output.write(&self.batches, drawn, &self.lanes, groups, &self.title) {
                Ok(path) => written.push(path),
                Err(error) => {
                    stderr_line!("jvmprof: {}", with_causes(error.as_ref()));
                    failed = Some(error);
                }
            }
        }
        (written, failed)
    }

    /// Returns the summary. `outputs`: the paths of the files that were written.
    pub(super) fn into_summary(
        self,
        pipeline: &Pipeline,
        outputs: Vec<PathBuf>,
        startup_cpu: Option<Duration>,
    ) -> RecordingSummary {
        let mut summary = RecordingSummary::new(
            &self.batches,
            &self.shown,
            &self.counts,
            pipeline,
            outputs,
            startup_cpu,
            self.thread_kind_filter,
        );
        summary.jvms = self.jvms;
        summary.threads = self.by_thread.is_some().then(|| ThreadShare::of_batch(&self.batches[0]));
        summary.pauses = self.pauses;
        summary
    }
}
