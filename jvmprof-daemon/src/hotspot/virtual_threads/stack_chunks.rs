//! Layout of the frames that the heap keeps of virtual threads that aren't on a stack:
//! `jdk.internal.vm.StackChunk`.
//!
//! Neither that class nor its fields are among what a JVM says of itself, but a class that is
//! (`Object`) is the first of the table of well-known classes (openjdk
//! src/hotspot/share/classfile/vmClasses.hpp), and each class has a list of its fields.

use jvmprof_common::jvm::{JvmLayout, StackChunkLayout};

use super::field_lists::{FieldLists, texts};
use crate::hotspot::code_cache::unsigned5::Unsigned5Encoding;
use crate::hotspot::java_heap::collector_layout::CollectorFields;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::runtime_state::vm_flags::FlagFields;
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

const CHUNK: &str = "jdk/internal/vm/StackChunk";
const CONTINUATION: &str = "jdk/internal/vm/Continuation";
/// Well-known classes that are looked at; JDK 21 to 28 have about 100.
const MAX_CLASSES: u64 = 256;

/// Addresses and offsets that lead to the layout of `StackChunk`.
#[derive(Clone, Debug)]
pub(crate) struct ChunkFields {
    classes: Avma,
    layout_helper: u64,
    lists: FieldLists,
    oop_klass: u16,
    /// `markWord::klass_shift`, for objects without a class word (JDK 24 and later).
    mark_klass_shift: Option<u64>,
    klass_coding: Coding,
    oop_coding: Coding,
    collector: CollectorFields,
    flags: FlagFields,
}

/// The encoding of narrow references: addresses of base and shift.
#[derive(Clone, Copy, Debug)]
struct Coding {
    base: Avma,
    shift: Avma,
}

/// A class of the table.
#[derive(Clone, Copy, Debug)]
struct Class {
    klass: Avma,
    instance_bytes: u16,
}

impl ChunkFields {
    /// `None` for JVMs without virtual threads, and for those that don't say enough.
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let address = |names: [&'static str; 2]| names.iter().find_map(|name| lookup.optional_address(name));
        let offset = |name| lookup.optional_offset(&[name]).map(u64::from);
        Some(Self {
            classes: lookup
                .optional_address("vmClasses::_klasses[static_cast<int>(vmClassID::Object_klass_knum)]")?,
            layout_helper: offset("Klass::_layout_helper")?,
            lists: FieldLists::new(lookup)?,
            oop_klass: lookup
                .optional_offset(&["oopDesc::_metadata._compressed_klass", "oopDesc::_compressed_klass"])?,
            mark_klass_shift: lookup.0.long("markWord::klass_shift"),
            klass_coding: Coding {
                base: address([
                    "CompressedKlassPointers::_base",
                    "CompressedKlassPointers::_narrow_klass._base",
                ])?,
                shift: address([
                    "CompressedKlassPointers::_shift",
                    "CompressedKlassPointers::_narrow_klass._shift",
                ])?,
            },
            oop_coding: Coding {
                base: address(["CompressedOops::_base", "CompressedOops::_narrow_oop._base"])?,
                shift: address(["CompressedOops::_shift", "CompressedOops::_narrow_oop._shift"])?,
            },
            collector: CollectorFields::new(lookup),
            flags: FlagFields::new(lookup).ok()?,
        })
    }

    /// Reads what the kernel program needs; `None` where chunks can't be walked, or while the JVM
    /// starts.
    pub(crate) fn read(
        &self,
        layout: &JvmLayout,
        encoding: Unsigned5Encoding,
        memory: &impl ProcessMemory,
    ) -> Option<StackChunkLayout> {
        let flag = |name: &str| self.flags.value_of(name, memory);
        let is_set = |name: &str| flag(name).as_deref() == Some("true");
        let [chunk, continuation] = self.find([CHUNK, CONTINUATION], layout, memory);
        let (chunk, continuation) = (chunk?, continuation?);
        let collector = self.collector.read(flag, memory)?;
        let of_chunk = self.offsets(chunk, ["parent", "size", "sp"], layout, encoding, memory)?;
        let [tail] = self.offsets(continuation, ["tail"], layout, encoding, memory)?;
        let [parent, size, sp] = of_chunk;
        let max_thawing = self.max_thawing(chunk, encoding, memory);
        // JDK 22 and later keep the index itself.
        let bottom = self.offsets(chunk, ["bottom"], layout, encoding, memory);
        let argsize = || self.offsets(chunk, ["argsize"], layout, encoding, memory);
        let ([bottom], is_argsize) = bottom.map(|at| (at, 0)).or_else(|| Some((argsize()?, 1)))?;
        let are_narrow = is_set("UseCompressedOops");
        let (oop_base, oop_shift) = if are_narrow { self.oop_coding.read(memory)? } else { (0, 0) };
        let (klass_at, klass_mask, klass) = self.klass_word(chunk.klass, is_set, memory)?;
        Some(StackChunkLayout {
            klass,
            klass_mask,
            oop_base,
            oop_shift,
            oops_are_narrow: u16::from(are_narrow),
            klass_at,
            cont_tail: tail,
            parent,
            size,
            sp,
            bottom,
            bottom_is_argsize: is_argsize,
            // share/oops/instanceStackChunkKlass.hpp, `offset_of_stack`.
            stack: chunk.instance_bytes,
            max_thawing: max_thawing.unwrap_or_default(),
            reserved: 0,
            collector,
        })
    }

