//! Names for frames that came without.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use moka::sync::Cache;

use crate::native::debug_files::DebugFileLocator;
use crate::native::debug_files::directory::DebugDirectory;
use crate::native::demangle::demangle;
use crate::native::dwarf_lines::SourceLine;
use crate::native::file_cache::{FileCache, FileCacheLimits, KeyedHeader};
use crate::native::file_identity::FileKey;
use crate::native::open_file::open_regular;
use crate::proto::pprof::{Function, Line, Location, Mapping, Profile};
use crate::types::{BuildId, FileOffset, Svma};

/// Functions that are added to one profile at most.
const MAX_ADDED: usize = 1 << 20;
/// Memory for names that were found.
const MAX_FOUND_BYTES: u64 = 64 << 20;
/// What an entry takes of it beside its lines, and a line beside its text.
const ENTRY_BYTES: usize = 250;
const LINE_BYTES: usize = 100;

#[derive(Debug)]
pub(super) struct Names {
    directory: Arc<DebugDirectory>,
    files: FileCache,
    /// What was found: the same addresses come in profile after profile.
    found: Cache<(FileKey, Svma), Arc<[SourceLine]>>,
}

/// The debug file of a mapping.
struct Known {
    path: PathBuf,
    file: Arc<KeyedHeader>,
    start: u64,
    offset: u64,
}

/// Name, linker's name, file.
type FunctionKey = (String, String, String);

impl Names {
    pub(super) fn new(directory: Arc<DebugDirectory>) -> Self {
        let weigh = |_: &(FileKey, Svma), lines: &Arc<[SourceLine]>| {
            let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
            let line =
                |line: &SourceLine| text(&line.raw_name) + text(&line.name) + text(&line.file) + LINE_BYTES;
            u32::try_from(lines.iter().map(line).sum::<usize>() + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let found = Cache::builder().max_capacity(MAX_FOUND_BYTES).weigher(weigh).build();
        Self { directory, files: FileCache::new(FileCacheLimits::default()), found }
    }

    /// Adds lines to locations that have none, and whose mapping's build id has a debug file.
    pub(super) fn name(&self, profile: &mut Profile) {
        let mappings: HashMap<u64, Known> = profile
            .mapping
            .iter()
            .filter_map(|mapping| Some((mapping.id, self.known(profile, mapping)?)))
            .collect();
        if mappings.is_empty() {
            return;
        }
        let mut locations = std::mem::take(&mut profile.location);
        let mut added = Added { functions: HashMap::new(), profile };
        for location in locations.iter_mut().filter(|location| location.line.is_empty()) {
            let Some(known) = mappings.get(&location.mapping_id) else { continue };
            if added.functions.len() < MAX_ADDED {
                let lines = self.lines(known, location);
                location.line = lines.iter().map(|line| added.line(line)).collect();
            }
        }
        profile.location = locations;
    }

    fn known(&self, profile: &Profile, mapping: &Mapping) -> Option<Known> {
        let text = profile.string_table.get(usize::try_from(mapping.build_id).ok()?)?;
        let path = self.directory.file_of(BuildId::from_hex(text)?);
        let opened = File::open(&path).ok()?;
        let file = self.files.identify(&opened, &path).ok()?;
        Some(Known { path, file, start: mapping.memory_start, offset: mapping.file_offset })
    }

    /// Innermost first.
    fn lines(&self, known: &Known, location: &Location) -> Arc<[SourceLine]> {
        let in_file = location.address.checked_sub(known.start).and_then(|at| at.checked_add(known.offset));
        let address = in_file.and_then(|at| known.file.header.svma_of(FileOffset(at)));
        let Some(address) = address else { return Arc::default() };
        self.found.get_with((known.file.key, address), || self.find(known, address).into())
    }

    fn find(&self, known: &Known, address: Svma) -> Vec<SourceLine> {
        let Known { path, file, .. } = known;
        let places = DebugFileLocator::default();
        let open = || open_regular(path);
        let note = |error: &_| tracing::debug!(path = %path.display(), error = %error, "no name");
        let symbol = self.files.function_name(&file.key, path, &places, open, address).inspect_err(note);
        let symbol: Option<Arc<str>> = symbol.ok().flatten().map(Arc::from);
        let lines = self.files.lines(&file.key, path, &places, open, address).inspect_err(note);
        let mut lines = lines.unwrap_or_default();
        if let (Some(outermost), Some(symbol)) = (lines.last_mut(), &symbol) {
            // As it would be called without DWARF.
            (outermost.raw_name, outermost.name) = (Some(Arc::clone(symbol)), None);
        }
        lines.retain(|line| line.raw_name.is_some());
        if lines.is_empty() {
            lines.extend(symbol.map(|raw| SourceLine {
                raw_name: Some(raw),
                name: None,
                file: None,
                line: 0,
            }));
        }
        lines
    }
}

/// Functions that a profile got.
struct Added<'a> {
    functions: HashMap<FunctionKey, u64>,
    profile: &'a mut Profile,
}

impl Added<'_> {
    fn line(&mut self, line: &SourceLine) -> Line {
        let raw = line.raw_name.as_deref().unwrap_or_default();
        let name = match &line.name {
            Some(name) => name.to_string(),
            None => demangle(raw).unwrap_or_else(|| raw.to_owned()),
        };
        let key = (name, raw.to_owned(), line.file.as_deref().unwrap_or_default().to_owned());
        let function_id = match self.functions.get(&key) {
            Some(id) => *id,
            None => self.add(key),
        };
        Line { function_id, line: line.line.into(), column: 0 }
    }

    fn add(&mut self, key: FunctionKey) -> u64 {
        let id = self.profile.function.len() as u64 + 1;
        let (name, system_name) = (self.string(&key.0), self.string(&key.1));
        let filename = if key.2.is_empty() { 0 } else { self.string(&key.2) };
        self.profile.function.push(Function { id, name, system_name, filename, start_line: 0 });
        self.functions.insert(key, id);
        id
    }

    fn string(&mut self, text: &str) -> i64 {
        self.profile.string_table.push(text.to_owned());
        self.profile.string_table.len() as i64 - 1
    }
}
