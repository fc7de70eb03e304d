//! The tables in which HotSpot describes itself: openjdk
//! src/hotspot/share/runtime/vmStructs.{hpp,cpp}.
//!
//! They are read from the live process, where their pointers are relocated. The JVM is not trusted:
//! every table, string and the whole are limited, and no table can make the reader loop.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::exported_symbols::{ExportedSymbols, Image, find_exports};
use crate::hotspot::error::HotspotError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::types::Avma;

/// Entries of one table, at most; JDK 8 to 28 have up to 1,100.
const MAX_ENTRIES: usize = 8192;
/// Bytes of one entry, at most; they have 24 to 48.
const MAX_STRIDE: u64 = 256;
/// Pages that the tables' strings may lie on; real ones lie on about 50.
const MAX_PAGES: usize = 2048;
/// Bytes of a name, at most.
const MAX_NAME: usize = 256;
const PAGE: u64 = 4096;

/// The symbol that every HotSpot exports.
pub(crate) const MARKER: &str = "gHotSpotVMStructs";

const SYMBOLS: [&str; 21] = [
    MARKER,
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryTypeStringOffset",
    "gHotSpotVMStructEntryIsStaticOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMTypeEntrySuperclassNameOffset",
    "gHotSpotVMTypeEntryArrayStride",
    "gHotSpotVMIntConstants",
    "gHotSpotVMIntConstantEntryNameOffset",
    "gHotSpotVMIntConstantEntryValueOffset",
    "gHotSpotVMIntConstantEntryArrayStride",
    "gHotSpotVMLongConstants",
    "gHotSpotVMLongConstantEntryNameOffset",
    "gHotSpotVMLongConstantEntryValueOffset",
    "gHotSpotVMLongConstantEntryArrayStride",
];

/// A field of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmField {
    /// Its C++ type, as the JVM words it.
    pub type_name: Box<str>,
    pub location: FieldLocation,
}

/// The location of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldLocation {
    /// Bytes from an object's start.
    Offset(u64),
    Static(Avma),
}

/// The fields, sizes and constants that a JVM exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmStructs {
    /// By `Type::_field`.
    fields: HashMap<Box<str>, VmField>,
    /// `sizeof` by type.
    sizes: HashMap<Box<str>, u64>,
    ints: HashMap<Box<str>, i32>,
    longs: HashMap<Box<str>, u64>,
}

impl VmStructs {
    /// Finds the JVM among the images of a process and reads its tables.
    ///
    /// # Errors
    /// [`HotspotError::NotHotspot`] without a JVM, [`HotspotError::NotReady`] while its tables
    /// aren't relocated yet, else what is wrong with the tables.
    pub fn read(images: &[Image], memory: &impl ProcessMemory) -> Result<(Image, Self), HotspotError> {
        let found = find_exports(images, MARKER, &SYMBOLS, memory);
        let exports = found.ok_or(HotspotError::NotHotspot(MARKER))?;
        Ok((exports.image, Tables::read(&exports, memory)?.parse(memory)?))
    }

    pub fn field(&self, name: &str) -> Option<&VmField> {
        self.fields.get(name)
    }

    /// Offset of a field that isn't static.
    pub fn offset(&self, name: &str) -> Option<u64> {
        match self.fields.get(name)?.location {
            FieldLocation::Offset(offset) => Some(offset),
            FieldLocation::Static(_) => None,
        }
    }

    /// Address of a static field.
    pub fn address(&self, name: &str) -> Option<Avma> {
        match self.fields.get(name)?.location {
            FieldLocation::Offset(_) => None,
            FieldLocation::Static(address) => Some(address),
        }
    }

    pub fn size_of(&self, type_name: &str) -> Option<u64> {
        self.sizes.get(type_name).copied()
    }

    pub fn int(&self, name: &str) -> Option<i32> {
        self.ints.get(name).copied()
    }

    pub fn long(&self, name: &str) -> Option<u64> {
        self.longs.get(name).copied()
    }
}

/// The values of the exported symbols.
struct Tables {
    values: BTreeMap<&'static str, u64>,
    /// The JVM's own memory: where its tables and their strings are.
    image: Range<Avma>,
}

impl Tables {
    fn read(exports: &ExportedSymbols, memory: &impl ProcessMemory) -> Result<Self, HotspotError> {
        let at: Vec<Avma> = exports.addresses.values().copied().collect();
        let values = memory.read_words(&at);
        let names = exports.addresses.keys().zip(values);
        // The loader maps a library's code before its data.
        let values: Option<BTreeMap<&'static str, u64>> =
            names.map(|(name, value)| Some((*name, value?))).collect();
        let values = values.ok_or(HotspotError::NotReady("its data isn't mapped"))?;
        Ok(Self { values, image: exports.memory.clone() })
    }

