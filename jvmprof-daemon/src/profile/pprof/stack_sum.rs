//! The profiles of one series as one profile that gives the same call tree.
//!
//! [`Merger`](super::merge::Merger) keeps what pprof's users need: addresses, mappings, the rules
//! of google/pprof. A sum keeps what
//! [`TreeBuilder::add_pprof`](crate::profile::call_tree::TreeBuilder) counts, and nothing else:
//! stacks that differ in addresses alone are one.

use std::collections::HashMap;

use super::strings::PprofStrings;
use super::tables::{CheckedTables, InvalidProfile};
use crate::profile::jvm_activity::THREAD_KIND_LABEL;
use crate::proto::pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// Stacks of one sum, at most; each has up to a thousand frames.
const MAX_STACKS: usize = 100_000;
/// Bytes of memory that a sum takes while it is made, at most, by estimate.
const MAX_BYTES: usize = 64 << 20;

/// The reason why profiles have no exact sum.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SumError {
    #[error("summing profiles: {0}")]
    Invalid(#[from] InvalidProfile),
    #[error("summing profiles: their sample types differ")]
    Types,
    #[error("summing profiles: a number is below zero or too large")]
    Number,
    #[error("summing profiles: only some of them say what kind of thread was sampled")]
    ThreadKinds,
    #[error("summing profiles: they have more than {MAX_STACKS} different stacks, or too long ones")]
    Full,
}

/// The part of a location that the tree sees.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SumLocationKey {
    module: i64,
    /// Part of the name where neither a function nor a module has one.
    address: u64,
    /// Function, line and column.
    lines: Vec<(u64, i64, i64)>,
}

/// Locations, and the kind of the thread if that is known.
type SumStackKey = (Vec<u64>, Option<i64>);

/// Adds up the profiles of one series.
#[derive(Debug, Default)]
pub struct StackSum {
    strings: PprofStrings,
    mappings: HashMap<i64, u64>,
    /// By name and file.
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<SumLocationKey, u64>,
    stacks: HashMap<SumStackKey, Vec<i64>>,
    /// Type and unit.
    types: Option<Vec<(i64, i64)>>,
    has_thread_kinds: Option<bool>,
    /// An estimate of the memory of all that.
    bytes: usize,
    /// The series is a JVM's, whatever its profiles say of threads.
    is_jvm: bool,
}

/// The id of a key; ids are 1..N in the order of first sight.
fn id<K: std::hash::Hash + Eq>(ids: &mut HashMap<K, u64>, key: K) -> u64 {
    let next = ids.len() as u64 + 1;
    *ids.entry(key).or_insert(next)
}

impl StackSum {
    /// Makes the sum of profiles of a series whose labels say that it is a JVM's, or don't.
    pub fn of_series(is_jvm: bool) -> Self {
        Self { is_jvm, ..Self::default() }
    }

