//! Mapped files of one process: identity, symbols and rows of each.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use jvmprof_common::rows::Row;
use jvmprof_common::unwind::UnwindRule;

use crate::kernel_tables::{CodeTables, RowsKey};
use crate::native::file_cache::{FileCache, KeyedHeader, LoadError};
use crate::native::file_identity::FileKey;
use crate::native::function_symbols::FunctionSymbols;
use crate::native::open_file::{OpenError, UnopenedFile, find_in_root, find_regular};
use crate::native::unwind_rows::UnwindRows;
use crate::process::{Backing, MappedCode, Process, procfs};
use crate::profile::model::Mapping;
use crate::symbolize::SymbolCounts;
use crate::symbolize::native::function_names::{FunctionNameKey, FunctionNames, NativeLines, lines_of};
use crate::symbolize::native::load_budget::is_small;
use crate::symbolize::native::single_row_lookup::SingleRowLookup;
use crate::symbolize::publish_to_kernel::row_loader::RowsLoader;
use crate::types::{Avma, BuildId, LoadBias, Svma};

/// The mapped files of one process, by their mappings.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct Modules {
    by_start: HashMap<Avma, Arc<Module>>,
}

/// One mapped file.
#[derive(Debug)]
pub(in crate::symbolize) struct Module {
    code: Arc<MappedCode>,
    mapping: Arc<Mapping>,
    file: Result<Arc<KeyedHeader>, &'static str>,
    /// Key of names, once one was needed.
    names_key: OnceLock<FileKey>,
    /// Result of [`is_class_data`].
    is_class_data: bool,
    /// Result of [`is_replaced`].
    is_replaced: bool,
}

impl Modules {
    pub(in crate::symbolize) fn get(
        &mut self,
        process: &Process,
        code: &Arc<MappedCode>,
        files: &FileCache,
        counts: &mut SymbolCounts,
    ) -> Arc<Module> {
        let module = self.by_start.entry(code.start).or_insert_with(|| {
            let module = Module::open(process, code, files);
            if let Err(reason) = module.file {
                *counts.unusable_files.entry(reason).or_default() += 1;
            }
            Arc::new(module)
        });
        Arc::clone(module)
    }
}

impl Module {
    fn open(process: &Process, code: &Arc<MappedCode>, files: &FileCache) -> Self {
        let path = Path::new(&*code.path);
        let file = identify(process, code, files).map_err(|error| {
            tracing::debug!(pid = process.pid, path = %path.display(), %error, "a mapped file can't be used");
            error.reason()
        });
        let build_id = file.as_ref().ok().and_then(|file| file.header.build_id).or(code.build_id);
        let mapping = Mapping {
            start: code.start,
            limit: code.end,
            offset: code.offset,
            path: Arc::clone(&code.path),
            build_id,
        };
        let opened = || find(process, code, |_| true)?.open();
        let is_class_data = file.is_err() && opened().is_ok_and(|file| is_class_data(&file));
        let is_replaced = file.is_err() && is_replaced(process, code, files);
        let (code, mapping) = (Arc::clone(code), Arc::new(mapping));
        Self { code, mapping, file, names_key: OnceLock::new(), is_class_data, is_replaced }
    }

