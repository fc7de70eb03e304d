//! What is known of files, shared by all processes that map them and limited in bytes.
//!
//! A file is known by its build id where it has one, so that the same library in a hundred containers is read once;
//! else by device, inode, time and size. Several threads that ask for the same file at once cause one load.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::notification::RemovalCause;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::native::elf::{self, ElfError, ElfFile, ElfHeader};
use crate::native::open::OpenError;
use crate::native::rows::UnwindRows;
use crate::native::source::RegularFile;
use crate::native::symbols::SymbolTable;
use crate::types::{BuildId, Svma};

/// What a [`FileCache`] may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCacheLimits {
    /// Bytes of memory for the symbol tables and unwind rows of all files together. One table may take half of it.
    pub bytes: u64,
    /// How long a file that couldn't be used isn't tried again.
    pub retry_after: Duration,
}

impl Default for FileCacheLimits {
    fn default() -> Self {
        Self { bytes: 64 << 20, retry_after: Duration::from_secs(60) }
    }
}

/// A file as `fstat` tells it apart from others and from its own earlier contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStat {
    pub device: u64,
    pub inode: u64,
    /// Nanoseconds since the epoch.
    pub modified_ns: i128,
    /// In bytes.
    pub size: u64,
}

impl FileStat {
    /// # Errors
    /// What `fstat` says.
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
            size: metadata.len(),
        })
    }
}

/// What the data of a file is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKey {
    /// With the layout of [`ElfHeader`], so that a stripped file and its original aren't taken for the same.
    BuildId {
        id: BuildId,
        layout: u64,
    },
    Stat(FileStat),
}

/// A file whose headers have been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownFile {
    pub key: FileKey,
    pub header: ElfHeader,
}

/// Why there is nothing to know of a file. Cheap to clone: errors are remembered, too.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error(transparent)]
    Open(#[from] Arc<OpenError>),
    #[error("looking at {path}: {source}")]
    Stat { path: Arc<Path>, source: Arc<io::Error> },
    #[error("reading the {part} of {path}: {source}")]
    Elf { part: &'static str, path: Arc<Path>, source: Arc<ElfError> },
    #[error("{path} is another file by now than the one that was mapped")]
    Changed { path: Arc<Path> },
    #[error("the {part} of {path} take {size} bytes, too many for a cache of {limit}")]
    OverLimit { part: &'static str, path: Arc<Path>, size: usize, limit: u64 },
}

impl From<OpenError> for LoadError {
    fn from(error: OpenError) -> Self {
        Self::Open(Arc::new(error))
    }
}

impl LoadError {
    /// A short word for counters: which kind of error this is.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Open(source) => source.reason(),
            Self::Stat { .. } => "stat",
            Self::Elf { source, .. } => source.reason(),
            Self::Changed { .. } => "changed",
            Self::OverLimit { .. } => "over_limit",
        }
    }

    /// Whether the file itself is at fault, for whoever asks. A path that can't be opened may be so for one process
    /// only (its mount namespace, its end), and says nothing of the file under this key.
    fn is_of_the_file(&self) -> bool {
        matches!(self, Self::Elf { .. } | Self::OverLimit { .. })
    }
}

/// What happened in a [`FileCache`] since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    pub hits: u64,
    pub misses: u64,
    /// Entries that left for want of room.
    pub evictions: u64,
    /// Loads that failed, by [`LoadError::reason`]. A failure that is remembered counts once.
    pub load_errors: BTreeMap<&'static str, u64>,
    /// Bytes held now, as of the cache's last housekeeping.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Counting {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    load_errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counting {
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
enum Part {
    Symbols(Arc<SymbolTable>),
    Rows(Arc<UnwindRows>),
}

impl Part {
    fn size_bytes(&self) -> usize {
        match self {
            Self::Symbols(symbols) => symbols.size_bytes(),
            Self::Rows(rows) => rows.size_bytes(),
        }
    }
}