    fn get(&self, name: &'static str) -> Result<u64, HotspotError> {
        self.values.get(name).copied().ok_or_else(|| HotspotError::Missing(name.to_owned()))
    }

    /// A value that lies inside an entry.
    fn inside(&self, name: &'static str, width: u64, stride: u64) -> Result<usize, HotspotError> {
        let offset = self.get(name)?;
        if offset.checked_add(width).is_none_or(|end| end > stride) {
            return Err(HotspotError::Implausible { what: name, value: offset });
        }
        Ok(offset as usize)
    }

    fn parse(&self, memory: &impl ProcessMemory) -> Result<VmStructs, HotspotError> {
        let structs = self.table(MARKER, "gHotSpotVMStructEntryArrayStride", memory)?;
        let types = self.table("gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride", memory)?;
        let ints = self.table("gHotSpotVMIntConstants", "gHotSpotVMIntConstantEntryArrayStride", memory)?;
        let longs =
            self.table("gHotSpotVMLongConstants", "gHotSpotVMLongConstantEntryArrayStride", memory)?;
        let structs = self.struct_rows(&structs)?;
        let types =
            self.rows(&types, "gHotSpotVMTypeEntryTypeNameOffset", "gHotSpotVMTypeEntrySizeOffset", 8)?;
        let ints = self.rows(
            &ints,
            "gHotSpotVMIntConstantEntryNameOffset",
            "gHotSpotVMIntConstantEntryValueOffset",
            4,
        )?;
        let longs = self.rows(
            &longs,
            "gHotSpotVMLongConstantEntryNameOffset",
            "gHotSpotVMLongConstantEntryValueOffset",
            8,
        )?;
        let mut pointers: Vec<u64> =
            structs.iter().flat_map(|row| [row.type_name, row.field_name, row.type_string]).collect();
        pointers.extend([&types, &ints, &longs].into_iter().flatten().map(|(name, _)| *name));
        let strings = Strings::read(&pointers, memory)?;
        let named = |rows: Vec<(u64, u64)>| {
            rows.into_iter().filter_map(|(name, value)| Some((strings.get(name)?.into(), value)))
        };
        let fields = structs.iter().filter_map(|row| {
            let name = format!("{}::{}", strings.get(row.type_name)?, strings.get(row.field_name)?);
            // Some entries have no type.
            let type_name = strings.get(row.type_string).unwrap_or_default().into();
            Some((name.into(), VmField { type_name, location: row.location }))
        });
        Ok(VmStructs {
            fields: fields.collect(),
            sizes: named(types).collect(),
            ints: named(ints).map(|(name, value)| (name, (value as u32).cast_signed())).collect(),
            longs: named(longs).collect(),
        })
    }

    /// The bytes of a table up to its end, an entry without a name, and the size of its entries.
    fn table(
        &self,
        start: &'static str,
        stride: &'static str,
        memory: &impl ProcessMemory,
    ) -> Result<(Vec<u8>, u64), HotspotError> {
        let (start, entry) = (self.get(start)?, self.get(stride)?);
        // Before its relocation a pointer leads elsewhere, and JDK 8 computes the sizes of entries
        // even later.
        if !self.image.contains(&Avma(start)) || entry == 0 {
            return Err(HotspotError::NotReady("its tables aren't relocated"));
        }
        if !entry.is_multiple_of(8) || entry > MAX_STRIDE {
            return Err(HotspotError::Implausible { what: stride, value: entry });
        }
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < MAX_ENTRIES * entry as usize {
            let at = start.checked_add(bytes.len() as u64);
            let at = at.ok_or(HotspotError::Implausible { what: stride, value: start })?;
            // Up to a page's end: the table may be the last thing before unmapped memory.
            let len = (2 * PAGE - at % PAGE) as usize;
            let read = [len, (PAGE - at % PAGE) as usize]
                .into_iter()
                .find_map(|len| memory.read_bytes(Avma(at), len));
            let piece = read.ok_or(HotspotError::Read { what: "a table", address: Avma(at), bytes: len })?;
            let from = bytes.len() / entry as usize;
            bytes.extend_from_slice(&piece);
            // Every table begins its entries with the name, and ends with one that is all zero.
            let end =
                bytes.chunks_exact(entry as usize).skip(from).position(|row| row.iter().all(|b| *b == 0));
            if let Some(end) = end {
                bytes.truncate((from + end) * entry as usize);
                return Ok((bytes, entry));
            }
        }
        Err(HotspotError::Table { table: stride, why: "has no end" })
    }

