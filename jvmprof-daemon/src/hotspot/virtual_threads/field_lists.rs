//! The fields that a class says it has: `InstanceKlass::_fieldinfo_stream` (openjdk
//! src/hotspot/share/oops/fieldInfo.inline.hpp, JDK 21 and later).

use jvmprof_common::jvm::JvmLayout;

use crate::hotspot::code_cache::unsigned5::{Unsigned5Encoding, Unsigned5Reader};
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Bytes of a list of fields, at most; that of a `StackChunk` has 60, of a `Thread` 300.
const MAX_FIELD_BYTES: u32 = 4096;
const MAX_NAME: usize = 128;

/// Offsets that lead to the fields of a class.
#[derive(Clone, Debug)]
pub(crate) struct FieldLists {
    fields: u64,
    constants: u64,
    pool_bytes: u64,
    optional: FieldFlagBits,
}

/// Bits of a field's flags that say that more numbers follow, or that the JVM added the field.
#[derive(Clone, Copy, Debug)]
struct FieldFlagBits {
    initialized: u32,
    injected: u32,
    generic: u32,
    contended: u32,
}

/// The fields of a class.
#[derive(Debug, Default)]
struct Fields {
    /// Those that the class file has: index of the name in the pool, and offset.
    own: Vec<(u32, u32)>,
    /// Offsets of those that the JVM has added.
    added: Vec<u32>,
}

impl FieldLists {
    pub(super) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let offset = |name| lookup.optional_offset(&[name]).map(u64::from);
        let bit = |name: &str| {
            let bit = lookup.0.int(&format!("FieldInfo::FieldFlags::_ff_{name}"))?;
            1u32.checked_shl(u32::try_from(bit).ok()?)
        };
        Some(Self {
            fields: offset("InstanceKlass::_fieldinfo_stream")?,
            constants: offset("InstanceKlass::_constants")?,
            pool_bytes: lookup.size_of("ConstantPool").ok()?.into(),
            optional: FieldFlagBits {
                initialized: bit("initialized")?,
                injected: bit("injected")?,
                generic: bit("generic")?,
                contended: bit("contended")?,
            },
        })
    }

    /// Returns the offsets of the fields with these names: in the class's objects, or of static
    /// fields in its mirror.
    pub(super) fn offsets(
        &self,
        klass: Avma,
        names: &[&str],
        layout: &JvmLayout,
        encoding: Unsigned5Encoding,
        memory: &impl ProcessMemory,
    ) -> Option<Vec<Option<u32>>> {
        let (bytes, pool) = self.field_list(klass, memory)?;
        let fields = self.fields(&bytes, encoding)?.own;
        let slots: Vec<Avma> =
            fields.iter().map(|(name, _)| Avma(pool + self.pool_bytes + u64::from(*name) * 8)).collect();
        let symbols: Vec<u64> =
            memory.read_words(&slots).into_iter().map(Option::unwrap_or_default).collect();
        let texts = texts(&symbols, layout, memory);
        let offset = |name: &&str| {
            let index = texts.iter().position(|text| text.as_deref() == Some(name.as_bytes()))?;
            Some(fields[index].1)
        };
        Some(names.iter().map(offset).collect())
    }

    /// Returns the offsets of the fields that the JVM has added to a class, in its own order: they
    /// have no names in the pool.
    pub(super) fn added(
        &self,
        klass: Avma,
        encoding: Unsigned5Encoding,
        memory: &impl ProcessMemory,
    ) -> Option<Vec<u32>> {
        let (bytes, _) = self.field_list(klass, memory)?;
        Some(self.fields(&bytes, encoding)?.added)
    }

    /// A class's list of fields, and the pool that has their names.
    fn field_list(&self, klass: Avma, memory: &impl ProcessMemory) -> Option<(Vec<u8>, u64)> {
        let at = |offset: u64| Avma(klass.0.wrapping_add(offset));
        let words = memory.read_words(&[self.fields, self.constants].map(at));
        let (list, pool) = (words[0]?, words[1]?);
        // share/oops/array.hpp: an `int` length, then the bytes.
        let length = field::u32(&memory.read_bytes(Avma(list), 4)?, 0)?;
        Some((memory.read_bytes(Avma(list.wrapping_add(4)), length.min(MAX_FIELD_BYTES) as usize)?, pool))
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

/// Returns the texts of symbols, as far as they are short.
pub(super) fn texts(
    symbols: &[u64],
    layout: &JvmLayout,
    memory: &impl ProcessMemory,
) -> Vec<Option<Vec<u8>>> {
    let ranges = |offset: u16, bytes| {
        let place = move |symbol: &u64| (Avma(symbol.wrapping_add(u64::from(offset))), bytes);
        symbols.iter().map(place).collect::<Vec<_>>()
    };
    let lengths = memory.read_ranges(&ranges(layout.symbol_length, 2));
    let places: Vec<(Avma, usize)> = lengths
        .iter()
        .zip(ranges(layout.symbol_body, 0))
        .map(|(length, (at, _))| {
            let length = length.as_ref().and_then(|bytes| field::u16(bytes, 0)).unwrap_or(0);
            (at, usize::from(length).min(MAX_NAME))
        })
        .collect();
    memory.read_ranges(&places)
}
