//! Native code: the files that processes have mapped, the rows of those that the loader is still
//! reading, and the names of their frames: resolved here in idle time, or left to a server.

pub(super) mod deferred_frames;
pub(super) mod function_names;
pub(super) mod load_budget;
pub(super) mod mapped_files;
pub(super) mod single_row_lookup;

use std::path::Path;
use std::sync::Arc;

use crate::hotspot::stubs::AnalysesOnDisk;
use crate::kernel_tables::RowsOnDisk;
use crate::native::byte_source::RegularFile;
use crate::native::debug_files_to_upload::queue::{UploadCandidate, UploadQueue};
use crate::native::debuginfod::{Debuginfod, FetchState};
use crate::native::elf::ElfFile;
use crate::native::file_identity::ContentIdsOnDisk;
use crate::process::{Process, ProcessKey};
use crate::profile::model::{Frame, FrameKind};
use crate::symbolize::frames::{frame, frame_bytes};
use crate::symbolize::native::deferred_frames::DeferredFrame;
use crate::symbolize::native::mapped_files::Module;
use crate::symbolize::{Symbolizer, file_cache};
use crate::types::BuildId;

/// The place where native frames of files with a build id are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SymbolizationPlace {
    /// The daemon names them.
    #[default]
    Local,
    /// The server names them, with the debug files that it gets from us or has.
    Server,
    /// The daemon names frames with a symbol, the server the others.
    Auto,
}

/// Options of naming native frames.
#[derive(Clone, Debug, Default)]
pub struct NativeOptions {
    /// Adds inlined functions and lines from DWARF.
    pub lines: bool,
    pub symbolize: SymbolizationPlace,
    /// Client that fetches debug files that the host lacks.
    pub debuginfod: Option<Arc<Debuginfod>>,
    /// Hashes of files' contents that an earlier run has made.
    pub content_ids: Option<Arc<ContentIdsOnDisk>>,
    /// Unwind rows that an earlier run has read.
    pub rows_on_disk: Option<Arc<RowsOnDisk>>,
    /// Analyses of JVMs' stubs that an earlier run has made.
    pub stub_analyses: Option<Arc<AnalysesOnDisk>>,
    /// Queue of files whose frames a server is to name.
    pub offers: Option<Arc<UploadQueue>>,
}

impl NativeOptions {
    /// Returns whether a frame without a name stays so, because a server may name it.
    pub(in crate::symbolize) fn is_for_server(&self, frame: &Frame) -> bool {
        let has_build_id = frame.mapping.as_ref().is_some_and(|mapping| mapping.build_id.is_some());
        self.symbolize != SymbolizationPlace::Local && frame.kind == FrameKind::Native && has_build_id
    }
}

impl Symbolizer {
    /// Sets the options of native frames, before any file is loaded.
    #[must_use]
    pub fn with_native(mut self, options: NativeOptions) -> Self {
        self.files = file_cache(self.files.limits(), options.lines, options.content_ids.clone());
        self.names.with_lines = options.lines;
        self.names.downloads = options.debuginfod.as_ref().map(|server| server.directory().to_owned());
        if let Some(on_disk) = &options.stub_analyses {
            self.java = self.java.with_stub_analyses(Arc::clone(on_disk));
        }
        self.native = options;
        self
    }

