//! Compiled methods: where their debug information is, and whether they are still what they were.
//!
//! Layouts: openjdk src/hotspot/share/code/nmethod.hpp and codeBlob.hpp. The debug information lies
//! in the blob itself (JDK 8-22), or in memory of its own (`_immutable_data`, 23 and later); the
//! table of methods in the blob's data (8-24), or in `_mutable_data` (25 and later).

use std::ops::Range;
use std::sync::OnceLock;

use jvmprof_common::jvm::{JvmLayout, NO_FIELD};

use super::code_heaps::CodeBlobDesc;
use super::scope_descs::{self, PcDesc};
use super::unsigned5::Unsigned5Encoding;
use crate::hotspot::error::HotspotError;
use crate::hotspot::error::NamingError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Debug information of one method, in bytes. C2 gives up on methods long before.
const MAX_DEBUG_BYTES: u64 = 8 << 20;
/// Bytes of a `PcDesc`: share/code/pcDesc.hpp, four ints.
const PC_DESC_BYTES: usize = 16;

/// A number field: its offset and its width in bytes, 2, 4 or 8.
#[derive(Clone, Copy, Debug)]
struct NumberField {
    at: usize,
    width: u8,
}

impl NumberField {
    fn new(lookup: FieldLookup<'_>, name: &'static str) -> Result<Self, HotspotError> {
        let at = usize::from(lookup.offset_of(name)?);
        let type_name = lookup.0.field(name).map(|field| &*field.type_name).unwrap_or_default();
        let width = match type_name {
            "address" => 8,
            "u2" | "uint16_t" | "int16_t" => 2,
            _ => 4,
        };
        Ok(Self { at, width })
    }

    fn get(self, bytes: &[u8]) -> Option<u64> {
        match self.width {
            8 => field::u64(bytes, self.at),
            2 => field::u16(bytes, self.at).map(u64::from),
            _ => field::u32(bytes, self.at).map(u64::from),
        }
    }
}

/// Offsets of the fields that lead to an nmethod's parts.
#[derive(Clone, Debug)]
pub(crate) struct NmethodFields {
    header_bytes: usize,
    block_bytes: usize,
    block_used: usize,
    method: usize,
    state: usize,
    /// The last of the states in which code may still run.
    last_live_state: i8,
    comp_level: usize,
    comp_level_bytes: u8,
    size: usize,
    code_begin: NumberField,
    code_end: NumberField,
    scopes: Scopes,
    metadata: Metadata,
}

#[derive(Clone, Copy, Debug)]
enum Scopes {
    /// `pcs` and `end` count from the blob, `data` too unless it is an address.
    InBlob { data: NumberField, pcs: NumberField, end: NumberField },
    /// All count from where `base` points.
    Apart { base: usize, size: NumberField, pcs: NumberField, data: NumberField },
}

#[derive(Clone, Copy, Debug)]
enum Metadata {
    /// From the blob's begin to its debug information.
    InBlob(NumberField),
    /// From the blob's data (JDK 23 and 24).
    InData { offset: NumberField, data: NumberField, size: NumberField },
    /// Behind the relocations, where `base` points.
    Apart { base: usize, relocations: NumberField, size: NumberField },
}

