//! Stacks of a decoded pprof profile as paths of a tree.

use std::ops::Range;

use super::{NodeKind, Step, TreeBuilder, nameless};
use crate::proto::pprof::{Location, Profile};

/// A profile whose tables don't fit together; nothing of it was counted.
#[derive(Debug, thiserror::Error)]
pub enum PprofTreeError {
    #[error("reading stacks of a pprof: {what} {id} isn't in its table")]
    Dangling { what: &'static str, id: i128 },
}

/// What kind of code a mapping holds, by the names that `profile/pprof/encode.rs` writes.
fn kind_of_mapping(file: &str) -> NodeKind {
    match file {
        "jvm" => NodeKind::Java,
        "[jit]" => NodeKind::Jit,
        "[kernel.kallsyms]" => NodeKind::Kernel,
        _ => NodeKind::Native,
    }
}

fn kind_of(mapping: NodeKind, function: &str) -> NodeKind {
    let is_marker = function.starts_with("[truncated") || function.starts_with("[unknown");
    if is_marker { NodeKind::Marker } else { mapping }
}

impl TreeBuilder {
    /// Counts every stack of the profile, below a node named `group` if there is one. Counted is
    /// the value of type `samples`, or the first one.
    ///
    /// # Errors
    /// An id or index that isn't in its table.
    pub fn add_pprof(&mut self, profile: &Profile, group: Option<&str>) -> Result<(), PprofTreeError> {
        let locations = Locations::read(self, profile)?;
        let value = sample_value(profile);
        let group = group.map(|name| self.label(name));
        // Nothing is counted before all of it is known to be sound.
        for id in profile.sample.iter().flat_map(|sample| &sample.location_id) {
            locations.steps(*id)?;
        }
        let mut path = Vec::new();
        for sample in &profile.sample {
            let count = sample.value.get(value).and_then(|&count| u64::try_from(count).ok()).unwrap_or(0);
            path.clear();
            path.extend(group);
            for id in sample.location_id.iter().rev() {
                path.extend_from_slice(locations.steps(*id)?);
            }
            self.add(&path, count);
        }
        Ok(())
    }
}

/// Which of a sample's values counts samples.
fn sample_value(profile: &Profile) -> usize {
    let is_samples = |r#type: i64| text(profile, r#type).is_ok_and(|name| name == "samples");
    profile.sample_type.iter().position(|value| is_samples(value.r#type)).unwrap_or(0)
}

fn text(profile: &Profile, index: i64) -> Result<&str, PprofTreeError> {
    let found = usize::try_from(index).ok().and_then(|index| profile.string_table.get(index));
    found.map(String::as_str).ok_or(PprofTreeError::Dangling { what: "string", id: index.into() })
}

/// An entry by its id. Ids are 1..N in table order, as Parca and our collector demand of what they
/// accept.
fn entry<'a, T>(
    table: &'a [T],
    id: u64,
    id_of: impl Fn(&T) -> u64,
    what: &'static str,
) -> Result<&'a T, PprofTreeError> {
    let place = usize::try_from(id).ok().and_then(|id| id.checked_sub(1));
    let found = place.and_then(|place| table.get(place)).filter(|entry| id_of(entry) == id);
    found.ok_or(PprofTreeError::Dangling { what, id: id.into() })
}

/// The steps of each location, outermost call first.
struct Locations {
    steps: Vec<Step>,
    /// Which of the steps are a location's, by its id minus one.
    ranges: Vec<Range<usize>>,
}

impl Locations {
    fn read(tree: &mut TreeBuilder, profile: &Profile) -> Result<Self, PprofTreeError> {
        let mut locations = Self { steps: Vec::new(), ranges: Vec::new() };
        for (place, location) in (1..).zip(&profile.location) {
            if location.id != place {
                return Err(PprofTreeError::Dangling { what: "location", id: location.id.into() });
            }
            let start = locations.steps.len();
            locations.read_one(tree, profile, location)?;
            locations.ranges.push(start..locations.steps.len());
        }
        Ok(locations)
    }

    fn read_one(
        &mut self,
        tree: &mut TreeBuilder,
        profile: &Profile,
        location: &Location,
    ) -> Result<(), PprofTreeError> {
        let mapping = match location.mapping_id {
            0 => None,
            id => Some(entry(&profile.mapping, id, |mapping| mapping.id, "mapping")?),
        };
        let file_of_mapping = mapping.map_or(Ok(""), |mapping| text(profile, mapping.filename))?;
        let mapped = kind_of_mapping(file_of_mapping);
        for line in location.line.iter().rev() {
            let function = entry(&profile.function, line.function_id, |function| function.id, "function")?;
            let name = text(profile, function.name)?;
            let file = text(profile, function.filename)?;
            let function = tree.function(kind_of(mapped, name), name, file, file_of_mapping);
            self.steps.push(Step { function, line: u32::try_from(line.line).unwrap_or(0), mode: None });
        }
        if location.line.is_empty() {
            let name = nameless(file_of_mapping, Some(location.address));
            let function = tree.function(kind_of(mapped, &name), &name, "", file_of_mapping);
            self.steps.push(Step { function, line: 0, mode: None });
        }
        Ok(())
    }

    fn steps(&self, id: u64) -> Result<&[Step], PprofTreeError> {
        let place = usize::try_from(id).ok().and_then(|id| id.checked_sub(1));
        let range = place.and_then(|place| self.ranges.get(place));
        let range = range.ok_or(PprofTreeError::Dangling { what: "location", id: id.into() })?;
        Ok(&self.steps[range.clone()])
    }
}
