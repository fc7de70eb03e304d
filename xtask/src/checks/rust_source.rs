//! Imports and types of a Rust file, read without a parser: names that follow `use`, paths that
//! begin with `crate::` or `super::`, and names that follow `struct` and its like.

/// An imported path, and its name in the file; `None` for paths that aren't imported by `use`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    pub(super) name: Option<String>,
}

/// Returns the imports outside of comments, strings and `#[cfg(test)]` items.
pub(super) fn imports(source: &str) -> Vec<Import> {
    let code = without_tests(&without_comments(source));
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        let starts_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || "_$:".contains(c));
        let use_tree =
            rest.strip_prefix("use ").filter(|_| starts_word).and_then(|tree| tree.split_once(';'));
        if let Some((tree, _)) = use_tree {
            expand(&[], tree, &mut found);
            at += "use ".len() + tree.len();
        } else if starts_word && (rest.starts_with("crate::") || rest.starts_with("super::")) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).unwrap_or(rest.len());
            let path = segments(&rest[..end]);
            found.push(Import { path, name: None });
            at += end;
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    found
}

/// Returns the modules that a file declares for tests only.
pub(super) fn test_modules(source: &str) -> Vec<String> {
    let code = without_comments(source);
    let declared = code.split("#[cfg(test)]").skip(1).filter_map(|rest| {
        let (item, _) = rest.split_once(['{', ';'])?;
        Some(item.split_once("mod ")?.1.trim().to_owned())
    });
    declared.collect()
}

/// Returns the names of the types that a source defines outside of comments, strings and
/// `#[cfg(test)]` items. Associated types, which are indented, aren't among them.
pub(super) fn type_names(source: &str) -> Vec<String> {
    let code = without_tests(&without_comments(source));
    code.lines().filter_map(defined_type).map(str::to_owned).collect()
}

/// Returns the name of the type whose definition a line begins.
fn defined_type(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = item.strip_prefix("pub").map_or(item, |rest| match rest.split_once(')') {
        Some((_, item)) if rest.starts_with('(') => item,
        _ => rest,
    });
    let (keyword, rest) = item.trim_start().split_once(' ')?;
    let is_type = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

/// Expands `a::{b, c::d as e}` to `a::b` and `a::c::d`.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let prefix = [prefix, &segments(head)].concat();
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        let mut depth = 0;
        let parts = group.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        parts.for_each(|part| expand(&prefix, part, found));
    } else if !tree.is_empty() {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
        let mut path = [prefix, &segments(path)].concat();
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.map(|name| name.trim().to_owned()).or_else(|| path.last().cloned());
        found.push(Import { path, name });
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// Blanks comments and the contents of strings and characters.
fn without_comments(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let raw_string = ["r\"", "r#\"", "r##\""].into_iter().find(|start| rest.starts_with(start));
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(start) = raw_string.filter(|_| !code.ends_with(char::is_alphanumeric)) {
            let close = format!("\"{}", &start[1..start.len() - 1]);
            rest[start.len()..].find(&close).map_or(rest.len(), |end| start.len() + end + close.len())
        } else if first == '"' {
            let mut escaped = false;
            let close = rest[1..].find(|c| {
                let closes = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                closes
            });
            close.map_or(rest.len(), |end| end + 2)
        } else if ["'\"'", "'{'", "'}'", "'\\''", "'/'"].iter().any(|c| rest.starts_with(c)) {
            rest[1..]
                .find('\'')
                .map_or(1, |end| if end == 1 && rest.starts_with("'\\'") { 4 } else { end + 2 })
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[end..];
    }
    code
}

/// Leaves out each item that follows `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut parts = code.split("#[cfg(test)]");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut depth = 0;
        let end = part.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0 && (*c == '}' || *c == ';')
        });
        kept.push_str(end.map_or("", |(end, _)| &part[end + 1..]));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(source: &str) -> Vec<String> {
        imports(source).iter().map(|import| import.path.join("::")).collect()
    }

    #[test]
    fn groups_and_paths_in_code_are_imports() {
        let source = "pub use crate::a::{self, b::{C, D as E}, f};\nfn g() { super::h::i(); $crate::no() }";
        assert_eq!(
            paths(source),
            ["crate::a", "crate::a::b::C", "crate::a::b::D", "crate::a::f", "super::h::i"]
        );
    }

    #[test]
    fn types_are_found_where_they_are_defined_and_not_where_they_are_named() {
        let source = "pub struct A;\npub(in crate::b) enum B<'a> {\n}\nfn f() {\n    struct C(u8);\n}\n\
            type D = A;\nimpl E for A {\n    type F = B;\n}\n// struct G;\n\
            #[cfg(test)]\nmod tests {\n    struct H;\n}\n";
        assert_eq!(type_names(source), ["A", "B", "C", "D"]);
    }

    #[test]
    fn comments_strings_and_tests_are_no_imports() {
        let source = "// use crate::a;\nconst B: &str = \"use crate::b;\\\"\";\nconst C: char = '\"';\n\
            #[cfg(test)]\nmod tests { use crate::c; fn d() {} }\nuse crate::e;\n#[cfg(test)]\nmod testing;\n";
        assert_eq!(paths(source), ["crate::e"]);
        assert_eq!(test_modules(source), ["tests", "testing"]);
    }
}
