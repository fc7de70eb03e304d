//! The callee of a frame's call, by its bytecode: a check of the frame above it.
//!
//! Where an interrupted frame ends is known by the code around its pc, and HotSpot's compilers move
//! the stack pointer in more ways than anybody lists. A caller that was missed shows here: the
//! bytecode at which the next frame waits names another method.

use std::sync::Arc;

use jvmprof_common::jvm::JvmLayout;

use super::class_names::decode_symbol;
use super::method::{is_method_name, is_signature};
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Tags of constants (JVMS 4.4).
const UTF8: u8 = 1;
const METHODREF: u8 = 10;
const INTERFACE_METHODREF: u8 = 11;
const NAME_AND_TYPE: u8 = 12;
const MAX_SYMBOL: usize = u16::MAX as usize;

/// The method that a waiting frame calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Callee {
    /// Whatever it is: nothing is known of it, or a method handle leads there.
    Anything,
    /// No method: its bytecode is no call.
    Nothing,
    /// A method of this name and signature: `total(Ljava/util/List;)J`.
    Method(Arc<str>),
}

/// The method by which a virtual thread gets off its carrier.
const DO_YIELD: &str = "jdk.internal.vm.Continuation.doYield(";

impl Callee {
    /// Returns true if this may be a call of that method:
    /// `com.acme.Order.total(Ljava/util/List;)J`.
    pub fn may_be(&self, system_name: &str) -> bool {
        // Method handles and lambda forms call what they hold.
        if system_name.starts_with("java.lang.invoke.") {
            return true;
        }
        match self {
            Self::Anything => true,
            Self::Nothing => false,
            // By its last instructions a continuation is left, to the caller of its entry.
            Self::Method(method) if system_name.starts_with(DO_YIELD) => {
                method.starts_with("enterSpecial(") || method.starts_with("doYield(")
            }
            Self::Method(method) => {
                system_name.strip_suffix(&**method).is_some_and(|class| class.ends_with('.'))
            }
        }
    }
}

/// Offsets of the parts of a constant pool that calls refer to. Rewritten bytecodes hold an index
/// into its cache, which has that of the constant (openjdk src/hotspot/share/oops/cpCache.hpp,
/// share/interpreter/rewriter.cpp).
#[derive(Clone, Debug)]
pub(crate) struct CallFields {
    pool_bytes: u64,
    pool_length: usize,
    pool_tags: usize,
    tags_data: u64,
    pool_cache: usize,
    entries: MethodEntries,
}

#[derive(Clone, Debug)]
enum MethodEntries {
    /// Behind the cache's header (up to JDK 22).
    Behind { header_bytes: u64, entry_bytes: u64, index: u64 },
    /// In an array of their own (share/oops/resolvedMethodEntry.hpp).
    Array { at: u64, data: u64, entry_bytes: u64, index: u64 },
}

