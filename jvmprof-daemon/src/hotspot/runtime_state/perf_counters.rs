//! The performance counters of a JVM (`-XX:+UsePerfData`): the command that it was started with,
//! and how many classes it has loaded and unloaded.
//!
//! Layout: openjdk src/hotspot/share/runtime/perfMemory.hpp (`PerfDataPrologue`, `PerfDataEntry`).

use std::ops::Range;

use jvmprof_common::pause::CAUSE_BYTES;

use crate::hotspot::error::HotspotError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Bytes of performance counters; the JVM reserves 32 KiB.
const MAX_PERF_BYTES: u64 = 4 << 20;
const MAX_ENTRIES: u32 = 65_536;
const COMMAND: &[u8] = b"sun.rt.javaCommand\0";
const LOADED_CLASSES: &[u8] = b"java.cls.loadedClasses\0";
const UNLOADED_CLASSES: &[u8] = b"java.cls.unloadedClasses\0";
const CAUSE: &[u8] = b"sun.gc.cause\0";
const LAST_CAUSE: &[u8] = b"sun.gc.lastCause\0";
/// `PerfDataPrologue::magic`, as it stands in memory.
const MAGIC: u32 = 0xc0c0_feca;
/// `PerfDataEntry::data_type` of a `jlong`: its letter in the JVM's descriptors.
const LONG: u8 = b'J';

/// Addresses of a JVM's counters of classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassCounters {
    pub(crate) loaded: Avma,
    pub(crate) unloaded: Avma,
}

/// Addresses of the texts by which a JVM says why it collects garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CauseCounters {
    /// Of the collection that is under way.
    pub now: Avma,
    /// Of the last one.
    pub last: Avma,
}

/// Offsets of the fields by which entries are found, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfDataLayout {
    /// `PerfDataPrologue::entry_offset` and `num_entries`.
    pub prologue_entries: usize,
    pub prologue_count: usize,
    /// Of `PerfDataEntry`.
    pub entry_length: usize,
    pub name_offset: usize,
    pub vector_length: usize,
    pub data_type: usize,
    pub data_offset: usize,
}

impl PerfDataLayout {
    /// That of perfMemory.hpp in JDK 8 to 28, for tests: each JVM says its own.
    pub const OF_SOURCES: Self = Self {
        prologue_entries: 24,
        prologue_count: 28,
        entry_length: 0,
        name_offset: 4,
        vector_length: 8,
        data_type: 12,
        data_offset: 16,
    };

    /// Returns where the entry with this name, which ends in a zero, lies among all counters.
    pub(super) fn find(&self, bytes: &[u8], name: &[u8]) -> Option<Range<usize>> {
        if !is_prologue(bytes) {
            return None;
        }
        let mut at = field::u32(bytes, self.prologue_entries)? as usize;
        let count = field::u32(bytes, self.prologue_count)?.min(MAX_ENTRIES);
        for _ in 0..count {
            let entry = bytes.get(at..)?;
            let length = field::u32(entry, self.entry_length)? as usize;
            let entry = entry.get(..length).filter(|entry| !entry.is_empty())?;
            if self.has_name(entry, name)? {
                return Some(at..at + length);
            }
            at = at.checked_add(length)?;
        }
        None
    }

    fn has_name(&self, entry: &[u8], name: &[u8]) -> Option<bool> {
        let at = field::u32(entry, self.name_offset)? as usize;
        Some(entry.get(at..).is_some_and(|bytes| bytes.starts_with(name)))
    }

    /// Returns where the value of the entry with this name begins; it ends with its entry.
    fn value(&self, bytes: &[u8], name: &[u8]) -> Option<Range<usize>> {
        let entry = self.find(bytes, name)?;
        let value = field::u32(&bytes[entry.clone()], self.data_offset)? as usize;
        (value <= entry.len()).then_some(entry.start + value..entry.end)
    }

    /// Returns the number in an entry that has this name and is a single `jlong`.
    pub(super) fn number(&self, entry: &[u8], name: &[u8]) -> Option<i64> {
        let is_number =
            field::u32(entry, self.vector_length)? == 0 && field::u8(entry, self.data_type)? == LONG;
        if !is_number || !self.has_name(entry, name)? {
            return None;
        }
        Some(field::u64(entry, field::u32(entry, self.data_offset)? as usize)?.cast_signed())
    }
}

/// Returns true if this is the begin of a JVM's counters.
pub(super) fn is_prologue(bytes: &[u8]) -> bool {
    field::u32(bytes, 0) == Some(MAGIC)
}

