//! Checks of the order of imports, of import cycles, and of the sizes of files and folders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::import_graph::ImportGraph;
use super::{files, relative};
use crate::paths;

const MOST_LINES: usize = 500;
/// Maximum number of entries in a folder. A file and the folder of its submodules count as one.
const MOST_ENTRIES: usize = 16;

const CRATES: [&str; 4] = ["jvmprof-common", "jvmprof-daemon", "jvmprof-ebpf", "xtask"];

/// Paths that may exceed the limits, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("jvmprof-daemon/src", "the subjects in their one order, which lib.rs lists"),
    ("jvmprof-daemon/src/proto/generated", "written by a generator"),
];

/// Returns the paths that exceed the limits, and exceptions that aren't needed any more.
fn too_large(workspace: &Path, exceptions: &[(&str, &str)]) -> anyhow::Result<Vec<String>> {
    let mut found = BTreeMap::new();
    for name in CRATES {
        let mut entries: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for file in files(&workspace.join(name), &[".rs"]) {
            let path = relative(&file, workspace)?;
            let text = fs::read_to_string(&file).with_context(|| format!("reading {path}"))?;
            let lines = text.lines().count();
            if lines > MOST_LINES {
                found.insert(path.clone(), format!("{path}: {lines} lines, more than {MOST_LINES}"));
            }
            let mut below = path.strip_suffix(".rs").unwrap_or(&path);
            while let Some((folder, entry)) = below.rsplit_once('/') {
                entries.entry(folder.to_owned()).or_default().insert(entry.to_owned());
                below = folder;
            }
        }
        for (folder, entries) in entries {
            let count = entries.len();
            if count > MOST_ENTRIES {
                let text = format!(
                    "{folder}: {count} entries, more than {MOST_ENTRIES}: make subfolders by subject"
                );
                found.insert(folder, text);
            }
        }
    }
    let excepted = |path: &str| {
        let in_generated = |exception: &str| exception.ends_with("/generated") && path.starts_with(exception);
        exceptions.iter().find(|(exception, _)| path == *exception || in_generated(exception))
    };
    let used: BTreeSet<&str> = found.keys().filter_map(|path| Some(excepted(path)?.0)).collect();
    let unused = exceptions.iter().filter(|(path, _)| !used.contains(path));
    let unused: Vec<String> =
        unused.map(|(path, _)| format!("{path}: an exception that nothing needs")).collect();
    let kept = found.into_iter().filter(|(path, _)| excepted(path).is_none()).map(|(_, text)| text);
    Ok(kept.chain(unused).collect())
}

/// Returns the top modules in the order of `lib.rs`: of modules that stand side by side, without an
/// empty line between, one may import the other; else each imports only from those above it.
fn order(lib: &str) -> BTreeMap<String, usize> {
    let groups = lib.split("\n\n").enumerate();
    let modules = groups.flat_map(|(level, group)| {
        let declared = group.lines().filter_map(|line| {
            let name = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "))?;
            Some(name.strip_suffix(';')?.to_owned())
        });
        declared.map(move |name| (name, level))
    });
    modules.collect()
}

/// Returns the imports from modules further down in that order.
fn imports_against_order(graph: &ImportGraph, order: &BTreeMap<String, usize>) -> Vec<String> {
    let mut found = Vec::new();
    for (from, targets) in graph.arrows() {
        let Some(own) = from.first().and_then(|top| order.get(top)) else { continue };
        for to in targets {
            if to.first().and_then(|top| order.get(top)).is_some_and(|level| level > own) {
                found.push(format!(
                    "{} imports {}, which stands below it in lib.rs",
                    from.join("::"),
                    to.join("::")
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_folder_of_the_daemon_imports_against_the_order_of_lib_rs() {
        let src = paths::workspace().join("jvmprof-daemon/src");
        let order = order(&fs::read_to_string(src.join("lib.rs")).unwrap());
        assert!(order.len() > 10 && order["types"] < order["app"], "{order:?}");
        let found = imports_against_order(&ImportGraph::read(&src).unwrap(), &order);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    fn graphs() -> impl Iterator<Item = (&'static str, ImportGraph)> {
        CRATES.into_iter().map(|name| {
            let graph = ImportGraph::read(&paths::workspace().join(name).join("src")).unwrap();
            assert!(graph.arrows().values().any(|targets| !targets.is_empty()), "{name} imports nothing");
            (name, graph)
        })
    }

    #[test]
    fn no_files_import_each_other_in_circles() {
        let mut found = Vec::new();
        for (name, graph) in graphs() {
            let circles = graph.circles();
            found.extend(circles.iter().map(|circle| format!("{name}: {} in a circle", circle.join(" -> "))));
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn no_files_and_folders_of_one_folder_import_each_other_in_circles() {
        let mut found = Vec::new();
        for (name, graph) in graphs() {
            let circles = graph.sibling_circles();
            found.extend(circles.iter().map(|circle| format!("{name}: {}", circle.join(", "))));
        }
        assert!(found.is_empty(), "siblings in circles:\n{}", found.join("\n"));
    }

    #[test]
    fn files_and_folders_are_small() {
        let found = too_large(&paths::workspace(), EXCEPTIONS).unwrap();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn an_import_from_further_down_is_found() {
        let order = order("mod low;\n\npub mod middle;\npub mod beside;\n\nmod high;\n");
        let files = [
            ("low", "use crate::high::X;"),
            ("middle", "use crate::beside::Y;"),
            ("beside", ""),
            ("high", "use crate::low::Z;"),
        ];
        let found = imports_against_order(&ImportGraph::of(files.into_iter()), &order);
        assert_eq!(found, ["low imports high, which stands below it in lib.rs"]);
    }

    #[test]
    fn large_files_full_folders_and_exceptions_that_nothing_needs_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let src = folder.path().join("xtask/src");
        fs::create_dir_all(src.join("many")).unwrap();
        fs::write(src.join("long.rs"), "\n".repeat(501)).unwrap();
        for n in 0..17 {
            fs::write(src.join(format!("many/f{n}.rs")), "").unwrap();
        }
        let found = too_large(folder.path(), &[("xtask/src/none.rs", "")]).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
        let exceptions = [("xtask/src/long.rs", ""), ("xtask/src/many", "")];
        assert_eq!(too_large(folder.path(), &exceptions).unwrap(), Vec::<String>::new());
    }
}
