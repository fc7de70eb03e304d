//! pprof from the model.
//!
//! Ids of mappings, functions and locations are exactly 1..N in table order, which is more than
//! pprof asks for and what Parca demands (parca-dev/parca `pkg/normalizer/validate.go`).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message as _;
use smallvec::SmallVec;

use super::line_column::JavaLineDetails;
use super::sample_times;
use super::sampled_events::events_comment;
use crate::event_type::{EventType, NumberLabel, SampleType};
use crate::profile::gzip;
use crate::profile::model::{self, Batch, Frame, LabelSet, SampleLabel, Series};
use crate::proto::pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use crate::types::BuildId;
use crate::types::FastHasher;

/// Label of a series with the path of its main binary.
const EXECUTABLE_LABEL: &str = "executable";

/// The profile that is pushed for one series: of CPU time `samples/count` only (see
/// [`crate::event_type::EventDescriptor::pushed_types`]). The labels travel beside it.
pub fn for_push(batch: &Batch, series: &Series) -> Profile {
    PushEncoder::new(batch).encode(series)
}

/// Encodes the series of a batch as [`for_push`] does, one after the other: the memory that one
/// took is the next one's.
#[derive(Debug)]
pub struct PushEncoder<'a> {
    batch: &'a Batch,
    builder: Builder<'a>,
    has_times: bool,
}

impl<'a> PushEncoder<'a> {
    pub fn new(batch: &'a Batch) -> Self {
        Self { batch, builder: Builder::new(batch.event.descriptor().pushed_types), has_times: false }
    }

    /// The same with the types that are written to files, of CPU time `cpu/nanoseconds` too: for a
    /// backend that shows what it was sent and computes nothing.
    pub fn with_all_types(batch: &'a Batch) -> Self {
        Self { batch, builder: Builder::new(batch.event.descriptor().sample_types), has_times: false }
    }

    /// The same with the times of samples, if they are known and wanted: for the collector, which
    /// reads them ([`sample_times`]).
    #[must_use]
    pub fn with_times(mut self, are_wanted: bool) -> Self {
        self.has_times = are_wanted;
        self
    }

    /// Returns an encoder of the same batch and types, for series that live shorter.
    pub fn with_same_types<'b>(&self) -> PushEncoder<'b>
    where
        'a: 'b,
    {
        let builder = Builder::new(self.builder.sample_types);
        PushEncoder { batch: self.batch, builder, has_times: self.has_times }
    }

    /// Returns the profile of a series of the batch.
    pub fn encode(&mut self, series: &'a Series) -> Profile {
        self.builder.begin(self.batch);
        self.builder.add(series, &[]);
        self.builder.comment_events(self.batch.event, series.events());
        if self.has_times {
            sample_times::comment(&series.samples).into_iter().for_each(|text| self.builder.comment(text));
        }
        self.builder.finish(main_binary([series]))
    }
}

/// Returns the profile of all series for a file, series labels as sample labels: of CPU time
/// `samples/count` and `cpu/nanoseconds`.
pub fn for_file(batch: &Batch) -> Profile {
    for_file_of_events(std::slice::from_ref(batch))
}

/// Returns one profile of batches of several events: the types of all of them, and the period of
/// the first.
pub fn for_file_of_events(batches: &[Batch]) -> Profile {
    let types = |batch: &Batch| batch.event.descriptor().sample_types;
    let Some(first) = batches.first() else { return Profile::default() };
    let mut builder = Builder::new(types(first));
    builder.begin(first);
    for batch in &batches[1..] {
        let more: Vec<ValueType> = types(batch).iter().map(|of| builder.value_type(of)).collect();
        builder.profile.sample_type.extend(more);
    }
    let all: usize = batches.iter().map(|batch| types(batch).len()).sum();
    let mut before = 0;
    for batch in batches {
        let begin = builder.profile.sample.len();
        builder.sample_types = types(batch);
        builder.number_label = batch.event.descriptor().number_label;
        for series in &batch.series {
            let labels = builder.labels(&series.labels);
            builder.add(series, &labels);
        }
        for sample in &mut builder.profile.sample[begin..] {
            sample.value.splice(0..0, std::iter::repeat_n(0, before));
            sample.value.resize(all, 0);
        }
        before += types(batch).len();
        builder.comment_events(batch.event, batch.samples());
    }
    builder.finish(main_binary(batches.iter().flat_map(|batch| &batch.series)))
}

/// The profile as it lies on disk and travels: encoded and gzipped.
///
/// # Errors
/// None that writing to memory could have.
pub fn to_bytes(profile: &Profile) -> io::Result<Vec<u8>> {
    gzip::compress(&profile.encode_to_vec())
}

/// The main binary, if all series that name one name the same.
fn main_binary<'a>(series: impl IntoIterator<Item = &'a Series>) -> Option<&'a str> {
    let mut names = series.into_iter().filter_map(|series| series.labels.get(EXECUTABLE_LABEL));
    let first = names.next()?;
    names.all(|name| name == first).then_some(first)
}