    /// Returns where an object says what class it is of, which bits of the word do, and what they
    /// are for this class.
    fn klass_word(
        &self,
        klass: Avma,
        is_set: impl Fn(&str) -> bool,
        memory: &impl ProcessMemory,
    ) -> Option<(u16, u64, u64)> {
        let is_compact = is_set("UseCompactObjectHeaders");
        if !is_compact && !is_set("UseCompressedClassPointers") {
            return Some((self.oop_klass, u64::MAX, klass.0));
        }
        let (base, shift) = self.klass_coding.read(memory)?;
        let narrow = klass.0.checked_sub(base)? >> shift;
        if is_compact {
            let shift = self.mark_klass_shift.filter(|shift| *shift < 64)?;
            return Some((0, u64::MAX << shift, narrow << shift));
        }
        Some((self.oop_klass, u64::from(u32::MAX), u64::from(u32::try_from(narrow).ok()?)))
    }

    /// The well-known classes with these names.
    fn find<const N: usize>(
        &self,
        names: [&str; N],
        layout: &JvmLayout,
        memory: &impl ProcessMemory,
    ) -> [Option<Class>; N] {
        let slots: Vec<Avma> = (0..MAX_CLASSES).map(|index| Avma(self.classes.0 + index * 8)).collect();
        let klasses: Vec<u64> =
            memory.read_words(&slots).into_iter().map(Option::unwrap_or_default).collect();
        let symbols: Vec<Avma> =
            klasses.iter().map(|klass| Avma(klass.wrapping_add(u64::from(layout.klass_name)))).collect();
        let symbols: Vec<u64> =
            memory.read_words(&symbols).into_iter().map(Option::unwrap_or_default).collect();
        let texts = texts(&symbols, layout, memory);
        names.map(|name| {
            let index = texts.iter().position(|text| text.as_deref() == Some(name.as_bytes()))?;
            let helper = memory.read_bytes(Avma(klasses[index] + self.layout_helper), 4)?;
            // share/oops/klass.hpp: bytes, and in the lowest bit whether they are made in the slow
            // way.
            let bytes = field::u32(&helper, 0)? & !7;
            let instance_bytes = u16::try_from(bytes).ok().filter(|bytes| (16..4096).contains(bytes))?;
            Some(Class { klass: Avma(klasses[index]), instance_bytes })
        })
    }

    /// Offsets of the fields with these names.
    fn offsets<const N: usize>(
        &self,
        class: Class,
        names: [&str; N],
        layout: &JvmLayout,
        encoding: Unsigned5Encoding,
        memory: &impl ProcessMemory,
    ) -> Option<[u16; N]> {
        let found = self.lists.offsets(class.klass, &names, layout, encoding, memory)?;
        let in_object = |offset: u32| u16::try_from(offset).ok().filter(|it| *it < class.instance_bytes);
        let mut offsets = [0; N];
        for (offset, found) in offsets.iter_mut().zip(found) {
            *offset = in_object(found?)?;
        }
        Some(offsets)
    }

    /// Returns where `StackChunk.maxThawingSize` is, which the JVM has added. Such fields have no
    /// names in the pool, but an order: share/runtime/continuationJavaClasses.hpp,
    /// `STACKCHUNK_INJECTED_FIELDS` (JDK 21: share/classfile/javaClasses.hpp).
    fn max_thawing(
        &self,
        chunk: Class,
        encoding: Unsigned5Encoding,
        memory: &impl ProcessMemory,
    ) -> Option<u16> {
        let added = self.lists.added(chunk.klass, encoding, memory)?;
        let [_cont, _flags, _pc, at, ..] = added[..] else { return None };
        u16::try_from(at).ok().filter(|at| at.is_multiple_of(4) && *at < chunk.instance_bytes)
    }
}

impl Coding {
    fn read(self, memory: &impl ProcessMemory) -> Option<(u64, u16)> {
        let base = memory.read_u64(self.base)?;
        let shift = field::u32(&memory.read_bytes(self.shift, 4)?, 0)?;
        // Objects are aligned to 256 bytes at most, classes to 1,024.
        Some((base, u16::try_from(shift).ok().filter(|shift| *shift <= 10)?))
    }
}
