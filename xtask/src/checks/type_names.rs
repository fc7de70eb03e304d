//! Checks that no two types of the program have one name: a name alone says which type is meant.

use std::collections::{BTreeMap, BTreeSet};

use super::rust_source::{test_modules, type_names};

/// Names that several types may have, each with its reason.
const HOMONYMS: &[(&str, &str)] = &[];

/// Returns the names that types of several files have, with these files, and exceptions that
/// nothing needs. `sources`: paths without `.rs`, and contents.
fn homonyms(sources: &[(String, String)], exceptions: &[(&str, &str)]) -> Vec<String> {
    let module = |path: &str| {
        let parent = ["/mod", "/lib", "/main"].iter().find_map(|end| path.strip_suffix(end));
        parent.unwrap_or(path).to_owned()
    };
    let tests: Vec<String> = sources
        .iter()
        .flat_map(|(path, text)| {
            let parent = module(path);
            test_modules(text).into_iter().map(move |name| format!("{parent}/{name}"))
        })
        .collect();
    let is_test = |path: &str| {
        tests.iter().any(|test| {
            module(path)
                .strip_prefix(test)
                .is_some_and(|rest| matches!(rest.chars().next(), None | Some('/')))
        })
    };
    let mut defined: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in sources.iter().filter(|(path, _)| !is_test(path)) {
        for name in type_names(text) {
            defined.entry(name).or_default().insert(path);
        }
    }
    defined.retain(|_, paths| paths.len() > 1);
    let unused = exceptions.iter().filter(|(name, _)| !defined.contains_key(*name));
    let unused: Vec<String> =
        unused.map(|(name, _)| format!("{name}: an exception that nothing needs")).collect();
    let is_excepted = |name: &str| exceptions.iter().any(|(exception, _)| *exception == name);
    let found = defined.iter().filter(|(name, _)| !is_excepted(name)).map(|(name, paths)| {
        let paths: Vec<&str> = paths.iter().copied().collect();
        format!("{name} is defined in {}", paths.join(", "))
    });
    found.chain(unused).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{files, relative};
    use super::*;
    use crate::paths;

    /// Crates of the program. Tasks and tests have types of their own.
    const CRATES: [&str; 3] = ["jvmprof-common", "jvmprof-daemon", "jvmprof-ebpf"];

    #[test]
    fn no_two_types_of_one_name() {
        let workspace = paths::workspace();
        let mut sources = Vec::new();
        for name in CRATES {
            for file in files(&workspace.join(name).join("src"), &[".rs"]) {
                let path = relative(&file, &workspace).unwrap();
                // A generator's names are those of the protocols.
                if !path.contains("/generated/") {
                    let text = fs::read_to_string(&file).unwrap();
                    sources.push((path.trim_end_matches(".rs").to_owned(), text));
                }
            }
        }
        let types: usize = sources.iter().map(|(_, text)| type_names(text).len()).sum();
        assert!(types > 1000, "{types} in {} files", sources.len());
        let found = homonyms(&sources, HOMONYMS);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn a_name_of_two_types_is_found_and_one_of_a_test_is_none() {
        let sources = [
            ("src/lib", "mod a;\nstruct Top;"),
            ("src/a/mod", "mod b;\npub struct Pace;\n#[cfg(test)]\nmod tests;\n"),
            ("src/a/b", "pub(super) enum Pace { Top }"),
            ("src/a/tests", "struct Top;"),
            ("src/a/tests/more", "struct Top;"),
        ];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(homonyms(&sources, &[]), ["Pace is defined in src/a/b, src/a/mod"]);
        assert_eq!(homonyms(&sources, &[("Pace", "")]), Vec::<String>::new());
        let unused = homonyms(&sources, &[("Pace", ""), ("Top", "")]);
        assert_eq!(unused, ["Top: an exception that nothing needs"]);
    }
}