    /// Adds a profile.
    ///
    /// # Errors
    /// There is no exact sum with it: this one is of no use any more.
    pub fn add(&mut self, profile: &Profile) -> Result<(), SumError> {
        let tables = CheckedTables::new(profile)?;
        let types = profile.sample_type.iter();
        let types: Vec<_> = types
            .map(|of| (self.strings.index(tables.text(of.r#type)), self.strings.index(tables.text(of.unit))))
            .collect();
        if *self.types.get_or_insert_with(|| types.clone()) != types {
            return Err(SumError::Types);
        }
        let mut known = HashMap::new();
        let mut has_thread_kinds = false;
        for sample in &profile.sample {
            let ids = sample.location_id.iter();
            let locations =
                ids.map(|id| *known.entry(*id).or_insert_with(|| self.location(&tables, *id))).collect();
            let kind = sample.label.iter().find(|label| tables.text(label.key) == THREAD_KIND_LABEL);
            has_thread_kinds |= kind.is_some();
            let kind = kind.map(|label| self.strings.index(tables.text(label.str)));
            let (bytes, width) = (&mut self.bytes, sample.value.len());
            let sums = self.stacks.entry((locations, kind)).or_insert_with_key(|(locations, _)| {
                *bytes += 96 + 8 * (locations.len() + width);
                vec![0; width]
            });
            for (sum, value) in sums.iter_mut().zip(&sample.value) {
                let value = (*value >= 0).then_some(*value);
                *sum = value.and_then(|value| sum.checked_add(value)).ok_or(SumError::Number)?;
            }
            if self.stacks.len() > MAX_STACKS || self.bytes > MAX_BYTES {
                return Err(SumError::Full);
            }
        }
        // The kinds decide for a profile as a whole whether it is a JVM's.
        let has_thread_kinds = has_thread_kinds || self.is_jvm;
        if *self.has_thread_kinds.get_or_insert(has_thread_kinds) != has_thread_kinds {
            return Err(SumError::ThreadKinds);
        }
        Ok(())
    }

    fn location(&mut self, tables: &CheckedTables<'_>, id_there: u64) -> u64 {
        let Some(location) = tables.location(id_there) else { return 0 };
        let module = tables.mapping(location.mapping_id).map_or("", |mapping| tables.text(mapping.filename));
        let is_named = !location.line.is_empty() || !module.is_empty() && !module.ends_with('/');
        self.bytes += 96 + module.len() + 24 * location.line.len();
        let lines = location.line.iter().map(|line| {
            let function = tables.function(line.function_id).map_or(0, |function| {
                let (name, file) = (tables.text(function.name), tables.text(function.filename));
                self.bytes += 2 * (name.len() + file.len());
                id(&mut self.functions, (self.strings.index(name), self.strings.index(file)))
            });
            (function, line.line, line.column)
        });
        let lines = lines.collect();
        let module = self.strings.index(module);
        id(&mut self.mappings, module);
        let address = if is_named { 0 } else { location.address };
        id(&mut self.locations, SumLocationKey { module, address, lines })
    }

    /// Returns the sum; an empty profile if nothing was added.
    pub fn finish(mut self) -> Profile {
        let thread_kind = self.strings.index(THREAD_KIND_LABEL);
        let mapping = |(filename, id)| Mapping { id, filename, ..Mapping::default() };
        let function = |((name, filename), id)| Function { id, name, filename, ..Function::default() };
        let mappings = &self.mappings;
        let location = |(key, id): (SumLocationKey, u64)| Location {
            id,
            mapping_id: mappings.get(&key.module).copied().unwrap_or(0),
            address: key.address,
            line: key
                .lines
                .into_iter()
                .map(|(function_id, line, column)| Line { function_id, line, column })
                .collect(),
            is_folded: false,
        };
        let sample = |((location_id, kind), value): (SumStackKey, Vec<i64>)| Sample {
            location_id,
            value,
            label: kind.map(|str| Label { key: thread_kind, str, ..Label::default() }).into_iter().collect(),
        };
        let types = self.types.unwrap_or_default().into_iter();
        let mut location: Vec<_> = self.locations.into_iter().map(location).collect();
        location.sort_unstable_by_key(|location| location.id);
        let mut mapping: Vec<_> = self.mappings.iter().map(|(name, id)| mapping((*name, *id))).collect();
        mapping.sort_unstable_by_key(|mapping| mapping.id);
        let mut function: Vec<_> = self.functions.into_iter().map(function).collect();
        function.sort_unstable_by_key(|function| function.id);
        let mut sample: Vec<_> = self.stacks.into_iter().map(sample).collect();
        // Neighbours that begin alike cost least to count, and are packed best.
        sample.sort_unstable_by(|a, b| a.location_id.iter().rev().cmp(b.location_id.iter().rev()));
        Profile {
            sample_type: types.map(|(r#type, unit)| ValueType { r#type, unit }).collect(),
            sample,
            mapping,
            location,
            function,
            string_table: self.strings.into_table(),
            ..Profile::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::FrameKind;
    use crate::profile::pprof::for_push;
    use crate::profile::testing::{batch, frame, series};

    fn profile(stacks: u64) -> Profile {
        let stack = |number| (vec![frame(FrameKind::Native, &format!("function{number}"))], 3);
        let batch = batch(vec![series(&[], (0..stacks).map(stack).collect())]);
        for_push(&batch, &batch.series[0])
    }

    fn with_thread_kind() -> Profile {
        let mut profile = profile(1);
        profile.string_table.extend(["thread_kind", "java"].map(str::to_owned));
        let last = profile.string_table.len() as i64 - 1;
        profile.sample[0].label.push(Label { key: last - 1, str: last, ..Label::default() });
        profile
    }

    #[test]
    fn values_of_equal_stacks_are_added_up() {
        let mut sum = StackSum::of_series(false);
        sum.add(&profile(2)).unwrap();
        sum.add(&profile(3)).unwrap();
        let mut values: Vec<_> = sum.finish().sample.iter().map(|sample| sample.value[0]).collect();
        values.sort_unstable();
        assert_eq!(values, [3, 6, 6]);
    }

    #[test]
    fn what_has_no_exact_sum_has_none() {
        let mut negative = profile(1);
        negative.sample[0].value[0] = -1;
        let mut large = profile(1);
        large.sample[0].value[0] = i64::MAX;
        let mut other_type = profile(1);
        other_type.string_table.push("other".to_owned());
        other_type.sample_type[0].r#type = other_type.string_table.len() as i64 - 1;
        for (second, error) in [
            (negative, SumError::Number),
            (large, SumError::Number),
            (other_type, SumError::Types),
            (with_thread_kind(), SumError::ThreadKinds),
            (profile(MAX_STACKS as u64 + 1), SumError::Full),
        ] {
            let mut sum = StackSum::of_series(false);
            sum.add(&profile(1)).unwrap();
            assert_eq!(sum.add(&second), Err(error));
        }
        // A JVM's series is one whether or not each profile says it.
        let mut of_jvm = StackSum::of_series(true);
        of_jvm.add(&profile(1)).unwrap();
        of_jvm.add(&with_thread_kind()).unwrap();
    }
}
