//! How the heap keeps the frames of virtual threads that aren't on a stack:
//! `jdk.internal.vm.StackChunk`.
//!
//! Neither that class nor its fields are among what a JVM says of itself, but a class that is
//! (`Object`) is the first of the table of well-known classes (openjdk
//! src/hotspot/share/classfile/vmClasses.hpp), and each class has a list of its fields
//! (share/oops/fieldInfo.inline.hpp, JDK 21 and later).

use jvmprof_common::jvm::{JvmLayout, StackChunkLayout};

use super::gc_forwarding_tables::CollectorFields;
use crate::hotspot::code_cache::unsigned5::{Unsigned5Encoding, Unsigned5Reader};
use crate::hotspot::diagnostics::vm_flags::FlagFields;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

const CHUNK: &str = "jdk/internal/vm/StackChunk";
const CONTINUATION: &str = "jdk/internal/vm/Continuation";
/// Well-known classes that are looked at; JDK 21 to 28 have about 100.
const MAX_CLASSES: u64 = 256;
/// Bytes of a list of fields, at most; that of a `StackChunk` has 60.
const MAX_FIELD_BYTES: u32 = 4096;
const MAX_NAME: usize = 64;

/// Addresses and offsets that lead to the layout of `StackChunk`.
#[derive(Clone, Debug)]
pub(crate) struct ChunkFields {
    classes: Avma,
    layout_helper: u64,
    fields: u64,
    constants: u64,
    pool_bytes: u64,
    oop_klass: u16,
    /// `markWord::klass_shift`, for objects without a class word (JDK 24 and later).
    mark_klass_shift: Option<u64>,
    klass_coding: Coding,
    oop_coding: Coding,
    optional: Optional,
    collector: CollectorFields,
    flags: FlagFields,
}

/// The encoding of narrow references: addresses of base and shift.
#[derive(Clone, Copy, Debug)]
struct Coding {
    base: Avma,
    shift: Avma,
}

/// Bits of a field's flags that say that more numbers follow, or that the JVM added the field.
#[derive(Clone, Copy, Debug)]
struct Optional {
    initialized: u32,
    injected: u32,
    generic: u32,
    contended: u32,
}

/// A class of the table.
#[derive(Clone, Copy, Debug)]
struct Class {
    klass: Avma,
    instance_bytes: u16,
}

/// A field in a class's list of fields.
#[derive(Debug, Default)]
struct Fields {
    /// Those that the class file has: index of the name in the pool, and offset.
    own: Vec<(u32, u32)>,
    /// Offsets of those that the JVM has added.
    added: Vec<u32>,
}

