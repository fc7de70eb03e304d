//! The tables of a pprof profile, with what its samples refer to in a message's dictionary.

use std::collections::HashMap;

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{ProfilesDictionary, ValueType};

use super::{InvalidMessage, SizeLimit, text_of};
use crate::export::otlp::attributes::label_of_sample;
use crate::export::otlp::message::BUILD_ID;
use crate::export::otlp::span;
use crate::profile::model::label_names::{SPAN_ID, TRACE_ID};
use crate::proto::pprof::{self, Function, Line, Location, Mapping};

/// Bytes that an entry takes beside its texts, from above.
const ENTRY_BYTES: usize = 64;
/// Bytes that a number of a sample takes, from above.
const NUMBER_BYTES: usize = 10;

/// Entries are added when something refers to them for the first time; their ids are 1..N.
#[derive(Debug)]
pub(super) struct PprofTables<'a, 'size> {
    dictionary: &'a ProfilesDictionary,
    size: &'size mut SizeLimit,
    texts: HashMap<String, i64>,
    /// By the dictionary's index: a long text that many entries refer to is compared once.
    texts_at: HashMap<i32, i64>,
    /// Labels of samples by the attribute's index; `None` for those that are none.
    labels: HashMap<i32, Option<(i64, i64)>>,
    /// The same by the link's index.
    links: HashMap<i32, Vec<(i64, i64)>>,
    string_table: Vec<String>,
    mappings: HashMap<i32, u64>,
    functions: HashMap<i32, u64>,
    locations: HashMap<i32, u64>,
    mapping: Vec<Mapping>,
    function: Vec<Function>,
    location: Vec<Location>,
}

fn entry<'a, T>(table: &'static str, entries: &'a [T], index: i32) -> Result<&'a T, InvalidMessage> {
    let found = usize::try_from(index).ok().and_then(|at| entries.get(at));
    found.ok_or(InvalidMessage::Index { table, index, entries: entries.len() })
}

impl<'a, 'size> PprofTables<'a, 'size> {
    pub(super) fn new(dictionary: &'a ProfilesDictionary, size: &'size mut SizeLimit) -> Self {
        Self {
            dictionary,
            size,
            texts: HashMap::from([(String::new(), 0)]),
            texts_at: HashMap::new(),
            labels: HashMap::new(),
            links: HashMap::new(),
            string_table: vec![String::new()],
            mappings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            mapping: Vec::new(),
            function: Vec::new(),
            location: Vec::new(),
        }
    }

