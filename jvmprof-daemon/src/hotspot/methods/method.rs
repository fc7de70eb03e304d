//! Methods: their identity, names and line tables.
//!
//! `Method` -> `ConstMethod` -> `ConstantPool` -> holder -> symbols. Every step is read for all
//! methods of a stack in one batch. Layouts: openjdk
//! src/hotspot/share/oops/{method,constMethod,constantPool,klass,symbol}.hpp.

use std::sync::Arc;

use jvmprof_common::address::StackAddress;
use jvmprof_common::jvm::JvmLayout;
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::method_identity::{MethodIdentity, method_identity};

use super::class_names::{class_name, decode_symbol};
use super::line_table::LineNumberTable;
use crate::hotspot::code_cache::unsigned5::Unsigned5Encoding;
use crate::hotspot::error::HotspotError;
use crate::hotspot::error::NamingError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// `JVM_ACC_NATIVE` (JVMS 4.6).
const ACC_NATIVE: u16 = 0x0100;
/// `JVM_CONSTANT_Utf8` (JVMS 4.4).
const TAG_UTF8: u8 = 1;
/// Bytes of a `ConstMethod`: 65,535 of code and the tables behind it.
const MAX_CONST_METHOD: usize = 1 << 20;

/// A method's names, lines and bytecodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MethodInfo {
    /// `com.acme.Order.total`.
    pub(crate) name: Arc<str>,
    /// With the signature: `com.acme.Order.total(Ljava/util/List;)J`.
    pub(crate) system_name: Arc<str>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) lines: LineNumberTable,
    pub(crate) native: bool,
    /// The bytecodes as they stood in memory: some rewritten.
    pub(crate) code: Box<[u8]>,
    /// `sizeof(ConstMethod)`: where the bytecodes begin.
    pub(crate) code_offset: u32,
}

impl MethodInfo {
    /// Bytes of memory held.
    pub(crate) fn size_bytes(&self) -> usize {
        let texts =
            self.name.len() + self.system_name.len() + self.file.as_ref().map_or(0, |file| file.len());
        size_of::<Self>() + texts + self.code.len() + size_of_val(self.lines.entries()) + 3 * 16
    }
}

/// Offsets in methods and in what they refer to.
#[derive(Clone, Debug)]
pub(crate) struct MethodFields {
    method_bytes: usize,
    method_flags: usize,
    /// The offset at which a method says that `RedefineClasses` has replaced it, and the bit.
    replaced: Option<(usize, u32)>,
    const_bytes: usize,
    const_size: usize,
    const_flags: usize,
    const_names: usize,
    has_lines: u8,
    pool_bytes: usize,
    pool_tags: usize,
    pool_length: usize,
    pool_source: Option<usize>,
    tags_length: usize,
    tags_data: usize,
    klass_bytes: usize,
    klass_source: Option<usize>,
    klass_constants: u16,
    encoding: Unsigned5Encoding,
}

impl MethodFields {
    pub(crate) fn new(
        lookup: FieldLookup<'_>,
        layout: &JvmLayout,
        encoding: Unsigned5Encoding,
    ) -> Result<Self, HotspotError> {
        let one = |name| lookup.offset_of(name).map(usize::from);
        let pool_source = lookup.find_offset(&["ConstantPool::_source_file_name_index"])?.map(usize::from);
        let klass_source = match pool_source {
            Some(_) => None,
            None => Some(one("InstanceKlass::_source_file_name_index")?),
        };
        let klass_constants = lookup.offset_of("InstanceKlass::_constants")?;
        let klass_end = usize::from(layout.klass_name).max(klass_source.unwrap_or(0));
        let constants =
            ["ConstMethodFlags::_misc_has_linenumber_table", "ConstMethod::_has_linenumber_table"];
        let has_lines = constants.iter().find_map(|name| lookup.0.int(name));
        let has_lines = has_lines.ok_or_else(|| HotspotError::Missing(constants.join(" or ")))?;
        let has_lines = u8::try_from(has_lines).ok().filter(|bit| bit.is_power_of_two());
        let has_lines = has_lines.ok_or(HotspotError::Implausible { what: constants[0], value: 0 })?;
        Ok(Self {
            method_bytes: lookup.size_of("Method")?.into(),
            method_flags: one("Method::_access_flags")?,
            replaced: replaced(lookup)?,
            const_bytes: layout.const_bytes.into(),
            const_size: one("ConstMethod::_constMethod_size")?,
            const_flags: lookup.offset_of_any(&["ConstMethod::_flags._flags", "ConstMethod::_flags"])?.into(),
            const_names: usize::from(layout.const_code_size),
            has_lines,
            pool_bytes: lookup.size_of("ConstantPool")?.into(),
            pool_tags: one("ConstantPool::_tags")?,
            pool_length: one("ConstantPool::_length")?,
            pool_source,
            tags_length: one("Array<int>::_length")?,
            tags_data: one("Array<u1>::_data")?,
            klass_bytes: klass_end.max(klass_constants.into()) + 8,
            klass_source,
            klass_constants,
            encoding,
        })
    }
}