impl ChunkFields {
    /// `None` for JVMs without virtual threads, and for those that don't say enough.
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let address = |names: [&'static str; 2]| names.iter().find_map(|name| lookup.maybe_address(name));
        let offset = |name| lookup.maybe(&[name]).ok().flatten().map(u64::from);
        let bit = |name: &str| {
            let bit = lookup.0.int(&format!("FieldInfo::FieldFlags::_ff_{name}"))?;
            1u32.checked_shl(u32::try_from(bit).ok()?)
        };
        Some(Self {
            classes: lookup
                .maybe_address("vmClasses::_klasses[static_cast<int>(vmClassID::Object_klass_knum)]")?,
            layout_helper: offset("Klass::_layout_helper")?,
            fields: offset("InstanceKlass::_fieldinfo_stream")?,
            constants: offset("InstanceKlass::_constants")?,
            pool_bytes: lookup.size("ConstantPool").ok()?.into(),
            oop_klass: lookup
                .maybe(&["oopDesc::_metadata._compressed_klass", "oopDesc::_compressed_klass"])
                .ok()??,
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
            optional: Optional {
                initialized: bit("initialized")?,
                injected: bit("injected")?,
                generic: bit("generic")?,
                contended: bit("contended")?,
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

    /// Where an object says what class it is of, which bits of the word do, and what they are for
    /// this class.
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
        let (bytes, pool) = self.field_list(class, memory)?;
        let fields = self.fields(&bytes, encoding)?.own;
        let slots: Vec<Avma> =
            fields.iter().map(|(name, _)| Avma(pool + self.pool_bytes + u64::from(*name) * 8)).collect();
        let symbols: Vec<u64> =
            memory.read_words(&slots).into_iter().map(Option::unwrap_or_default).collect();
        let texts = texts(&symbols, layout, memory);
        let offset = |name: &str| {
            let index = texts.iter().position(|text| text.as_deref() == Some(name.as_bytes()))?;
            u16::try_from(fields[index].1).ok().filter(|offset| *offset < class.instance_bytes)
        };
        let mut offsets = [0; N];
        for (found, name) in offsets.iter_mut().zip(names) {
            *found = offset(name)?;
        }
        Some(offsets)
    }

    /// Where `StackChunk.maxThawingSize` is, which the JVM has added. Such fields have no names in
    /// the pool, but an order: share/runtime/continuationJavaClasses.hpp,
    /// `STACKCHUNK_INJECTED_FIELDS` (JDK 21: share/classfile/javaClasses.hpp).
    fn max_thawing(
        &self,
        chunk: Class,
        encoding: Unsigned5Encoding,
        memory: &impl ProcessMemory,
    ) -> Option<u16> {
        let (bytes, _) = self.field_list(chunk, memory)?;
        let [_cont, _flags, _pc, at, ..] = self.fields(&bytes, encoding)?.added[..] else { return None };
        u16::try_from(at).ok().filter(|at| at.is_multiple_of(4) && *at < chunk.instance_bytes)
    }

    /// A class's list of fields, and the pool that has their names.
    fn field_list(&self, class: Class, memory: &impl ProcessMemory) -> Option<(Vec<u8>, u64)> {
        let words =
            memory.read_words(&[self.fields, self.constants].map(|offset| Avma(class.klass.0 + offset)));
        let (list, pool) = (words[0]?, words[1]?);
        // share/oops/array.hpp: an `int` length, then the bytes.
        let length = field::u32(&memory.read_bytes(Avma(list), 4)?, 0)?;
        Some((memory.read_bytes(Avma(list + 4), length.min(MAX_FIELD_BYTES) as usize)?, pool))
    }

    fn fields(&self, bytes: &[u8], encoding: Unsigned5Encoding) -> Option<Fields> {
        let mut reader = Unsigned5Reader::new(bytes, 0, encoding);
        let own = reader.unsigned()?;
        let injected = reader.unsigned()?;
        let mut fields = Fields::default();
        for _ in 0..own.saturating_add(injected).min(MAX_FIELD_BYTES) {
            let (name, _signature, offset) = (reader.unsigned()?, reader.unsigned()?, reader.unsigned()?);
            let (_access, flags) = (reader.unsigned()?, reader.unsigned()?);
            let optional = [self.optional.initialized, self.optional.generic, self.optional.contended];
            for _ in optional.into_iter().filter(|bit| flags & bit != 0) {
                reader.unsigned()?;
            }
            match flags & self.optional.injected {
                0 => fields.own.push((name, offset)),
                _ => fields.added.push(offset),
            }
        }
        Some(fields)
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

/// The texts of symbols, as far as they are short.
fn texts(symbols: &[u64], layout: &JvmLayout, memory: &impl ProcessMemory) -> Vec<Option<Vec<u8>>> {
    let stretch = |offset: u16, bytes| {
        let place = move |symbol: &u64| (Avma(symbol.wrapping_add(u64::from(offset))), bytes);
        symbols.iter().map(place).collect::<Vec<_>>()
    };
    let lengths = memory.read_stretches(&stretch(layout.symbol_length, 2));
    let places: Vec<(Avma, usize)> = lengths
        .iter()
        .zip(stretch(layout.symbol_body, 0))
        .map(|(length, (at, _))| {
            let length = length.as_ref().and_then(|bytes| field::u16(bytes, 0)).unwrap_or(0);
            (at, usize::from(length).min(MAX_NAME))
        })
        .collect();
    memory.read_stretches(&places)
}
