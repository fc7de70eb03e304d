//! Layout of a JVM's collector, by which references in the heap are followed: see
//! [`jvmprof_common::unwind::hotspot::continuation::load_barriers`].

use jvmprof_common::jvm::GarbageCollector;

use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Addresses and offsets of a JVM's collectors; `None` for collectors that it doesn't have, or
/// doesn't say enough of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectorFields {
    z: Option<ZFields>,
    x: Option<ZFields>,
}

/// Both kinds of ZGC: openjdk src/hotspot/share/gc/z/vmStructs_z.hpp, and gc/x/vmStructs_x.hpp of
/// JDK 21 to 23.
#[derive(Clone, Copy, Debug)]
struct ZFields {
    /// Exported variables: addresses of the masks' addresses.
    globals: Avma,
    offset_mask: u64,
    mask: u64,
    /// Address of the collected heap's address.
    heap: Avma,
    /// From there on.
    page_allocator: u64,
    page_table: u64,
    end: u64,
    /// `None` where each generation has its own, of which nothing is said.
    forwarding_table: Option<u64>,
    /// `ZGranuleMap::_map`; its size stands before it.
    map: u64,
    granule_shift: u16,
    start: u16,
    alignment: u16,
    length: u16,
    bytes: u16,
}

/// Objects of a heap are aligned to this at least, and its pages are smaller.
const GRANULE_SHIFTS: std::ops::Range<u64> = 12..40;
/// `sizeof(ZHeap)` is 16 KiB.
const MAX_HEAP_BYTES: u64 = 1 << 18;

/// Entries of a table of pages, at most: 2 MiB each of the 16 TiB that a heap may have.
const MAX_GRANULES: u64 = 1 << 23;
const READ_BYTES: u64 = 1 << 20;

/// Returns the same table, after it was read once: where the JVM has never written to it there may
/// be no memory behind its addresses, and the kernel program, which can't wait for any, would take
/// it for unreadable.
fn prefaulted(table: u64, length: u64, memory: &impl ProcessMemory) -> u64 {
    let mut bytes = vec![0; READ_BYTES as usize];
    for from in (0..length * 8).step_by(READ_BYTES as usize) {
        let part = READ_BYTES.min(length * 8 - from) as usize;
        memory.read_into(Avma(table + from), &mut bytes[..part]);
    }
    table
}

impl CollectorFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Self {
        Self { z: ZFields::new(lookup, 'Z'), x: ZFields::new(lookup, 'X') }
    }

    /// Reads what the kernel program needs; `None` where references can't be followed. `flag` is
    /// the value of a flag.
    pub(crate) fn read(
        &self,
        flag: impl Fn(&str) -> Option<String>,
        memory: &impl ProcessMemory,
    ) -> Option<GarbageCollector> {
        let is = |name: &str, value: &str| flag(name).as_deref() == Some(value);
        if is("UseShenandoahGC", "true") {
            return Some(GarbageCollector {
                kind: GarbageCollector::SHENANDOAH,
                ..GarbageCollector::default()
            });
        }
        if !is("UseZGC", "true") {
            return Some(GarbageCollector::default());
        }
        // The flag came with JDK 21 and went with 24, and the other kind with it.
        if is("ZGenerational", "false") {
            self.x?.without_generations(memory)
        } else {
            self.z?.generational(memory)
        }
    }
}

impl ZFields {
    fn new(lookup: FieldLookup<'_>, letter: char) -> Option<Self> {
        let structs = lookup.0;
        let offset = |name: &str| structs.offset(&name.replace('?', &letter.to_string()));
        let short = |name: &str| u16::try_from(offset(name)?).ok();
        let size = |name: &str| structs.size_of(&name.replace('?', &letter.to_string()));
        let address =
            |name: &str| structs.address(&name.replace('?', &letter.to_string())).filter(|at| at.0 != 0);
        let heap = offset("?CollectedHeap::_heap")?;
        let mask = if letter == 'Z' {
            "?GlobalsForVMStructs::_ZPointerLoadGoodMask"
        } else {
            "?GlobalsForVMStructs::_XAddressWeakBadMask"
        };
        Some(Self {
            globals: address("?GlobalsForVMStructs::_instance_p")?,
            offset_mask: offset("?GlobalsForVMStructs::_?AddressOffsetMask")?,
            mask: offset(mask)?,
            heap: address("Universe::_collectedHeap")?,
            page_allocator: heap + offset("?Heap::_page_allocator")?,
            page_table: heap + offset("?Heap::_page_table")?,
            end: heap + size("?Heap")?,
            forwarding_table: offset("?Heap::_forwarding_table").map(|table| heap + table),
            map: offset("?ForwardingTable::_map")? + offset("?GranuleMapForForwarding::_map")?,
            granule_shift: {
                let shift = structs.long(&format!("{letter}GranuleSizeShift"))?;
                u16::try_from(shift).ok().filter(|_| GRANULE_SHIFTS.contains(&shift))?
            },
            start: short("?Forwarding::_virtual")? + short("?VirtualMemory::_start")?,
            alignment: short("?Forwarding::_object_alignment_shift")?,
            length: short("?Forwarding::_entries")? + short("?AttachedArrayForForwarding::_length")?,
            // share/gc/z/zAttachedArray.inline.hpp: the entries lie behind the object.
            bytes: u16::try_from(size("?Forwarding")?).ok()?.next_multiple_of(8),
        })
    }