/// Up to JDK 20 the bit is among the access flags (share/utilities/accessFlags.hpp,
/// `JVM_ACC_IS_OLD`), then in a field of its own (share/oops/methodFlags.hpp, `is_old`) that isn't
/// exported; it lies between two that are (share/oops/method.hpp).
fn replaced(lookup: FieldLookup<'_>) -> Result<Option<(usize, u32)>, HotspotError> {
    const IS_OLD: u32 = 1 << 2;
    let bit = lookup.0.int("JVM_ACC_IS_OLD").map(i32::cast_unsigned).filter(|bit| bit.is_power_of_two());
    if let Some(bit) = bit {
        return Ok(Some((lookup.offset_of("Method::_access_flags")?.into(), bit)));
    }
    // Access flags, vtable index, these flags, and the intrinsic's id follow each other; since JDK
    // 25 the index comes first.
    let flags = lookup.offset_of("Method::_access_flags")?;
    let intrinsic = lookup.find_offset(&["Method::_intrinsic_id"])?;
    let is_behind = |id: &u16| matches!(id.wrapping_sub(flags), 8 | 12);
    Ok(intrinsic.filter(is_behind).map(|id| (usize::from(id) - 4, IS_OLD)))
}

/// A method on its way to its name: what has been read of it.
#[derive(Debug)]
pub(crate) struct MethodReads {
    method: Avma,
    /// All ranges that were read, for [`method_identity`].
    read: Vec<(u64, Vec<u8>)>,
    const_method: u64,
    pool: u64,
    holder: u64,
    class_symbol: u64,
    class_len: u16,
}

impl Memory for &MethodReads {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        self.read.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(address.0.checked_sub(*start)?).ok()?;
            field::u64(bytes, at)
        })
    }
}

impl MethodReads {
    fn word(&self, address: u64) -> Option<u64> {
        (&mut &*self).read_object(Avma(address))
    }

    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        self.read.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(at..at.checked_add(len)?)
        })
    }
}

/// Methods that were read so far, each with what is wrong with it, if so.
type AllMethodReads = Vec<Result<MethodReads, NamingError>>;

/// Reads one more range of each method that is still in play: `place` says which, and what is
/// missing if it can't.
fn round(
    readings: &mut AllMethodReads,
    memory: &impl ProcessMemory,
    place: impl Fn(&mut MethodReads) -> Option<Vec<(u64, usize)>>,
) {
    let mut places = Vec::new();
    let mut counts = Vec::new();
    for reading in readings.iter_mut() {
        let mut wanted = Vec::new();
        if let Ok(known) = reading {
            match place(known) {
                Some(ranges) => wanted = ranges,
                None => *reading = Err(NamingError::Metadata),
            }
        }
        counts.push(wanted.len());
        places.extend(wanted.into_iter().map(|(address, len)| (Avma(address), len)));
    }
    let mut ranges = places.iter().zip(memory.read_ranges(&places));
    for (reading, count) in readings.iter_mut().zip(counts) {
        for ((address, _), bytes) in ranges.by_ref().take(count) {
            match (&mut *reading, bytes) {
                (Ok(reading), Some(bytes)) => reading.read.push((address.0, bytes)),
                (reading, None) => *reading = Err(NamingError::Unreadable),
                (Err(_), _) => {}
            }
        }
    }
}

