//! Cache of files' symbols, unwind rows and lines, shared by all processes that map them and
//! limited in bytes.
//!
//! The key of a file is a hash of its contents, so that the same library in a hundred containers is
//! read once; a very large one has device, inode, time and size for a key. Several threads that
//! load the same file at once cause one load.

mod content_id;
mod expiry;
mod load_error;
mod uncached_rows;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moka::sync::Cache;

use self::expiry::{Retention, builder};
pub use self::load_error::LoadError;
use crate::native::byte_source::RegularFile;
use crate::native::debug_files::DebugFileLocator;
use crate::native::dwarf_lines::{DwarfLineTable, SourceLine};
use crate::native::elf::{self, ElfError, ElfFile, ElfHeader};
use crate::native::file_identity::{ContentIdsOnDisk, FileKey, FileStat};
use crate::native::function_symbols::FunctionSymbols;
use crate::native::open_file::{OpenError, UnopenedFile};
use crate::native::unwind_rows::{AnalyzeCode, UnwindRows};
use crate::types::{BuildId, Svma};

/// Limits of a [`FileCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCacheLimits {
    /// Bytes of memory for the symbol tables and unwind rows of all files together. One table may
    /// take half of it.
    pub bytes: u64,
    /// The time in which a file that failed to load isn't tried again.
    pub retry_after: Duration,
    /// The time after which an unused table is evicted.
    pub idle_after: Duration,
    /// Bytes of memory for the DWARF of all files together. The sections of one file may take
    /// nearly half of it, and its parsed units as much again.
    pub line_bytes: u64,
}

impl Default for FileCacheLimits {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            retry_after: Duration::from_secs(60),
            idle_after: Duration::from_secs(60),
            line_bytes: 512 << 20,
        }
    }
}

/// A file whose headers have been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedHeader {
    pub key: FileKey,
    pub header: ElfHeader,
}