fn column(line: &model::Line) -> u32 {
    JavaLineDetails { bci: line.bci, mode: line.mode }.to_column()
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// A string by its place in memory: the model shares them, so that most are found without reading
/// them.
type TextKey = (usize, usize);

/// A location as numbers: mapping id, address, and the function id, line and column of each line.
type LocationKey = (u64, u64, SmallVec<[(u64, u32, u32); 4]>);

/// Pointers are good keys here because the batch that owns what they point to is borrowed as long
/// as the builder lives.
#[derive(Debug, Default)]
struct Builder<'a> {
    profile: Profile,
    sample_types: &'static [SampleType],
    number_label: Option<NumberLabel>,
    texts: HashMap<TextKey, i64, FastHasher>,
    strings: HashMap<&'a str, i64, FastHasher>,
    frames: HashMap<usize, u64, FastHasher>,
    locations: HashMap<LocationKey, u64, FastHasher>,
    functions: HashMap<(i64, i64, i64), u64, FastHasher>,
    mapping_places: HashMap<usize, u64, FastHasher>,
    mappings: HashMap<&'a model::Mapping, u64, FastHasher>,
    build_ids: HashMap<BuildId, i64, FastHasher>,
}

impl<'a> Builder<'a> {
    fn new(sample_types: &'static [SampleType]) -> Self {
        Self { sample_types, ..Self::default() }
    }

    /// Begins a profile of the batch.
    fn begin(&mut self, batch: &Batch) {
        self.profile = Profile::default();
        self.texts.clear();
        self.strings.clear();
        self.frames.clear();
        self.locations.clear();
        self.functions.clear();
        self.mapping_places.clear();
        self.mappings.clear();
        self.build_ids.clear();
        self.string("");
        self.number_label = batch.event.descriptor().number_label;
        self.profile.sample_type = self.sample_types.iter().map(|of| self.value_type(of)).collect();
        self.profile.period_type = Some(self.value_type(&batch.event.descriptor().period_type));
        self.profile.period = i64::try_from(batch.period).unwrap_or(i64::MAX);
        let since_epoch = batch.start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.profile.time_nanos = nanos(since_epoch);
        // Zero would make it a profile of another type for Parca: only a delta has a duration.
        self.profile.duration_nanos = nanos(batch.duration).max(1);
    }

