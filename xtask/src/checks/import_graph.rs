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

/// The modules that each module leads to.
type Arrows<'a> = BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>;

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
    pub(super) fn arrows(&self) -> Arrows<'_> {
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
        let circles = circles_of(&self.arrows());
        circles.into_iter().map(|circle| circle.iter().map(|module| module.join("::")).collect()).collect()
    }

    /// Returns circles among the children of each folder, files as well as folders: each as the
    /// imports by which its children lead to one another. They need not be circles of modules: a
    /// file of one folder may import the other folder, and another file of that the first one.
    pub(super) fn sibling_circles(&self) -> Vec<Vec<String>> {
        let mut links: BTreeMap<ModulePath, BTreeMap<ModulePath, String>> = BTreeMap::new();
        for (from, targets) in self.arrows() {
            for to in targets {
                let depth = from.iter().zip(to).take_while(|(one, other)| one == other).count();
                // A folder's own module is no sibling of its children.
                let (Some(child), Some(sibling)) = (from.get(..=depth), to.get(..=depth)) else { continue };
                let import = || format!("{} imports {}", from.join("::"), to.join("::"));
                let of_child = links.entry(child.to_vec()).or_default();
                of_child.entry(sibling.to_vec()).or_insert_with(import);
            }
        }
        let arrows: Arrows<'_> =
            links.iter().map(|(child, siblings)| (child, siblings.keys().collect())).collect();
        let imports_along = |circle: Vec<&ModulePath>| {
            let next = circle.iter().cycle().skip(1);
            circle.iter().zip(next).filter_map(|(from, to)| links.get(*from)?.get(*to).cloned()).collect()
        };
        circles_of(&arrows).into_iter().map(imports_along).collect()
    }
}

/// Returns circles of arrows, each as the modules along it.
fn circles_of<'a>(arrows: &Arrows<'a>) -> Vec<Vec<&'a ModulePath>> {
    let (mut done, mut circles) = (BTreeSet::new(), Vec::new());
    for start in arrows.keys() {
        find_circles(start, arrows, &mut Vec::new(), &mut done, &mut circles);
    }
    circles
}

fn find_circles<'a>(
    at: &'a ModulePath,
    arrows: &Arrows<'a>,
    way: &mut Vec<&'a ModulePath>,
    done: &mut BTreeSet<&'a ModulePath>,
    circles: &mut Vec<Vec<&'a ModulePath>>,
) {
    if let Some(begin) = way.iter().position(|module| *module == at) {
        circles.push(way[begin..].to_vec());
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

    #[test]
    fn folders_that_import_each_other_by_different_files_are_a_circle_of_siblings() {
        let folders = [
            ("lib", "mod a; mod b;"),
            ("a/mod", "mod x; mod y;"),
            ("a/x", "use crate::b::z::Z;"),
            ("a/y", "pub struct Y;"),
            ("b/mod", "mod w; mod z;"),
            ("b/w", "use crate::a::y::Y;"),
            ("b/z", "pub struct Z;"),
        ];
        let graph = ImportGraph::of(folders.into_iter());
        assert_eq!(graph.circles(), Vec::<Vec<String>>::new());
        assert_eq!(graph.sibling_circles(), [["a::x imports b::z", "b::w imports a::y"]]);
    }

    #[test]
    fn a_circle_of_a_file_and_folders_is_found_in_the_folder_that_has_them() {
        let folder = [
            ("lib", "mod f;"),
            ("f/mod", "mod a; mod b; mod c;"),
            ("f/a", "use super::b::p::P;"),
            ("f/b/mod", "mod p; mod q;"),
            ("f/b/p", "pub struct P;"),
            ("f/b/q", "fn g() { super::super::c::r::h() }"),
            ("f/c/mod", "mod r; mod s;"),
            ("f/c/r", "pub fn h() {}"),
            ("f/c/s", "use crate::f::a::A;"),
        ];
        let graph = ImportGraph::of(folder.into_iter());
        assert_eq!(graph.circles(), Vec::<Vec<String>>::new());
        let circle = ["f::a imports f::b::p", "f::b::q imports f::c::r", "f::c::s imports f::a"];
        assert_eq!(graph.sibling_circles(), [circle]);
    }

    #[test]
    fn a_folder_and_its_own_files_are_no_circle_and_neither_are_imports_in_one_direction() {
        let folder = [
            ("lib", "mod f; mod g; mod h;"),
            ("f/mod", "mod a; mod b; use a::A; pub use b::B; pub struct F;"),
            ("f/a", "use super::F; pub struct A;"),
            ("f/b", "use super::a::A; use super::F; pub struct B;"),
            ("g", "use crate::f::B; use crate::h::H;"),
            ("h", "use super::f::a::A; pub struct H;"),
        ];
        let graph = ImportGraph::of(folder.into_iter());
        assert_eq!(graph.sibling_circles(), Vec::<Vec<String>>::new());
    }
}
