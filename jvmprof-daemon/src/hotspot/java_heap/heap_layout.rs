//! Layout of the objects of one JVM: where the class is, and how long an object is.

use jvmprof_common::jvm::{JvmLayout, StackChunkLayout};

use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::runtime_state::vm_flags::FlagFields;
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Addresses and offsets that lead to a [`HeapLayout`].
#[derive(Clone, Debug)]
pub(crate) struct HeapFields {
    collected_heap: Option<Avma>,
    total_collections: Option<u64>,
    allocated_bytes: u64,
    layout_helper: u64,
    klass_at: u64,
    narrow_klass: Option<[Avma; 2]>,
    /// `markWord::klass_shift`, for objects without a class word (JDK 24 and later).
    mark_klass_shift: Option<u64>,
    mirror_size_at: Option<Avma>,
    flags: FlagFields,
}

/// The layout of the objects of one JVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapLayout {
    /// The address of `CollectedHeap::_total_collections`; `None` if it isn't known.
    pub collections_at: Option<Avma>,
    /// `Thread::_allocated_bytes`.
    pub allocated_bytes: u64,
    /// `Klass::_layout_helper`, an `int`.
    pub layout_helper: u64,
    /// `Klass::_name`.
    pub klass_name: u64,
    /// `Symbol::_length`, a `u16`, and `Symbol::_body`.
    pub symbol_length: u64,
    pub symbol_body: u64,
    pub klass_word: KlassWord,
    /// Bytes from an array's begin to its length, an `int`.
    pub array_length: u64,
    /// `ObjectAlignmentInBytes`.
    pub alignment: u64,
    /// The offset of the field that says how many words an object of `java.lang.Class` has.
    pub mirror_size: Option<u64>,
    /// Where a `StackChunk` has the number of words of its stack, and where that begins.
    pub stack_chunk: Option<(u64, u64)>,
    /// References have 32 bits.
    pub has_narrow_oops: bool,
}

/// The word by which an object says what class it is of: the word at `at`, shifted right, under the
/// mask, is a narrow class pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KlassWord {
    /// Offset of the word in the object.
    pub at: u64,
    pub right: u64,
    pub mask: u64,
    /// What a narrow class pointer is added to, and how far it is shifted left before.
    pub base: u64,
    pub left: u64,
}

impl HeapFields {
    /// Finds the fields; `None` for a JVM that doesn't say enough.
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let offset = |names: &[&'static str]| lookup.optional_offset(names).map(u64::from);
        let address = |names: &[&'static str]| names.iter().find_map(|name| lookup.optional_address(name));
        let narrow = |what: &str| match what {
            "base" => address(&[
                "CompressedKlassPointers::_base",
                "CompressedKlassPointers::_narrow_klass._base",
                "Universe::_narrow_klass._base",
            ]),
            _ => address(&[
                "CompressedKlassPointers::_shift",
                "CompressedKlassPointers::_narrow_klass._shift",
                "Universe::_narrow_klass._shift",
            ]),
        };
        Some(Self {
            collected_heap: address(&["Universe::_collectedHeap"]),
            total_collections: offset(&["CollectedHeap::_total_collections"]),
            allocated_bytes: offset(&["Thread::_allocated_bytes"])?,
            layout_helper: offset(&["Klass::_layout_helper"])?,
            klass_at: offset(&["oopDesc::_metadata._compressed_klass", "oopDesc::_compressed_klass"])?,
            narrow_klass: narrow("base").zip(narrow("shift")).map(|(base, shift)| [base, shift]),
            mark_klass_shift: lookup.0.long("markWord::klass_shift"),
            mirror_size_at: address(&["java_lang_Class::_oop_size_offset"]),
            flags: FlagFields::new(lookup).ok()?,
        })
    }

    /// Reads what doesn't change any more once the JVM runs; `None` while it starts.
    pub(crate) fn read(
        &self,
        layout: &JvmLayout,
        chunks: &StackChunkLayout,
        memory: &impl ProcessMemory,
    ) -> Option<HeapLayout> {
        let flag = |name: &str| self.flags.value_of(name, memory);
        let is_set = |name: &str| flag(name).as_deref() == Some("true");
        let collections_at = match (self.collected_heap, self.total_collections) {
            (Some(heap), Some(offset)) => match memory.read_u64(heap)? {
                0 => return None,
                heap => Some(Avma(heap.checked_add(offset)?)),
            },
            _ => None,
        };
        let is_compact = is_set("UseCompactObjectHeaders");
        let is_narrow = is_compact || is_set("UseCompressedClassPointers");
        let klass_word = if is_narrow {
            let [base, shift] = self.narrow_klass?;
            let base = memory.read_u64(base)?;
            let left = u64::from(field::u32(&memory.read_bytes(shift, 4)?, 0)?);
            let right = if is_compact { self.mark_klass_shift? } else { 0 };
            if left >= 32 || right >= 64 {
                return None;
            }
            let at = if is_compact { 0 } else { self.klass_at };
            let mask = if is_compact { u64::MAX >> right } else { u64::from(u32::MAX) };
            KlassWord { at, right, mask, base, left }
        } else {
            KlassWord { at: self.klass_at, right: 0, mask: u64::MAX, base: 0, left: 0 }
        };
        // share/oops/arrayOop.hpp, `length_offset_in_bytes`: after the class.
        let array_length = match (is_compact, is_narrow) {
            (true, _) => 8,
            (false, true) => self.klass_at + 4,
            (false, false) => self.klass_at + 8,
        };
        let mirror_size = self.mirror_size_at.and_then(|at| memory.read_bytes(at, 4));
        let mirror_size = mirror_size.and_then(|bytes| field::u32(&bytes, 0)).map(u64::from);
        let alignment = flag("ObjectAlignmentInBytes").and_then(|text| text.parse().ok()).unwrap_or(8);
        Some(HeapLayout {
            collections_at,
            allocated_bytes: self.allocated_bytes,
            layout_helper: self.layout_helper,
            klass_name: layout.klass_name.into(),
            symbol_length: layout.symbol_length.into(),
            symbol_body: layout.symbol_body.into(),
            klass_word,
            array_length,
            alignment: if (8..=256).contains(&alignment) { alignment } else { 8 },
            mirror_size: mirror_size.filter(|offset| (8..4096).contains(offset)),
            stack_chunk: (chunks.stack != 0).then(|| (chunks.size.into(), chunks.stack.into())),
            has_narrow_oops: is_set("UseCompressedOops"),
        })
    }
}

impl HeapLayout {
    /// Returns the address of the class of an object with this header (16 bytes), or what can't be
    /// one.
    #[inline]
    pub(super) fn klass(&self, header: &[u8; 24]) -> u64 {
        let word = self.klass_word;
        let at = word.at as usize & 15;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        let narrow = (u64::from_le_bytes(bytes) >> word.right) & word.mask;
        word.base.wrapping_add(narrow << word.left)
    }

    /// Returns the address of the class of the object that begins with these words, or what can't
    /// be one.
    pub fn klass_of(&self, object: [u64; 2]) -> Avma {
        let mut header = [0; 24];
        header[..8].copy_from_slice(&object[0].to_le_bytes());
        header[8..16].copy_from_slice(&object[1].to_le_bytes());
        Avma(self.klass(&header))
    }

    /// Returns the length that an array with this header has.
    #[inline]
    pub(super) fn array_length(&self, header: &[u8; 24]) -> u64 {
        let at = self.array_length as usize & 31;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[at.min(20)..at.min(20) + 4]);
        u64::from(u32::from_le_bytes(bytes))
    }
}
