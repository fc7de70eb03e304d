//! Names of native functions by file and address, shared by all processes.
//!
//! Symbol tables of large programs push each other out of the file cache. What was named once stays known here, so that
//! a table is read again only for an address that no process has hit before.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use moka::sync::Cache;

use crate::native::cache::FileKey;
use crate::native::debug_files::DebugPlaces;
use crate::native::demangle::demangle;
use crate::native::lines::SourceLine;
use crate::native::symbols::SymbolRef;
use crate::process::Process;
use crate::profile::model::Line;
use crate::types::{BuildId, Svma};

/// Bytes that an entry takes beside its lines.
const ENTRY_BYTES: usize = 250;
/// Bytes that a line takes beside its text.
const LINE_BYTES: usize = 100;
/// Files that are held open at a time.
const MAX_HELD: usize = 256;

/// What has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Address(Svma),
    Function(SymbolRef),
}

/// What is at an address, innermost first: one function, and what was inlined into it if that is asked for.
pub(super) type NativeLines = Arc<[Line]>;

/// A file that is held open.
#[derive(Debug)]
struct Held {
    file: File,
    /// Since [`FunctionNames::release`] was called last.
    is_wanted: bool,
}

/// The cache, and how names are found. `None` is remembered too: most addresses of stripped files have no name.
#[derive(Debug)]
pub(super) struct FunctionNames {
    by_place: Cache<(FileKey, Place), Option<NativeLines>>,
    /// Files with functions that wait for their names. A container's are gone with its last process.
    held: Mutex<HashMap<FileKey, Held>>,
    /// Inlined functions and lines are asked for.
    pub(super) with_lines: bool,
    /// Where debuginfod's files are kept.
    pub(super) downloads: Option<PathBuf>,
}

impl FunctionNames {
    /// `bytes`: its limit.
    pub(super) fn new(bytes: u64) -> Self {
        let weigh = |_: &(FileKey, Place), lines: &Option<NativeLines>| {
            let lines = lines.as_deref().unwrap_or_default().iter();
            let text = lines.map(|line| line.name.len() + line.system_name.len() + LINE_BYTES).sum::<usize>();
            u32::try_from(text + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let by_place = Cache::builder().max_capacity(bytes).weigher(weigh).build();
        Self { by_place, held: Mutex::default(), with_lines: false, downloads: None }
    }

    /// Bytes held, and how many may be.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.by_place.weighted_size(), self.by_place.policy().max_capacity().unwrap_or(u64::MAX))
    }

    /// Where debug files of what a process maps may be.
    pub(super) fn places(&self, process: &Process) -> DebugPlaces {
        DebugPlaces { process_root: Some(process.root()), host: true, downloads: self.downloads.clone() }
    }

    /// What is known of a place, found out by `find` the first time. Errors aren't remembered.
    pub(super) fn get<E>(
        &self,
        key: (FileKey, Place),
        find: impl FnOnce() -> Result<Option<NativeLines>, E>,
    ) -> Result<Option<NativeLines>, E> {
        if let Some(known) = self.by_place.get(&key) {
            return Ok(known);
        }
        let found = find()?;
        self.by_place.insert(key, found.clone());
        Ok(found)
    }

    /// Keeps a file open until [`Self::release`], if there is room for it.
    pub(super) fn hold(&self, key: FileKey, open: impl FnOnce() -> Option<File>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.get_mut(&key) {
            held.is_wanted = true;
        } else if held.len() < MAX_HELD
            && let Some(file) = open()
        {
            held.insert(key, Held { file, is_wanted: true });
        }
    }

    /// The file, if it is held.
    pub(super) fn held(&self, key: &FileKey) -> Option<File> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get(key)?.file.try_clone().ok()
    }

