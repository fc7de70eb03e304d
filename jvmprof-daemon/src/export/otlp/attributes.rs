//! The names that OpenTelemetry has for labels.
//!
//! Source: open-telemetry/semantic-conventions, the registries of `process`, `host`, `container`,
//! `k8s`, `service` and `thread`.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};

use crate::profile::model::label_names::{THREAD_ID, THREAD_NAME};

/// Labels of series and the attributes of a resource that say the same. Other labels keep their
/// names.
const OF_RESOURCES: [(&str, &str); 13] = [
    ("service_name", "service.name"),
    ("service_namespace", "service.namespace"),
    ("deployment_environment", "deployment.environment.name"),
    ("node", "host.name"),
    ("pid", "process.pid"),
    ("comm", "process.executable.name"),
    ("executable", "process.executable.path"),
    ("runtime", "process.runtime.name"),
    ("jvm_version", "process.runtime.version"),
    ("container_id", "container.id"),
    ("namespace", "k8s.namespace.name"),
    ("pod", "k8s.pod.name"),
    ("container", "k8s.container.name"),
];

/// Labels of samples, and the attributes of samples that say the same.
const OF_SAMPLES: [(&str, &str); 2] = [(THREAD_NAME, "thread.name"), (THREAD_ID, "thread.id")];

/// The attribute of a resource for a label of a series.
pub(super) fn of_resource(label: &str) -> &str {
    renamed(&OF_RESOURCES, label)
}

/// The attribute of a sample for a label of a sample.
pub(super) fn of_sample(label: &str) -> &str {
    renamed(&OF_SAMPLES, label)
}

/// The label of a series for an attribute of a resource: its name there, with `_` for characters
/// that labels don't have.
pub(super) fn label_of_resource(attribute: &str) -> String {
    let known = OF_RESOURCES.iter().find(|(_, name)| *name == attribute);
    if let Some((label, _)) = known {
        return (*label).to_owned();
    }
    let allowed = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
    let name: String = attribute.chars().map(allowed).collect();
    if name.starts_with(|first: char| first.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// The label of a sample for an attribute of a sample.
pub(super) fn label_of_sample(attribute: &str) -> &str {
    OF_SAMPLES.iter().find(|(_, name)| *name == attribute).map_or(attribute, |(label, _)| label)
}

fn renamed<'a>(table: &[(&str, &'a str)], label: &'a str) -> &'a str {
    table.iter().find(|(from, _)| *from == label).map_or(label, |(_, to)| to)
}

/// An attribute whose value is a text, as most receivers take no others.
pub(super) fn text_attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(text(value)), ..KeyValue::default() }
}

pub(super) fn text(value: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(value.to_owned())) }
}
