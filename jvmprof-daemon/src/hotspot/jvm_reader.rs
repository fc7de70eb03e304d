//! One JVM: found, laid out, and followed as its code cache grows.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use jvmprof_common::jvm::{Jvm, MAX_CODE_HEAPS, NO_FIELD, THAW_STUBS, ThawStub};

use super::code_cache::code_heaps::{
    self, BlobNames, CodeBlobDesc, CodeHeapFields, CodeHeapView, NATIVE_NMETHOD, NMETHOD, StubBlob,
};
use super::code_cache::interpreter_codelets::{InterpreterCodelet, InterpreterFields};
use super::code_cache::nmethod::{CompiledMethod, NmethodFields};
use super::code_cache::unsigned5::Unsigned5Encoding;
use super::error::HotspotError;
use super::java_cache::JvmKey;
use super::java_heap::HeapLayout;
use super::java_heap::blocker_fields::{BlockerFields, JvmBlockers};
use super::java_heap::heap_layout::HeapFields;
use super::methods::bytecodes::BytecodeTemplates;
use super::methods::call_operands::CallFields;
use super::methods::class_unloading::ClassUnloads;
use super::methods::method::MethodFields;
use super::process_memory::ProcessMemory;
use super::runtime_state::RuntimeStateFields;
use super::runtime_state::pause_variables::PauseVariables;
use super::runtime_state::safepoint_counters::SafepointCounters;
use super::stubs::stub_names::StubNames;
use super::version::JvmVersion;
use super::virtual_threads::census::{self, CensusTimes, VirtualThreads};
use super::virtual_threads::census_error::VirtualThreadsError;
use super::virtual_threads::census_fields::CensusFields;
use super::virtual_threads::stack_chunks::ChunkFields;
use super::virtual_threads::{continuation_entry, thaw_stubs};
use super::vmstructs::VmStructs;
use super::vmstructs::exported_symbols::Image;
use super::vmstructs::field_offsets::{self, FieldLookup};
use super::vmstructs::symtab_variables::BlockerVariables;
use crate::types::Avma;

const MAX_RELEASE: usize = 256;

/// A running JVM.
#[derive(Debug)]
pub struct Hotspot<M> {
    pub(crate) memory: M,
    image: Image,
    version: JvmVersion,
    statics: StaticFields,
    heap_fields: CodeHeapFields,
    interpreter_fields: InterpreterFields,
    pub(crate) jvm: Jvm,
    names: BlobNames,
    pub(crate) key: JvmKey,
    pub(crate) encoding: Unsigned5Encoding,
    pub(crate) templates: BytecodeTemplates,
    pub(crate) method_fields: MethodFields,
    /// `None` if this JVM doesn't say where debug information is.
    pub(crate) nmethod_fields: Option<NmethodFields>,
    /// `None` if it doesn't say what bytecodes refer to.
    pub(crate) call_fields: Option<CallFields>,
    pub(crate) runtime_state_fields: RuntimeStateFields,
    /// The address of its counter of unloaded classes; `None` if it has none.
    pub(crate) unloaded_classes: Option<Avma>,
    pub(crate) unloads: ClassUnloads,
    pub(crate) stub_names: StubNames,
    /// `None` if it doesn't say how its heap looks.
    heap_layout_fields: Option<HeapFields>,
    /// `None` if it doesn't say what its threads wait for.
    blocker_fields: Option<BlockerFields>,
    pub(crate) blocker_variables: BlockerVariables,
    /// `VMThread::_cur_vm_operation`.
    pub(crate) vm_operation: Option<Avma>,
    /// `None` once it is known how virtual threads' frames are kept, or that this can't be known.
    chunk_fields: Option<ChunkFields>,
    /// `None` if it has no virtual threads, or doesn't say where.
    census_fields: Option<CensusFields>,
}

static NEXT_KEY: AtomicU64 = AtomicU64::new(0);

/// Addresses of static fields.
#[derive(Clone, Debug)]
struct StaticFields {
    code_bounds: Option<(Avma, Avma)>,
    threads: Avma,
    cont_entry_return_pc: Option<Avma>,
    /// The variable that holds the address that `call_stub` returns to.
    call_stub_return: Option<Avma>,
}

