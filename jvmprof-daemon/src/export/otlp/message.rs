//! OTLP's message of a request, from the pprof profile that is kept of it.
//!
//! Tables of OTLP begin with an entry that stands for none, so that pprof's ids, which are 1..N in
//! table order, are its indices. Each sample type becomes a profile; all share the dictionary.

use std::collections::HashMap;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles,
    Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::attributes::{of_resource, of_sample, text, text_attribute};
use super::span;
use crate::export::push::PushRequest;
use crate::export::split_to_limits::{SERVICE_LABEL, service_name};
use crate::export::store::NAME_LABEL;
use crate::profile::model::LabelSet;
use crate::profile::model::label_names::{SPAN_ID, TRACE_ID};
use crate::profile::pprof::decode::{DecodeError, DecodeLimits, decode};
use crate::profile::pprof::{CheckedTables, InvalidProfile};
use crate::proto::pprof;
use crate::proto::profilestore::RawProfileSeries;

/// The name of the scope: the program that took the samples.
const SCOPE: &str = "jvmprof";
/// The service of a series without any name of one, as OpenTelemetry's resources have it.
const UNKNOWN_SERVICE: &str = "unknown_service";
/// Attribute of a mapping: open-telemetry/semantic-conventions, `process.executable.build_id.gnu`.
pub(super) const BUILD_ID: &str = "process.executable.build_id.gnu";
/// Attribute of a location: `jvm`, `kernel` or `native`.
const FRAME_TYPE: &str = "profile.frame.type";
/// Attribute of a profile: the comment of a profile in pprof's form.
pub(super) const COMMENT: &str = "pprof.profile.comment";