/// Bytes that an entry takes beside its data: key, hash table slot, nodes of the cache's lists.
const ENTRY_BYTES: usize = 512;

type Kept<V> = Result<V, LoadError>;

/// See the module's documentation. Methods take `&self` and may be called from several threads.
#[derive(Debug)]
pub struct FileCache {
    limits: FileCacheLimits,
    known: Cache<FileStat, Kept<Arc<KnownFile>>>,
    parts: Cache<PartKey, Kept<Part>>,
    counting: Arc<Counting>,
}

impl FileCache {
    pub fn new(limits: FileCacheLimits) -> Self {
        let counting = Arc::new(Counting::default());
        // Headers are asked for with every new mapping and take some hundred bytes each: they get a small share.
        let known = builder(limits.bytes / 16, limits, &counting, |kept: &Arc<KnownFile>| {
            size_of::<KnownFile>() + size_of_val(&*kept.header.segments)
        });
        let parts = builder(limits.bytes - limits.bytes / 16, limits, &counting, Part::size_bytes);
        Self { limits, known, parts, counting }
    }

    /// What the headers of `file` say, and the key for all else. `path` is for messages.
    ///
    /// # Errors
    /// See [`LoadError`]; one of the file's own is remembered for a while.
    pub fn identify(&self, file: &File, path: &Path) -> Result<Arc<KnownFile>, LoadError> {
        let stat = stat(file, path)?;
        self.get(&self.known, stat, || {
            let header = elf::read_header(&regular(file, path)?);
            let header = header.map_err(|source| elf_error("headers", path, source))?;
            Ok(Arc::new(KnownFile { key: key(&header, stat), header }))
        })
    }