/// Finds out who is at these addresses.
pub(crate) fn identify(
    methods: &[Avma],
    fields: &MethodFields,
    layout: &JvmLayout,
    memory: &impl ProcessMemory,
) -> Vec<Result<(MethodReads, MethodIdentity), NamingError>> {
    let offset = u64::from;
    let start = |method: &Avma| MethodReads {
        method: *method,
        read: Vec::with_capacity(12),
        const_method: 0,
        pool: 0,
        holder: 0,
        class_symbol: 0,
        class_len: 0,
    };
    let mut readings: AllMethodReads = methods.iter().map(|method| Ok(start(method))).collect();
    round(&mut readings, memory, |it| Some(vec![(it.method.0, fields.method_bytes)]));
    round(&mut readings, memory, |it| {
        it.const_method = it.word(it.method.0.checked_add(offset(layout.method_const))?)?;
        Some(vec![(it.const_method, fields.const_bytes)])
    });
    round(&mut readings, memory, |it| {
        it.pool = it.word(it.const_method.checked_add(offset(layout.const_constants))?)?;
        Some(vec![(it.pool, fields.pool_bytes)])
    });
    round(&mut readings, memory, |it| {
        it.holder = it.word(it.pool.checked_add(offset(layout.pool_holder))?)?;
        Some(vec![(it.holder, fields.klass_bytes)])
    });
    round(&mut readings, memory, |it| {
        it.class_symbol = it.word(it.holder.checked_add(offset(layout.klass_name))?)?;
        Some(vec![(it.class_symbol.checked_add(offset(layout.symbol_length))?, 8)])
    });
    round(&mut readings, memory, |it| {
        let length = it.word(it.class_symbol.checked_add(offset(layout.symbol_length))?)? as u16;
        it.class_len = length;
        let end = u64::from(length.max(8));
        Some(vec![(it.class_symbol.checked_add(offset(layout.symbol_body))?.checked_add(end)? - 8, 8)])
    });
    let identity = |reading: MethodReads| {
        // Memory of unloaded classes is reused piece by piece: a class that has taken the holder's
        // place has another pool. A redefined class has a new one, too, and its old methods keep
        // the old one as long as they run: they say so.
        let constants = reading.word(reading.holder.wrapping_add(offset(fields.klass_constants)));
        let is_replaced = || {
            let (at, bit) = fields.replaced?;
            let flags = reading.bytes(reading.method.0.checked_add(at as u64)?, 4)?;
            Some(field::u32(flags, 0)? & bit != 0)
        };
        let is_held = constants == Some(reading.pool) || is_method_handle(&reading, layout);
        if !is_held && is_replaced() != Some(true) {
            return Err(NamingError::Metadata);
        }
        let identity = method_identity(reading.method, layout, &mut &reading).ok_or(NamingError::Metadata)?;
        Ok((reading, identity))
    };
    readings.into_iter().map(|reading| reading.and_then(identity)).collect()
}

/// Returns true for the class `java/lang/invoke/MethodHandle`, by its length and its last eight
/// bytes. Its intrinsics are made with pools of their own (openjdk
/// src/hotspot/share/oops/method.cpp, `make_method_handle_intrinsic`), and it is never unloaded.
fn is_method_handle(reading: &MethodReads, layout: &JvmLayout) -> bool {
    const NAME: &[u8; 29] = b"java/lang/invoke/MethodHandle";
    let last = reading.class_symbol.wrapping_add(u64::from(layout.symbol_body)).wrapping_add(21);
    usize::from(reading.class_len) == NAME.len() && reading.bytes(last, 8) == Some(&NAME[21..])
}