    fn value_type(&mut self, of: &SampleType) -> ValueType {
        ValueType { r#type: self.string(of.name), unit: self.string(of.unit) }
    }

    fn string(&mut self, text: &'a str) -> i64 {
        let table = &mut self.profile.string_table;
        *self.strings.entry(text).or_insert_with(|| {
            table.push(text.to_owned());
            table.len() as i64 - 1
        })
    }

    fn text(&mut self, text: &'a Arc<str>) -> i64 {
        let key = (text.as_ptr().addr(), text.len());
        if let Some(index) = self.texts.get(&key) {
            return *index;
        }
        let index = self.string(text);
        self.texts.insert(key, index);
        index
    }

    fn labels(&mut self, labels: &'a LabelSet) -> Vec<Label> {
        let label = |(key, value): (&'a String, &'a String)| Label {
            key: self.string(key),
            str: self.string(value),
            ..Label::default()
        };
        labels.iter().filter(|(key, _)| !key.is_empty()).map(label).collect()
    }

    fn add(&mut self, series: &'a Series, labels: &[Label]) {
        self.profile.sample.reserve(series.samples.len());
        for sample in &series.samples {
            let location_id = sample.frames.iter().map(|frame| self.location(frame)).collect();
            let number = |of: &SampleType| i64::try_from(sample.number(of.number)).unwrap_or(i64::MAX);
            let value = self.sample_types.iter().map(number).collect();
            let own = sample.labels.iter().map(|label| self.sample_label(label));
            let label = labels.iter().cloned().chain(own).collect();
            self.profile.sample.push(Sample { location_id, value, label });
        }
    }

    fn sample_label(&mut self, label: &'a SampleLabel) -> Label {
        let key = self.text(&label.name);
        let number = self.number_label.filter(|number| number.name == &*label.name);
        let of_number = number.and_then(|number| Some((number.unit, label.value.parse().ok()?)));
        match of_number {
            Some((unit, num)) => Label { key, num, num_unit: self.string(unit), ..Label::default() },
            None => Label { key, str: self.text(&label.value), ..Label::default() },
        }
    }

    fn location(&mut self, frame: &'a Arc<Frame>) -> u64 {
        let place = Arc::as_ptr(frame).addr();
        if let Some(id) = self.frames.get(&place) {
            return *id;
        }
        let mapping_id = frame.mapping.as_ref().map_or(0, |mapping| self.mapping(mapping));
        let lines = frame.lines.iter().map(|line| (self.function(line), line.line, column(line))).collect();
        let key: LocationKey = (mapping_id, frame.address.map_or(0, |address| address.0), lines);
        let id = match self.locations.get(&key) {
            Some(id) => *id,
            None => self.new_location(key, frame),
        };
        self.frames.insert(place, id);
        id
    }

    fn new_location(&mut self, key: LocationKey, frame: &Frame) -> u64 {
        let id = self.profile.location.len() as u64 + 1;
        let (mapping_id, address, lines) = &key;
        let line = |&(function_id, line, column): &(u64, u32, u32)| Line {
            function_id,
            line: line.into(),
            column: column.into(),
        };
        self.profile.location.push(Location {
            id,
            mapping_id: *mapping_id,
            address: *address,
            line: lines.iter().map(line).collect(),
            is_folded: false,
        });
        if let Some(mapping) =
            (*mapping_id as usize).checked_sub(1).and_then(|at| self.profile.mapping.get_mut(at))
        {
            // The first three speak for every location of the mapping, the last one for any.
            mapping.has_functions &= !frame.lines.is_empty();
            mapping.has_filenames &=
                !frame.lines.is_empty() && frame.lines.iter().all(|line| line.file.is_some());
            mapping.has_line_numbers &=
                !frame.lines.is_empty() && frame.lines.iter().all(|line| line.line != 0);
            mapping.has_inline_frames |= frame.lines.len() > 1;
        }
        self.locations.insert(key, id);
        id
    }

    fn function(&mut self, line: &'a model::Line) -> u64 {
        let name = self.text(&line.name);
        let system_name = if line.system_name.is_empty() { name } else { self.text(&line.system_name) };
        let filename = line.file.as_ref().map_or(0, |file| self.text(file));
        let table = &mut self.profile.function;
        *self.functions.entry((name, system_name, filename)).or_insert_with(|| {
            let id = table.len() as u64 + 1;
            table.push(Function { id, name, system_name, filename, start_line: 0 });
            id
        })
    }

    fn mapping(&mut self, mapping: &'a Arc<model::Mapping>) -> u64 {
        let place = Arc::as_ptr(mapping).addr();
        if let Some(id) = self.mapping_places.get(&place) {
            return *id;
        }
        let id = match self.mappings.get(&**mapping) {
            Some(id) => *id,
            None => self.new_mapping(mapping),
        };
        self.mapping_places.insert(place, id);
        id
    }

    fn new_mapping(&mut self, mapping: &'a Arc<model::Mapping>) -> u64 {
        let build_id = mapping.build_id.map_or(0, |id| self.build_id(id));
        let filename = self.text(&mapping.path);
        let id = self.profile.mapping.len() as u64 + 1;
        self.profile.mapping.push(Mapping {
            id,
            memory_start: mapping.start.0,
            memory_limit: mapping.limit.0,
            file_offset: mapping.offset.0,
            filename,
            build_id,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: false,
        });
        self.mappings.insert(mapping, id);
        id
    }

    /// Returns a build id's number among the strings. It is kept apart from the others, because its
    /// text belongs to nobody who lives long enough.
    fn build_id(&mut self, id: BuildId) -> i64 {
        let table = &mut self.profile.string_table;
        *self.build_ids.entry(id).or_insert_with(|| {
            table.push(id.to_string());
            table.len() as i64 - 1
        })
    }

    /// Writes into a comment how many events were sampled, where the values don't.
    fn comment_events(&mut self, event: EventType, events: u64) {
        if event.is_estimated() {
            self.comment(events_comment(event, events));
        }
    }

    fn comment(&mut self, text: String) {
        let table = &mut self.profile.string_table;
        table.push(text);
        self.profile.comment.push(table.len() as i64 - 1);
    }

    /// Ends the profile.
    fn finish(&mut self, main_binary: Option<&str>) -> Profile {
        if let Some(at) = self.main_mapping(main_binary) {
            put_first(&mut self.profile, at);
        }
        std::mem::take(&mut self.profile)
    }

    /// Returns the position of the main binary's mapping: pprof's tools take the first one for it.
    fn main_mapping(&self, main_binary: Option<&str>) -> Option<usize> {
        let path = |mapping: &Mapping| {
            usize::try_from(mapping.filename).ok().and_then(|at| self.profile.string_table.get(at))
        };
        let is_main = |mapping: &Mapping| {
            path(mapping).is_some_and(|path| match main_binary {
                Some(main) => path == main || path.rsplit('/').next() == Some(main),
                // As google/pprof guesses (`profile/profile.go`, `massageMappings`).
                None => path.starts_with('/') && !path.contains(".so"),
            })
        };
        self.profile.mapping.iter().position(is_main)
    }
}

/// Moves a mapping to the front, the others one back.
fn put_first(profile: &mut Profile, at: usize) {
    profile.mapping[..=at].rotate_right(1);
    let mut new_ids = vec![0; profile.mapping.len() + 1];
    for (index, mapping) in profile.mapping.iter_mut().enumerate() {
        let id = index as u64 + 1;
        new_ids[mapping.id as usize] = id;
        mapping.id = id;
    }
    for location in &mut profile.location {
        location.mapping_id = new_ids[location.mapping_id as usize];
    }
}