impl NmethodFields {
    pub(crate) fn new(lookup: FieldLookup<'_>, layout: &JvmLayout) -> Result<Self, HotspotError> {
        let number = |name| NumberField::new(lookup, name);
        let apart = lookup.find_offset(&["nmethod::_immutable_data"])?;
        let scopes = match apart {
            Some(base) => Scopes::Apart {
                base: base.into(),
                size: number("nmethod::_immutable_data_size")?,
                pcs: number("nmethod::_scopes_pcs_offset")?,
                data: number("nmethod::_scopes_data_offset")?,
            },
            None => Scopes::InBlob {
                data: number("CompiledMethod::_scopes_data_begin")
                    .or_else(|_| number("nmethod::_scopes_data_offset"))?,
                pcs: number("nmethod::_scopes_pcs_offset")?,
                end: number("nmethod::_dependencies_offset")?,
            },
        };
        let metadata = match (lookup.find_offset(&["CodeBlob::_mutable_data"])?, apart) {
            (Some(base), _) => Metadata::Apart {
                base: base.into(),
                relocations: number("CodeBlob::_relocation_size")?,
                size: number("CodeBlob::_mutable_data_size")?,
            },
            (None, Some(_)) => Metadata::InData {
                offset: number("nmethod::_metadata_offset")?,
                data: number("CodeBlob::_data_offset")?,
                size: number("CodeBlob::_size")?,
            },
            (None, None) => Metadata::InBlob(number("nmethod::_metadata_offset")?),
        };
        let level = "nmethod::_comp_level";
        let wide = lookup.0.field(level).is_some_and(|field| &*field.type_name == "int");
        let is_8 = lookup.0.field("CodeCache::_heap").is_some();
        let code_end =
            if layout.code_is_offset == 0 { "CodeBlob::_code_end" } else { "CodeBlob::_data_offset" };
        let code_begin =
            if layout.code_is_offset == 0 { "CodeBlob::_code_begin" } else { "CodeBlob::_code_offset" };
        Ok(Self {
            header_bytes: lookup.size_of("nmethod")?.into(),
            block_bytes: layout.heap_block_bytes.into(),
            block_used: layout.block_used.into(),
            method: lookup.offset_of_any(&["nmethod::_method", "CompiledMethod::_method"])?.into(),
            state: lookup.offset_of("nmethod::_state")?.into(),
            // in_use and not_entrant are 0 and 1 on JDK 8; since 9 not_used lies between them. What
            // follows them, zombie and unloaded, is gone since 20.
            last_live_state: if is_8 { 1 } else { 2 },
            comp_level: lookup.offset_of(level)?.into(),
            comp_level_bytes: if wide { 4 } else { 1 },
            size: lookup.offset_of("CodeBlob::_size")?.into(),
            code_begin: number(code_begin)?,
            code_end: number(code_end)?,
            scopes,
            metadata,
        })
    }

    /// The address and size of an nmethod's header, its block included.
    pub(crate) fn header_place(&self, blob: Avma) -> (Avma, usize) {
        (Avma(blob.0.wrapping_sub(self.block_bytes as u64)), self.block_bytes + self.header_bytes)
    }

    /// Checks that these bytes are the header of the nmethod that is meant, alive.
    pub(crate) fn parse(
        &self,
        wanted: NmethodId,
        bytes: &[u8],
        layout: &JvmLayout,
    ) -> Result<NmethodHeader, NamingError> {
        let blob = bytes.get(self.block_bytes..).ok_or(NamingError::Unreadable)?;
        let used = field::u8(bytes, self.block_used) == Some(1);
        let compile_id = field::u32(blob, layout.nmethod_compile_id.into());
        let entry_bci = field::i32(blob, layout.nmethod_entry_bci.into());
        let kind_fits = layout.blob_kind == NO_FIELD
            || field::u8(blob, layout.blob_kind.into()).map(u16::from) == Some(layout.nmethod_kind);
        if !used
            || compile_id != Some(wanted.compile_id)
            || !kind_fits
            || entry_bci.map(|bci| bci != -1) != Some(wanted.osr)
        {
            return Err(NamingError::CodeReplaced);
        }
        let state = field::u8(blob, self.state).map(u8::cast_signed).ok_or(NamingError::DebugInfo)?;
        let method = field::u64(blob, self.method).ok_or(NamingError::DebugInfo)?;
        if state > self.last_live_state || method == 0 || self.is_purged(wanted.blob, blob) {
            return Err(NamingError::CodeUnloaded);
        }
        self.places(wanted.blob, blob, method).ok_or(NamingError::DebugInfo)
    }

    /// Returns true if the debug information is freed: its address then is that of the blob's end
    /// (openjdk jdk-25 src/hotspot/share/code/nmethod.cpp, `purge`). The blob itself is freed some
    /// time after all that are unloaded with it.
    fn is_purged(&self, address: Avma, blob: &[u8]) -> bool {
        let Scopes::Apart { base, size, .. } = self.scopes else { return false };
        let (base, bytes) = (field::u64(blob, base), field::u32(blob, self.size));
        let has_none = size.get(blob) == Some(0);
        let end = bytes.and_then(|bytes| address.0.checked_add(bytes.into()));
        !has_none && base.zip(end).is_none_or(|(base, end)| (address.0..=end).contains(&base))
    }