    pub(in crate::symbolize) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    /// Returns the function at an address, and those inlined there if lines are enabled; `Ok(None)`
    /// where the file has none.
    pub(in crate::symbolize) fn name(
        &self,
        process: &Process,
        files: &FileCache,
        names: &FunctionNames,
        address: Avma,
    ) -> Result<Option<NativeLines>, &'static str> {
        let file = self.file.as_ref().map_err(|reason| *reason)?;
        let Some(svma) = self.svma(file, address) else { return Ok(None) };
        let key = self.names_key(process, file, files, names);
        let read = || {
            let (path, places) = (Path::new(&*self.code.path), names.places(process));
            let open = || self.open_again(process, file, files, names);
            let symbol = files.function_name(&key, path, &places, open, svma);
            let symbol = symbol.map_err(|error| error.reason())?;
            let mut source = Vec::new();
            if names.with_lines {
                // Lines are extra: without them there still is a name.
                source = files.lines(&key, path, &places, open, svma).unwrap_or_else(|error| {
                    tracing::debug!(path = %path.display(), %error, "no lines");
                    Vec::new()
                });
            }
            Ok(lines_of(symbol.as_deref(), source))
        };
        let number = names.number(&key);
        names.get((number, FunctionNameKey::Address(svma)), || {
            if names.with_lines {
                return read();
            }
            // All addresses of a function are called the same: it is read and demangled once.
            match self.symbols(process, files, names)?.lookup(svma) {
                Some(function) => names.get((number, FunctionNameKey::Function(function)), read),
                None => Ok(None),
            }
        })
    }

    /// Returns the functions of the file, or why there are none.
    pub(in crate::symbolize) fn symbols(
        &self,
        process: &Process,
        files: &FileCache,
        names: &FunctionNames,
    ) -> Result<Arc<FunctionSymbols>, &'static str> {
        let file = self.file.as_ref().map_err(|reason| *reason)?;
        let key = self.names_key(process, file, files, names);
        let (path, places) = (Path::new(&*self.code.path), names.places(process));
        let symbols = files.symbols(&key, path, &places, || self.open_again(process, file, files, names));
        symbols.map_err(|error| error.reason())
    }

    /// Returns the key of the file's names. If the process has ended, it is the key for processes
    /// without a debug file of their own.
    fn names_key(
        &self,
        process: &Process,
        file: &KeyedHeader,
        files: &FileCache,
        names: &FunctionNames,
    ) -> FileKey {
        if let Some(key) = self.names_key.get() {
            return *key;
        }
        let (path, places) = (Path::new(&*self.code.path), names.places(process));
        let open = || self.open_again(process, file, files, names);
        match files.names_key(&file.key, path, &places, open) {
            Ok(key) => *self.names_key.get_or_init(|| key),
            Err(_) => file.key,
        }
    }

    /// Opens the file once more; `None` if it can't be used, or isn't there any more: its path may
    /// lead to another by now, which must not be mistaken for it.
    pub(in crate::symbolize) fn reopen(
        &self,
        process: &Process,
        files: &FileCache,
        names: &FunctionNames,
    ) -> Option<File> {
        let key = &self.file.as_ref().ok()?.key;
        let opened = self.open_again(process, self.file.as_ref().ok()?, files, names).ok()?;
        let header = files.identify(&opened, Path::new(&*self.code.path)).ok()?;
        (header.key == *key).then_some(opened)
    }

    fn open_again(
        &self,
        process: &Process,
        file: &KeyedHeader,
        files: &FileCache,
        names: &FunctionNames,
    ) -> Result<File, OpenError> {
        names.kept_open(&file.key).map_or_else(|| open_again(process, &self.code, files, &file.key), Ok)
    }

    /// Keeps the file open until its functions have their names.
    pub(in crate::symbolize) fn keep_open(
        &self,
        process: &Process,
        files: &FileCache,
        names: &FunctionNames,
    ) {
        let Ok(file) = &self.file else { return };
        names.keep_open(file.key, || {
            let found = find_again(process, &self.code, files, &file.key).ok()?;
            has_key(&found, &self.code, files, &file.key).then(|| found.open().ok())?
        });
    }

    /// Returns `libfoo.so+0x1234`: the stated address where the file is identified, else the offset
    /// in it.
    pub(in crate::symbolize) fn offset_name(&self, address: Avma) -> String {
        let name = Path::new(&*self.code.path)
            .file_name()
            .map_or_else(|| self.code.path.to_string(), |name| name.to_string_lossy().into_owned());
        let stated = self.file.as_ref().ok().and_then(|file| self.svma(file, address));
        let offset = stated.map_or_else(|| self.code.file_offset(address).0, |svma| svma.0);
        format!("{name}+{offset:#x}")
    }

    /// Returns the file's key and bias; `None` where the file isn't identified.
    pub(in crate::symbolize) fn file_and_bias(&self) -> Option<(FileKey, LoadBias)> {
        let file = self.file.as_ref().ok()?;
        let svma = self.svma(file, self.code.start)?;
        Some((file.key, LoadBias::between(self.code.start, svma)))
    }

    /// Requests the file's unwind rows, for the kernel program. Returns true if they will arrive.
    pub(in crate::symbolize) fn request_rows(
        &self,
        process: &Process,
        files: &FileCache,
        loader: &mut RowsLoader,
    ) -> bool {
        self.file.as_ref().is_ok_and(|file| {
            let open = || open_again(process, &self.code, files, &file.key);
            loader.request(file.key, Path::new(&*self.code.path), open)
        })
    }

    pub(in crate::symbolize) fn key(&self) -> Option<FileKey> {
        Some(self.file.as_ref().ok()?.key)
    }

    /// Returns the file's unwind rows.
    fn rows(
        &self,
        process: &Process,
        file: &KeyedHeader,
        files: &FileCache,
    ) -> Result<Arc<UnwindRows>, LoadError> {
        let path = Path::new(&*self.code.path);
        files.rows(&file.key, path, || open_again(process, &self.code, files, &file.key))
    }

    fn svma(&self, file: &KeyedHeader, address: Avma) -> Option<Svma> {
        file.header.svma_of(self.code.file_offset(address))
    }

    /// Returns whether it is a JVM's archive of classes: the code in it has no frame.
    pub(in crate::symbolize) fn is_class_data(&self) -> bool {
        self.is_class_data
    }

    /// Returns whether another file is mapped in its place by now.
    pub(in crate::symbolize) fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    fn rule(&self, process: &Process, (files, tables): Sources<'_>, address: Avma) -> UnwindRule {
        if self.is_class_data {
            return UnwindRule::Row(Row::AT_CALL);
        }
        let place = self.file.as_ref().ok().and_then(|file| Some((file, self.svma(file, address)?)));
        let Some((file, svma)) = place else { return UnwindRule::FramePointer };
        let row = match tables.and_then(|tables| tables.row(&RowsKey::File(file.key), svma)) {
            Some(row) => row,
            None => match self.rows(process, file, files) {
                Ok(rows) => rows.row(svma),
                // It has rows, and likely needs them.
                Err(LoadError::OverLimit { .. }) => return UnwindRule::Unknown,
                Err(_) => None,
            },
        };
        // Code without rows is mostly written by hand or by compilers that keep frame pointers,
        // such as Go's.
        row.map_or(UnwindRule::FramePointer, UnwindRule::Row)
    }
}

