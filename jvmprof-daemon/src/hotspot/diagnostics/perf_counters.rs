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

/// Address and layout of the performance counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerfFields {
    start: Avma,
    top: Avma,
    prologue_entries: usize,
    prologue_count: usize,
    entry_length: usize,
    name_offset: usize,
    data_offset: usize,
}

impl PerfFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Result<Self, HotspotError> {
        let one = |name| lookup.one(name).map(usize::from);
        Ok(Self {
            start: lookup.address("PerfMemory::_start")?,
            top: lookup.address("PerfMemory::_top")?,
            prologue_entries: one("PerfDataPrologue::entry_offset")?,
            prologue_count: one("PerfDataPrologue::num_entries")?,
            entry_length: one("PerfDataEntry::entry_length")?,
            name_offset: one("PerfDataEntry::name_offset")?,
            data_offset: one("PerfDataEntry::data_offset")?,
        })
    }

    /// The command that the JVM was started with. `None` before it is known, and with
    /// `-XX:-UsePerfData`.
    pub(crate) fn java_command(&self, memory: &impl ProcessMemory) -> Option<String> {
        let (_, bytes) = self.counters(memory)?;
        let text = bytes.get(self.find(&bytes, COMMAND)?)?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let text = String::from_utf8_lossy(&text[..end]).into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// The addresses of the counters of classes that the JVM has loaded, and those that it has
    /// unloaded, as `jlong`s. `None` as above.
    pub(crate) fn classes(&self, memory: &impl ProcessMemory) -> Option<ClassCounters> {
        let (start, bytes) = self.counters(memory)?;
        let counter = |name| {
            let value = self.find(&bytes, name)?;
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
            let value = self.find(&bytes, name)?;
            (value.len() >= CAUSE_BYTES).then_some(Avma(start.0 + value.start as u64))
        };
        Some(CauseCounters { now: text(CAUSE)?, last: text(LAST_CAUSE)? })
    }

    /// All counters, and their address.
    fn counters(&self, memory: &impl ProcessMemory) -> Option<(Avma, Vec<u8>)> {
        let (start, top) = (memory.read_u64(self.start)?, memory.read_u64(self.top)?);
        let len = top.checked_sub(start).filter(|len| (1..=MAX_PERF_BYTES).contains(len))?;
        Some((Avma(start), memory.read_bytes(Avma(start), len as usize)?))
    }

    /// The range of a counter's value among all of them: from its first byte to the end of its
    /// entry.
    fn find(&self, bytes: &[u8], counter: &[u8]) -> Option<Range<usize>> {
        if field::u32(bytes, 0)? != MAGIC {
            return None;
        }
        let mut at = field::u32(bytes, self.prologue_entries)? as usize;
        let count = field::u32(bytes, self.prologue_count)?.min(MAX_ENTRIES);
        for _ in 0..count {
            let entry = bytes.get(at..)?;
            let length = field::u32(entry, self.entry_length)? as usize;
            let entry = entry.get(..length).filter(|entry| !entry.is_empty())?;
            let name = field::u32(entry, self.name_offset)? as usize;
            if entry.get(name..).is_some_and(|name| name.starts_with(counter)) {
                let value = field::u32(entry, self.data_offset)? as usize;
                return (value <= length).then_some(at + value..at + length);
            }
            at = at.checked_add(length)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_searched_within_their_bounds() {
        let fields = PerfFields {
            start: Avma(0),
            top: Avma(0),
            prologue_entries: 24,
            prologue_count: 28,
            entry_length: 0,
            name_offset: 4,
            data_offset: 16,
        };
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
        let value = fields.find(&bytes, COMMAND).map(|value| &bytes[value]);
        assert_eq!(value, Some(&b"com.acme.Main 1\0"[..]));
        assert_eq!(fields.find(&bytes, LOADED_CLASSES), None);
        for cut in 0..bytes.len() - 20 {
            assert_eq!(fields.find(&bytes[..cut], COMMAND), None, "{cut}");
        }
        bytes[32] = 0;
        assert_eq!(fields.find(&bytes, COMMAND), None, "an entry of no length");
    }
}