/// Identifies what is at the addresses of methods that were read before, from one batch: the same
/// if nothing has changed since.
pub(crate) fn identify_again(
    readings: &[&MethodReads],
    layout: &JvmLayout,
    memory: &impl ProcessMemory,
) -> Vec<Option<MethodIdentity>> {
    let place = |at: u64, field: u16| (Avma(at.wrapping_add(field.into())), 8);
    let places: Vec<(Avma, usize)> = readings
        .iter()
        .flat_map(|it| {
            let last = it.class_symbol.wrapping_add(u64::from(it.class_len.max(8))).wrapping_sub(8);
            [
                place(it.method.0, layout.method_const),
                place(it.const_method, layout.const_constants),
                place(it.const_method, layout.const_code_size),
                place(it.pool, layout.pool_holder),
                place(it.holder, layout.klass_name),
                place(it.class_symbol, layout.symbol_length),
                place(last, layout.symbol_body),
            ]
        })
        .collect();
    let words = memory.read_ranges(&places);
    let each = places.chunks(7).zip(words.chunks(7)).zip(readings);
    each.map(|((places, words), known)| {
        let read = places.iter().zip(words).filter_map(|((at, _), word)| Some((at.0, word.clone()?)));
        let again = MethodReads { read: read.collect(), ..known.without_bytes() };
        method_identity(known.method, layout, &mut &again)
    })
    .collect()
}

impl MethodReads {
    fn without_bytes(&self) -> Self {
        Self { read: Vec::new(), ..*self }
    }
}

/// Reads names and lines of methods that were identified. The caller must identify them again
/// afterwards.
pub(crate) fn read_names_and_lines(
    readings: Vec<MethodReads>,
    fields: &MethodFields,
    layout: &JvmLayout,
    memory: &impl ProcessMemory,
) -> Vec<Result<(MethodReads, MethodInfo), NamingError>> {
    let mut readings: AllMethodReads = readings.into_iter().map(Ok).collect();
    round(&mut readings, memory, |it| {
        let mut places = vec![(it.const_method, const_method_bytes(it, fields)?)];
        let pool = Pool::new(it, fields)?;
        places.push(pool.tags_length());
        for index in pool.indices() {
            places.extend([pool.entry(index)?, pool.tag(index)?]);
        }
        Some(places)
    });
    round(&mut readings, memory, |it| {
        let mut places = Vec::new();
        for symbol in Pool::new(it, fields)?.symbols(it)? {
            places.push((symbol.checked_add(layout.symbol_length.into())?, 2));
        }
        Some(places)
    });
    round(&mut readings, memory, |it| {
        let mut places = Vec::new();
        for symbol in Pool::new(it, fields)?.symbols(it)?.into_iter().chain([it.class_symbol]) {
            places.push(body_place(it, symbol, layout)?);
        }
        Some(places)
    });
    let method_info = |reading: MethodReads| {
        let info = info(&reading, fields, layout).ok_or(NamingError::Metadata)?;
        Ok((reading, info))
    };
    readings.into_iter().map(|reading| reading.and_then(method_info)).collect()
}

/// Bytes of the whole `ConstMethod`, whose size the JVM keeps in words.
fn const_method_bytes(it: &MethodReads, fields: &MethodFields) -> Option<usize> {
    let header = it.bytes(it.const_method, fields.const_bytes)?;
    let bytes = (field::u32(header, fields.const_size)? as usize).checked_mul(8)?;
    let code = usize::from(field::u16(header, fields.const_names)?);
    (bytes <= MAX_CONST_METHOD && bytes >= fields.const_bytes + code).then_some(bytes)
}

fn body_place(it: &MethodReads, symbol: u64, layout: &JvmLayout) -> Option<(u64, usize)> {
    let length = it.bytes(symbol.checked_add(layout.symbol_length.into())?, 2)?;
    Some((symbol.checked_add(layout.symbol_body.into())?, usize::from(field::u16(length, 0)?)))
}

fn symbol_text(it: &MethodReads, symbol: u64, layout: &JvmLayout) -> Option<String> {
    let (start, len) = body_place(it, symbol, layout)?;
    decode_symbol(it.bytes(start, len)?)
}

/// A method's view of its constant pool.
struct Pool {
    base: u64,
    tags: u64,
    tags_length: u64,
    length: u32,
    name: u16,
    signature: u16,
    /// 0 if the class doesn't say.
    source: u16,
}