/// Address and layout of the performance counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerfFields {
    /// `PerfMemory::_start`.
    pub(super) start: Avma,
    top: Avma,
    pub(super) layout: PerfDataLayout,
}

impl PerfFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Result<Self, HotspotError> {
        let one = |name| lookup.offset_of(name).map(usize::from);
        Ok(Self {
            start: lookup.address("PerfMemory::_start")?,
            top: lookup.address("PerfMemory::_top")?,
            layout: PerfDataLayout {
                prologue_entries: one("PerfDataPrologue::entry_offset")?,
                prologue_count: one("PerfDataPrologue::num_entries")?,
                entry_length: one("PerfDataEntry::entry_length")?,
                name_offset: one("PerfDataEntry::name_offset")?,
                vector_length: one("PerfDataEntry::vector_length")?,
                data_type: one("PerfDataEntry::data_type")?,
                data_offset: one("PerfDataEntry::data_offset")?,
            },
        })
    }

    /// Those whose `PerfMemory::_start` and `_top` are at these addresses.
    #[cfg(test)]
    pub(super) const fn for_tests(start: Avma, top: Avma) -> Self {
        Self { start, top, layout: PerfDataLayout::OF_SOURCES }
    }

    /// The command that the JVM was started with. `None` before it is known, and with
    /// `-XX:-UsePerfData`.
    pub(crate) fn java_command(&self, memory: &impl ProcessMemory) -> Option<String> {
        let (_, bytes) = self.counters(memory)?;
        let text = bytes.get(self.layout.value(&bytes, COMMAND)?)?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let text = String::from_utf8_lossy(&text[..end]).into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// The addresses of the counters of classes that the JVM has loaded, and those that it has
    /// unloaded, as `jlong`s. `None` as above.
    pub(crate) fn classes(&self, memory: &impl ProcessMemory) -> Option<ClassCounters> {
        let (start, bytes) = self.counters(memory)?;
        let counter = |name| {
            let value = self.layout.value(&bytes, name)?;
            let address = start.0 + value.start as u64;
            (value.len() >= size_of::<u64>() && address.is_multiple_of(8)).then_some(Avma(address))
        };
        Some(ClassCounters { loaded: counter(LOADED_CLASSES)?, unloaded: counter(UNLOADED_CLASSES)? })
    }

    /// The addresses of the causes of collections, each of [`CAUSE_BYTES`] at least. `None` as
    /// above.
    pub(crate) fn causes(&self, memory: &impl ProcessMemory) -> Option<CauseCounters> {
        let (start, bytes) = self.counters(memory)?;
        let text = |name| {
            let value = self.layout.value(&bytes, name)?;
            (value.len() >= CAUSE_BYTES).then_some(Avma(start.0 + value.start as u64))
        };
        Some(CauseCounters { now: text(CAUSE)?, last: text(LAST_CAUSE)? })
    }

    /// All counters, and their address.
    pub(super) fn counters(&self, memory: &impl ProcessMemory) -> Option<(Avma, Vec<u8>)> {
        let (start, top) = (memory.read_u64(self.start)?, memory.read_u64(self.top)?);
        let len = top.checked_sub(start).filter(|len| (1..=MAX_PERF_BYTES).contains(len))?;
        Some((Avma(start), memory.read_bytes(Avma(start), len as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_searched_within_their_bounds() {
        let layout = PerfDataLayout::OF_SOURCES;
        let mut bytes = vec![0; 32];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        (bytes[24], bytes[28]) = (32, 2);
        let entry = |name: &[u8], value: &[u8]| {
            let length = 20 + name.len() + value.len();
            let mut entry = vec![0; 20];
            (entry[0], entry[4], entry[16]) = (length as u8, 20, (20 + name.len()) as u8);
            entry.extend([name, value].concat());
            entry
        };
        bytes.extend(entry(b"sun.rt.other\0", b"no\0"));
        bytes.extend(entry(COMMAND, b"com.acme.Main 1\0"));
        let value = layout.value(&bytes, COMMAND).map(|value| &bytes[value]);
        assert_eq!(value, Some(&b"com.acme.Main 1\0"[..]));
        assert_eq!(layout.value(&bytes, LOADED_CLASSES), None);
        for cut in 0..bytes.len() - 20 {
            assert_eq!(layout.value(&bytes[..cut], COMMAND), None, "{cut}");
        }
        bytes[32] = 0;
        assert_eq!(layout.value(&bytes, COMMAND), None, "an entry of no length");
    }
}