    fn places(&self, address: Avma, blob: &[u8], method: u64) -> Option<NmethodHeader> {
        let size = u64::from(field::u32(blob, self.size)?);
        let from_blob = |value: u64, number: NumberField| {
            if number.width == 8 { Some(value) } else { address.0.checked_add(value) }
        };
        let code_begin = from_blob(self.code_begin.get(blob)?, self.code_begin)?;
        let code_end = from_blob(self.code_end.get(blob)?, self.code_end)?;
        let ((pcs, pcs_end), (scopes, scopes_end)) = match self.scopes {
            Scopes::InBlob { data, pcs, end } => {
                let data = from_blob(data.get(blob)?, data)?;
                let pcs = from_blob(pcs.get(blob)?, pcs)?;
                ((pcs, from_blob(end.get(blob)?, end)?), (data, pcs))
            }
            Scopes::Apart { base, size, pcs, data } => {
                let (base, size) = (field::u64(blob, base)?, size.get(blob)?);
                let data = base.checked_add(data.get(blob)?)?;
                ((base.checked_add(pcs.get(blob)?)?, data), (data, base.checked_add(size)?))
            }
        };
        let metadata = match self.metadata {
            Metadata::InBlob(offset) => (from_blob(offset.get(blob)?, offset)?, scopes),
            Metadata::InData { offset, data, size } => {
                let start = from_blob(data.get(blob)?, data)?.checked_add(offset.get(blob)?)?;
                (start, from_blob(size.get(blob)?, size)?)
            }
            Metadata::Apart { base, relocations, size } => {
                let base = field::u64(blob, base)?;
                let (start, end) = (relocations.get(blob)?, size.get(blob)?);
                (base.checked_add(start)?, base.checked_add(end)?)
            }
        };
        let bounded = |start: u64, end: u64| {
            let len = end.checked_sub(start).filter(|len| *len <= MAX_DEBUG_BYTES)?;
            Some((Avma(start), len as usize))
        };
        let inside =
            code_begin >= address.0 && code_begin <= code_end && code_end <= address.0.checked_add(size)?;
        if !inside {
            return None;
        }
        Some(NmethodHeader {
            method: Avma(method),
            level: match self.comp_level_bytes {
                4 => field::u32(blob, self.comp_level)? as u8,
                _ => field::u8(blob, self.comp_level)?,
            },
            code_begin: Avma(code_begin),
            code_end: Avma(code_end),
            pcs: bounded(pcs, pcs_end)?,
            scopes: bounded(scopes, scopes_end)?,
            metadata: bounded(metadata.0, metadata.1)?,
        })
    }

    /// Reads the parts of several nmethods in one batch, their headers once more behind them: what
    /// is the same before and after was the same all the time, as a JVM never uses a compile id
    /// twice.
    pub(crate) fn read_debug(
        &self,
        wanted: &[(NmethodId, NmethodHeader)],
        layout: &JvmLayout,
        memory: &impl ProcessMemory,
    ) -> Vec<Result<NmethodDebugInfo, NamingError>> {
        let mut places = Vec::with_capacity(wanted.len() * 4);
        for (_, header) in wanted {
            places.extend([header.pcs, header.scopes, header.metadata]);
        }
        places.extend(wanted.iter().map(|(id, _)| self.header_place(id.blob)));
        let mut read = memory.read_ranges(&places);
        let again = read.split_off(wanted.len() * 3);
        let mut parts = read.into_iter();
        let each = wanted.iter().zip(again);
        each.map(|((id, header), again)| {
            let (pcs, scopes, metadata) = (parts.next(), parts.next(), parts.next());
            let again = self.parse(*id, &again.ok_or(NamingError::Unreadable)?, layout)?;
            if again != *header {
                return Err(NamingError::Changed);
            }
            let part = |part: Option<Option<Vec<u8>>>| part.flatten().ok_or(NamingError::Unreadable);
            NmethodDebugInfo::new(header, &part(pcs)?, part(scopes)?, &part(metadata)?)
                .ok_or(NamingError::DebugInfo)
        })
        .collect()
    }
}

/// A compiled method, or the wrapper of a native one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledMethod {
    /// The `CodeBlob`.
    pub blob: Avma,
    pub compile_id: u32,
    /// It is an on-stack replacement.
    pub osr: bool,
    /// `CompLevel`: 1 to 3 are C1's tiers, 4 is C2 or Graal, 0 a native wrapper.
    pub level: u8,
    /// Its instructions, stubs included.
    pub code: Range<Avma>,
    /// Places with debug information.
    pub safepoints: usize,
}

