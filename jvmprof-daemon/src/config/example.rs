//! The commented example file: every key with its meaning and its default.

use super::option::ConfigOption;

/// Columns of a comment.
const WIDTH: usize = 100;

const HEAD: &str = "\
# Settings of `jvmprof daemon`, each with its default. Printed by `jvmprof daemon --example-config`.
# A key is a flag without its dashes. Its environment variable overrides this file, the flag
# overrides both. Tables group, as you like: `address` in [remote-store] is `remote-store-address`.
# See docs/configuration.md.
";

/// Returns the file for these options.
pub(super) fn example(options: &[ConfigOption]) -> String {
    let mut text = HEAD.to_owned();
    for option in options {
        text.push('\n');
        let help = option.arg.get_long_help().or_else(|| option.arg.get_help()).map(ToString::to_string);
        for paragraph in help.unwrap_or_default().lines() {
            comment(&mut text, paragraph);
        }
        let values = option.arg.get_possible_values();
        let names: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
        if !names.is_empty() && !option.arg.is_hide_possible_values_set() {
            comment(&mut text, &format!("One of: {}", names.join(", ")));
        }
        let form = option.arg.get_value_names().unwrap_or_default().join(" ");
        let list = if option.is_list() { "list of " } else { "" };
        comment(&mut text, &format!("{} ({list}{form})", option.variables.join(", ")));
        text.push_str(&format!("#{} = {}\n", option.name, default_value(option)));
    }
    text
}

/// Returns the default in TOML; an empty text is the value of an option without one.
fn default_value(option: &ConfigOption) -> String {
    let values: Vec<String> = option.default_values().iter().map(|value| scalar(value)).collect();
    match (option.is_list(), values.as_slice()) {
        (true, values) => format!("[{}]", values.join(", ")),
        (false, [one, ..]) => one.clone(),
        (false, []) => "\"\"".to_owned(),
    }
}

fn scalar(text: &str) -> String {
    if text.parse::<i64>().is_ok() || text.parse::<bool>().is_ok() {
        return text.to_owned();
    }
    toml::Value::String(text.to_owned()).to_string()
}

/// Appends a wrapped comment.
fn comment(text: &mut String, paragraph: &str) {
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        if column == 0 || column + 1 + word.chars().count() > WIDTH {
            text.push_str(if column == 0 { "#" } else { "\n#" });
            column = 1;
        }
        text.push(' ');
        text.push_str(word);
        column += 1 + word.chars().count();
    }
    text.push('\n');
}
