//! Stacks of a decoded pprof profile as paths of a tree.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{CallStep, NodeKind, TreeBuilder, java_name, kind_of, unnamed_frame};
use crate::profile::jvm_activity::{JvmThread, SampledActivity, THREAD_KIND_LABEL, is_jvm};
use crate::profile::model::LabelSet;
use crate::profile::pprof::line_column::JavaLineDetails;
use crate::profile::pprof::sample_times::TimesInRange;
use crate::profile::pprof::{CheckedTables, InvalidProfile};
use crate::proto::pprof::{Location, Profile, Sample};

/// The series that a profile is of, and what is counted of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PprofSeries<'a> {
    /// The name of a node that stands above its stacks.
    pub group: Option<&'a str>,
    /// True if a node of its own stands above the stacks of each kind of thread.
    pub by_thread_kind: bool,
    /// The labels of the series, if the profile has one of its own.
    pub labels: Option<&'a LabelSet>,
    /// The type of the value that is counted; else `samples`, or the first one.
    pub sample_type: Option<&'a str>,
    /// When its samples were taken, if that is kept beside the tree.
    pub times: Option<&'a TimesInRange>,
}

/// The group of stacks of which the kind of thread isn't known.
const NO_THREAD_KIND: &str = "(no thread_kind)";

/// Returns the kind of code that a mapping holds, by the names that `profile/pprof/encode.rs`
/// writes.
fn kind_of_mapping(file: &str) -> NodeKind {
    match file {
        "jvm" => NodeKind::Java,
        "[jit]" => NodeKind::Jit,
        "[class]" => NodeKind::Class,
        "[kernel.kallsyms]" => NodeKind::Kernel,
        _ => NodeKind::Native,
    }
}

impl TreeBuilder {
    /// Counts every stack of the profile, as `series` says.
    ///
    /// # Errors
    /// The profile's parts don't fit together; nothing of it was counted.
    pub fn add_pprof(&mut self, profile: &Profile, series: &PprofSeries<'_>) -> Result<(), InvalidProfile> {
        self.each_pprof_path(profile, series, |builder, path, count, sampled_in, at| {
            let end = builder.add_in(path, count, sampled_in);
            if let (Some(node), Some(times)) = (end, series.times) {
                let line = builder.attributed_line(path);
                builder.times.add((node, line, sampled_in), times.of(at), count);
            }
        })
    }

    /// Returns the samples of the profile by what they were taken in, if the builder counts that.
    /// Its stacks aren't added to the tree.
    ///
    /// # Errors
    /// The profile's parts don't fit together.
    pub fn sampled_in_of(
        &mut self,
        profile: &Profile,
        series: &PprofSeries<'_>,
    ) -> Result<BTreeMap<SampledActivity, u64>, InvalidProfile> {
        let mut samples = BTreeMap::new();
        self.each_pprof_path(profile, series, |_, _, count, sampled_in, _| {
            if let Some(sampled_in) = sampled_in.filter(|_| count > 0) {
                *samples.entry(sampled_in).or_default() += count;
            }
        })?;
        Ok(samples)
    }

    /// Hands the path of each stack of the profile to `take`, how often it was seen, what it was
    /// taken in, and its position among the profile's samples.
    fn each_pprof_path(
        &mut self,
        profile: &Profile,
        series: &PprofSeries<'_>,
        mut take: impl FnMut(&mut Self, &[CallStep], u64, Option<SampledActivity>, usize),
    ) -> Result<(), InvalidProfile> {
        let tables = CheckedTables::new(profile)?;
        let position =
            |name: &str| profile.sample_type.iter().position(|value| tables.text(value.r#type) == name);
        let value = series.sample_type.and_then(position).or_else(|| position("samples")).unwrap_or(0);
        let group = series.group.map(|name| self.label(name));
        let own_kind = series.labels.and_then(|labels| labels.get(THREAD_KIND_LABEL)).map(String::as_str);
        let kind = |sample: &Sample| {
            let label = sample.label.iter().find(|label| tables.text(label.key) == THREAD_KIND_LABEL);
            label.map(|label| tables.text(label.str)).or(own_kind)
        };
        let has_kinds = || profile.sample.iter().any(|sample| kind(sample).is_some());
        let is_jvm = series.labels.is_some_and(is_jvm) || has_kinds();
        // The steps of each location, outermost call first, and where they are by its position.
        let (mut steps, mut ranges) = (Vec::new(), Vec::<Range<usize>>::new());
        for location in &profile.location {
            let start = steps.len();
            self.location_steps(&tables, location, &mut steps);
            ranges.push(start..steps.len());
        }
        let mut path = Vec::new();
        for (position, sample) in profile.sample.iter().enumerate() {
            let count = sample.value.get(value).and_then(|&count| u64::try_from(count).ok()).unwrap_or(0);
            let kind = kind(sample);
            path.clear();
            path.extend(group);
            if series.by_thread_kind {
                path.push(self.label(kind.unwrap_or(NO_THREAD_KIND)));
            }
            let positions = sample.location_id.iter().rev().filter_map(|id| tables.location_position(*id));
            for range in positions.filter_map(|position| ranges.get(position)) {
                path.extend_from_slice(&steps[range.clone()]);
            }
            let sampled_in = self.sampled_in(&path, JvmThread::new(kind, is_jvm), 0);
            take(self, &path, count, sampled_in, position);
        }
        Ok(())
    }

    fn location_steps(&mut self, tables: &CheckedTables<'_>, location: &Location, steps: &mut Vec<CallStep>) {
        let module = tables.mapping(location.mapping_id).map_or("", |mapping| tables.text(mapping.filename));
        let mapped = kind_of_mapping(module);
        for line in location.line.iter().rev() {
            let function = tables.function(line.function_id);
            let (name, file) = function
                .map_or(("", ""), |function| (tables.text(function.name), tables.text(function.filename)));
            let kind = kind_of(mapped, name);
            let (name, mode) = java_name(kind, name, JavaLineDetails::from_column(line.column).mode);
            let function = self.function(kind, name, file, module);
            steps.push(CallStep { function, line: u32::try_from(line.line).unwrap_or(0), mode });
        }
        if location.line.is_empty() {
            let name = unnamed_frame(module, Some(location.address));
            let function = self.function(kind_of(mapped, &name), &name, "", module);
            steps.push(CallStep { function, line: 0, mode: None });
        }
    }
}
