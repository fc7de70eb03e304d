//! The code cache: its heaps, and the blobs of code in them.
//!
//! Layouts: openjdk src/hotspot/share/memory/heap.{hpp,cpp} (`CodeHeap`, `HeapBlock`, the segment
//! map), share/code/codeCache.cpp and codeBlob.hpp.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use jvmprof_common::jvm::{CodeHeap, JvmLayout, MAX_CODE_HEAPS, NO_FIELD};

use crate::hotspot::error::HotspotError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// The code cache is at most 2 GiB: share/utilities/globalDefinitions.hpp, `CODE_CACHE_SIZE_LIMIT`.
const MAX_CODE_CACHE: u64 = 2 << 30;
/// Blobs of one heap that are looked at, at most; a large application server has 60,000.
const MAX_BLOBS: usize = 1 << 20;
/// Bytes of a blob's name.
const MAX_NAME: usize = 256;
/// Bytes of one blob's code that are handed out; the largest, the interpreter's, has about 300 KiB.
const MAX_BLOB_CODE: u64 = 4 << 20;

/// Addresses and offsets of code heaps and blobs.
#[derive(Clone, Debug)]
pub(crate) struct CodeHeapFields {
    /// JDK 8's only heap, or later a growable array of them: the address of the pointer.
    root: Avma,
    /// `_len` and `_data` of the array; `None` on JDK 8.
    array: Option<(u16, u16)>,
    memory_low: u16,
    memory_high: u16,
    memory_reserved_low: u16,
    memory_reserved_high: u16,
    segment_map: u16,
    segment_map_high: u16,
    log2_segment: u16,
    block_bytes: u16,
    block_used: u16,
    blob_bytes: u16,
    blob_size: u16,
    /// End of the code: an address, or an offset from the blob.
    code_end: u16,
    /// Names of the values of `CodeBlob::_kind`.
    kinds: HashMap<u8, &'static str>,
}

const KINDS: [&str; 12] = [
    "CodeBlobKind::Nmethod",
    "CodeBlobKind::Buffer",
    "CodeBlobKind::Adapter",
    "CodeBlobKind::Vtable",
    "CodeBlobKind::MHAdapter",
    "CodeBlobKind::RuntimeStub",
    "CodeBlobKind::Deoptimization",
    "CodeBlobKind::Safepoint",
    "CodeBlobKind::Exception",
    "CodeBlobKind::UncommonTrap",
    "CodeBlobKind::Upcall",
    "CodeBlobKind::None",
];

/// The name of blobs of the kind `Adapter`.
const ADAPTERS: &str = "I2C/C2I adapters";

/// A piece of code in the code cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeBlobDesc {
    /// The `CodeBlob`.
    pub address: Avma,
    /// As HotSpot calls it: "nmethod", "StubRoutines (initial stubs)".
    pub name: Arc<str>,
    /// Address of the name.
    pub name_at: Avma,
    /// `CodeBlob::_kind` without its prefix, where the JVM has it (JDK 23 and later).
    pub kind: Option<&'static str>,
    /// Its instructions, an nmethod's stubs included.
    pub code: Range<Avma>,
    /// Bytes that it takes of the code cache, header and data included.
    pub bytes: u64,
}

impl CodeBlobDesc {
    /// Returns true for a method's code, compiled or native wrapper.
    pub fn is_nmethod(&self) -> bool {
        self.kind.map_or_else(|| matches!(&*self.name, NMETHOD | NATIVE_NMETHOD), |kind| kind == "Nmethod")
    }
}

/// Names of nmethods before JDK 24: share/code/nmethod.cpp, its constructors.
pub(crate) const NMETHOD: &str = "nmethod";
pub(crate) const NATIVE_NMETHOD: &str = "native nmethod";

/// A code heap as the daemon sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeHeapView {
    pub(crate) heap: CodeHeap,
    /// First address behind what is in use or free, but committed.
    committed: u64,
    segment_map_end: u64,
}