    /// The functions of the file known as `key`. `open` is called if they aren't there yet; `path` is for messages.
    ///
    /// # Errors
    /// See [`LoadError`]; [`LoadError::Changed`] if `open` gives another file than `key` was made from. An error of
    /// the file's own is remembered for a while, one of opening it isn't.
    pub fn symbols(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<Arc<SymbolTable>, LoadError> {
        let part = self.part(PartKey::Symbols(*key), key, "symbols", path, open, |file| {
            SymbolTable::load(file).map(|symbols| Part::Symbols(Arc::new(symbols)))
        });
        match part? {
            Part::Symbols(symbols) => Ok(symbols),
            Part::Rows(_) => Err(LoadError::Changed { path: path.into() }),
        }
    }

    /// The name of the function at `address` of the file known as `key`; `Ok(None)` where the file has none.
    ///
    /// Names aren't kept, but read from the file: `open` is called for each, and must give the file still.
    ///
    /// # Errors
    /// As [`Self::symbols`]; an error of reading the name isn't remembered.
    pub fn function_name(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl Fn() -> Result<File, OpenError>,
        address: Svma,
    ) -> Result<Option<String>, LoadError> {
        let symbols = self.symbols(key, path, &open)?;
        let Some(found) = symbols.lookup(address) else {
            return Ok(None);
        };
        let read = || {
            let file = open()?;
            let before = stat(&file, path)?;
            let is_same = self.identify(&file, path).is_ok_and(|known| known.key == *key);
            let name = symbols.name(found, &regular(&file, path)?);
            // A file may also be written anew while its name is read.
            if !is_same || stat(&file, path)? != before {
                return Err(LoadError::Changed { path: path.into() });
            }
            name.map_err(|source| elf_error("name of a function", path, source))
        };
        read().inspect_err(|error| self.counting.load_error(error))
    }

    /// The unwind rows of the file known as `key`; else as [`Self::symbols`].
    ///
    /// # Errors
    /// As [`Self::symbols`].
    pub fn rows(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<Arc<UnwindRows>, LoadError> {
        let part = self.part(PartKey::Rows(*key), key, "unwind rows", path, open, |file| {
            UnwindRows::load(file).map(|rows| Part::Rows(Arc::new(rows)))
        });
        match part? {
            Part::Rows(rows) => Ok(rows),
            Part::Symbols(_) => Err(LoadError::Changed { path: path.into() }),
        }
    }

    pub fn counters(&self) -> CacheCounters {
        self.known.run_pending_tasks();
        self.parts.run_pending_tasks();
        CacheCounters {
            hits: self.counting.hits.load(Ordering::Relaxed),
            misses: self.counting.misses.load(Ordering::Relaxed),
            evictions: self.counting.evictions.load(Ordering::Relaxed),
            load_errors: self.counting.load_errors.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            bytes: self.known.weighted_size() + self.parts.weighted_size(),
        }
    }

    fn part(
        &self,
        part_key: PartKey,
        key_wanted: &FileKey,
        part: &'static str,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
        load: impl FnOnce(&ElfFile<RegularFile<'_>>) -> Result<Part, ElfError>,
    ) -> Result<Part, LoadError> {
        self.get(&self.parts, part_key, || {
            let file = open()?;
            let stat = stat(&file, path)?;
            let parsed = ElfFile::parse(regular(&file, path)?);
            let parsed = parsed.map_err(|source| elf_error(part, path, source));
            // Paths can lead to another file by now: its data must not be kept under this key, nor its errors.
            match &parsed {
                Ok(parsed) if key(parsed.header(), stat) == *key_wanted => {}
                Err(_) if FileKey::Stat(stat) == *key_wanted => {}
                _ => return Err(LoadError::Changed { path: path.into() }),
            }
            let loaded = load(&parsed?).map_err(|source| elf_error(part, path, source))?;
            let (size, limit) = (loaded.size_bytes(), self.limits.bytes);
            if size as u64 > limit / 2 {
                // Kept, it would push everything else out; not kept, it would be loaded for every sample.
                return Err(LoadError::OverLimit { part, path: path.into(), size, limit });
            }
            Ok(loaded)
        })
    }

    fn get<K, V>(
        &self,
        cache: &Cache<K, Kept<V>>,
        key: K,
        load: impl FnOnce() -> Result<V, LoadError>,
    ) -> Result<V, LoadError>
    where
        K: std::hash::Hash + Eq + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        let entry = cache.entry(key).or_try_insert_with(|| match load() {
            Err(error) => {
                self.counting.load_error(&error);
                if error.is_of_the_file() { Ok(Err(error)) } else { Err(error) }
            }
            loaded => Ok(loaded),
        });
        match entry {
            Ok(entry) => {
                let counter = if entry.is_fresh() { &self.counting.misses } else { &self.counting.hits };
                counter.fetch_add(1, Ordering::Relaxed);
                entry.into_value()
            }
            Err(error) => {
                self.counting.misses.fetch_add(1, Ordering::Relaxed);
                Err(LoadError::clone(&error))
            }
        }
    }
}

fn builder<K, V>(
    bytes: u64,
    limits: FileCacheLimits,
    counting: &Arc<Counting>,
    size: impl Fn(&V) -> usize + Send + Sync + 'static,
) -> Cache<K, Kept<V>>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let counting = Arc::clone(counting);
    Cache::builder()
        .max_capacity(bytes)
        .eviction_policy(EvictionPolicy::lru())
        .weigher(move |_: &K, kept: &Kept<V>| {
            let data = kept.as_ref().map_or(0, &size);
            u32::try_from(data + ENTRY_BYTES).unwrap_or(u32::MAX)
        })
        .expire_after(ForgetErrors(limits.retry_after))
        .eviction_listener(move |_, _, cause| {
            if cause == RemovalCause::Size {
                counting.evictions.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build()
}

struct ForgetErrors(Duration);

impl<K, V> Expiry<K, Kept<V>> for ForgetErrors {
    fn expire_after_create(&self, _key: &K, kept: &Kept<V>, _created: Instant) -> Option<Duration> {
        kept.is_err().then_some(self.0)
    }
}

fn key(header: &ElfHeader, stat: FileStat) -> FileKey {
    match header.build_id {
        Some(id) => FileKey::BuildId { id, layout: header.layout },
        None => FileKey::Stat(stat),
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