/// Sources of unwind rows: the kernel's tables if those have them, else the files.
pub(in crate::symbolize) type Sources<'a> = (&'a FileCache, Option<&'a CodeTables>);

/// Returns the unwind rule of the code at an address.
pub(in crate::symbolize) fn rule(
    process: &Process,
    modules: &mut Modules,
    sources: Sources<'_>,
    counts: &mut SymbolCounts,
    address: Avma,
) -> UnwindRule {
    match process.mappings.find(address) {
        None => UnwindRule::Unknown,
        Some(code) if code.backing == Backing::Anonymous => UnwindRule::FramePointer,
        Some(code) => {
            modules.get(process, &Arc::clone(code), sources.0, counts).rule(process, sources, address)
        }
    }
}

/// Returns whether the unwind rows of the code at an address are being read, or can't be: another
/// file is there by now.
pub(in crate::symbolize) fn is_missing(
    process: &Process,
    modules: &Modules,
    loader: &RowsLoader,
    address: Avma,
) -> bool {
    let module = process.mappings.find(address).and_then(|code| modules.by_start.get(&code.start));
    module.is_some_and(|module| module.is_replaced || module.key().is_some_and(|key| loader.is_loading(&key)))
}

/// Returns the row of the code at an address, for a file whose rows are being read, where a single
/// lookup finds it.
pub(in crate::symbolize) fn fde_row(
    process: &Process,
    modules: &Modules,
    (files, single_row_lookup): (&FileCache, &mut SingleRowLookup),
    address: Avma,
) -> Option<Row> {
    let module = modules.by_start.get(&process.mappings.find(address)?.start)?;
    let file = module.file.as_ref().ok().filter(|_| !module.is_replaced)?;
    let open = || open_again(process, &module.code, files, &file.key);
    single_row_lookup.row(files, file.key, Path::new(&*module.code.path), open, module.svma(file, address)?)
}

/// Returns whether the unwind rows of the code at an address, which are being read, are few enough
/// to be read here.
pub(in crate::symbolize) fn is_small_enough_to_read(
    process: &Process,
    modules: &Modules,
    address: Avma,
) -> bool {
    let module = process.mappings.find(address).and_then(|code| modules.by_start.get(&code.start));
    let Some(module) = module.filter(|module| !module.is_replaced) else { return false };
    module.file.as_ref().is_ok_and(|file| is_small(&file.header))
}

/// Returns the file with the code at an address, if Go's linker made it.
pub(in crate::symbolize) fn go_module<'a>(
    process: &Process,
    modules: &'a Modules,
    address: Avma,
) -> Option<&'a Module> {
    let code = process.mappings.find(address)?;
    let module = modules.by_start.get(&code.start)?;
    let is_go = module.file.as_ref().is_ok_and(|file| file.header.is_go);
    is_go.then_some(module)
}

/// Magic numbers of archives of shared class data (openjdk src/hotspot/share/include/cds.h,
/// `CDS_ARCHIVE_MAGIC`, `CDS_DYNAMIC_ARCHIVE_MAGIC`). Up to JDK 15 they hold code: jumps to where
/// methods are entered, and to those of metadata's vtables (cpu/x86/sharedRuntime_x86.cpp
/// `generate_trampoline`, metaspaceShared_x86_64.cpp).
const CLASS_DATA: [u32; 2] = [0xf00b_aba2, 0xf00b_aba8];