    /// What waited has its name. Files of which more waited since the last call stay open until the next one: they are likely to
    /// be asked for again, by processes that have them mapped.
    pub(super) fn release(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, held| std::mem::take(&mut held.is_wanted));
    }

    /// Forgets what is known of files with this build id.
    pub(super) fn forget(&self, id: BuildId) {
        let is_it = |(file, _): &(FileKey, Place)| file.build_id == Some(id);
        let keys: Vec<_> = self.by_place.iter().map(|(key, _)| *key).filter(is_it).collect();
        for key in keys {
            self.by_place.invalidate(&key);
        }
    }
}

/// Puts together what symbols and DWARF say of one address. The function that has the code is called as its symbol is,
/// which is what it would be called without DWARF.
pub(super) fn lines_of(symbol: Option<&str>, source: Vec<SourceLine>) -> Option<NativeLines> {
    let symbol = symbol.map(|raw| line_of(raw, None));
    let outermost = source.len().saturating_sub(1);
    let mut lines = Vec::with_capacity(source.len().max(1));
    for (index, found) in source.into_iter().enumerate() {
        let named = match (&symbol, found.raw_name) {
            (Some(symbol), _) if index == outermost => symbol.clone(),
            (_, Some(raw)) => line_of(&raw, found.name),
            // A place without a function names nothing.
            (_, None) => continue,
        };
        lines.push(Line { file: found.file, line: found.line, ..named });
    }
    if lines.is_empty() {
        lines.extend(symbol);
    }
    (!lines.is_empty()).then(|| lines.into())
}

/// `name`: the demangled one, if it is known already.
fn line_of(raw: &str, name: Option<Arc<str>>) -> Line {
    let system_name: Arc<str> = raw.into();
    let name = name.or_else(|| demangle(raw).map(Arc::from)).unwrap_or_else(|| Arc::clone(&system_name));
    Line { name, system_name, file: None, line: 0, how: None }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::native::cache::Content;

    #[test]
    fn an_address_is_looked_up_once_also_without_a_name() {
        let names = FunctionNames::new(1 << 20);
        let file = FileKey { build_id: None, content: Content::Hash(1), debug: None };
        let mut lookups = 0;
        for _ in 0..3 {
            let mut find = |name: Option<&str>| {
                lookups += 1;
                Ok::<_, Infallible>(name.and_then(|name| lines_of(Some(name), Vec::new())))
            };
            let Ok(named) =
                names.get((file, Place::Address(Svma(1))), || find(Some("_RNvCs1234_7mycrate3foo")));
            assert_eq!(named.map(|lines| lines[0].name.to_string()), Some("mycrate::foo".to_owned()));
            let Ok(unnamed) = names.get((file, Place::Address(Svma(2))), || find(None));
            assert!(unnamed.is_none());
        }
        assert_eq!(lookups, 2);
        assert!(names.get((file, Place::Address(Svma(3))), || Err(())).is_err());
        assert!(
            names.get((file, Place::Address(Svma(3))), || Ok::<_, ()>(None)).is_ok(),
            "an error isn't remembered"
        );
    }

    #[test]
    fn a_function_keeps_its_symbols_name_and_gets_its_line_and_what_was_inlined() {
        let at = |raw: Option<&str>, line| SourceLine {
            raw_name: raw.map(Arc::from),
            name: None,
            file: Some("a.c".into()),
            line,
        };
        let shown = |symbol, source| {
            let lines = lines_of(symbol, source);
            let lines = lines.as_deref().unwrap_or_default().iter();
            lines.map(|line| format!("{}:{}", line.name, line.line)).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(Some("outer.cold"), vec![at(Some("inner"), 7), at(Some("outer"), 3)]),
            ["inner:7", "outer.cold:3"]
        );
        assert_eq!(shown(None, vec![at(Some("inner"), 7), at(Some("outer"), 3)]), ["inner:7", "outer:3"]);
        assert_eq!(shown(Some("asm"), vec![at(None, 9)]), ["asm:9"]);
        assert_eq!(shown(Some("bare"), vec![]), ["bare:0"]);
        assert_eq!(shown(None, vec![at(None, 9)]), [""; 0], "a line without a function is no name");
    }
}
