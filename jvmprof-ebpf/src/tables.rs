//! The tables that the daemon fills: processes, regions, unwind rows, JVMs.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use jvmprof_common::{
    address::Avma,
    jvm::Jvm,
    unwind_tables::{
        CHUNK_ROWS, NO_RULE, NS_PER_TICK, PAGE_SHIFT, PackedRule, ProcessEntry, REGION_STEPS, Region,
        RowChunk, RowPage, RowTable, find_rule,
    },
    verifier::BarrierVar,
};

use crate::scratch::{self, ScratchSlot};

/// The daemon sets the sizes of these.
#[map]
static PROCESSES: HashMap<u32, ProcessEntry> = HashMap::with_max_entries(1, 0);
#[map]
static REGIONS: Array<Region> = Array::with_max_entries(1, 0);
#[map]
static TABLES: Array<RowTable> = Array::with_max_entries(1, 0);
#[map]
static PAGES: Array<RowPage> = Array::with_max_entries(1, 0);
#[map]
static ROWS: Array<RowChunk> = Array::with_max_entries(1, 0);
#[map]
static RULES: Array<PackedRule> = Array::with_max_entries(1, 0);
#[map]
static JVMS: Array<Jvm> = Array::with_max_entries(1, 0);

/// Returns what the daemon has published of a process; of this very one, not of an earlier one with
/// its pid.
#[inline(always)]
pub fn process(tgid: u32, start_ns: u64) -> Option<ProcessEntry> {
    // SAFETY: the entry is copied at once; the daemon replaces entries, it doesn't change them.
    let entry = unsafe { PROCESSES.get(tgid) }?;
    if entry.start_ticks != start_ns / NS_PER_TICK { None } else { Some(*entry) }
}

/// Removes a process: it replaced its program, or code of it.
#[inline(always)]
pub fn forget(tgid: u32) {
    // An entry that isn't there needs no removal.
    let _ = PROCESSES.remove(tgid);
}

/// Returns true if the tables say that a process has code of files between two addresses.
#[inline(always)]
pub fn has_code_of_files(tgid: u32, start: Avma, end: Avma) -> bool {
    // SAFETY: as in `process`.
    let Some(process) = (unsafe { PROCESSES.get(tgid) }) else {
        return false;
    };
    let last = region_index(u64::from(process.first_region), u64::from(process.regions), end.0 - 1);
    let Some(region) = REGIONS.get(last as u32) else {
        return false;
    };
    let is_of_file = region.kind != Region::HOTSPOT && region.kind != Region::GENERATED;
    is_of_file && region.start < end.0 && region.end > start.0
}

#[inline(always)]
pub fn jvm<'a>(index: u32) -> Option<&'a Jvm> {
    JVMS.get(index)
}

/// Copies the region that holds an address to `region`; returns false if no region does.
#[inline(always)]
pub fn find_region(process: &ProcessEntry, address: Avma, region: &mut Region) -> bool {
    let index = region_index(u64::from(process.first_region), u64::from(process.regions), address.0);
    let Some(found) = REGIONS.get(index as u32) else {
        return false;
    };
    if address.0 < found.start || address.0 >= found.end {
        return false;
    }
    *region = *found;
    true
}

/// Returns the index of the last region that begins at or before an address; reads the maps alone.
/// A global function, as [`rule_at`] is.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn region_index(first: u64, regions: u64, address: u64) -> u64 {
    // As in `find_rule`, the verifier must not know the index.
    let end = (first as u32).wrapping_add(regions as u32);
    let mut at = first as u32;
    let mut step = 1u32 << (REGION_STEPS - 1);
    for _ in 0..REGION_STEPS {
        let next = at.wrapping_add(step);
        if next < end {
            let Some(region) = REGIONS.get(next) else {
                break;
            };
            if region.start <= address {
                at = next;
            }
        }
        step >>= 1;
    }
    u64::from(at)
}

/// Returns the rule at an address of a table's own space.
#[inline(always)]
pub fn row<'a>(slot: ScratchSlot, table: u32, address: u64) -> Option<&'a PackedRule> {
    rule(rule_at(slot.to_argument(), u64::from(table), address) as u32)
}

/// Returns the rule of a number that [`rule_at`] gave.
#[inline(always)]
pub fn rule<'a>(number: u32) -> Option<&'a PackedRule> {
    if number == u32::from(NO_RULE) { None } else { RULES.get(number) }
}

/// Returns the number of the rule at an address, or [`NO_RULE`]; reads the maps, and writes
/// [`scratch::Scratch::barrier_var`]. A global function: the verifier checks its paths once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rule_at(slot: u64, table: u64, address: u64) -> u64 {
    let Some(scratch) = scratch::get(ScratchSlot::from_argument(slot)) else {
        return u64::from(NO_RULE);
    };
    u64::from(find_in_table(table as u32, address, &mut scratch.barrier_var).unwrap_or(NO_RULE))
}

#[inline(always)]
fn find_in_table(table: u32, address: u64, barrier_var: &mut BarrierVar) -> Option<u16> {
    let table = TABLES.get(table)?;
    let page = (address >> PAGE_SHIFT).wrapping_sub(table.first_page);
    if page >= u64::from(table.pages) {
        return None;
    }
    let page = PAGES.get(table.index.wrapping_add(page as u32))?;
    find_rule(address, page.first, page.rows, |at| {
        let chunk = ROWS.get(at / CHUNK_ROWS as u32)?;
        Some(chunk[barrier_var.opaque(u64::from(at)) as usize & (CHUNK_ROWS - 1)])
    })
}