/// A kept request that is none of a profile: the spool's disk has changed it.
#[derive(Debug, thiserror::Error)]
pub enum MalformedRequest {
    #[error("decoding the profile of a request: {0}")]
    Decode(#[from] DecodeError),
    #[error("checking the profile of a request: {0}")]
    Invalid(#[from] InvalidProfile),
    #[error("a table of the profile has more entries than OTLP can refer to")]
    TooLarge,
}

/// Converts a request.
///
/// # Errors
/// See [`MalformedRequest`].
pub(super) fn of_request(request: &PushRequest) -> Result<ExportProfilesServiceRequest, MalformedRequest> {
    let mut dictionary = Dictionary::default();
    let mut resource_profiles = Vec::new();
    for series in request.all_series() {
        let mut profiles = Vec::new();
        for sample in &series.samples {
            let profile = decode(&sample.raw_profile, DecodeLimits::default())?;
            CheckedTables::new(&profile)?;
            profiles.extend(dictionary.add(&profile)?);
        }
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        resource_profiles.push(ResourceProfiles {
            resource: Some(resource(series)),
            scope_profiles: vec![ScopeProfiles { scope: Some(scope), profiles, ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        });
    }
    Ok(ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary.tables) })
}

/// The resource of a series: its labels, and its service in any case.
fn resource(series: &RawProfileSeries) -> Resource {
    let labels = series.labels.iter().flat_map(|set| &set.labels);
    let labels: LabelSet = labels.map(|label| (label.name.clone(), label.value.clone())).collect();
    let service = service_name(&labels).unwrap_or(UNKNOWN_SERVICE);
    let others = labels.iter().filter(|(name, _)| ![NAME_LABEL, SERVICE_LABEL].contains(&name.as_str()));
    let attributes = others.map(|(name, value)| text_attribute(of_resource(name), value));
    let service = text_attribute(of_resource(SERVICE_LABEL), service);
    Resource { attributes: std::iter::once(service).chain(attributes).collect(), ..Resource::default() }
}

/// The tables of a message, and where their entries are.
#[derive(Debug)]
struct Dictionary {
    tables: ProfilesDictionary,
    strings: HashMap<String, i32>,
    attributes: HashMap<(i32, String), i32>,
    stacks: HashMap<Vec<i32>, i32>,
    /// By the trace and the span.
    links: HashMap<[String; 2], i32>,
}

impl Default for Dictionary {
    fn default() -> Self {
        let tables = ProfilesDictionary {
            mapping_table: vec![Mapping::default()],
            location_table: vec![Location::default()],
            function_table: vec![Function::default()],
            link_table: vec![Link::default()],
            string_table: vec![String::new()],
            attribute_table: vec![KeyValueAndUnit::default()],
            stack_table: vec![Stack::default()],
        };
        let (strings, stacks) = (HashMap::from([(String::new(), 0)]), HashMap::from([(Vec::new(), 0)]));
        Self { tables, strings, attributes: HashMap::new(), stacks, links: HashMap::new() }
    }
}

/// The indices in the dictionary's tables of the entries of a pprof profile's.
#[derive(Debug, Default)]
struct Places {
    strings: Vec<i32>,
    mappings: HashMap<u64, i32>,
    functions: HashMap<u64, i32>,
    locations: HashMap<u64, i32>,
}

impl Places {
    fn string(&self, index: i64) -> i32 {
        usize::try_from(index).ok().and_then(|at| self.strings.get(at)).copied().unwrap_or_default()
    }
}

/// The index of a table's next entry.
fn next_index<T>(table: &[T]) -> Result<i32, MalformedRequest> {
    i32::try_from(table.len()).map_err(|_| MalformedRequest::TooLarge)
}

impl Dictionary {
    /// Adds a checked profile's tables, and returns a profile for each of its sample types.
    fn add(&mut self, profile: &pprof::Profile) -> Result<Vec<Profile>, MalformedRequest> {
        let mut places = Places::default();
        for text in &profile.string_table {
            places.strings.push(self.string(text)?);
        }
        let mut frame_types = HashMap::new();
        for mapping in &profile.mapping {
            let at = self.mapping(mapping, &places)?;
            let path = &self.tables.string_table[places.string(mapping.filename) as usize];
            let frame_type = match path.as_str() {
                "jvm" => "jvm",
                "[kernel.kallsyms]" => "kernel",
                _ => "native",
            };
            frame_types.insert(mapping.id, frame_type);
            places.mappings.insert(mapping.id, at);
        }
        for function in &profile.function {
            let at = next_index(&self.tables.function_table)?;
            self.tables.function_table.push(Function {
                name_strindex: places.string(function.name),
                system_name_strindex: places.string(function.system_name),
                filename_strindex: places.string(function.filename),
                start_line: function.start_line,
            });
            places.functions.insert(function.id, at);
        }
        for location in &profile.location {
            let frame_type = frame_types.get(&location.mapping_id).copied();
            let attribute = frame_type.map(|kind| self.attribute(FRAME_TYPE, kind)).transpose()?;
            let at = next_index(&self.tables.location_table)?;
            let index = |places: &HashMap<u64, i32>, id: u64| places.get(&id).copied().unwrap_or_default();
            let line = |line: &pprof::Line| Line {
                function_index: index(&places.functions, line.function_id),
                line: line.line,
                column: line.column,
            };
            self.tables.location_table.push(Location {
                mapping_index: index(&places.mappings, location.mapping_id),
                address: location.address,
                lines: location.line.iter().map(line).collect(),
                attribute_indices: attribute.into_iter().collect(),
            });
            places.locations.insert(location.id, at);
        }
        self.profiles(profile, &places)
    }

    fn profiles(
        &mut self,
        profile: &pprof::Profile,
        places: &Places,
    ) -> Result<Vec<Profile>, MalformedRequest> {
        let value_type = |of: &pprof::ValueType| ValueType {
            type_strindex: places.string(of.r#type),
            unit_strindex: places.string(of.unit),
        };
        let comments = profile.comment.iter().map(|at| places.string(*at)).collect::<Vec<_>>();
        let mut attribute_indices = Vec::new();
        for comment in comments {
            let comment = self.tables.string_table[comment as usize].clone();
            attribute_indices.push(self.attribute(COMMENT, &comment)?);
        }
        let mut profiles: Vec<Profile> = profile
            .sample_type
            .iter()
            .map(|of| Profile {
                sample_type: Some(value_type(of)),
                time_unix_nano: profile.time_nanos.try_into().unwrap_or_default(),
                duration_nano: profile.duration_nanos.try_into().unwrap_or_default(),
                period_type: profile.period_type.as_ref().map(value_type),
                period: profile.period,
                attribute_indices: attribute_indices.clone(),
                ..Profile::default()
            })
            .collect();
        for sample in &profile.sample {
            let stack_index = self.stack(sample, places)?;
            let text = |tables: &ProfilesDictionary, at: i64| {
                tables.string_table[places.string(at) as usize].clone()
            };
            let mut labels: Vec<[String; 2]> = Vec::new();
            for label in &sample.label {
                let [key, value] = [label.key, label.str].map(|at| text(&self.tables, at));
                labels.push([
                    key,
                    if label.str == 0 && label.num != 0 { label.num.to_string() } else { value },
                ]);
            }
            let link_index = self.link_of(&labels)?;
            let is_linked = |name: &str| link_index != 0 && [TRACE_ID, SPAN_ID].contains(&name);
            let mut attributes = Vec::new();
            for [key, value] in labels.iter().filter(|[key, _]| !is_linked(key)) {
                attributes.push(self.attribute(of_sample(key), value)?);
            }
            for (profile, value) in profiles.iter_mut().zip(&sample.value) {
                profile.samples.push(Sample {
                    stack_index,
                    attribute_indices: attributes.clone(),
                    link_index,
                    values: vec![*value],
                    ..Sample::default()
                });
            }
        }
        Ok(profiles)
    }

    /// The index of the link to a sample's span; 0 if its labels name none.
    fn link_of(&mut self, labels: &[[String; 2]]) -> Result<i32, MalformedRequest> {
        let value = |name: &str| labels.iter().find(|[key, _]| key == name).map(|[_, value]| value);
        let (Some(trace), Some(span)) = (value(TRACE_ID), value(SPAN_ID)) else { return Ok(0) };
        let Some(link) = span::link(trace, span) else { return Ok(0) };
        let key = [trace.clone(), span.clone()];
        if let Some(at) = self.links.get(&key) {
            return Ok(*at);
        }
        let at = next_index(&self.tables.link_table)?;
        self.tables.link_table.push(link);
        self.links.insert(key, at);
        Ok(at)
    }

    fn string(&mut self, text: &str) -> Result<i32, MalformedRequest> {
        if let Some(at) = self.strings.get(text) {
            return Ok(*at);
        }
        let at = next_index(&self.tables.string_table)?;
        self.tables.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), at);
        Ok(at)
    }

    fn attribute(&mut self, key: &str, value: &str) -> Result<i32, MalformedRequest> {
        let key = (self.string(key)?, value.to_owned());
        if let Some(at) = self.attributes.get(&key) {
            return Ok(*at);
        }
        let at = next_index(&self.tables.attribute_table)?;
        let attribute =
            KeyValueAndUnit { key_strindex: key.0, value: Some(text(value)), ..KeyValueAndUnit::default() };
        self.tables.attribute_table.push(attribute);
        self.attributes.insert(key, at);
        Ok(at)
    }

    fn mapping(&mut self, mapping: &pprof::Mapping, places: &Places) -> Result<i32, MalformedRequest> {
        let build_id = self.tables.string_table[places.string(mapping.build_id) as usize].clone();
        let build_id = if build_id.is_empty() { None } else { Some(self.attribute(BUILD_ID, &build_id)?) };
        let at = next_index(&self.tables.mapping_table)?;
        self.tables.mapping_table.push(Mapping {
            memory_start: mapping.memory_start,
            memory_limit: mapping.memory_limit,
            file_offset: mapping.file_offset,
            filename_strindex: places.string(mapping.filename),
            attribute_indices: build_id.into_iter().collect(),
        });
        Ok(at)
    }

    fn stack(&mut self, sample: &pprof::Sample, places: &Places) -> Result<i32, MalformedRequest> {
        let location = |id: &u64| places.locations.get(id).copied().unwrap_or_default();
        let locations: Vec<i32> = sample.location_id.iter().map(location).collect();
        if let Some(at) = self.stacks.get(&locations) {
            return Ok(*at);
        }
        let at = next_index(&self.tables.stack_table)?;
        self.tables.stack_table.push(Stack { location_indices: locations.clone() });
        self.stacks.insert(locations, at);
        Ok(at)
    }
}
