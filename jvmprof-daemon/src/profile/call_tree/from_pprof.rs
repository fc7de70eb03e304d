//! Stacks of a decoded pprof profile as paths of a tree.

use std::ops::Range;

use super::{CallStep, NodeKind, TreeBuilder, java_name, kind_of, unnamed_frame};
use crate::profile::pprof::line_column::JavaLineDetails;
use crate::profile::pprof::{CheckedTables, InvalidProfile};
use crate::proto::pprof::{Location, Profile};

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
    /// Counts every stack of the profile, below a node named `group` if there is one. Counted is
    /// the value of type `sample_type`, or of type `samples`, or the first one.
    ///
    /// # Errors
    /// The profile's parts don't fit together; nothing of it was counted.
    pub fn add_pprof(
        &mut self,
        profile: &Profile,
        group: Option<&str>,
        sample_type: Option<&str>,
    ) -> Result<(), InvalidProfile> {
        let tables = CheckedTables::new(profile)?;
        let position =
            |name: &str| profile.sample_type.iter().position(|value| tables.text(value.r#type) == name);
        let value = sample_type.and_then(position).or_else(|| position("samples")).unwrap_or(0);
        let group = group.map(|name| self.label(name));
        // The steps of each location, outermost call first, and where they are by its position.
        let (mut steps, mut ranges) = (Vec::new(), Vec::<Range<usize>>::new());
        for location in &profile.location {
            let start = steps.len();
            self.location_steps(&tables, location, &mut steps);
            ranges.push(start..steps.len());
        }
        let mut path = Vec::new();
        for sample in &profile.sample {
            let count = sample.value.get(value).and_then(|&count| u64::try_from(count).ok()).unwrap_or(0);
            path.clear();
            path.extend(group);
            let positions = sample.location_id.iter().rev().filter_map(|id| tables.location_position(*id));
            for range in positions.filter_map(|position| ranges.get(position)) {
                path.extend_from_slice(&steps[range.clone()]);
            }
            self.add(&path, count);
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