impl<M: ProcessMemory> Hotspot<M> {
    /// Finds the JVM among the images of a process.
    ///
    /// # Errors
    /// [`HotspotError::is_transient`] while the JVM starts; else why it isn't a JVM that can be
    /// read.
    pub fn attach(images: &[Image], memory: M) -> Result<Self, HotspotError> {
        let (image, structs) = VmStructs::read(images, &memory)?;
        let lookup = FieldLookup(&structs);
        let layout = field_offsets::jvm_layout(lookup)?;
        let bounds = |low, high| Some((lookup.optional_address(low)?, lookup.optional_address(high)?));
        let statics = StaticFields {
            code_bounds: bounds("CodeCache::_low_bound", "CodeCache::_high_bound"),
            threads: lookup.address("Threads::_number_of_threads")?,
            cont_entry_return_pc: lookup.optional_address("ContinuationEntry::_return_pc"),
            call_stub_return: lookup.optional_address("StubRoutines::_call_stub_return_address"),
        };
        let version = read_version(lookup, &memory)?;
        let encoding = Unsigned5Encoding::of_feature(version.feature);
        let mut hotspot = Self {
            image,
            version,
            heap_fields: CodeHeapFields::new(lookup, &layout)?,
            interpreter_fields: InterpreterFields::new(lookup)?,
            statics,
            memory,
            jvm: Jvm { layout, ..Jvm::default() },
            names: BlobNames::default(),
            key: JvmKey(NEXT_KEY.fetch_add(1, Ordering::Relaxed)),
            encoding,
            templates: BytecodeTemplates::default(),
            method_fields: MethodFields::new(lookup, &layout, encoding)?,
            nmethod_fields: NmethodFields::new(lookup, &layout).ok(),
            call_fields: CallFields::new(lookup),
            runtime_state_fields: RuntimeStateFields::new(lookup),
            unloaded_classes: None,
            unloads: ClassUnloads::default(),
            stub_names: StubNames::default(),
            heap_layout_fields: HeapFields::new(lookup),
            blocker_fields: BlockerFields::new(lookup),
            blocker_variables: BlockerVariables::default(),
            vm_operation: None,
            chunk_fields: ChunkFields::new(lookup),
            census_fields: CensusFields::new(lookup),
        };
        let is_by_version = hotspot.derives_continuations()
            && hotspot.version.feature >= continuation_entry::ENTRY_BYTES_SINCE;
        if is_by_version {
            hotspot.jvm.layout.cont_entry_bytes = continuation_entry::ENTRY_BYTES;
        }
        hotspot.refresh()?;
        let (codelets, _) = hotspot.codelets()?;
        hotspot.templates = BytecodeTemplates::new(&codelets);
        Ok(hotspot)
    }

    /// The description of the JVM that the kernel program needs; `table` is left to others.
    pub fn jvm(&self) -> &Jvm {
        &self.jvm
    }

    pub fn version(&self) -> &JvmVersion {
        &self.version
    }

    /// The mapped file that is the JVM.
    pub fn image(&self) -> Image {
        self.image
    }

