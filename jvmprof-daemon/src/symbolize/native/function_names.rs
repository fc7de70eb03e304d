//! Names of native functions by file and address, shared by all processes.
//!
//! Symbol tables of large programs push each other out of the file cache. A resolved name stays
//! cached here, so that a table is read again only for an address that no process has hit before.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::generational_cache::GenerationalCache;
use crate::native::debug_files::DebugFileLocator;
use crate::native::dwarf_lines::SourceLine;
use crate::native::file_identity::FileKey;
use crate::native::symbols::SymbolRef;
use crate::native::symbols::demangle::demangle;
use crate::process::Process;
use crate::profile::model::Line;
use crate::types::{BuildId, Svma};

/// Bytes of a line beside its text: itself, and the counts of its two texts.
const LINE_BYTES: usize = size_of::<Line>() + 4 * size_of::<usize>();
/// Time after which an unused name is evicted.
const IDLE: Duration = Duration::from_secs(20 * 60);
/// Maximum number of files that are kept open.
const MAX_OPEN: usize = 256;

/// The key of a name in a file: the code at an address, or a function by its symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::symbolize) enum FunctionNameKey {
    Address(Svma),
    Function(SymbolRef),
}

/// Lines of an address, innermost first: one function, and those inlined into it if lines are
/// enabled.
pub(in crate::symbolize) type NativeLines = Arc<[Line]>;

/// Number of a file in keys. Each number is given once, so that entries under a file's earlier
/// number are never found.
type FileNumber = u64;

/// A file that is kept open.
#[derive(Debug)]
struct OpenFileEntry {
    file: File,
    /// True if it was needed since the last [`FunctionNames::release`].
    is_wanted: bool,
}

/// The cache, and options of resolving. `None` is cached too: most addresses of stripped files have
/// no name.
#[derive(Debug)]
pub(in crate::symbolize) struct FunctionNames {
    by_key: GenerationalCache<(FileNumber, FunctionNameKey), Option<NativeLines>>,
    /// Short numbers for keys of 200 bytes, which each address would have to hold and compare.
    numbers: GenerationalCache<FileKey, FileNumber>,
    next_number: AtomicU64,
    /// Open files with functions that wait for their names. A container's are gone with its last
    /// process.
    kept_open: Mutex<HashMap<FileKey, OpenFileEntry>>,
    /// True if inlined functions and lines are enabled.
    pub(in crate::symbolize) with_lines: bool,
    /// Folder of debuginfod's files.
    pub(in crate::symbolize) downloads: Option<PathBuf>,
}

impl FunctionNames {
    /// Makes a cache. `bytes` is its limit.
    pub(in crate::symbolize) fn new(bytes: u64) -> Self {
        let weight = |lines: &Option<NativeLines>| {
            let lines = lines.as_deref().unwrap_or_default().iter();
            lines.map(|line| line.name.len() + line.system_name.len() + LINE_BYTES).sum()
        };
        Self {
            by_key: GenerationalCache::new(bytes - bytes / 16, IDLE, weight),
            numbers: GenerationalCache::new(bytes / 16, IDLE, |_| 0),
            next_number: AtomicU64::new(0),
            kept_open: Mutex::default(),
            with_lines: false,
            downloads: None,
        }
    }

    /// Returns the bytes in use, and their limit.
    pub(in crate::symbolize) fn size(&self) -> (u64, u64) {
        let (places, numbers) = (self.by_key.size(), self.numbers.size());
        (places.0 + numbers.0, places.1 + numbers.1)
    }

    /// Evicts entries that weren't used for long. To be called now and then.
    pub(in crate::symbolize) fn evict_unused(&self) {
        self.by_key.rotate_if_due();
        self.numbers.rotate_if_due();
    }

    /// Returns the places of debug files for the mappings of a process.
    pub(in crate::symbolize) fn places(&self, process: &Process) -> DebugFileLocator {
        DebugFileLocator { process_root: Some(process.root()), host: true, downloads: self.downloads.clone() }
    }

    /// Returns the number of a file in keys.
    pub(in crate::symbolize) fn number(&self, file: &FileKey) -> FileNumber {
        self.numbers.get(file).unwrap_or_else(|| {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            self.numbers.insert(*file, number);
            number
        })
    }

