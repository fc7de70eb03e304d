//! Field offsets of one JVM, from its own vmStructs. What a JVM doesn't say is derived here from
//! its sources, each with the file that defines it.

use jvmprof_common::jvm::{JvmLayout, NO_FIELD};

use super::tables::VmStructs;
use crate::hotspot::error::HotspotError;
use crate::types::Avma;

/// No object that is read is larger than this: an offset above is garbage.
const MAX_OFFSET: u64 = 4096;

/// Looks offsets up in a JVM's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldLookup<'v>(pub(crate) &'v VmStructs);

impl FieldLookup<'_> {
    /// Returns the offset of the first of these fields that the JVM has, if it has one.
    ///
    /// # Errors
    /// The offset is implausible.
    pub(crate) fn find_offset(&self, names: &[&'static str]) -> Result<Option<u16>, HotspotError> {
        let Some((name, offset)) = names.iter().find_map(|name| Some((*name, self.0.offset(name)?))) else {
            return Ok(None);
        };
        if offset > MAX_OFFSET {
            return Err(HotspotError::Implausible { what: name, value: offset });
        }
        Ok(Some(offset as u16))
    }

    /// Returns the same where a JVM with implausible offsets is as one without the field.
    pub(crate) fn optional_offset(&self, names: &[&'static str]) -> Option<u16> {
        self.find_offset(names).ok().flatten()
    }

    /// Returns the offset of the first of these fields that the JVM has; one of them is needed.
    pub(crate) fn offset_of_any(&self, names: &[&'static str]) -> Result<u16, HotspotError> {
        self.find_offset(names)?.ok_or_else(|| HotspotError::Missing(names.join(" or ")))
    }

    pub(crate) fn offset_of(&self, name: &'static str) -> Result<u16, HotspotError> {
        self.offset_of_any(&[name])
    }

    /// Returns the offset of the first of these fields that the JVM has, else [`NO_FIELD`].
    pub(crate) fn offset_or_none(&self, names: &[&'static str]) -> Result<u16, HotspotError> {
        Ok(self.find_offset(names)?.unwrap_or(NO_FIELD))
    }

    /// Returns a type's `sizeof`.
    pub(crate) fn size_of(&self, name: &'static str) -> Result<u16, HotspotError> {
        let size = self.0.size_of(name).ok_or_else(|| HotspotError::Missing(format!("sizeof({name})")))?;
        if size == 0 || size > MAX_OFFSET {
            return Err(HotspotError::Implausible { what: name, value: size });
        }
        Ok(size as u16)
    }

    pub(crate) fn address(&self, name: &'static str) -> Result<Avma, HotspotError> {
        self.optional_address(name).ok_or_else(|| HotspotError::Missing(name.to_owned()))
    }

    pub(crate) fn optional_address(&self, name: &'static str) -> Option<Avma> {
        self.0.address(name).filter(|address| address.0 != 0)
    }

    fn has(&self, name: &str) -> bool {
        self.0.field(name).is_some()
    }
}

/// Returns the part of the layout that the kernel program needs, too.
///
/// # Errors
/// What the JVM doesn't say or what can't be.
pub(crate) fn jvm_layout(lookup: FieldLookup<'_>) -> Result<JvmLayout, HotspotError> {
    let blob_kind = lookup.offset_or_none(&["CodeBlob::_kind"])?;
    let frame_complete = "CodeBlob::_frame_complete_offset";
    let narrow = lookup.0.field(frame_complete).is_some_and(|field| field.type_name.starts_with("int16"));
    let mut layout = JvmLayout {
        heap_block_bytes: lookup.size_of("HeapBlock")?,
        block_used: lookup.offset_of("HeapBlock::_header")? + lookup.offset_of("HeapBlock::Header::_used")?,
        blob_name: lookup.offset_of("CodeBlob::_name")?,
        blob_kind,
        nmethod_kind: nmethod_kind(lookup, blob_kind)?,
        blob_code_begin: lookup.offset_of_any(&["CodeBlob::_code_begin", "CodeBlob::_code_offset"])?,
        code_is_offset: u16::from(!lookup.has("CodeBlob::_code_begin")),
        blob_frame_complete: lookup.offset_of(frame_complete)?,
        frame_complete_bytes: if narrow { 2 } else { 4 },
        blob_frame_size: lookup.offset_of("CodeBlob::_frame_size")?,
        ..JvmLayout::default()
    };
    nmethod(&mut layout, lookup)?;
    metadata(&mut layout, lookup)?;
    continuation(&mut layout, lookup)?;
    Ok(layout)
}

fn nmethod_kind(lookup: FieldLookup<'_>, blob_kind: u16) -> Result<u16, HotspotError> {
    if blob_kind == NO_FIELD {
        return Ok(NO_FIELD);
    }
    let what = "CodeBlobKind::Nmethod";
    let kind = lookup.0.int(what).ok_or_else(|| HotspotError::Missing(what.to_owned()))?;
    match u8::try_from(kind) {
        Ok(kind) => Ok(u16::from(kind)),
        Err(_) => Err(HotspotError::Implausible { what, value: u64::from(kind.cast_unsigned()) }),
    }
}

fn nmethod(layout: &mut JvmLayout, lookup: FieldLookup<'_>) -> Result<(), HotspotError> {
    layout.nmethod_verified_entry =
        lookup.offset_of_any(&["nmethod::_verified_entry_point", "nmethod::_verified_entry_offset"])?;
    layout.entry_is_offset = u16::from(!lookup.has("nmethod::_verified_entry_point"));
    layout.nmethod_compile_id = lookup.offset_of("nmethod::_compile_id")?;
    layout.nmethod_entry_bci = lookup.offset_of("nmethod::_entry_bci")?;
    layout.nmethod_level = lookup.offset_of("nmethod::_comp_level")?;
    layout.nmethod_orig_pc = lookup.offset_of("nmethod::_orig_pc_offset")?;
    // Addresses in JDK 9-22 (share/code/compiledMethod.hpp), else offsets from the blob's begin:
    // nmethod.hpp `deopt_handler_begin`. JDK 26 and later have one handler for both kinds of call.
    let address = "CompiledMethod::_deopt_handler_begin";
    layout.deopt_is_offset = u16::from(!lookup.has(address));
    layout.nmethod_deopt = lookup.offset_of_any(&[
        address,
        "nmethod::_deoptimize_offset",
        "nmethod::_deopt_handler_offset",
        "nmethod::_deopt_handler_entry_offset",
    ])?;
    layout.nmethod_deopt_mh = lookup.offset_or_none(&[
        "CompiledMethod::_deopt_mh_handler_begin",
        "nmethod::_deoptimize_mh_offset",
        "nmethod::_deopt_mh_handler_offset",
    ])?;
    Ok(())
}

fn metadata(layout: &mut JvmLayout, lookup: FieldLookup<'_>) -> Result<(), HotspotError> {
    layout.method_const = lookup.offset_of("Method::_constMethod")?;
    layout.const_constants = lookup.offset_of("ConstMethod::_constants")?;
    layout.const_code_size = lookup.offset_of("ConstMethod::_code_size")?;
    let followers =
        ["ConstMethod::_name_index", "ConstMethod::_signature_index", "ConstMethod::_method_idnum"];
    for (index, follower) in followers.into_iter().enumerate() {
        let offset = lookup.offset_of(follower)?;
        if usize::from(offset) != usize::from(layout.const_code_size) + 2 * (index + 1) {
            return Err(HotspotError::Implausible { what: follower, value: u64::from(offset) });
        }
    }
    layout.const_bytes = lookup.size_of("ConstMethod")?;
    layout.pool_holder = lookup.offset_of("ConstantPool::_pool_holder")?;
    layout.klass_name = lookup.offset_of("Klass::_name")?;
    layout.symbol_length = lookup.offset_of("Symbol::_length")?;
    layout.symbol_body = lookup.offset_of_any(&["Symbol::_body", "Symbol::_body[0]"])?;
    // JDK 9 put the class mirror into interpreted frames: share/cpu/x86/frame_x86.hpp,
    // `interpreter_frame_bcp_offset`. It is also the first with several code heaps.
    layout.interpreter_bcp_slot = if lookup.has("CodeCache::_heaps") { 8 } else { 7 };
    Ok(())
}

fn continuation(layout: &mut JvmLayout, lookup: FieldLookup<'_>) -> Result<(), HotspotError> {
    layout.thread_cont_entry = lookup.offset_or_none(&["JavaThread::_cont_entry"])?;
    layout.cont_entry_bytes = match lookup.0.size_of("ContinuationEntry") {
        // share/runtime/continuationEntry.hpp, `size()`: up to a multiple of two words.
        Some(_) => lookup.size_of("ContinuationEntry")?.next_multiple_of(16),
        None => NO_FIELD,
    };
    Ok(())
}
