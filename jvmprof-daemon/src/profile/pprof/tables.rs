//! A foreign pprof profile whose references have all been checked.

use std::collections::HashMap;

use super::merge::MergeError;
use crate::proto::pprof::{Function, Location, Mapping, Profile};

/// Looks entries up by id; ids needn't be in table order, as pprof allows.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) profile: &'a Profile,
    mappings: HashMap<u64, &'a Mapping>,
    functions: HashMap<u64, &'a Function>,
    locations: HashMap<u64, &'a Location>,
}

impl<'a> Source<'a> {
    /// Checks every id and every index of a string that merging follows.
    pub(super) fn new(profile: &'a Profile) -> Result<Self, MergeError> {
        let source = Self {
            profile,
            mappings: profile.mapping.iter().map(|mapping| (mapping.id, mapping)).collect(),
            functions: profile.function.iter().map(|function| (function.id, function)).collect(),
            locations: profile.location.iter().map(|location| (location.id, location)).collect(),
        };
        source.check_types()?;
        source.check_tables()?;
        source.check_samples()?;
        Ok(source)
    }

    /// The text at this index of the string table; `""` for none.
    pub(super) fn text(&self, index: i64) -> &'a str {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.profile.string_table.get(index))
            .map_or("", String::as_str)
    }

    pub(super) fn mapping(&self, id: u64) -> Option<&'a Mapping> {
        self.mappings.get(&id).copied()
    }

    pub(super) fn function(&self, id: u64) -> Option<&'a Function> {
        self.functions.get(&id).copied()
    }

    pub(super) fn location(&self, id: u64) -> Option<&'a Location> {
        self.locations.get(&id).copied()
    }

    fn string(&self, what: &'static str, index: i64) -> Result<(), MergeError> {
        let fits = usize::try_from(index).is_ok_and(|at| at == 0 || at < self.profile.string_table.len());
        if fits { Ok(()) } else { Err(MergeError::Dangling { what, id: index.into() }) }
    }

    fn check_types(&self) -> Result<(), MergeError> {
        // Random bytes often parse as an empty profile.
        if self.profile.sample_type.is_empty() {
            return Err(MergeError::NoTypes);
        }
        for value in self.profile.sample_type.iter().chain(&self.profile.period_type) {
            self.string("type string", value.r#type)?;
            self.string("unit string", value.unit)?;
        }
        self.string("default sample type string", self.profile.default_sample_type)
    }

    fn check_tables(&self) -> Result<(), MergeError> {
        for mapping in &self.profile.mapping {
            self.string("file name string", mapping.filename)?;
            self.string("build id string", mapping.build_id)?;
        }
        for function in &self.profile.function {
            self.string("function name string", function.name)?;
            self.string("system name string", function.system_name)?;
            self.string("file name string", function.filename)?;
        }
        for location in &self.profile.location {
            found("mapping", location.mapping_id, &self.mappings, Zero::MeansNone)?;
            for line in &location.line {
                found("function", line.function_id, &self.functions, Zero::MeansNone)?;
            }
        }
        Ok(())
    }

    fn check_samples(&self) -> Result<(), MergeError> {
        let types = self.profile.sample_type.len();
        for sample in &self.profile.sample {
            let values = sample.value.len();
            if values != types {
                return Err(MergeError::Values { values, types });
            }
            for id in &sample.location_id {
                found("location", *id, &self.locations, Zero::IsAnError)?;
            }
            for label in &sample.label {
                self.string("label string", label.key)?;
                self.string("label string", label.str)?;
                self.string("label string", label.num_unit)?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    MeansNone,
    IsAnError,
}

fn found<T>(what: &'static str, id: u64, table: &HashMap<u64, T>, zero: Zero) -> Result<(), MergeError> {
    let is_none = id == 0 && zero == Zero::MeansNone;
    if is_none || (id != 0 && table.contains_key(&id)) {
        return Ok(());
    }
    Err(MergeError::Dangling { what, id: id.into() })
}