    /// Reads again what changes while the JVM runs. True if [`Self::jvm`] has changed.
    ///
    /// Until [`Self::is_complete`] it is worth asking every second. Afterwards only what
    /// [`Self::awaits_virtual_threads`] can be missing, and is worth asking for when a sample is in
    /// the stubs of [`Jvm::return_barrier_start`]: [`Jvm::cont_entry_return_pc`] comes with the
    /// first virtual thread.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn refresh(&mut self) -> Result<bool, HotspotError> {
        // The first thread is listed when the heaps, the stubs and the interpreter are made, and
        // before any Java code runs: share/runtime/threads.cpp, `Threads::create_vm`.
        let threads = self.memory.read_u64(self.statics.threads).unwrap_or_default();
        if threads & 0xffff_ffff == 0 {
            return Err(HotspotError::NotReady("its first thread isn't running"));
        }
        let before = self.jvm;
        let heaps = self.heap_fields.heaps(&self.memory)?;
        self.jvm.heaps = Default::default();
        for (slot, view) in self.jvm.heaps.iter_mut().zip(&heaps) {
            *slot = view.heap;
        }
        let bounds = self.code_bounds(&heaps);
        (self.jvm.code_start, self.jvm.code_end) = (bounds.start.0, bounds.end.0);
        let interpreter = self.interpreter_fields.range(&self.memory)?;
        if interpreter.start < bounds.start || interpreter.end > bounds.end {
            let what = "the interpreter's place";
            return Err(HotspotError::Implausible { what, value: interpreter.start.0 });
        }
        (self.jvm.interpreter_start, self.jvm.interpreter_end) = (interpreter.start.0, interpreter.end.0);
        if let Some(at) = self.statics.cont_entry_return_pc {
            self.jvm.cont_entry_return_pc = self.memory.read_u64(at).unwrap_or_default();
        }
        self.find_landmarks(&heaps)?;
        if self.jvm.loaded_classes == 0 {
            let found = self.runtime_state_fields.classes(&self.memory);
            self.jvm.loaded_classes = found.map_or(0, |classes| classes.loaded.0);
            self.unloaded_classes = found.map(|classes| classes.unloaded);
        }
        if self.derives_continuations() && self.jvm.cont_entry_return_pc == 0 {
            self.derive_continuations()?;
        }
        if let Some(fields) = &self.chunk_fields {
            let chunks = fields.read(&self.jvm.layout, self.encoding, &self.memory);
            // Classes are there before the first thing that could be frozen.
            if chunks.is_some() || self.jvm.cont_entry_return_pc != 0 {
                tracing::debug!(?chunks, "frames of virtual threads in the heap");
                self.jvm.chunks = chunks.unwrap_or_default();
                self.chunk_fields = None;
            }
        }
        Ok(self.jvm != before)
    }

    /// Returns true while something about virtual threads can still be found out: how their frames
    /// are kept in the heap, or what of their code is made with the first of them.
    pub fn awaits_virtual_threads(&self) -> bool {
        self.chunk_fields.is_some() || self.has_continuations() && self.jvm.cont_entry_return_pc == 0
    }

    /// Returns true once nothing that [`Self::jvm`] holds is still to come.
    pub fn is_complete(&self) -> bool {
        self.has_nmethod_names() && (!self.has_continuations() || self.jvm.return_barrier_start != 0)
    }

    fn has_nmethod_names(&self) -> bool {
        let by_kind = self.jvm.layout.blob_kind != NO_FIELD;
        by_kind || self.jvm.nmethod_name != 0 && self.jvm.native_nmethod_name != 0
    }

    fn has_continuations(&self) -> bool {
        self.version.feature >= 19
    }

    /// Returns true if the code of continuations is searched for: JDK 19 to 26, but for late
    /// updates, have it and don't say where.
    fn derives_continuations(&self) -> bool {
        self.has_continuations() && self.statics.cont_entry_return_pc.is_none()
    }

    fn derive_continuations(&mut self) -> Result<(), HotspotError> {
        let stubs = Avma(self.jvm.return_barrier_start)..Avma(self.jvm.return_barrier_end);
        let wrappers = self.blobs()?.into_iter().filter(|blob| &*blob.name == NATIVE_NMETHOD).collect();
        let wrappers = code_heaps::with_code(wrappers, &self.memory);
        let found = wrappers
            .iter()
            .find_map(|wrapper| continuation_entry::parse(&wrapper.bytes, wrapper.blob.code.start, &stubs));
        if let Some(found) = found {
            self.jvm.cont_entry_return_pc = found.return_pc.0;
            self.jvm.layout.thread_cont_entry = found.cont_entry;
            self.jvm.layout.cont_entry_bytes = found.entry_bytes;
        }
        Ok(())
    }

    fn code_bounds(&self, heaps: &[CodeHeapView]) -> Range<Avma> {
        let read = |(low, high): (Avma, Avma)| {
            let words = self.memory.read_words(&[low, high]);
            Some(Avma(words[0]?)..Avma(words[1]?))
        };
        let start = heaps.iter().map(|view| view.heap.start).min().unwrap_or_default();
        let end = heaps.iter().map(|view| view.heap.end).max().unwrap_or_default();
        let exported = self.statics.code_bounds.and_then(read);
        exported
            .filter(|bounds| bounds.start.0 <= start && end <= bounds.end.0)
            .unwrap_or(Avma(start)..Avma(end))
    }

    /// Finds what code blobs show: the names of nmethods, the stubs that end a continuation's
    /// stack, and `call_stub`.
    fn find_landmarks(&mut self, heaps: &[CodeHeapView]) -> Result<(), HotspotError> {
        if self.is_complete() {
            return Ok(());
        }
        let call_stub = self.statics.call_stub_return.and_then(|at| self.memory.read_u64(at)).map(Avma);
        for view in heaps {
            let blobs = self.heap_fields.blobs(view, &self.jvm.layout, &mut self.names, &self.memory)?;
            for blob in &blobs {
                if call_stub.is_some_and(|pc| blob.code.contains(&pc)) {
                    self.jvm.call_stub = blob.address.0;
                }
                match &*blob.name {
                    NMETHOD => self.jvm.nmethod_name = blob.name_at.0,
                    NATIVE_NMETHOD => self.jvm.native_nmethod_name = blob.name_at.0,
                    name if is_continuation_stubs(name) && self.jvm.return_barrier_start == 0 => {
                        self.jvm.return_barrier_start = blob.code.start.0;
                        self.jvm.return_barrier_end = blob.code.end.0;
                        self.jvm.thaw_stubs = self.thaw_stubs(&blob.code);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Reads the landmarks of the stubs that thaw frames, from their blob's code; none where that
    /// isn't as expected.
    fn thaw_stubs(&self, code: &Range<Avma>) -> [ThawStub; THAW_STUBS] {
        let bytes = usize::try_from(code.end - code.start).unwrap_or_default();
        let code = self.memory.read_bytes(code.start, bytes);
        let stubs = code.and_then(|code| thaw_stubs::parse(&code));
        if stubs.is_none() {
            let version = &self.version.vm_release;
            tracing::warn!(%version, "unknown stubs that thaw virtual threads: stacks in them are truncated");
        }
        stubs.unwrap_or_default()
    }

    /// Returns how its objects look; `None` if it doesn't say, or while it starts.
    pub fn heap_layout(&self) -> Option<HeapLayout> {
        let fields = self.heap_layout_fields.as_ref()?;
        fields.read(&self.jvm.layout, &self.jvm.chunks, &self.memory)
    }

    /// Returns where its threads say what they wait for; `None` if it doesn't say, has no symbols,
    /// or starts.
    pub fn blockers(&self) -> Option<JvmBlockers> {
        let current_thread = self.blocker_variables.current_thread?;
        let fields = self.blocker_fields.as_ref()?;
        Some(JvmBlockers {
            layout: fields.read(self.blocker_variables, &self.memory)?,
            current_thread,
            image: self.image,
            owners: self.runtime_state_fields.owners.clone(),
            names: fields.names(self.blocker_variables.names, &self.memory),
            heap: self.heap_layout()?,
        })
    }

    /// Returns where it says why it stops its threads.
    pub fn pause_variables(&self) -> PauseVariables {
        PauseVariables {
            image: self.image,
            operation: self.vm_operation,
            collections: self.heap_layout().and_then(|heap| heap.collections_at),
            causes: self.runtime_state_fields.perf.and_then(|perf| perf.causes(&self.memory)),
        }
    }

    /// Returns where it says how long it has stopped its threads; `None` while it starts, and if it
    /// doesn't say.
    pub fn safepoint_counters(&self) -> Option<SafepointCounters> {
        SafepointCounters::find(self.runtime_state_fields.perf?, self.version.feature, &self.memory)
    }

    /// Counts the virtual threads; `None` if this JVM has none, or doesn't say where.
    ///
    /// # Errors
    /// Returns why they could not be counted.
    pub fn virtual_threads(&self, times: CensusTimes) -> Option<Result<VirtualThreads, VirtualThreadsError>> {
        let fields = self.census_fields.as_ref().filter(|_| self.jvm.chunks.klass != 0)?;
        census::count(&self.jvm, (fields, self.encoding), &self.heap_layout()?, &self.memory, times)
    }

    /// Everything in the code cache, by heap and address.
    ///
    /// # Errors
    /// The code cache can't be read.
    pub fn blobs(&mut self) -> Result<Vec<CodeBlobDesc>, HotspotError> {
        let mut all = Vec::new();
        for view in self.heap_fields.heaps(&self.memory)? {
            all.extend(self.heap_fields.blobs(&view, &self.jvm.layout, &mut self.names, &self.memory)?);
        }
        Ok(all)
    }

    /// Blobs that aren't a method's code, with their instructions: the interpreter, stubs,
    /// adapters.
    ///
    /// # Errors
    /// As [`Self::blobs`].
    pub fn stub_blobs(&mut self) -> Result<Vec<StubBlob>, HotspotError> {
        let mut heaps = self.heap_fields.heaps(&self.memory)?;
        // Where methods have heaps of their own the others are next to the interpreter. Only what
        // finds no room there gets into methods' (share/code/codeCache.cpp, `CodeCache::allocate`).
        let interpreter = self.jvm.interpreter_start;
        heaps.sort_by_key(|view| !(view.heap.start..view.heap.end).contains(&interpreter));
        let mut all: Vec<CodeBlobDesc> = Vec::new();
        for view in heaps {
            all.extend(self.heap_fields.blobs(&view, &self.jvm.layout, &mut self.names, &self.memory)?);
            let last = all.last().map_or(0, |blob| blob.address.0 + blob.bytes);
            let room = view.heap.end.saturating_sub(last);
            if last != 0 && room > (view.heap.end - view.heap.start) / 4 {
                break;
            }
        }
        all.retain(|blob| !blob.is_nmethod());
        Ok(code_heaps::with_code(all, &self.memory))
    }

    /// Every compiled method that is alive, native wrappers included.
    ///
    /// # Errors
    /// As [`Self::blobs`].
    pub fn compiled(&mut self) -> Result<Vec<CompiledMethod>, HotspotError> {
        let blobs: Vec<CodeBlobDesc> = self.blobs()?.into_iter().filter(CodeBlobDesc::is_nmethod).collect();
        Ok(self.compiled_among(&blobs))
    }

    pub(crate) fn compiled_among(&self, blobs: &[CodeBlobDesc]) -> Vec<CompiledMethod> {
        let fields = self.nmethod_fields.as_ref();
        fields.map_or_else(Vec::new, |fields| fields.compiled(blobs, &self.jvm.layout, &self.memory))
    }

    /// The interpreter's codelets, and its bytes from [`Jvm::interpreter_start`] on.
    ///
    /// # Errors
    /// The interpreter can't be read.
    pub fn codelets(&self) -> Result<(Vec<InterpreterCodelet>, Vec<u8>), HotspotError> {
        let range = self.interpreter_fields.range(&self.memory)?;
        self.interpreter_fields.codelets(&range, &self.memory)
    }
}

/// Returns true for the name of the continuations' stubs, which changed with JDK 23 and 25
/// (share/runtime/stubRoutines.cpp).
fn is_continuation_stubs(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("stub") && name.contains("continuation")
}

fn read_version(lookup: FieldLookup<'_>, memory: &impl ProcessMemory) -> Result<JvmVersion, HotspotError> {
    let at = lookup.address("Abstract_VM_Version::_s_vm_release")?;
    let text = memory.read_u64(at).unwrap_or_default();
    if text == 0 {
        return Err(HotspotError::NotReady("it has no version yet"));
    }
    let release = memory.read_c_string(Avma(text), MAX_RELEASE);
    let what = "the JVM's version";
    release.map(|text| JvmVersion::of_release(&text)).ok_or(HotspotError::Read {
        what,
        address: Avma(text),
        bytes: MAX_RELEASE,
    })
}

const _: () = assert!(MAX_CODE_HEAPS == 4, "a JVM has up to four kinds of code heaps");
