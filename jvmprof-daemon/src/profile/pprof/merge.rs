//! Merging of several pprof profiles into one.
//!
//! The rules are those of google/pprof `profile/merge.go`, so that `go tool pprof a.pb.gz b.pb.gz`
//! and this agree: equal stacks with equal labels add up; a mapping is the same in two processes if
//! its file, offset and size are, wherever it was loaded; the period is the largest. Durations
//! differ: there they add up, here the result spans from the first start to the last end, because
//! most merges are of processes that ran side by side.

use std::collections::HashMap;
use std::hash::Hash;

use super::strings::PprofStrings;
use super::tables::{CheckedTables, InvalidProfile};
use crate::proto::pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// Encoded size that a result has at most before compression, estimated from above.
pub const MAX_BYTES: usize = 256 << 20;

/// A profile that can't be merged; what had been merged before it stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("merging profiles: {0}")]
    Invalid(#[from] InvalidProfile),
    #[error("merging profiles: sample types {found} can't be added to {expected}")]
    Incompatible { found: String, expected: String },
    /// Every further profile would be refused as well.
    #[error("merging profiles: the result would have more than {limit} bytes")]
    Full { limit: usize },
}

/// Collects profiles into one.
#[derive(Debug)]
pub struct Merger {
    max_bytes: usize,
    strings: PprofStrings,
    mappings: EntryTable<MappingKey, Mapping>,
    functions: EntryTable<(i64, i64, i64, i64), Function>,
    locations: EntryTable<MergedLocation, Location>,
    samples: EntryTable<SampleKey, Sample>,
    /// Of the result; those of profiles that go in are left out.
    comments: Vec<i64>,
    head: Option<ProfileHeader>,
    held_bytes: usize,
}

/// Everything of a profile but its tables.
#[derive(Debug)]
struct ProfileHeader {
    sample_type: Vec<ValueType>,
    period_type: Option<ValueType>,
    default_sample_type: i64,
    period: i64,
    start: i64,
    end: i64,
}