    /// Returns the name at a place in the file with this [`Self::number`], resolved by `find` the
    /// first time. Errors aren't cached.
    pub(in crate::symbolize) fn get<E>(
        &self,
        key: (FileNumber, FunctionNameKey),
        find: impl FnOnce() -> Result<Option<NativeLines>, E>,
    ) -> Result<Option<NativeLines>, E> {
        if let Some(known) = self.by_key.get(&key) {
            return Ok(known);
        }
        let found = find()?;
        self.by_key.insert(key, found.clone());
        Ok(found)
    }

    /// Keeps a file open until [`Self::release`], unless too many are.
    pub(in crate::symbolize) fn keep_open(&self, key: FileKey, open: impl FnOnce() -> Option<File>) {
        let mut kept_open = self.kept_open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept_open) = kept_open.get_mut(&key) {
            kept_open.is_wanted = true;
        } else if kept_open.len() < MAX_OPEN
            && let Some(file) = open()
        {
            kept_open.insert(key, OpenFileEntry { file, is_wanted: true });
        }
    }

    /// Returns the file, if it is kept open.
    pub(in crate::symbolize) fn kept_open(&self, key: &FileKey) -> Option<File> {
        self.kept_open.lock().unwrap_or_else(PoisonError::into_inner).get(key)?.file.try_clone().ok()
    }

    /// Closes files whose waiting functions have been named. Files that were needed since the last
    /// call stay open until the next one: they are likely to be needed again, by processes that
    /// have them mapped.
    pub(in crate::symbolize) fn release(&self) {
        let mut kept_open = self.kept_open.lock().unwrap_or_else(PoisonError::into_inner);
        kept_open.retain(|_, kept_open| std::mem::take(&mut kept_open.is_wanted));
    }

    /// Invalidates names of files with this build id: they get other numbers.
    pub(in crate::symbolize) fn invalidate(&self, id: BuildId) {
        self.numbers.retain(|file| file.build_id != Some(id));
    }
}

/// Combines symbol and DWARF of one address. The function that has the code gets its symbol's name,
/// which is what it would have without DWARF.
pub(in crate::symbolize) fn lines_of(symbol: Option<&str>, source: Vec<SourceLine>) -> Option<NativeLines> {
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

/// Makes a line. `name` is the demangled one, if it is known already.
fn line_of(raw: &str, name: Option<Arc<str>>) -> Line {
    let system_name: Arc<str> = raw.into();
    let name = name.or_else(|| demangle(raw).map(Arc::from)).unwrap_or_else(|| Arc::clone(&system_name));
    Line { system_name, ..Line::named(name) }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::native::file_identity::ContentId;

    #[test]
    fn an_address_is_looked_up_once_also_without_a_name() {
        let names = FunctionNames::new(1 << 20);
        let file = FileKey { build_id: None, content: ContentId::Hash(1), debug: None };
        let number = names.number(&file);
        let mut lookups = 0;
        for _ in 0..3 {
            let mut find = |name: Option<&str>| {
                lookups += 1;
                Ok::<_, Infallible>(name.and_then(|name| lines_of(Some(name), Vec::new())))
            };
            let Ok(named) = names
                .get((number, FunctionNameKey::Address(Svma(1))), || find(Some("_RNvCs1234_7mycrate3foo")));
            assert_eq!(named.map(|lines| lines[0].name.to_string()), Some("mycrate::foo".to_owned()));
            let Ok(unnamed) = names.get((number, FunctionNameKey::Address(Svma(2))), || find(None));
            assert!(unnamed.is_none());
        }
        assert_eq!(lookups, 2);
        assert!(names.get((number, FunctionNameKey::Address(Svma(3))), || Err(())).is_err());
        assert!(
            names.get((number, FunctionNameKey::Address(Svma(3))), || Ok::<_, ()>(None)).is_ok(),
            "an error isn't remembered"
        );
    }

    #[test]
    fn a_forgotten_file_has_another_number_and_others_keep_theirs() {
        let names = FunctionNames::new(1 << 20);
        let file =
            |id: u8| FileKey { build_id: BuildId::new(&[id; 20]), content: ContentId::Hash(7), debug: None };
        let (first, second) = (names.number(&file(1)), names.number(&file(2)));
        assert_ne!(first, second);
        assert_eq!((names.number(&file(1)), names.number(&file(2))), (first, second));
        names.invalidate(file(1).build_id.expect("20 bytes are an id"));
        let anew = names.number(&file(1));
        assert!(anew != first && anew != second, "{anew}");
        assert_eq!(names.number(&file(2)), second);
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