impl CodeHeapFields {
    pub(crate) fn new(lookup: FieldLookup<'_>, layout: &JvmLayout) -> Result<Self, HotspotError> {
        let (root, array) = match lookup.optional_address("CodeCache::_heaps") {
            Some(root) => {
                let length = ["GrowableArrayBase::_len", "GenericGrowableArray::_len"];
                // An array's layout is the same whatever its elements are.
                (root, Some((lookup.offset_of_any(&length)?, lookup.offset_of("GrowableArray<int>::_data")?)))
            }
            None => (lookup.address("CodeCache::_heap")?, None),
        };
        let memory = lookup.offset_of("CodeHeap::_memory")?;
        let segments = lookup.offset_of("CodeHeap::_segmap")?;
        let code_end =
            if layout.code_is_offset == 0 { "CodeBlob::_code_end" } else { "CodeBlob::_data_offset" };
        let kind = |name: &&'static str| {
            let value = u8::try_from(lookup.0.int(name)?).ok()?;
            Some((value, name.trim_start_matches("CodeBlobKind::")))
        };
        let kinds = if layout.blob_kind == NO_FIELD {
            HashMap::new()
        } else {
            KINDS.iter().filter_map(kind).collect()
        };
        Ok(Self {
            root,
            array,
            memory_low: memory + lookup.offset_of("VirtualSpace::_low")?,
            memory_high: memory + lookup.offset_of("VirtualSpace::_high")?,
            memory_reserved_low: memory + lookup.offset_of("VirtualSpace::_low_boundary")?,
            memory_reserved_high: memory + lookup.offset_of("VirtualSpace::_high_boundary")?,
            segment_map: segments + lookup.offset_of("VirtualSpace::_low")?,
            segment_map_high: segments + lookup.offset_of("VirtualSpace::_high")?,
            log2_segment: lookup.offset_of("CodeHeap::_log2_segment_size")?,
            block_bytes: layout.heap_block_bytes,
            block_used: lookup.offset_of("HeapBlock::_header")?
                + lookup.offset_of("HeapBlock::Header::_used")?,
            blob_bytes: lookup.size_of("CodeBlob")?,
            blob_size: lookup.offset_of("CodeBlob::_size")?,
            code_end: lookup.offset_of(code_end)?,
            kinds,
        })
    }

    /// The heaps there are now. They may grow inside what is reserved, and more may be added while
    /// the JVM starts.
    pub(crate) fn heaps(&self, memory: &impl ProcessMemory) -> Result<Vec<CodeHeapView>, HotspotError> {
        let not_ready = HotspotError::NotReady("there is no code cache");
        let read = |what, at: u64| {
            memory.read_u64(Avma(at)).ok_or(HotspotError::Read { what, address: Avma(at), bytes: 8 })
        };
        let root = read("the code cache's root", self.root.0)?;
        if root == 0 {
            return Err(not_ready);
        }
        let addresses = match self.array {
            None => vec![root],
            Some((length, data)) => {
                let count = read("the number of code heaps", root.wrapping_add(length.into()))? as u32;
                if count > MAX_CODE_HEAPS as u32 {
                    return Err(HotspotError::Implausible {
                        what: "the number of code heaps",
                        value: count.into(),
                    });
                }
                let data = read("the array of code heaps", root.wrapping_add(data.into()))?;
                let at: Vec<Avma> = (0..u64::from(count)).map(|i| Avma(data.wrapping_add(i * 8))).collect();
                memory.read_words(&at).into_iter().flatten().filter(|heap| *heap != 0).collect()
            }
        };
        let heaps: Vec<CodeHeapView> = addresses
            .iter()
            .filter_map(|heap| self.heap(*heap, memory).transpose())
            .collect::<Result<_, HotspotError>>()?;
        if heaps.is_empty() { Err(not_ready) } else { Ok(heaps) }
    }

    /// One heap; `None` while it isn't initialised.
    fn heap(&self, heap: u64, memory: &impl ProcessMemory) -> Result<Option<CodeHeapView>, HotspotError> {
        let fields = [
            self.memory_reserved_low,
            self.memory_reserved_high,
            self.memory_low,
            self.memory_high,
            self.segment_map,
            self.segment_map_high,
            self.log2_segment,
        ];
        let at: Vec<Avma> = fields.iter().map(|field| Avma(heap.wrapping_add((*field).into()))).collect();
        let words: Option<Vec<u64>> = memory.read_words(&at).into_iter().collect();
        let what = "a code heap";
        let words = words.ok_or(HotspotError::Read { what, address: Avma(heap), bytes: 56 })?;
        let [start, end, low, high, map, map_end, log2] = words[..] else { return Ok(None) };
        let log2_segment = log2 & 0xffff_ffff;
        if start == 0 || map == 0 || high == 0 {
            return Ok(None);
        }
        let fits = low == start
            && start < end
            && end - start <= MAX_CODE_CACHE
            && (start..=end).contains(&high)
            && (4..=16).contains(&log2_segment)
            && map < map_end
            && map_end - map <= MAX_CODE_CACHE >> log2_segment;
        if !fits {
            return Err(HotspotError::Implausible { what, value: start });
        }
        let heap = CodeHeap { start, end, segment_map: map, log2_segment };
        Ok(Some(CodeHeapView { heap, committed: high, segment_map_end: map_end }))
    }

    /// The blobs of one heap in the order of their addresses. Code comes and goes meanwhile: what
    /// doesn't look like a blob is left out.
    pub(crate) fn blobs(
        &self,
        view: &CodeHeapView,
        layout: &JvmLayout,
        names: &mut BlobNames,
        memory: &impl ProcessMemory,
    ) -> Result<Vec<CodeBlobDesc>, HotspotError> {
        let CodeHeap { start, segment_map, log2_segment, .. } = view.heap;
        let segments = (view.committed - start) >> log2_segment;
        let len = segments.min(view.segment_map_end - segment_map) as usize;
        let what = "a segment map";
        let map = memory.read_bytes(Avma(segment_map), len);
        let map = map.ok_or(HotspotError::Read { what, address: Avma(segment_map), bytes: len })?;
        let header = usize::from(self.block_bytes) + usize::from(self.blob_bytes);
        let places: Vec<(Avma, usize)> = map
            .iter()
            .enumerate()
            .filter(|(_, hops)| **hops == 0)
            .take(MAX_BLOBS)
            .map(|(segment, _)| (Avma(start + ((segment as u64) << log2_segment)), header))
            .collect();
        let mut blobs = Vec::new();
        // In pieces, so that a large heap doesn't take all its headers' memory at once.
        for places in places.chunks(8192) {
            let headers = memory.read_ranges(places);
            let raw: Vec<UnnamedBlob> = places
                .iter()
                .zip(headers)
                .filter_map(|((address, _), bytes)| self.parse(*address, &bytes?, view, layout))
                .collect();
            names.read_missing(raw.iter().map(|blob| blob.name_at), memory);
            blobs.extend(raw.into_iter().filter_map(|blob| blob.named(names)));
        }
        Ok(blobs)
    }

    fn parse(
        &self,
        block: Avma,
        bytes: &[u8],
        view: &CodeHeapView,
        layout: &JvmLayout,
    ) -> Option<UnnamedBlob> {
        if field::u8(bytes, self.block_used.into())? != 1 {
            return None;
        }
        let address = block.0 + u64::from(self.block_bytes);
        let blob = bytes.get(usize::from(self.block_bytes)..)?;
        let (begin, end) = (usize::from(layout.blob_code_begin), usize::from(self.code_end));
        let code = if layout.code_is_offset == 0 {
            field::u64(blob, begin)?..field::u64(blob, end)?
        } else {
            address.checked_add(field::u32(blob, begin)?.into())?
                ..address.checked_add(field::u32(blob, end)?.into())?
        };
        let size = u64::from(field::u32(blob, self.blob_size.into())?);
        let last = address.checked_add(size)?;
        if code.start < address || code.start > code.end || code.end > last || last > view.heap.end {
            return None;
        }
        let kind = match layout.blob_kind {
            NO_FIELD => None,
            at => Some(self.kinds.get(&field::u8(blob, at.into())?).copied().unwrap_or("unknown")),
        };
        Some(UnnamedBlob {
            address: Avma(address),
            name_at: Avma(field::u64(blob, layout.blob_name.into())?),
            kind,
            code: Avma(code.start)..Avma(code.end),
            bytes: size,
        })
    }
}