/// Size, offset, and build id or else file.
type MappingKey = (u64, u64, i64);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MergedLocation {
    mapping: u64,
    /// From the start of the mapping, because processes load a file at different addresses.
    address: u64,
    lines: Vec<(u64, i64, i64)>,
    is_folded: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SampleKey {
    locations: Vec<u64>,
    labels: Vec<(i64, i64, i64, i64)>,
}

/// Entries with ids 1..N in order of first sight.
#[derive(Debug)]
struct EntryTable<K, V> {
    ids: HashMap<K, u64>,
    entries: Vec<V>,
}

impl<K, V> Default for EntryTable<K, V> {
    fn default() -> Self {
        Self { ids: HashMap::new(), entries: Vec::new() }
    }
}

impl<K: Hash + Eq, V> EntryTable<K, V> {
    /// The id of the entry with this key; `new` makes it from its id if there is none.
    fn id(&mut self, key: K, new: impl FnOnce(u64) -> V) -> u64 {
        let entries = &mut self.entries;
        *self.ids.entry(key).or_insert_with(|| {
            let id = entries.len() as u64 + 1;
            entries.push(new(id));
            id
        })
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut V> {
        self.entries.get_mut(usize::try_from(id).ok()?.checked_sub(1)?)
    }
}

impl Merger {
    /// Makes an empty merger. `max_bytes`: of the result, mostly [`MAX_BYTES`].
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            strings: PprofStrings::default(),
            mappings: EntryTable::default(),
            functions: EntryTable::default(),
            locations: EntryTable::default(),
            samples: EntryTable::default(),
            comments: Vec::new(),
            head: None,
            held_bytes: 0,
        }
    }

    /// Adds a profile.
    ///
    /// # Errors
    /// See [`MergeError`]; nothing was added.
    pub fn add(&mut self, profile: &Profile) -> Result<(), MergeError> {
        let source = CheckedTables::new(profile)?;
        // Random bytes often parse as an empty profile.
        if profile.sample_type.is_empty() {
            return Err(InvalidProfile::NoSampleType.into());
        }
        let bytes = prost::Message::encoded_len(profile);
        let limit = self.max_bytes;
        if self.held_bytes.saturating_add(bytes) > limit {
            return Err(MergeError::Full { limit });
        }
        self.check_types(&source)?;
        // From here on nothing fails: the profile goes in as a whole.
        let before = self.sizes();
        self.add_head(&source);
        self.add_samples(&source);
        // What was there already takes no more room; only whole profiles of nothing new are free,
        // which is enough to merge a day of the same stacks.
        if self.sizes() != before {
            self.held_bytes += bytes;
        }
        Ok(())
    }

    /// Adds a comment to the result: `pprof -comments` shows it.
    pub fn comment(&mut self, text: &str) {
        self.comments.push(self.strings.index(text));
    }

    fn sizes(&self) -> [usize; 5] {
        [
            self.strings.len(),
            self.mappings.entries.len(),
            self.functions.entries.len(),
            self.locations.entries.len(),
            self.samples.entries.len(),
        ]
    }

    fn check_types(&self, source: &CheckedTables<'_>) -> Result<(), MergeError> {
        let Some(head) = &self.head else { return Ok(()) };
        let profile = source.profile;
        let expected =
            describe(&head.sample_type, head.period_type.as_ref(), |index| self.strings.get(index));
        let found = describe(&profile.sample_type, profile.period_type.as_ref(), |index| source.text(index));
        if expected == found { Ok(()) } else { Err(MergeError::Incompatible { found, expected }) }
    }

    fn add_head(&mut self, source: &CheckedTables<'_>) {
        let profile = source.profile;
        let end = profile.time_nanos.saturating_add(profile.duration_nanos);
        if let Some(head) = &mut self.head {
            head.period = head.period.max(profile.period);
            head.start = head.start.min(profile.time_nanos);
            head.end = head.end.max(end);
            return;
        }
        let mut value_type = |value: &ValueType| ValueType {
            r#type: self.strings.index(source.text(value.r#type)),
            unit: self.strings.index(source.text(value.unit)),
        };
        self.head = Some(ProfileHeader {
            sample_type: profile.sample_type.iter().map(&mut value_type).collect(),
            period_type: profile.period_type.as_ref().map(&mut value_type),
            default_sample_type: self.strings.index(source.text(profile.default_sample_type)),
            period: profile.period,
            start: profile.time_nanos,
            end,
        });
        // The main binary comes first, even if no sample of it does.
        if let Some(main) = profile.mapping.first() {
            self.mapping(source, main);
        }
    }

    fn add_samples(&mut self, source: &CheckedTables<'_>) {
        let mut known = HashMap::new();
        for sample in &source.profile.sample {
            let locations = sample
                .location_id
                .iter()
                .map(|id| *known.entry(*id).or_insert_with(|| self.location(source, *id)))
                .collect::<Vec<_>>();
            let mut labels: Vec<_> = sample.label.iter().map(|label| self.label(source, label)).collect();
            labels.sort_unstable();
            let key = SampleKey { locations, labels };
            let id = self.samples.id(key.clone(), |_| new_sample(key, sample.value.len()));
            if let Some(merged) = self.samples.get_mut(id) {
                for (sum, value) in merged.value.iter_mut().zip(&sample.value) {
                    *sum = sum.saturating_add(*value);
                }
            }
        }
    }

    fn label(&mut self, source: &CheckedTables<'_>, label: &Label) -> (i64, i64, i64, i64) {
        let mut string = |index| self.strings.index(source.text(index));
        (string(label.key), string(label.str), label.num, string(label.num_unit))
    }

    fn location(&mut self, source: &CheckedTables<'_>, id: u64) -> u64 {
        let Some(location) = source.location(id) else { return 0 };
        let mapping = source.mapping(location.mapping_id);
        let mapping_id = mapping.map_or(0, |mapping| self.mapping(source, mapping));
        let start = mapping.map_or(0, |mapping| mapping.memory_start);
        let lines: Vec<_> = location
            .line
            .iter()
            .map(|line| (self.function(source, line.function_id), line.line, line.column))
            .collect();
        let address = location.address.wrapping_sub(start);
        let merged_start = self.mappings.get_mut(mapping_id).map_or(0, |mapping| mapping.memory_start);
        let key = MergedLocation { mapping: mapping_id, address, lines, is_folded: location.is_folded };
        self.locations.id(key.clone(), |id| Location {
            id,
            mapping_id,
            address: merged_start.wrapping_add(address),
            line: key
                .lines
                .iter()
                .map(|&(function_id, line, column)| Line { function_id, line, column })
                .collect(),
            is_folded: key.is_folded,
        })
    }

    fn mapping(&mut self, source: &CheckedTables<'_>, mapping: &Mapping) -> u64 {
        let filename = self.strings.index(source.text(mapping.filename));
        let build_id = self.strings.index(source.text(mapping.build_id));
        let size = mapping.memory_limit.wrapping_sub(mapping.memory_start);
        let file = if build_id == 0 { filename } else { build_id };
        let id = self.mappings.id((size, mapping.file_offset, file), |id| Mapping {
            id,
            filename,
            build_id,
            ..*mapping
        });
        if let Some(merged) = self.mappings.get_mut(id) {
            // The first three promise something of every location; the last one speaks of any.
            merged.has_functions &= mapping.has_functions;
            merged.has_filenames &= mapping.has_filenames;
            merged.has_line_numbers &= mapping.has_line_numbers;
            merged.has_inline_frames |= mapping.has_inline_frames;
        }
        id
    }

    fn function(&mut self, source: &CheckedTables<'_>, id: u64) -> u64 {
        let Some(function) = source.function(id) else { return 0 };
        let mut string = |index| self.strings.index(source.text(index));
        let (name, system_name) = (string(function.name), string(function.system_name));
        let (filename, start_line) = (string(function.filename), function.start_line);
        self.functions.id((name, system_name, filename, start_line), |id| Function {
            id,
            name,
            system_name,
            filename,
            start_line,
        })
    }

    /// The profiles so far as one; an empty profile if there were none. Ids are 1..N in table
    /// order.
    pub fn finish(self) -> Profile {
        let mut profile = Profile {
            sample: self.samples.entries,
            mapping: self.mappings.entries,
            location: self.locations.entries,
            function: self.functions.entries,
            comment: self.comments,
            string_table: self.strings.into_table(),
            ..Profile::default()
        };
        if let Some(head) = self.head {
            profile.sample_type = head.sample_type;
            profile.period_type = head.period_type;
            profile.default_sample_type = head.default_sample_type;
            profile.period = head.period;
            profile.time_nanos = head.start;
            profile.duration_nanos = head.end.saturating_sub(head.start);
        }
        profile
    }
}

fn new_sample(key: SampleKey, values: usize) -> Sample {
    Sample {
        location_id: key.locations,
        value: vec![0; values],
        label: key
            .labels
            .into_iter()
            .map(|(key, str, num, num_unit)| Label { key, str, num, num_unit })
            .collect(),
    }
}

fn describe<'a>(types: &[ValueType], period: Option<&ValueType>, text: impl Fn(i64) -> &'a str) -> String {
    let name = |value: &ValueType| format!("{}/{}", text(value.r#type), text(value.unit));
    let types = types.iter().map(name).collect::<Vec<_>>().join(", ");
    match period {
        Some(period) => format!("{types} (period {})", name(period)),
        None => types,
    }
}
