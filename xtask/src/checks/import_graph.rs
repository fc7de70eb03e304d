//! Graph of the imports between the files of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::files;
use super::rust_source::{Import, imports, test_modules};

/// Maximum length of a chain of re-exports that is followed.
const MOST_HOPS: usize = 8;

/// A module's path below the crate, `[]` for its root.
pub(super) type ModulePath = Vec<String>;

#[derive(Debug, Default)]
pub(super) struct ImportGraph {
    modules: BTreeMap<ModulePath, Module>,
}

#[derive(Debug, Default)]
struct Module {
    imports: Vec<Import>,
}

impl ImportGraph {
    /// Reads a crate's `src`, without what is compiled for tests only.
    ///
    /// # Errors
    /// A file can't be read.
    pub(super) fn read(src: &Path) -> anyhow::Result<Self> {
        let mut sources = Vec::new();
        for file in files(src, &[".rs"]) {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let below = file
                .strip_prefix(src)
                .with_context(|| format!("{} is outside of {}", file.display(), src.display()))?
                .with_extension("");
            sources.push((below.display().to_string(), text));
        }
        Ok(Self::of(sources.iter().map(|(path, text)| (path.as_str(), text.as_str()))))
    }

    /// Builds the graph from sources by their paths below `src`, without `.rs`.
    pub(super) fn of<'a>(sources: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut modules = BTreeMap::new();
        let mut tests: Vec<ModulePath> = Vec::new();
        for (path, text) in sources {
            let mut path: ModulePath = path.split('/').map(str::to_owned).collect();
            if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                path.pop();
            }
            tests.extend(test_modules(text).into_iter().map(|name| [path.as_slice(), &[name]].concat()));
            modules.entry(path).or_insert_with(Module::default).imports.extend(imports(text));
        }
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Self { modules }
    }

    /// Returns the arrows from module to module, without those to a module's own ancestors.
    pub(super) fn arrows(&self) -> BTreeMap<&ModulePath, BTreeSet<&ModulePath>> {
        let arrows = self.modules.iter().map(|(from, module)| {
            let targets = module.imports.iter().filter_map(|import| self.resolve(from, &import.path, 0));
            (from, targets.filter(|to| !from.starts_with(to)).collect())
        });
        arrows.collect()
    }

    /// Returns the module that defines what a path names, through re-exports.
    fn resolve(&self, from: &ModulePath, path: &[String], hops: usize) -> Option<&ModulePath> {
        let mut at = from.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {}
            first if self.child(from, first).is_some() => {}
            // Another crate, or a name of this file.
            _ => return None,
        }
        while let Some((first, others)) = rest.split_first() {
            if first == "super" {
                at.pop()?;
            } else if let Some(child) = self.child(&at, first) {
                at.clone_from(child);
            } else {
                let named = |import: &&Import| import.name.as_ref() == Some(first) && import.path != path;
                let next = self.modules.get(&at)?.imports.iter().find(named);
                let followed = next
                    .filter(|_| hops < MOST_HOPS)
                    .and_then(|next| self.resolve(&at, &[next.path.as_slice(), others].concat(), hops + 1));
                if followed.is_some() {
                    return followed;
                }
                break;
            }
            rest = others;
        }
        self.modules.get_key_value(&at).map(|(module, _)| module)
    }

    fn child(&self, parent: &ModulePath, name: &str) -> Option<&ModulePath> {
        let path = [parent.as_slice(), &[name.to_owned()]].concat();
        self.modules.get_key_value(&path).map(|(module, _)| module)
    }

    /// Returns circles of modules, each as the modules along it; a module and its child are none.
    pub(super) fn circles(&self) -> Vec<Vec<String>> {
        let arrows = self.arrows();
        let (mut done, mut circles) = (BTreeSet::new(), Vec::new());
        for start in arrows.keys() {
            find_circles(start, &arrows, &mut Vec::new(), &mut done, &mut circles);
        }
        circles
    }
}

fn find_circles<'a>(
    at: &'a ModulePath,
    arrows: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
    way: &mut Vec<&'a ModulePath>,
    done: &mut BTreeSet<&'a ModulePath>,
    circles: &mut Vec<Vec<String>>,
) {
    if let Some(begin) = way.iter().position(|module| *module == at) {
        circles.push(way[begin..].iter().map(|module| module.join("::")).collect());
        return;
    }
    if !done.insert(at) {
        return;
    }
    way.push(at);
    for to in arrows.get(at).into_iter().flatten() {
        // A module that is done, but not on this way, leads to no circle with it.
        if way.contains(to) || !done.contains(to) {
            find_circles(to, arrows, way, done, circles);
        }
    }
    way.pop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_of_siblings_is_found_and_a_child_that_uses_its_parent_is_none() {
        let fine = [
            ("lib", "pub mod a;"),
            ("a/mod", "mod b; mod c; use b::B; pub struct A;"),
            ("a/b", "use super::A;"),
            ("a/c", "use super::b::B;"),
        ];
        assert_eq!(ImportGraph::of(fine.into_iter()).circles(), Vec::<Vec<String>>::new());
        let circle = [("lib", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "fn f() { super::a::g() }")];
        assert_eq!(ImportGraph::of(circle.into_iter()).circles(), [["a", "b"]]);
    }

    #[test]
    fn a_circle_by_way_of_the_parents_re_exports_is_found() {
        let circle = [
            ("lib", "mod a;"),
            ("a/mod", "mod b; mod c; pub use b::B; pub use c::C;"),
            ("a/b", "use super::C;"),
            ("a/c", "use super::B;"),
        ];
        assert_eq!(ImportGraph::of(circle.into_iter()).circles(), [["a::b", "a::c"]]);
    }
}