impl Pool {
    fn new(it: &MethodReads, fields: &MethodFields) -> Option<Self> {
        let header = it.bytes(it.pool, fields.pool_bytes)?;
        let names = it.bytes(it.const_method, fields.const_bytes)?.get(fields.const_names..)?;
        let source = match (fields.pool_source, fields.klass_source) {
            (Some(at), _) => field::u16(header, at)?,
            (None, Some(at)) => field::u16(it.bytes(it.holder, fields.klass_bytes)?, at)?,
            (None, None) => 0,
        };
        let tags = field::u64(header, fields.pool_tags)?;
        let length = field::u32(header, fields.pool_length)?;
        // The JVM's own method handle intrinsics have pools of just a name and a signature, the
        // rest of whose header is left as it was: share/oops/method.cpp,
        // `make_method_handle_intrinsic`.
        let source = if length <= 3 { 0 } else { source };
        Some(Self {
            base: it.pool.checked_add(fields.pool_bytes as u64)?,
            tags: tags.checked_add(fields.tags_data as u64)?,
            tags_length: tags.checked_add(fields.tags_length as u64)?,
            length,
            name: field::u16(names, 2)?,
            signature: field::u16(names, 4)?,
            source,
        })
    }

    fn indices(&self) -> impl Iterator<Item = u16> {
        [self.name, self.signature, self.source].into_iter().filter(|index| *index != 0)
    }

    fn tags_length(&self) -> (u64, usize) {
        (self.tags_length, 4)
    }

    fn entry(&self, index: u16) -> Option<(u64, usize)> {
        let inside = u32::from(index) < self.length;
        inside.then_some((self.base.checked_add(u64::from(index) * 8)?, 8))
    }

    fn tag(&self, index: u16) -> Option<(u64, usize)> {
        Some((self.tags.checked_add(u64::from(index))?, 1))
    }

    /// The symbols of name, signature and source file, if the pool is one: as many tags as entries,
    /// and text where text must be.
    fn symbols(&self, it: &MethodReads) -> Option<Vec<u64>> {
        let tags = field::u32(it.bytes(self.tags_length, 4)?, 0)?;
        if tags != self.length || self.name == 0 || self.signature == 0 {
            return None;
        }
        let symbol = |index| {
            let (tag, _) = self.tag(index)?;
            let (entry, _) = self.entry(index)?;
            let symbol = it.word(entry)?;
            (it.bytes(tag, 1)? == [TAG_UTF8] && symbol.is_multiple_of(8) && symbol != 0).then_some(symbol)
        };
        self.indices().map(symbol).collect()
    }
}

fn info(it: &MethodReads, fields: &MethodFields, layout: &JvmLayout) -> Option<MethodInfo> {
    let method = it.bytes(it.method.0, fields.method_bytes)?;
    let size = const_method_bytes(it, fields)?;
    let whole = it.bytes(it.const_method, size)?;
    let code_size = field::u16(whole, fields.const_names)?;
    let code_end = fields.const_bytes + usize::from(code_size);
    let code = whole.get(fields.const_bytes..code_end)?;
    let native = field::u16(method, fields.method_flags)? & ACC_NATIVE != 0;
    let lines = if whole.get(fields.const_flags)? & fields.has_lines == 0 {
        LineNumberTable::default()
    } else {
        LineNumberTable::decode(whole.get(code_end..)?, code_size, fields.encoding)?
    };
    let symbols = Pool::new(it, fields)?.symbols(it)?;
    let text = |index: usize| symbol_text(it, *symbols.get(index)?, layout);
    let (name, signature) = (text(0)?, text(1)?);
    if !is_method_name(&name) || !is_signature(&signature) {
        return None;
    }
    let class = class_name(&symbol_text(it, it.class_symbol, layout)?);
    let file = if symbols.len() > 2 { Some(text(2)?.into()) } else { None };
    let full = format!("{class}.{name}");
    Some(MethodInfo {
        system_name: format!("{full}{signature}").into(),
        name: full.into(),
        file,
        lines,
        native,
        code: code.into(),
        code_offset: fields.const_bytes as u32,
    })
}

/// JVMS 4.2.2: what a method's name may not hold.
pub(crate) fn is_method_name(name: &str) -> bool {
    let special = matches!(name, "<init>" | "<clinit>");
    !name.is_empty() && (special || !name.contains(['.', ';', '[', '/', '<', '>']))
}

/// JVMS 4.3.3, roughly.
pub(crate) fn is_signature(signature: &str) -> bool {
    signature.starts_with('(') && signature.rfind(')').is_some_and(|at| at + 1 < signature.len())
}