/// Counters of a [`FileCache`] since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    pub hits: u64,
    pub misses: u64,
    /// Entries that were evicted for the limit.
    pub evictions: u64,
    /// Loads that failed, by [`LoadError::reason`]. A cached failure counts once.
    pub load_errors: BTreeMap<&'static str, u64>,
    /// Bytes in use, as of the cache's last housekeeping.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct AtomicCacheCounters {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    load_errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl AtomicCacheCounters {
    fn load_error(&self, error: &LoadError) {
        let mut errors = self.load_errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry(error.reason()).or_default() += 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PartKey {
    Symbols(FileKey),
    Rows(FileKey),
}

#[derive(Clone, Debug)]
enum CachedPart {
    Symbols(Arc<FunctionSymbols>),
    Rows(Arc<UnwindRows>),
}

impl CachedPart {
    fn size_bytes(&self) -> usize {
        match self {
            Self::Symbols(symbols) => symbols.size_bytes(),
            Self::Rows(rows) => rows.size_bytes(),
        }
    }
}

type LoadResult<V> = Result<V, LoadError>;

/// Cache of files. Methods take `&self` and may be called from several threads.
#[derive(Debug)]
pub struct FileCache {
    limits: FileCacheLimits,
    known: Cache<FileStat, LoadResult<Arc<KeyedHeader>>>,
    parts: Cache<PartKey, LoadResult<CachedPart>>,
    lines: Cache<FileKey, LoadResult<Option<Arc<DwarfLineTable>>>>,
    counters: Arc<AtomicCacheCounters>,
    analyze: Option<AnalyzeCode>,
    with_lines: bool,
    content_ids: Option<Arc<ContentIdsOnDisk>>,
}

impl FileCache {
    pub fn new(limits: FileCacheLimits) -> Self {
        let counters = Arc::new(AtomicCacheCounters::default());
        let idle = limits.idle_after;
        // Headers are needed with every new mapping and take some hundred bytes each: they get a
        // small share. A file whose header was evicted has to be hashed again.
        let known =
            builder(limits.bytes / 16, limits.retry_after, &counters, move |file: &Arc<KeyedHeader>| {
                Retention {
                    bytes: size_of::<KeyedHeader>() + size_of_val(&*file.header.segments),
                    idle: 60 * idle,
                }
            });
        let parts = builder(
            limits.bytes - limits.bytes / 16,
            limits.retry_after,
            &counters,
            move |part: &CachedPart| {
                // The kernel program has rows of its own by then: only stacks that it can't walk
                // need these.
                let idle = if matches!(part, CachedPart::Rows(_)) { idle / 4 } else { idle };
                Retention { bytes: part.size_bytes(), idle }
            },
        );
        // DWARF takes long to read.
        let lines = builder(
            limits.line_bytes,
            limits.retry_after,
            &counters,
            move |table: &Option<Arc<DwarfLineTable>>| Retention {
                bytes: table.as_ref().map_or(0, |table| table.size_bytes()),
                idle: 10 * idle,
            },
        );
        Self { limits, known, parts, lines, counters, analyze: None, with_lines: false, content_ids: None }
    }

    /// Sets the analysis of code without frame information.
    #[must_use]
    pub fn with_analysis(mut self, analyze: AnalyzeCode) -> Self {
        self.analyze = Some(analyze);
        self
    }

    /// Makes files share data only if their lines are equal: [`Self::lines`] will be used.
    #[must_use]
    pub fn with_lines(mut self, asked: bool) -> Self {
        self.with_lines = asked;
        self
    }

    /// Returns the headers of `file`, and the key for all else, for which a new file is read.
    /// `path` is for messages.
    ///
    /// # Errors
    /// See [`LoadError`]; the file's own errors are cached for a while.
    pub fn identify(&self, file: &File, path: &Path) -> Result<Arc<KeyedHeader>, LoadError> {
        let before = stat(file, path)?;
        self.get(&self.known, before, || {
            let source = regular(file, path)?;
            let header = elf::read_header(&source).map_err(|source| elf_error("headers", path, source))?;
            let content = self.content_id(source, before, || unchanged(file, path, before))?;
            let key = FileKey { build_id: header.build_id, content, debug: None };
            Ok(Arc::new(KeyedHeader { key, header }))
        })
    }

    /// Identifies a file that is opened only if it is new, which few of a process's files are: see
    /// [`Self::identify`].
    ///
    /// # Errors
    /// Those of [`Self::identify`].
    pub fn identify_found(&self, found: &UnopenedFile, path: &Path) -> Result<Arc<KeyedHeader>, LoadError> {
        match self.known.get(&stat(found.handle(), path)?) {
            Some(known) => {
                self.counters.hits.fetch_add(1, Ordering::Relaxed);
                known
            }
            None => self.identify(&found.open()?, path),
        }
    }

    /// Returns the key for names and lines of the file with this `key`: another one where a
    /// container has a debug file of its own for it. `open` is called if `places` are a
    /// container's.
    ///
    /// # Errors
    /// Those of [`Self::symbols`].
    pub fn names_key(
        &self,
        key: &FileKey,
        path: &Path,
        places: &DebugFileLocator,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<FileKey, LoadError> {
        let Some(container) = places.of_container() else { return Ok(*key) };
        let file = open()?;
        let parsed = ElfFile::parse(regular(&file, path)?);
        let parsed = parsed.map_err(|source| elf_error("headers", path, source))?;
        let debug = container.find(&parsed, path).map(|debug| debug.stat.identity);
        Ok(FileKey { debug, ..*key })
    }

    /// Returns the functions of the file with this `key`, one of [`Self::names_key`]. `open` is
    /// called if they aren't cached, and `places` are searched for a debug file if it is stripped;
    /// `path` is where it was mapped from.
    ///
    /// # Errors
    /// See [`LoadError`]; [`LoadError::Changed`] if `open` gives another file than `key` was made
    /// from. The file's own errors are cached for a while, those of opening it aren't.
    pub fn symbols(
        &self,
        key: &FileKey,
        path: &Path,
        places: &DebugFileLocator,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<Arc<FunctionSymbols>, LoadError> {
        let part = self.part(PartKey::Symbols(*key), key, "symbols", path, open, |file| {
            FunctionSymbols::load(file, path, &places.for_key(key))
                .map(|functions| CachedPart::Symbols(Arc::new(functions)))
        });
        match part? {
            CachedPart::Symbols(symbols) => Ok(symbols),
            CachedPart::Rows(_) => Err(LoadError::Changed { path: path.into() }),
        }
    }

    /// Returns the name of the function at `address` of the file with this `key`; `Ok(None)` where
    /// the file has none.
    ///
    /// Names aren't cached here, but read from the file: `open` is called for each, and must give
    /// the same file.
    ///
    /// # Errors
    /// Those of [`Self::symbols`]; an error of reading the name isn't cached.
    pub fn function_name(
        &self,
        key: &FileKey,
        path: &Path,
        places: &DebugFileLocator,
        open: impl Fn() -> Result<File, OpenError>,
        address: Svma,
    ) -> Result<Option<String>, LoadError> {
        let symbols = self.symbols(key, path, places, &open)?;
        let Some(found) = symbols.lookup(address) else { return Ok(None) };
        let read = || {
            let file = open()?;
            let before = stat(&file, path)?;
            let is_same = self.identify(&file, path).is_ok_and(|known| known.key.is_same_file(key));
            let name = symbols.name(found, &regular(&file, path)?);
            if !is_same {
                return Err(LoadError::Changed { path: path.into() });
            }
            unchanged(&file, path, before)?;
            name.map_err(|source| elf_error("name of a function", path, source))
        };
        read().inspect_err(|error| self.counters.load_error(error))
    }

    /// Returns the functions and lines at `address`, innermost first, from DWARF in the file or its
    /// debug file; empty where there is none.
    ///
    /// # Errors
    /// Those of [`Self::symbols`].
    pub fn lines(
        &self,
        key: &FileKey,
        path: &Path,
        places: &DebugFileLocator,
        open: impl FnOnce() -> Result<File, OpenError>,
        address: Svma,
    ) -> Result<Vec<SourceLine>, LoadError> {
        let table = self.get(&self.lines, *key, || {
            self.load(key, "lines", path, open, |file| {
                // Less than all of it, to leave bytes for the entry itself.
                let limit = self.limits.line_bytes / 2 - self.limits.line_bytes / 64;
                let table = DwarfLineTable::load(file, path, &places.for_key(key), limit)?;
                Ok(table.map(Arc::new))
            })
        })?;
        let found = table.map_or(Ok(Vec::new()), |table| table.find(address));
        found.map_err(|source| elf_error("lines", path, source)).inspect_err(|e| self.counters.load_error(e))
    }

    /// Removes entries of files with this build id: their debug file has come.
    pub fn invalidate(&self, id: BuildId) {
        let is_it = |key: &FileKey| key.build_id == Some(id);
        let parts = self.parts.iter().map(|(key, _)| *key);
        for key in parts.filter(|key| matches!(key, PartKey::Symbols(key) if is_it(key))).collect::<Vec<_>>()
        {
            self.parts.invalidate(&key);
        }
        for key in self.lines.iter().map(|(key, _)| *key).filter(is_it).collect::<Vec<_>>() {
            self.lines.invalidate(&key);
        }
    }

    /// Returns the unwind rows of the file with this `key`; the parameters are those of
    /// [`Self::symbols`].
    ///
    /// # Errors
    /// Those of [`Self::symbols`].
    pub fn rows(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<Arc<UnwindRows>, LoadError> {
        let part = self.part(PartKey::Rows(*key), key, "unwind rows", path, open, |file| {
            UnwindRows::load_within(file, self.analyze, self.limits.bytes / 2)
                .map(|rows| CachedPart::Rows(Arc::new(rows)))
        });
        match part? {
            CachedPart::Rows(rows) => Ok(rows),
            CachedPart::Symbols(_) => Err(LoadError::Changed { path: path.into() }),
        }
    }

    pub fn counters(&self) -> CacheCounters {
        self.known.run_pending_tasks();
        self.parts.run_pending_tasks();
        self.lines.run_pending_tasks();
        CacheCounters {
            hits: self.counters.hits.load(Ordering::Relaxed),
            misses: self.counters.misses.load(Ordering::Relaxed),
            evictions: self.counters.evictions.load(Ordering::Relaxed),
            load_errors: self.counters.load_errors.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            bytes: self.known.weighted_size() + self.parts.weighted_size() + self.lines.weighted_size(),
        }
    }

    pub fn limits(&self) -> FileCacheLimits {
        self.limits
    }

    /// Returns bytes in use and their limit: of headers, of symbols and rows, of lines.
    pub fn sizes(&self) -> [(u64, u64); 3] {
        let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        [
            (self.known.weighted_size(), limit(self.known.policy().max_capacity())),
            (self.parts.weighted_size(), limit(self.parts.policy().max_capacity())),
            (self.lines.weighted_size(), limit(self.lines.policy().max_capacity())),
        ]
    }

    fn part(
        &self,
        part_key: PartKey,
        key_wanted: &FileKey,
        part: &'static str,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
        load: impl FnOnce(&ElfFile<RegularFile<'_>>) -> Result<CachedPart, ElfError>,
    ) -> Result<CachedPart, LoadError> {
        self.get(&self.parts, part_key, || {
            let loaded = self.load(key_wanted, part, path, open, load)?;
            let (size, limit) = (loaded.size_bytes(), self.limits.bytes);
            if size as u64 > limit / 2 {
                // Retention, it would push everything else out; not kept, it would be loaded for
                // every sample.
                return Err(LoadError::OverLimit { part, path: path.into(), size, limit });
            }
            Ok(loaded)
        })
    }

    fn load<V>(
        &self,
        key_wanted: &FileKey,
        part: &'static str,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
        load: impl FnOnce(&ElfFile<RegularFile<'_>>) -> Result<V, ElfError>,
    ) -> Result<V, LoadError> {
        let file = open()?;
        let before = stat(&file, path)?;
        let known = match self.known.get(&before) {
            Some(known) => known?,
            None => self.identify(&file, path)?,
        };
        // Paths can lead to another file by now: its data must not be kept under this key, nor its
        // errors.
        if !known.key.is_same_file(key_wanted) {
            return Err(LoadError::Changed { path: path.into() });
        }
        let parsed = ElfFile::parse(regular(&file, path)?);
        let loaded = parsed.and_then(|parsed| load(&parsed)).map_err(|source| elf_error(part, path, source));
        unchanged(&file, path, before)?;
        loaded
    }

    fn get<K, V>(
        &self,
        cache: &Cache<K, LoadResult<V>>,
        key: K,
        load: impl FnOnce() -> Result<V, LoadError>,
    ) -> Result<V, LoadError>
    where
        K: std::hash::Hash + Eq + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        let entry = cache.entry(key).or_try_insert_with(|| match load() {
            Err(error) => {
                self.counters.load_error(&error);
                if error.is_of_the_file() { Ok(Err(error)) } else { Err(error) }
            }
            loaded => Ok(loaded),
        });
        match entry {
            Ok(entry) => {
                let counter = if entry.is_fresh() { &self.counters.misses } else { &self.counters.hits };
                counter.fetch_add(1, Ordering::Relaxed);
                entry.into_value()
            }
            Err(error) => {
                self.counters.misses.fetch_add(1, Ordering::Relaxed);
                Err(LoadError::clone(&error))
            }
        }
    }
}

/// Checks that a file wasn't rewritten while it was read: the data would be of neither version.
fn unchanged(file: &File, path: &Path, before: FileStat) -> Result<(), LoadError> {
    match stat(file, path)? == before {
        true => Ok(()),
        false => Err(LoadError::Changed { path: path.into() }),
    }
}

fn stat(file: &File, path: &Path) -> Result<FileStat, LoadError> {
    FileStat::of(file).map_err(|source| LoadError::Stat { path: path.into(), source: Arc::new(source) })
}

fn regular<'f>(file: &'f File, path: &Path) -> Result<RegularFile<'f>, LoadError> {
    RegularFile::new(file).map_err(|source| LoadError::Stat { path: path.into(), source: Arc::new(source) })
}

fn elf_error(part: &'static str, path: &Path, source: ElfError) -> LoadError {
    LoadError::Elf { part, path: PathBuf::from(path).into(), source: Arc::new(source) }
}