struct UnnamedBlob {
    address: Avma,
    name_at: Avma,
    kind: Option<&'static str>,
    code: Range<Avma>,
    bytes: u64,
}

impl UnnamedBlob {
    fn named(self, names: &BlobNames) -> Option<CodeBlobDesc> {
        let Self { address, name_at, kind, code, bytes } = self;
        // One out of an ahead-of-time cache is called by its arguments: `LIJ`.
        let name = match kind {
            Some("Adapter") => ADAPTERS.into(),
            _ => names.0.get(&name_at.0)?.clone(),
        };
        Some(CodeBlobDesc { address, name, name_at, kind, code, bytes })
    }
}

/// Names of blobs by their addresses: a few hundred strings for any number of blobs.
#[derive(Debug, Default)]
pub(crate) struct BlobNames(HashMap<u64, Arc<str>>);

impl BlobNames {
    /// Reads the names at these addresses that were not read before.
    fn read_missing(&mut self, at: impl Iterator<Item = Avma>, memory: &impl ProcessMemory) {
        for at in at {
            if !self.0.contains_key(&at.0)
                && let Some(name) = memory.read_c_string(at, MAX_NAME)
            {
                self.0.insert(at.0, name.into());
            }
        }
    }
}

/// A blob with its instructions.
#[derive(Clone, Debug)]
pub struct StubBlob {
    pub blob: CodeBlobDesc,
    /// The bytes of [`CodeBlobDesc::code`].
    pub bytes: Box<[u8]>,
}

/// Adds the instructions of these blobs; those that can't be read are left out.
pub(crate) fn with_code(blobs: Vec<CodeBlobDesc>, memory: &impl ProcessMemory) -> Vec<StubBlob> {
    let place = |blob: &CodeBlobDesc| {
        let len = (blob.code.end.0 - blob.code.start.0).min(MAX_BLOB_CODE);
        (blob.code.start, len as usize)
    };
    let places: Vec<(Avma, usize)> = blobs.iter().map(place).collect();
    let bytes = memory.read_ranges(&places);
    let all = blobs.into_iter().zip(bytes);
    all.filter_map(|(blob, bytes)| Some(StubBlob { blob, bytes: bytes?.into() })).collect()
}