    /// The dictionary's text at an index; 0 is the empty one also where there is no table.
    pub(super) fn dictionary_text(&self, index: i32) -> Result<&'a str, InvalidMessage> {
        if index == 0 {
            return Ok("");
        }
        entry("string", &self.dictionary.string_table, index).map(String::as_str)
    }

    /// The profile's index of a text.
    pub(super) fn text(&mut self, text: &str) -> Result<i64, InvalidMessage> {
        if let Some(at) = self.texts.get(text) {
            return Ok(*at);
        }
        self.size.take(text.len() + ENTRY_BYTES)?;
        let at = self.string_table.len() as i64;
        self.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), at);
        Ok(at)
    }

    fn text_at(&mut self, index: i32) -> Result<i64, InvalidMessage> {
        if let Some(at) = self.texts_at.get(&index) {
            return Ok(*at);
        }
        let at = self.text(self.dictionary_text(index)?)?;
        self.texts_at.insert(index, at);
        Ok(at)
    }

    /// The profile's index of a value as a text; `None` for lists, maps and bytes.
    fn value_text(&mut self, value: Option<&AnyValue>) -> Result<Option<i64>, InvalidMessage> {
        if let Some(Value::StringValueStrindex(at)) = value.and_then(|value| value.value.as_ref()) {
            return self.text_at(*at).map(Some);
        }
        let text = text_of(value, &self.dictionary.string_table);
        text.map(|text| self.text(&text)).transpose()
    }

    pub(super) fn value_type(&mut self, of: ValueType) -> Result<pprof::ValueType, InvalidMessage> {
        Ok(pprof::ValueType {
            r#type: self.text_at(of.type_strindex)?,
            unit: self.text_at(of.unit_strindex)?,
        })
    }

    /// The key of an attribute, and its value as a text of the profile.
    fn attribute(&mut self, index: i32) -> Result<(&'a str, Option<i64>), InvalidMessage> {
        let found = entry("attribute", &self.dictionary.attribute_table, index)?;
        Ok((self.dictionary_text(found.key_strindex)?, self.value_text(found.value.as_ref())?))
    }

    /// The texts of an attribute as a label of a sample; `None` without a key or a single value.
    pub(super) fn label(&mut self, index: i32) -> Result<Option<(i64, i64)>, InvalidMessage> {
        if let Some(label) = self.labels.get(&index) {
            return Ok(*label);
        }
        let (key, value) = self.attribute(index)?;
        let label = match value.filter(|_| !key.is_empty()) {
            Some(value) => Some((self.text(label_of_sample(key))?, value)),
            None => None,
        };
        self.labels.insert(index, label);
        Ok(label)
    }

    /// The labels of a sample by the index of its link: the ids of its span.
    pub(super) fn link_labels(&mut self, index: i32) -> Result<Vec<(i64, i64)>, InvalidMessage> {
        if index == 0 {
            return Ok(Vec::new());
        }
        if let Some(labels) = self.links.get(&index) {
            return Ok(labels.clone());
        }
        let ids = span::ids(entry("link", &self.dictionary.link_table, index)?);
        let mut labels = Vec::new();
        for (name, id) in [TRACE_ID, SPAN_ID].iter().zip(ids.iter().flatten()) {
            labels.push((self.text(name)?, self.text(id)?));
        }
        self.links.insert(index, labels.clone());
        Ok(labels)
    }

    /// The text of an attribute, if it has this key.
    pub(super) fn text_of_key(&mut self, index: i32, key: &str) -> Result<Option<i64>, InvalidMessage> {
        let (found, text) = self.attribute(index)?;
        self.size.take(NUMBER_BYTES)?;
        Ok(text.filter(|_| found == key))
    }

    /// The ids of a stack's locations. Stack 0 is the empty one.
    pub(super) fn stack(&mut self, index: i32) -> Result<Vec<u64>, InvalidMessage> {
        if index == 0 && self.dictionary.stack_table.is_empty() {
            return Ok(Vec::new());
        }
        let stack = entry("stack", &self.dictionary.stack_table, index)?;
        // Before the copy is made.
        self.size.take(stack.location_indices.len().saturating_mul(NUMBER_BYTES))?;
        stack.location_indices.iter().map(|at| self.location(*at)).collect()
    }

    /// Counts the size of a sample without its locations.
    pub(super) fn take_sample(&mut self, values: usize, labels: usize) -> Result<(), InvalidMessage> {
        self.size.take(values * NUMBER_BYTES + (labels + 1) * ENTRY_BYTES)
    }

    fn location(&mut self, index: i32) -> Result<u64, InvalidMessage> {
        if let Some(id) = self.locations.get(&index) {
            return Ok(*id);
        }
        let found = entry("location", &self.dictionary.location_table, index)?;
        self.size.take(ENTRY_BYTES * (found.lines.len() + 1))?;
        let mapping_id = self.mapping(found.mapping_index)?;
        let mut line = Vec::with_capacity(found.lines.len());
        for of in &found.lines {
            let function_id = self.function(of.function_index)?;
            line.push(Line { function_id, line: of.line, column: of.column });
        }
        let id = self.location.len() as u64 + 1;
        self.location.push(Location { id, mapping_id, address: found.address, line, is_folded: false });
        self.locations.insert(index, id);
        Ok(id)
    }

    /// The id of a mapping; 0 for none.
    fn mapping(&mut self, index: i32) -> Result<u64, InvalidMessage> {
        if index == 0 {
            return Ok(0);
        }
        if let Some(id) = self.mappings.get(&index) {
            return Ok(*id);
        }
        let found = entry("mapping", &self.dictionary.mapping_table, index)?;
        self.size.take(ENTRY_BYTES)?;
        let mut build_id = 0;
        for at in &found.attribute_indices {
            build_id = self.text_of_key(*at, BUILD_ID)?.unwrap_or(build_id);
        }
        let id = self.mapping.len() as u64 + 1;
        let filename = self.text_at(found.filename_strindex)?;
        self.mapping.push(Mapping {
            id,
            memory_start: found.memory_start,
            memory_limit: found.memory_limit,
            file_offset: found.file_offset,
            filename,
            build_id,
            ..Mapping::default()
        });
        self.mappings.insert(index, id);
        Ok(id)
    }

    /// The id of a function; 0 for none.
    fn function(&mut self, index: i32) -> Result<u64, InvalidMessage> {
        if index == 0 {
            return Ok(0);
        }
        if let Some(id) = self.functions.get(&index) {
            return Ok(*id);
        }
        let found = entry("function", &self.dictionary.function_table, index)?;
        self.size.take(ENTRY_BYTES)?;
        let id = self.function.len() as u64 + 1;
        let function = Function {
            id,
            name: self.text_at(found.name_strindex)?,
            system_name: self.text_at(found.system_name_strindex)?,
            filename: self.text_at(found.filename_strindex)?,
            start_line: found.start_line,
        };
        self.function.push(function);
        self.functions.insert(index, id);
        Ok(id)
    }

    /// Puts the tables into the profile.
    pub(super) fn finish(self, profile: &mut pprof::Profile) {
        profile.string_table = self.string_table;
        profile.mapping = self.mapping;
        profile.function = self.function;
        profile.location = self.location;
    }
}
