//! The payload of a context: a protobuf message.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use super::{ContextError, ProcessContext};
use crate::process::service_identity::ServiceIdentity;

/// `opentelemetry.proto.processcontext.v1development.ProcessContext`.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    /// Attributes for readers that are none of the resource.
    #[prost(message, repeated, tag = "2")]
    attributes: Vec<KeyValue>,
}

/// Decodes a payload.
///
/// # Errors
/// [`ContextError::Malformed`] if it is no such message.
pub fn decode(bytes: &[u8]) -> Result<ProcessContext, ContextError> {
    let payload = Payload::decode(bytes).map_err(|_| ContextError::Malformed)?;
    let attributes = payload.resource.map(|it| it.attributes).unwrap_or_default();
    let pair = |it: &KeyValue| Some((it.key.clone(), single(it.value.as_ref()?)?));
    let pairs: Vec<(String, String)> = attributes.iter().filter_map(pair).collect();
    let several = (attributes.len() - pairs.len()) as u64;
    let (service, left_out) = ServiceIdentity::of_pairs(&pairs);
    let thread_keys = thread_keys(&payload.attributes);
    Ok(ProcessContext { thread_keys, service, left_out: left_out + several })
}

/// Returns a single value as a text; `None` for arrays, maps and bytes.
fn single(value: &AnyValue) -> Option<String> {
    match value.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::BoolValue(value) => Some(value.to_string()),
        Value::IntValue(value) => Some(value.to_string()),
        Value::DoubleValue(value) => Some(value.to_string()),
        _ => None,
    }
}

/// The attribute that says how threads publish their contexts, its values that mean the
/// thread-local variable, and the attribute with the names of their attributes (OTEP 4947).
const SCHEMA: &str = "threadlocal.schema_version";
const SCHEMAS: [&str; 4] = ["tlsdesc_v1_dev", "tlsdesc_v1", "tls_v1_dev", "tls_v1"];
const KEYS: &str = "threadlocal.attribute_key_map";

/// Keys of attributes, at most: an index has 8 bits.
const MAX_KEYS: usize = 256;
/// Bytes of a key's name, at most; a longer one is empty.
const MAX_KEY_BYTES: usize = 128;

/// Returns the names of the attributes that contexts of threads have.
fn thread_keys(attributes: &[KeyValue]) -> Option<Box<[Box<str>]>> {
    let value = |name: &str| {
        let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
        attribute.value.as_ref()?.value.as_ref()
    };
    let Some(Value::StringValue(schema)) = value(SCHEMA) else { return None };
    if !SCHEMAS.contains(&schema.as_str()) {
        return None;
    }
    let keys = match value(KEYS) {
        Some(Value::ArrayValue(keys)) => &*keys.values,
        _ => &[],
    };
    let name = |key: &AnyValue| match &key.value {
        Some(Value::StringValue(name)) if name.len() <= MAX_KEY_BYTES => (**name).into(),
        _ => "".into(),
    };
    Some(keys.iter().take(MAX_KEYS).map(name).collect())
}

/// Encodes a context with these attributes of its resource, for tests.
#[cfg(test)]
pub(super) fn encoded(attributes: &[(&str, Value)]) -> Vec<u8> {
    let attribute = |(key, value): &(&str, Value)| KeyValue {
        key: (*key).to_owned(),
        value: Some(AnyValue { value: Some(value.clone()) }),
        ..KeyValue::default()
    };
    let attributes = attributes.iter().map(attribute).collect();
    let resource = Some(Resource { attributes, ..Resource::default() });
    Payload { resource, attributes: Vec::new() }.encode_to_vec()
}