fn is_class_data(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && CLASS_DATA.contains(&u32::from_le_bytes(magic))
}

fn identify(process: &Process, code: &MappedCode, files: &FileCache) -> Result<Arc<KeyedHeader>, LoadError> {
    let path = Path::new(&*code.path);
    let header = files.identify_found(&find(process, code, |file| has_build_id(file, code, files))?, path)?;
    let is_other = |wanted: BuildId| header.header.build_id != Some(wanted);
    if code.build_id.is_some_and(is_other) {
        return Err(LoadError::Changed { path: path.into() });
    }
    Ok(header)
}

/// Returns whether a file has the build id that the kernel saw when it was mapped. Without one any
/// file has.
fn has_build_id(file: &UnopenedFile, code: &MappedCode, files: &FileCache) -> bool {
    code.build_id.is_none_or(|wanted| {
        let header = files.identify_found(file, Path::new(&*code.path));
        header.is_ok_and(|header| header.header.build_id == Some(wanted))
    })
}

fn has_key(file: &UnopenedFile, code: &MappedCode, files: &FileCache, key: &FileKey) -> bool {
    files.identify_found(file, Path::new(&*code.path)).is_ok_and(|header| header.key == *key)
}

/// Returns whether another file is mapped there by now: libraries come and go, and the event of
/// this one is on its way.
fn is_replaced(process: &Process, code: &MappedCode, files: &FileCache) -> bool {
    code.backing == Backing::File
        && find_mapped(process, code).is_ok_and(|file| !has_build_id(&file, code, files))
}

/// Finds the mapped file: the mapping itself where that is allowed (also for a deleted file) and
/// `is_it`, else the path in the process's own file system. If the process has ended, the path in
/// ours is used, which is the same file if it has the build id that the kernel saw.
fn find(
    process: &Process,
    code: &MappedCode,
    is_it: impl FnOnce(&UnopenedFile) -> bool,
) -> Result<UnopenedFile, OpenError> {
    if code.backing == Backing::Vdso {
        return vdso().map_err(|source| OpenError::Open { path: "[vdso]".into(), source });
    }
    if let Ok(file) = find_mapped(process, code)
        && is_it(&file)
    {
        return Ok(file);
    }
    let path = PathBuf::from(code.path.strip_suffix(" (deleted)").unwrap_or(&code.path));
    match find_in_root(&process.root(), &path) {
        Err(_) if code.build_id.is_some() && !Path::new(&process.root()).exists() => find_regular(&path),
        found => found,
    }
}

/// Finds the file that is mapped at this very address now.
fn find_mapped(process: &Process, code: &MappedCode) -> Result<UnopenedFile, OpenError> {
    find_regular(&procfs::map_files_link(process.pid, code.start, code.end))
}

/// Finds a file that has been identified, so that another file at the path is recognized: see
/// [`find`]. Its process may have ended since, and its root with it.
fn find_again(
    process: &Process,
    code: &MappedCode,
    files: &FileCache,
    key: &FileKey,
) -> Result<UnopenedFile, OpenError> {
    let found = find(process, code, |file| has_key(file, code, files, key));
    found.or_else(|error| match Path::new(&process.root()).exists() {
        true => Err(error),
        false => find_regular(Path::new(&*code.path)),
    })
}

/// Opens the file of [`find_again`].
fn open_again(
    process: &Process,
    code: &MappedCode,
    files: &FileCache,
    key: &FileKey,
) -> Result<File, OpenError> {
    find_again(process, code, files, key)?.open()
}

/// Returns the vdso, which is the same in every 64-bit process, as a file: one for all, so that it
/// is identified as the same.
fn vdso() -> io::Result<UnopenedFile> {
    static IMAGE: OnceLock<Result<File, io::ErrorKind>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| vdso_file().map_err(|error| error.kind()));
    let file = image.as_ref().map_err(|kind| io::Error::from(*kind))?.try_clone()?;
    Ok(UnopenedFile::of(file, "[vdso]".into()))
}

fn vdso_file() -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(&read_vdso()?)?;
    Ok(file)
}

fn read_vdso() -> io::Result<Vec<u8>> {
    let mappings = procfs::mappings(std::process::id()).map_err(io::Error::other)?;
    let vdso = mappings.iter().find(|mapping| mapping.backing == Backing::Vdso);
    let vdso = vdso.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "this process has no vdso"))?;
    let mut memory = File::open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(vdso.start.0))?;
    let mut image = vec![0; (vdso.end.0 - vdso.start.0) as usize];
    memory.read_exact(&mut image)?;
    Ok(image)
}
