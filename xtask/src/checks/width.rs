//! Checks that comments and documents are at most 100 columns wide.

/// Columns of a line that is read as text. Tables, code in documents and a single long word can't
/// be wrapped.
const COLUMNS: usize = 100;

/// Returns `FILE:LINE` of each line of text that is too wide.
fn too_wide(file: &str, contents: &str) -> Vec<String> {
    let is_document = file.ends_with(".md");
    let mut is_code = false;
    let mut found = Vec::new();
    for (index, line) in contents.lines().enumerate() {
        let text = line.trim_start();
        is_code ^= is_document && text.starts_with("```");
        let is_text = if is_document {
            !is_code && !line.starts_with("    ") && !text.starts_with('|')
        } else {
            is_comment(text)
        };
        // A marker, and a word that is as long as the line.
        let can_be_wrapped = text.split_whitespace().nth(2).is_some();
        if is_text && can_be_wrapped && line.chars().count() > COLUMNS {
            found.push(format!("{file}:{}: more than {COLUMNS} columns", index + 1));
        }
    }
    found
}

/// Returns true if a line of code is nothing but a comment; one with a table isn't text.
fn is_comment(line: &str) -> bool {
    let comment = line.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!', ' ']));
    comment.is_some_and(|text| !text.starts_with('|'))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{files, relative};
    use super::*;
    use crate::paths;

    #[test]
    fn comments_and_documents_are_at_most_100_columns_wide() {
        let workspace = paths::workspace();
        let mut found = Vec::new();
        for file in files(&workspace, &[".md", ".rs", ".js", ".proto"]) {
            let name = relative(&file, &workspace).unwrap();
            if !name.contains("/generated/") {
                found.extend(too_wide(&name, &fs::read_to_string(&file).unwrap()));
            }
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn wide_text_is_found_and_what_cannot_be_wrapped_is_not() {
        let words = "word ".repeat(25);
        assert_eq!(too_wide("a.rs", &format!("\n    // {words}")), ["a.rs:2: more than 100 columns"]);
        assert_eq!(too_wide("a.md", &words), ["a.md:1: more than 100 columns"]);
        for (file, fine) in [
            ("a.rs", format!("let x = {words};")),
            ("a.rs", format!("//! | {words}")),
            ("a.rs", format!("/// {}", "x".repeat(120))),
            ("a.md", format!("```\n{words}\n```")),
            ("a.md", format!("| {words} |")),
        ] {
            assert_eq!(too_wide(file, &fine), Vec::<String>::new(), "{fine}");
        }
    }
}
