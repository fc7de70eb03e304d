//! Conversion of TOML values to the flags' syntax.

use serde::Deserialize;
use toml::de::{DeValue, ValueDeserializer};
use toml::{Spanned, Value};

/// Returns a value in the command line's syntax; a table is written as an inline one.
///
/// # Errors
/// Flags have no values of this type, or the number is out of range.
pub(super) fn flag_text(value: &Spanned<DeValue<'_>>) -> Result<String, String> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Array(_) | DeValue::Datetime(_) => {
            Err(format!("a value can't be of type {}", value.get_ref().type_str()))
        }
        _ => Value::deserialize(ValueDeserializer::from(value.clone()))
            .map(|value| value.to_string())
            .map_err(|error| error.message().to_owned()),
    }
}