    fn rows(
        &self,
        (bytes, stride): &(Vec<u8>, u64),
        name: &'static str,
        value: &'static str,
        width: u64,
    ) -> Result<Vec<(u64, u64)>, HotspotError> {
        let name = self.inside(name, 8, *stride)?;
        let value = self.inside(value, width, *stride)?;
        let value_of = |row: &[u8]| {
            if width == 8 { field::u64(row, value) } else { field::u32(row, value).map(u64::from) }
        };
        let rows = bytes.chunks_exact(*stride as usize);
        Ok(rows.filter_map(|row| Some((field::u64(row, name)?, value_of(row)?))).collect())
    }

    fn struct_rows(&self, (bytes, stride): &(Vec<u8>, u64)) -> Result<Vec<StructRow>, HotspotError> {
        let type_name = self.inside("gHotSpotVMStructEntryTypeNameOffset", 8, *stride)?;
        let field_name = self.inside("gHotSpotVMStructEntryFieldNameOffset", 8, *stride)?;
        let type_string = self.inside("gHotSpotVMStructEntryTypeStringOffset", 8, *stride)?;
        let is_static = self.inside("gHotSpotVMStructEntryIsStaticOffset", 4, *stride)?;
        let offset = self.inside("gHotSpotVMStructEntryOffsetOffset", 8, *stride)?;
        let address = self.inside("gHotSpotVMStructEntryAddressOffset", 8, *stride)?;
        let row = |row: &[u8]| {
            let location = if field::u32(row, is_static)? == 0 {
                FieldLocation::Offset(field::u64(row, offset)?)
            } else {
                FieldLocation::Static(Avma(field::u64(row, address)?))
            };
            Some(StructRow {
                type_name: field::u64(row, type_name)?,
                field_name: field::u64(row, field_name)?,
                type_string: field::u64(row, type_string)?,
                location,
            })
        };
        let rows: Vec<StructRow> = bytes.chunks_exact(*stride as usize).filter_map(row).collect();
        // The loader fills in the pointers last.
        let is_outside = |address: u64| !self.image.contains(&Avma(address));
        let elsewhere = |row: &StructRow| is_outside(row.type_name) || is_outside(row.field_name);
        if rows.is_empty() || rows.iter().any(elsewhere) {
            return Err(HotspotError::NotReady("its tables aren't relocated"));
        }
        Ok(rows)
    }
}

/// An entry of the table of fields; names are addresses of strings.
struct StructRow {
    type_name: u64,
    field_name: u64,
    type_string: u64,
    location: FieldLocation,
}

/// The pages that hold the tables' strings. Thousands of strings lie on a few dozen pages, so these
/// are read instead.
struct Strings(BTreeMap<u64, Vec<u8>>);

impl Strings {
    fn read(pointers: &[u64], memory: &impl ProcessMemory) -> Result<Self, HotspotError> {
        // A string may go on on the next page.
        let pages: std::collections::BTreeSet<u64> = pointers
            .iter()
            .filter(|pointer| **pointer != 0)
            .flat_map(|pointer| [*pointer, pointer.saturating_add(MAX_NAME as u64)])
            .map(|address| address - address % PAGE)
            .collect();
        if pages.len() > MAX_PAGES {
            return Err(HotspotError::Table { table: "tables of names", why: "are spread all over memory" });
        }
        let places: Vec<(Avma, usize)> = pages.iter().map(|page| (Avma(*page), PAGE as usize)).collect();
        let read = memory.read_ranges(&places);
        Ok(Self(pages.into_iter().zip(read).filter_map(|(page, bytes)| Some((page, bytes?))).collect()))
    }

    fn get(&self, pointer: u64) -> Option<String> {
        let mut name = Vec::new();
        let mut at = pointer;
        while name.len() <= MAX_NAME {
            let page = self.0.get(&(at - at % PAGE))?;
            let rest = page.get((at % PAGE) as usize..)?;
            if let Some(end) = rest.iter().position(|byte| *byte == 0) {
                name.extend_from_slice(&rest[..end]);
                return (name.len() <= MAX_NAME).then(|| String::from_utf8_lossy(&name).into_owned());
            }
            name.extend_from_slice(rest);
            at = at.checked_add(rest.len() as u64)?;
        }
        None
    }
}
