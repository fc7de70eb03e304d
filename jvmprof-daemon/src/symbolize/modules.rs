//! Mapped files of one process: which file it is, its symbols and rows.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use jvmprof_common::unwind::Rule;

use super::SymbolCounts;
use super::names::{FunctionName, FunctionNames};
use crate::native::cache::{FileCache, KnownFile, LoadError};
use crate::native::open::{OpenError, open_in_root, open_regular};
use crate::native::symbols::SymbolTable;
use crate::process::{Backing, MappedCode, Process, procfs};
use crate::profile::model::Mapping;
use crate::types::{Avma, BuildId, Svma};

/// The mapped files of one process, by where they are mapped.
#[derive(Debug, Default)]
pub(super) struct Modules {
    by_start: HashMap<Avma, Arc<Module>>,
}

/// One mapped file.
#[derive(Debug)]
pub(super) struct Module {
    code: Arc<MappedCode>,
    mapping: Arc<Mapping>,
    file: Result<Arc<KnownFile>, &'static str>,
}

impl Modules {
    pub(super) fn get(
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
        Self { code: Arc::clone(code), mapping: Arc::new(mapping), file }
    }

    pub(super) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    /// The function at an address; `Ok(None)` where the file has none.
    pub(super) fn name(
        &self,
        process: &Process,
        files: &FileCache,
        names: &FunctionNames,
        address: Avma,
    ) -> Result<Option<FunctionName>, &'static str> {
        let file = self.file.as_ref().map_err(|reason| *reason)?;
        let Some(svma) = self.svma(file, address) else {
            return Ok(None);
        };
        names.get((file.key, svma), || {
            let path = Path::new(&*self.code.path);
            let name = files.function_name(&file.key, path, || open(process, &self.code), svma);
            Ok(name.map_err(|error| error.reason())?.as_deref().map(FunctionName::of_raw))
        })
    }

    /// The functions of the file, or why there are none to be had.
    pub(super) fn symbols(
        &self,
        process: &Process,
        files: &FileCache,
    ) -> Result<Arc<SymbolTable>, &'static str> {
        let file = self.file.as_ref().map_err(|reason| *reason)?;
        let path = Path::new(&*self.code.path);
        files.symbols(&file.key, path, || open(process, &self.code)).map_err(|error| error.reason())
    }

    /// `libfoo.so+0x1234`: the stated address where the file is known, else the offset in it.
    pub(super) fn offset_name(&self, address: Avma) -> String {
        let name = Path::new(&*self.code.path)
            .file_name()
            .map_or_else(|| self.code.path.to_string(), |name| name.to_string_lossy().into_owned());
        let stated = self.file.as_ref().ok().and_then(|file| self.svma(file, address));
        let offset = stated.map_or_else(|| self.code.file_offset(address).0, |svma| svma.0);
        format!("{name}+{offset:#x}")
    }

    fn svma(&self, file: &KnownFile, address: Avma) -> Option<Svma> {
        file.header.svma_of(self.code.file_offset(address))
    }

    fn rule(&self, process: &Process, files: &FileCache, address: Avma) -> Rule {
        let row = self.file.as_ref().ok().and_then(|file| {
            let svma = self.svma(file, address)?;
            let path = Path::new(&*self.code.path);
            let rows = files.rows(&file.key, path, || open(process, &self.code)).ok()?;
            rows.row(svma)
        });
        // Code without rows is mostly written by hand or by compilers that keep frame pointers, such as Go's.
        row.map_or(Rule::FramePointer, Rule::Row)
    }
}

/// The unwind rule of the code at an address.
pub(super) fn rule(
    process: &Process,
    modules: &mut Modules,
    files: &FileCache,
    counts: &mut SymbolCounts,
    address: Avma,
) -> Rule {
    match process.mappings.find(address) {
        None => Rule::Unknown,
        Some(code) if code.backing == Backing::Anonymous => Rule::FramePointer,
        Some(code) => modules.get(process, &Arc::clone(code), files, counts).rule(process, files, address),
    }
}

fn identify(process: &Process, code: &MappedCode, files: &FileCache) -> Result<Arc<KnownFile>, LoadError> {
    let file = open(process, code)?;
    let path = Path::new(&*code.path);
    let known = files.identify(&file, path)?;
    let is_other = |wanted: BuildId| known.header.build_id != Some(wanted);
    if code.build_id.is_some_and(is_other) {
        return Err(LoadError::Changed { path: path.into() });
    }
    Ok(known)
}

/// Opens what is mapped: the mapping itself where that is allowed (also for a deleted file), else the path in the
/// process's own file system. A process that is gone leaves the path in ours, which is the same file if it has the
/// build id that the kernel saw.
fn open(process: &Process, code: &MappedCode) -> Result<File, OpenError> {
    if code.backing == Backing::Vdso {
        return vdso().map_err(|source| OpenError::Open { path: "[vdso]".into(), source });
    }
    let map_file = format!("/proc/{}/map_files/{:x}-{:x}", process.pid, code.start.0, code.end.0);
    if let Ok(file) = open_regular(Path::new(&map_file)) {
        return Ok(file);
    }
    let path = PathBuf::from(code.path.strip_suffix(" (deleted)").unwrap_or(&code.path));
    match open_in_root(&process.root(), &path) {
        Err(_) if code.build_id.is_some() && !Path::new(&process.root()).exists() => open_regular(&path),
        opened => opened,
    }
}

/// The vdso, which is the same in every 64-bit process, as a file.
fn vdso() -> io::Result<File> {
    static IMAGE: OnceLock<Result<Vec<u8>, io::ErrorKind>> = OnceLock::new();
    let image = IMAGE
        .get_or_init(|| read_vdso().map_err(|error| error.kind()))
        .as_ref()
        .map_err(|kind| io::Error::from(*kind))?;
    let mut file = tempfile::tempfile()?;
    file.write_all(image)?;
    file.rewind()?;
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