impl NmethodFields {
    /// The compiled methods among these blobs, those that are alive.
    pub(crate) fn compiled(
        &self,
        blobs: &[CodeBlobDesc],
        layout: &JvmLayout,
        memory: &impl ProcessMemory,
    ) -> Vec<CompiledMethod> {
        let places: Vec<(Avma, usize)> = blobs.iter().map(|blob| self.header_place(blob.address)).collect();
        let headers = memory.read_ranges(&places);
        let parse = |(blob, bytes): (&CodeBlobDesc, Option<Vec<u8>>)| {
            let bytes = bytes?;
            let header = bytes.get(self.block_bytes..)?;
            let id = NmethodId {
                blob: blob.address,
                compile_id: field::u32(header, layout.nmethod_compile_id.into())?,
                osr: field::i32(header, layout.nmethod_entry_bci.into())? != -1,
            };
            let header = self.parse(id, &bytes, layout).ok()?;
            Some(CompiledMethod {
                blob: blob.address,
                compile_id: id.compile_id,
                osr: id.osr,
                level: header.level,
                code: header.code_begin..header.code_end,
                safepoints: header.pcs.1 / PC_DESC_BYTES,
            })
        };
        blobs.iter().zip(headers).filter_map(parse).collect()
    }
}

/// Identity of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NmethodId {
    pub(crate) blob: Avma,
    pub(crate) compile_id: u32,
    pub(crate) osr: bool,
}

/// An nmethod's header, checked. It says the same as long as the nmethod lives: before
/// the debug information is freed, its address is overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NmethodHeader {
    pub(crate) method: Avma,
    /// `CompLevel`: 1 to 3 are C1's tiers, 4 is C2 or Graal, 0 a native wrapper.
    pub(crate) level: u8,
    pub(crate) code_begin: Avma,
    pub(crate) code_end: Avma,
    pcs: (Avma, usize),
    scopes: (Avma, usize),
    metadata: (Avma, usize),
}

/// The debug information of an nmethod: it never changes while the nmethod lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NmethodDebugInfo {
    pub(crate) header: NmethodHeader,
    pub(crate) pcs: Box<[PcDesc]>,
    pub(crate) scopes: Box<[u8]>,
    metadata: Box<[u64]>,
    /// The methods of its scopes as they were while it was alive, each with the check over its
    /// identity: they live as long as it does. In order of addresses; empty until they have been
    /// read.
    methods: OnceLock<Box<[(Avma, u64)]>>,
}

impl NmethodDebugInfo {
    fn new(header: &NmethodHeader, pcs: &[u8], scopes: Vec<u8>, metadata: &[u8]) -> Option<Self> {
        let desc =
            |desc: &[u8]| Some(PcDesc { pc_offset: field::i32(desc, 0)?, scope: field::u32(desc, 4)? });
        let pcs: Option<Box<[PcDesc]>> = pcs.chunks_exact(PC_DESC_BYTES).map(desc).collect();
        let pcs = pcs?;
        if !pcs.is_sorted_by_key(|desc| desc.pc_offset) {
            return None;
        }
        Some(Self {
            header: header.clone(),
            pcs,
            scopes: scopes.into(),
            metadata: metadata.chunks_exact(8).filter_map(|word| field::u64(word, 0)).collect(),
            methods: OnceLock::new(),
        })
    }

    /// The method at an index of a scope.
    pub(crate) fn method_at(&self, index: Option<u32>) -> Option<Avma> {
        match index {
            None => Some(self.header.method),
            Some(index) => {
                let method = *self.metadata.get((index as usize).checked_sub(1)?)?;
                (method != 0).then_some(Avma(method))
            }
        }
    }

    /// All methods of its scopes.
    pub(crate) fn scope_methods(&self, encoding: Unsigned5Encoding) -> impl Iterator<Item = Avma> {
        let indices = scope_descs::methods(&self.scopes, &self.pcs, encoding);
        let indices = indices.into_iter().map(Some).chain([None]);
        indices.filter_map(|index| self.method_at(index))
    }

    /// Keeps the checks over the identities of its methods. Once is enough: they stay the same.
    pub(crate) fn set_method_checks(&self, methods: impl Iterator<Item = (Avma, u64)>) {
        let _ = self.methods.get_or_init(|| methods.collect());
    }

    pub(crate) fn has_method_checks(&self) -> bool {
        self.methods.get().is_some()
    }

    /// The check over the identity of the method at this address.
    pub(crate) fn method_check(&self, method: Avma) -> Option<u64> {
        let methods = self.methods.get()?;
        let index = methods.binary_search_by_key(&method, |(address, _)| *address).ok()?;
        Some(methods[index].1)
    }

    /// Bytes of memory held.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.pcs)
            + self.scopes.len()
            + size_of_val(&*self.metadata)
            // Its methods are among the metadata; they become known later than this is asked.
            + (self.metadata.len() + 1) * size_of::<(Avma, u64)>()
    }
}