    /// Names native and kernel frames that are new. Reading the symbols of large files takes time
    /// in which no Java frame would be named, and those can't wait: so this is done in idle time.
    ///
    /// Frames of files whose debug file is on its way from a debuginfod server stay without a name.
    pub fn name_new<'a>(&mut self, find: impl Fn(ProcessKey) -> Option<&'a Process>) {
        self.name_unnamed(find, true);
    }

    /// Names all new frames before a profile is made: later debug files come too late for it.
    pub(in crate::symbolize) fn name_rest<'a>(&mut self, find: impl Fn(ProcessKey) -> Option<&'a Process>) {
        self.name_unnamed(find, false);
    }

    fn name_unnamed<'a>(&mut self, find: impl Fn(ProcessKey) -> Option<&'a Process>, may_wait: bool) {
        self.kernel.name_new();
        self.invalidate_fetched();
        for unnamed in std::mem::take(&mut self.deferred) {
            let Some(process) = find(unnamed.key) else { continue };
            let Some(frame) = self.native_frame(process, &unnamed, may_wait) else {
                self.deferred.push(unnamed);
                continue;
            };
            let Some(symbols) = self.processes.get_mut(&unnamed.key) else { continue };
            let bytes = 2 * frame_bytes(&frame);
            symbols.frame_memory.add(bytes);
            symbols.named.insert((unnamed.module.mapping(), unnamed.address), Arc::clone(&frame));
            if symbols.generation == unnamed.generation {
                symbols.frames.insert(unnamed.which, frame);
            }
        }
        self.names.release();
    }

    /// Returns the frame; `None` if its name has to wait.
    fn native_frame(
        &mut self,
        process: &Process,
        unnamed: &DeferredFrame,
        may_wait: bool,
    ) -> Option<Arc<Frame>> {
        let (module, address) = (&unnamed.module, unnamed.address);
        let (mapping, mode) = (module.mapping(), self.native.symbolize);
        let id = mapping.build_id;
        let mut named = Err("left to the server");
        if id.is_none() || mode != SymbolizationPlace::Server {
            if self.is_being_fetched(process, module, id) && may_wait {
                return None;
            }
            named = match module.name(process, &self.files, &self.names, address) {
                Ok(Some(lines)) => Ok(lines),
                Ok(None) => Err("no symbol"),
                Err(reason) => Err(reason),
            };
        }
        let native = |lines| {
            let (kind, mapping) = (FrameKind::Native, Some(Arc::clone(&mapping)));
            Arc::new(Frame { kind, address: Some(address), mapping, lines })
        };
        Some(match (named, id) {
            (Ok(lines), _) => native(lines.to_vec()),
            (Err(_), Some(id)) if mode != SymbolizationPlace::Local => {
                self.offer(process, module, id);
                native(Vec::new())
            }
            (Err(reason), _) => {
                *self.counts.unnamed.entry(reason).or_default() += 1;
                let name: Arc<str> = module.offset_name(address).into();
                frame(FrameKind::Native, address, Some(mapping), Arc::clone(&name), name)
            }
        })
    }

    /// Returns whether a debug file is being fetched; requests it the first time.
    fn is_being_fetched(&self, process: &Process, module: &Module, id: Option<BuildId>) -> bool {
        let (Some(server), Some(id)) = (&self.native.debuginfod, id) else { return false };
        let symbols = module.symbols(process, &self.files, &self.names);
        let is_stripped = symbols.is_ok_and(|symbols| !symbols.has_symtab());
        is_stripped && server.request(id) == FetchState::Pending
    }

    /// Offers a file to the uploader, with its debug file if there is one here.
    fn offer(&self, process: &Process, module: &Module, id: BuildId) {
        let Some(offers) = &self.native.offers else { return };
        offers.offer(id, || {
            let file = module.reopen(process, &self.files, &self.names)?;
            let path: Arc<str> = Arc::clone(&module.mapping().path);
            let debug = RegularFile::new(&file)
                .ok()
                .map(ElfFile::parse)
                .and_then(|parsed| self.names.places(process).find(&parsed.ok()?, Path::new(&*path)));
            Some(UploadCandidate { build_id: id, path, file, debug })
        });
    }

    /// Invalidates the names of files whose debug files have come: they are named anew when they
    /// are sampled again.
    fn invalidate_fetched(&mut self) {
        let Some(server) = &self.native.debuginfod else { return };
        let arrived = server.take_fetched();
        for id in &arrived {
            self.files.invalidate(*id);
            self.names.invalidate(*id);
        }
        if arrived.is_empty() {
            return;
        }
        self.clear_stacks();
        let is_old = |frame: &Frame| {
            let id = frame.mapping.as_ref().and_then(|mapping| mapping.build_id);
            !frame.lines.is_empty() && id.is_some_and(|id| arrived.contains(&id))
        };
        for symbols in self.processes.values_mut() {
            symbols.named.retain(|_, frame| !is_old(frame));
            symbols.frames.retain(|_, frame| !is_old(frame));
        }
    }
}
