//! The tables of a pprof profile that somebody else wrote, with every reference checked once.
//!
//! Merging, the call tree and the collector's validation all follow references through
//! [`CheckedTables`], so that none of them reads an id or index that leads nowhere.

use std::collections::HashMap;

use super::strings::text_at;
use crate::proto::pprof::{Function, Location, Mapping, Profile};

/// A reason why a profile's parts don't fit together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidProfile {
    #[error("{what} of {table} {position} isn't in the string table: {index}")]
    String { table: &'static str, position: usize, what: &'static str, index: i64 },
    #[error("{table} {position} refers to {target} {id}, which isn't in its table")]
    Reference { table: &'static str, position: usize, target: &'static str, id: u64 },
    #[error("samples without a sample type")]
    NoSampleType,
    #[error("sample {position} has {values} values for {types} sample types")]
    Values { position: usize, values: usize, types: usize },
}

/// The entries of one table by their ids, which needn't be in table order, as pprof allows.
#[derive(Debug)]
struct ById<'a, T> {
    entries: &'a [T],
    /// `None` where ids are 1..N in table order, as nearly everywhere.
    positions: Option<HashMap<u64, usize>>,
}

impl<'a, T> ById<'a, T> {
    fn new(entries: &'a [T], id: impl Fn(&T) -> u64) -> Self {
        let is_in_order = entries.iter().zip(1..).all(|(entry, expected)| id(entry) == expected);
        let ids = || entries.iter().enumerate().map(|(position, entry)| (id(entry), position));
        // 0 stands for none.
        let positions = (!is_in_order).then(|| ids().filter(|(id, _)| *id != 0).collect());
        Self { entries, positions }
    }

    fn position(&self, id: u64) -> Option<usize> {
        match &self.positions {
            Some(positions) => positions.get(&id).copied(),
            None => usize::try_from(id).ok()?.checked_sub(1).filter(|at| *at < self.entries.len()),
        }
    }

    fn get(&self, id: u64) -> Option<&'a T> {
        self.entries.get(self.position(id)?)
    }
}

/// A profile whose ids and indices all lead to entries.
#[derive(Debug)]
pub struct CheckedTables<'a> {
    pub(in crate::profile) profile: &'a Profile,
    mappings: ById<'a, Mapping>,
    functions: ById<'a, Function>,
    locations: ById<'a, Location>,
}

impl<'a> CheckedTables<'a> {
    /// Checks every id and every index of a string.
    ///
    /// # Errors
    /// The first reference that leads nowhere, or sample whose values don't fit.
    pub fn new(profile: &'a Profile) -> Result<Self, InvalidProfile> {
        let tables = Self {
            profile,
            mappings: ById::new(&profile.mapping, |mapping| mapping.id),
            functions: ById::new(&profile.function, |function| function.id),
            locations: ById::new(&profile.location, |location| location.id),
        };
        tables.check_types()?;
        tables.check_entries()?;
        tables.check_samples()?;
        Ok(tables)
    }

    /// Returns the text at an index of the string table; `""` for none.
    pub(in crate::profile) fn text(&self, index: i64) -> &'a str {
        text_at(self.profile, index)
    }

    pub(in crate::profile) fn mapping(&self, id: u64) -> Option<&'a Mapping> {
        self.mappings.get(id)
    }

    pub(in crate::profile) fn function(&self, id: u64) -> Option<&'a Function> {
        self.functions.get(id)
    }

    pub(in crate::profile) fn location(&self, id: u64) -> Option<&'a Location> {
        self.locations.get(id)
    }

    /// Returns the position of a location in its table.
    pub(in crate::profile) fn location_position(&self, id: u64) -> Option<usize> {
        self.locations.position(id)
    }

    /// Checks `(what, index)` of an entry.
    fn strings(
        &self,
        table: &'static str,
        position: usize,
        indices: &[(&'static str, i64)],
    ) -> Result<(), InvalidProfile> {
        let len = self.profile.string_table.len();
        let fits = |index: i64| usize::try_from(index).is_ok_and(|at| at == 0 || at < len);
        match indices.iter().find(|(_, index)| !fits(*index)) {
            Some(&(what, index)) => Err(InvalidProfile::String { table, position, what, index }),
            None => Ok(()),
        }
    }

    fn check_types(&self) -> Result<(), InvalidProfile> {
        let Profile { sample_type, period_type, sample, default_sample_type, .. } = self.profile;
        if sample_type.is_empty() && !sample.is_empty() {
            return Err(InvalidProfile::NoSampleType);
        }
        for (position, value) in sample_type.iter().chain(period_type).enumerate() {
            self.strings("type", position, &[("name", value.r#type), ("unit", value.unit)])?;
        }
        self.strings("default sample type", 0, &[("name", *default_sample_type)])
    }

    fn check_entries(&self) -> Result<(), InvalidProfile> {
        for (position, mapping) in self.profile.mapping.iter().enumerate() {
            let indices = [("file name", mapping.filename), ("build id", mapping.build_id)];
            self.strings("mapping", position, &indices)?;
        }
        for (position, function) in self.profile.function.iter().enumerate() {
            let indices = [
                ("name", function.name),
                ("system name", function.system_name),
                ("file name", function.filename),
            ];
            self.strings("function", position, &indices)?;
        }
        for (position, location) in self.profile.location.iter().enumerate() {
            let missing = |target, id| InvalidProfile::Reference { table: "location", position, target, id };
            let id = location.mapping_id;
            if id != 0 && self.mapping(id).is_none() {
                return Err(missing("mapping", id));
            }
            let mut functions = location.line.iter().map(|line| line.function_id);
            if let Some(id) = functions.find(|id| *id != 0 && self.function(*id).is_none()) {
                return Err(missing("function", id));
            }
        }
        Ok(())
    }

    fn check_samples(&self) -> Result<(), InvalidProfile> {
        let types = self.profile.sample_type.len();
        for (position, sample) in self.profile.sample.iter().enumerate() {
            let values = sample.value.len();
            if values != types {
                return Err(InvalidProfile::Values { position, values, types });
            }
            if let Some(&id) = sample.location_id.iter().find(|id| self.location(**id).is_none()) {
                let (table, target) = ("sample", "location");
                return Err(InvalidProfile::Reference { table, position, target, id });
            }
            for label in &sample.label {
                let indices =
                    [("label key", label.key), ("label value", label.str), ("label unit", label.num_unit)];
                self.strings("sample", position, &indices)?;
            }
        }
        Ok(())
    }
}
