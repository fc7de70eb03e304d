//! Times of the samples of JVMs, by the kind of their thread: for the timeline of chosen kinds.
//!
//! Sums know what each of their profiles was taken in, but not by which kind of thread, so that
//! this is read from the profiles themselves.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use serde::Serialize;

use super::super::sample_timeline::TimelineBars;
use super::super::selection::Query;
use super::{ProfileReader, ReadError, ShownUnit, is_cpu_time};
use crate::profile::call_tree::{PprofSeries, TreeBuilder};
use crate::profile::jvm_activity::SampledActivity;

/// Samples over a time range, in the steps of the timeline of all.
#[derive(Debug, Default, Serialize)]
pub(in crate::export::collector) struct ThreadTimeline {
    rows: Vec<ThreadRow>,
    /// Profiles that couldn't be read: the answer lacks their samples.
    unreadable: usize,
}

/// Samples that were taken in the same, by the same kind of thread.
#[derive(Debug, Serialize)]
struct ThreadRow {
    /// Both as one number.
    number: SampledActivity,
    /// Samples in each step.
    samples: Vec<f64>,
}

impl ProfileReader {
    /// Reads when the samples of CPU time were taken and by which kind of thread. Of other numbers
    /// that isn't counted.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(in crate::export::collector) fn thread_timeline(
        &self,
        query: &Query,
    ) -> Result<ThreadTimeline, ReadError> {
        let range = query.selection.range;
        let series = query.selection.series(&self.store);
        let unit = ShownUnit::of_sample_type(query.sample_type.as_deref());
        if unit != ShownUnit::Samples || !is_cpu_time(&series) {
            return Ok(ThreadTimeline::default());
        }
        let labels: HashMap<_, _> = series.iter().map(|of| (of.fingerprint.as_str(), &of.labels)).collect();
        let mut builder = TreeBuilder::default();
        builder.count_activities();
        let mut rows: BTreeMap<SampledActivity, TimelineBars> = BTreeMap::new();
        let profiles = query.selection.profiles(&self.store);
        let (_, unreadable) = self.each(&profiles, Instant::now(), |reference, profile| {
            let of = PprofSeries {
                labels: labels.get(&*reference.fingerprint).copied(),
                sample_type: query.sample_type.as_deref(),
                ..PprofSeries::default()
            };
            let samples = builder.sampled_in_of(&profile, &of).map_err(|error| error.to_string())?;
            let start = reference.start.0.saturating_sub(range.start.0) as f64;
            for (sampled_in, count) in samples {
                let bars = rows.entry(sampled_in).or_insert_with(|| TimelineBars::new(range));
                bars.add(start, reference.duration.as_nanos() as f64, count as f64);
            }
            Ok::<(), String>(())
        })?;
        let rows = rows.into_iter().map(|(number, bars)| ThreadRow { number, samples: bars.samples });
        Ok(ThreadTimeline { rows: rows.collect(), unreadable })
    }
}