impl CallFields {
    /// Finds the fields; `None` for a JVM that doesn't say.
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let offset = |name| lookup.optional_offset(&[name]);
        let size = |name| lookup.size_of(name).ok().map(u64::from);
        let entries = match offset("ConstantPoolCache::_resolved_method_entries") {
            Some(at) => MethodEntries::Array {
                at: at.into(),
                data: offset("Array<ResolvedMethodEntry>::_data")
                    .or_else(|| offset("Array<ResolvedMethodEntry>::_data[0]"))?
                    .into(),
                entry_bytes: size("ResolvedMethodEntry")?,
                index: offset("ResolvedMethodEntry::_cpool_index")?.into(),
            },
            None => MethodEntries::Behind {
                header_bytes: size("ConstantPoolCache")?,
                entry_bytes: size("ConstantPoolCacheEntry")?,
                index: offset("ConstantPoolCacheEntry::_indices")?.into(),
            },
        };
        Some(Self {
            pool_bytes: size("ConstantPool")?,
            pool_length: offset("ConstantPool::_length")?.into(),
            pool_tags: offset("ConstantPool::_tags")?.into(),
            tags_data: offset("Array<u1>::_data")?.into(),
            pool_cache: offset("ConstantPool::_cache")?.into(),
            entries,
        })
    }

    /// Name and signature of the method that a call's operand means; `None` if what was read is no
    /// reference to one.
    pub(crate) fn method(
        &self,
        pool: u64,
        operand: u16,
        layout: &JvmLayout,
        memory: &impl ProcessMemory,
    ) -> Option<Arc<str>> {
        let header = memory.read_bytes(Avma(pool), self.pool_bytes as usize)?;
        let length = field::u32(&header, self.pool_length)?;
        let tags = field::u64(&header, self.pool_tags)?.checked_add(self.tags_data)?;
        let cache = field::u64(&header, self.pool_cache)?;
        let constant = |index: u16, wanted: &[u8]| {
            let at = Avma(pool.checked_add(self.pool_bytes + 8 * u64::from(index))?);
            let tag = (Avma(tags.checked_add(index.into())?), 1);
            let [tag, value] = <[_; 2]>::try_from(memory.read_ranges(&[tag, (at, 8)])).ok()?;
            let is_wanted = u32::from(index) < length && wanted.contains(tag?.first()?);
            if is_wanted { field::u64(&value?, 0) } else { None }
        };
        let halves = |value: u64| (value as u16, (value >> 16) as u16);
        let reference = constant(self.index(cache, operand, memory)?, &[METHODREF, INTERFACE_METHODREF])?;
        let (_, name_and_type) = halves(reference);
        let (name, signature) = halves(constant(name_and_type, &[NAME_AND_TYPE])?);
        let text = |index| symbol(constant(index, &[UTF8])?, layout, memory);
        let (name, signature) = (text(name)?, text(signature)?);
        (is_method_name(&name) && is_signature(&signature)).then(|| format!("{name}{signature}").into())
    }

    /// The constant's index.
    fn index(&self, cache: u64, operand: u16, memory: &impl ProcessMemory) -> Option<u16> {
        let operand = u64::from(operand);
        let at = match self.entries {
            MethodEntries::Behind { header_bytes, entry_bytes, index } => {
                cache.checked_add(header_bytes + operand * entry_bytes + index)?
            }
            MethodEntries::Array { at, data, entry_bytes, index } => {
                let array = memory.read_u64(Avma(cache.checked_add(at)?))?;
                array.checked_add(data + operand * entry_bytes + index)?
            }
        };
        field::u16(&memory.read_bytes(Avma(at), 2)?, 0)
    }
}

fn symbol(symbol: u64, layout: &JvmLayout, memory: &impl ProcessMemory) -> Option<String> {
    let length = memory.read_bytes(Avma(symbol.checked_add(layout.symbol_length.into())?), 2)?;
    let length = usize::from(field::u16(&length, 0)?).min(MAX_SYMBOL);
    decode_symbol(&memory.read_bytes(Avma(symbol.checked_add(layout.symbol_body.into())?), length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_names_its_callee_by_name_and_signature() {
        let called = Callee::Method("total(Ljava/util/List;)J".into());
        assert!(called.may_be("com.acme.Order.total(Ljava/util/List;)J"));
        assert!(!called.may_be("com.acme.Order.total(Ljava/util/Set;)J"), "another one of that name");
        assert!(!called.may_be("com.acme.Order.subtotal(Ljava/util/List;)J"));
        assert!(called.may_be("java.lang.invoke.LambdaForm$MH.invoke(Ljava/lang/Object;)J"));
        assert!(!Callee::Nothing.may_be("com.acme.Order.total(Ljava/util/List;)J"));
        assert!(Callee::Anything.may_be("com.acme.Order.total(Ljava/util/List;)J"));
    }
    #[test]
    fn a_continuation_is_left_to_the_caller_of_its_entry() {
        let entry = Callee::Method("enterSpecial(Ljdk/internal/vm/Continuation;ZZ)V".into());
        assert!(entry.may_be("jdk.internal.vm.Continuation.doYield()I"));
        assert!(Callee::Method("doYield()I".into()).may_be("jdk.internal.vm.Continuation.doYield()I"));
        assert!(!Callee::Method("park()V".into()).may_be("jdk.internal.vm.Continuation.doYield()I"));
        assert!(!entry.may_be("jdk.internal.vm.Continuation.yield0()V"));
    }
}
