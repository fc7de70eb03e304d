//! The tables that the daemon fills: processes, regions, unwind rows, JVMs.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use jvmprof_common::{
    jvm::Jvm,
    tables::{
        CHUNK_ROWS, Chunk, NO_RULE, NS_PER_TICK, PAGE_SHIFT, PackedRule, Page, ProcessEntry, REGION_STEPS,
        Region, Table, find_rule,
    },
    unwind::memory::Veil,
};

use crate::scratch;

/// The daemon sets the sizes of these.
#[map]
static PROCESSES: HashMap<u32, ProcessEntry> = HashMap::with_max_entries(1, 0);
#[map]
static REGIONS: Array<Region> = Array::with_max_entries(1, 0);
#[map]
static TABLES: Array<Table> = Array::with_max_entries(1, 0);
#[map]
static PAGES: Array<Page> = Array::with_max_entries(1, 0);
#[map]
static ROWS: Array<Chunk> = Array::with_max_entries(1, 0);
#[map]
static RULES: Array<PackedRule> = Array::with_max_entries(1, 0);
#[map]
static JVMS: Array<Jvm> = Array::with_max_entries(1, 0);

/// What is known of a process; of this very one, not of an earlier one with its pid.
#[inline(always)]
pub fn process(tgid: u32, start_ns: u64) -> Option<ProcessEntry> {
    // SAFETY: the entry is copied at once; the daemon replaces entries, it doesn't change them.
    let entry = unsafe { PROCESSES.get(tgid) }?;
    if entry.start_ticks != start_ns / NS_PER_TICK { None } else { Some(*entry) }
}

/// A process replaced its program, or code of it: what is known of it is of the past.
#[inline(always)]
pub fn forget(tgid: u32) {
    // An entry that isn't there needs no removal.
    let _ = PROCESSES.remove(tgid);
}

/// Whether what is known of a process speaks of code of files between two addresses.
#[inline(always)]
pub fn has_code_of_files(tgid: u32, start: u64, end: u64) -> bool {
    // SAFETY: as in `process`.
    let Some(process) = (unsafe { PROCESSES.get(tgid) }) else {
        return false;
    };
    let last = region_index(u64::from(process.first_region), u64::from(process.regions), end - 1);
    let Some(region) = REGIONS.get(last as u32) else {
        return false;
    };
    let is_of_file = region.kind != Region::HOTSPOT && region.kind != Region::GENERATED;
    is_of_file && region.start < end && region.end > start
}

#[inline(always)]
pub fn jvm<'a>(index: u32) -> Option<&'a Jvm> {
    JVMS.get(index)
}

/// Brings the region that holds an address to `region`; false if no region does.
#[inline(always)]
pub fn find_region(process: &ProcessEntry, address: u64, region: &mut Region) -> bool {
    let index = region_index(u64::from(process.first_region), u64::from(process.regions), address);
    let Some(found) = REGIONS.get(index as u32) else {
        return false;
    };
    if address < found.start || address >= found.end {
        return false;
    }
    *region = *found;
    true
}

/// The last region that begins at or before an address. A global function, as [`rule_at`] is.
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

/// The row at an address of a table's own space.
#[inline(always)]
pub fn row<'a>(table: u32, address: u64) -> Option<&'a PackedRule> {
    rule(rule_at(u64::from(table), address) as u32)
}

/// The rule of a number that [`rule_at`] gave.
#[inline(always)]
pub fn rule<'a>(number: u32) -> Option<&'a PackedRule> {
    if number == u32::from(NO_RULE) { None } else { RULES.get(number) }
}

/// The rule at an address, or [`NO_RULE`]. A global function: the verifier checks its paths once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rule_at(table: u64, address: u64) -> u64 {
    let Some(scratch) = scratch::get() else {
        return u64::from(NO_RULE);
    };
    u64::from(find(table as u32, address, &mut scratch.veil).unwrap_or(NO_RULE))
}

#[inline(always)]
fn find(table: u32, address: u64, veil: &mut Veil) -> Option<u16> {
    let table = TABLES.get(table)?;
    let page = (address >> PAGE_SHIFT).wrapping_sub(table.first_page);
    if page >= u64::from(table.pages) {
        return None;
    }
    let page = PAGES.get(table.index.wrapping_add(page as u32))?;
    find_rule(address, page.first, page.rows, |at| {
        let chunk = ROWS.get(at / CHUNK_ROWS as u32)?;
        Some(chunk[veil.hide(u64::from(at)) as usize & (CHUNK_ROWS - 1)])
    })
}
