//! Names of generated code for people, without the markup of their writers.

/// The name for people of a perf map's `raw` text. Where it differs from the text, the text is for `system_name`.
pub fn display_name(raw: &str) -> &str {
    raw
}