    fn generational(&self, memory: &impl ProcessMemory) -> Option<GarbageCollector> {
        let [young, old] = self.tables(memory)?;
        self.collector(GarbageCollector::Z, [young, old], memory)
    }

    fn without_generations(&self, memory: &impl ProcessMemory) -> Option<GarbageCollector> {
        let map = memory.read_u64(self.heap)? + self.forwarding_table? + self.map;
        let words = memory.read_words(&[Avma(map), Avma(map - 8)]);
        let (table, length) = (words[0]?, words[1].filter(|length| *length <= MAX_GRANULES)?);
        let table = prefaulted(table, length, memory);
        self.collector(GarbageCollector::X, [table, table], memory)
    }

    fn collector(
        &self,
        kind: u16,
        tables: [u64; 2],
        memory: &impl ProcessMemory,
    ) -> Option<GarbageCollector> {
        let globals = memory.read_u64(self.globals)?;
        let pointer = |field| memory.read_u64(Avma(globals + field)).filter(|address| *address != 0);
        let offset_mask = memory.read_u64(Avma(pointer(self.offset_mask)?))?;
        let base = offset_mask.checked_add(1).filter(|base| base.is_power_of_two())?;
        let mask_at = pointer(self.mask)?;
        memory.read_u64(Avma(mask_at)).filter(|mask| *mask != 0)?;
        let [young, old] = tables;
        Some(GarbageCollector {
            kind,
            forwarding_start: self.start,
            forwarding_alignment: self.alignment,
            forwarding_length: self.length,
            forwarding_bytes: self.bytes,
            granule_shift: self.granule_shift,
            reserved: [0; 2],
            mask_at,
            offset_mask,
            // The bit above is set in addresses that threads use (share/gc/z/zAddress.cpp,
            // `ZAddressHeapBase`); without generations it is one of the colors
            // (share/gc/x/xGlobals.hpp, `XAddressMetadataMarked0`).
            base,
            young,
            old,
        })
    }

    /// The tables of the two generations: both objects lie within `ZHeap`, and begin with their
    /// number, the addresses of page allocator and page table, and this table, of the same length
    /// in both (share/gc/z/zGeneration.hpp, zGranuleMap.hpp).
    fn tables(&self, memory: &impl ProcessMemory) -> Option<[u64; 2]> {
        let heap = memory.read_u64(self.heap)?;
        let (allocator, pages) = (heap + self.page_allocator, heap + self.page_table);
        let length_at = self.map.checked_sub(8)? as usize;
        let bytes = (self.end - self.page_table).min(MAX_HEAP_BYTES) as usize;
        let bytes = memory.read_bytes(Avma(pages), bytes)?;
        let word = |at: usize| field::u64(&bytes, at).unwrap_or_default();
        let table_of = |generation: u8| {
            let begins = |at: &usize| {
                let pair = [word(at + 8), word(at + 16)];
                bytes.get(*at) == Some(&generation)
                    && (pair == [allocator, pages] || pair == [pages, allocator])
            };
            let mut found = (0..bytes.len()).step_by(8).filter(begins);
            let at = found.next().filter(|_| found.next().is_none())? + 24;
            Some((word(at + length_at), word(at + self.map as usize))).filter(|(_, table)| *table != 0)
        };
        // share/gc/z/zGenerationId.hpp.
        let ((length, young), (of_old, old)) = (table_of(0)?, table_of(1)?);
        let is_plausible = length == of_old && length != 0 && length <= MAX_GRANULES;
        is_plausible.then(|| [young, old].map(|table| prefaulted(table, length, memory)))
    }
}
