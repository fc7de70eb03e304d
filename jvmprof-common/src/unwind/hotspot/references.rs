//! References between objects of the Java heap, also under collectors that move objects while threads run: a reference may
//! still say where its object was.
//!
//! Each collector's own rule is followed, as its load barrier has it; nothing is believed of a place that an object has left. ZGC
//! colors references: one whose color is good now says where its object is; for others the tables of pages whose objects move
//! say it (openjdk src/hotspot/share/gc/z/zAddress.hpp, zBarrier.inline.hpp `remap_generation`, zForwarding.inline.hpp). These
//! tables stay until no reference needs them any more. Shenandoah leaves the new place in the old copy's mark word
//! (share/gc/shenandoah/shenandoahForwarding.inline.hpp), and takes the old copy's memory only when nothing refers to it.

use super::Target;
use crate::jvm::{Collector, Jvm};

/// What [`follow`] says where the object can't be found: the collector is moving it, or what should be a reference isn't one.
pub const UNKNOWN: u64 = 1;

/// Bits of a reference that say what ZGC's collections know of it: four that tell since when its address holds, ...
const REMAPPED: u64 = 0xf000;
/// ... which stand for the four pairs of phases of the young and the old collection: these are of the first phase, ...
const FIRST_YOUNG: u64 = 0x5000;
const FIRST_OLD: u64 = 0x3000;
/// ... and both of these are set in references from an old object to an old one.
const REMEMBERED: u64 = 0x30;
const ALL_COLORS: u64 = 0xfff0;
/// A reference's address begins at the bit behind the one of [`REMAPPED`] that is set.
const REMAPPED_SHIFT: u32 = 12;

/// Colors of the ZGC without generations that have mappings: `XAddressMetadataMarked0`, `Marked1`, `Remapped`.
const VIEWS: u32 = 3;

/// Entries of a page's hash table that are looked at; it is half empty, and 28 was the most that was seen.
const MAX_PROBES: u32 = 64;

/// The object that the field or root at `slot` refers to; 0 for none, and for what is no root; [`UNKNOWN`].
#[inline(always)]
pub fn follow(target: &mut impl Target, jvm: &Jvm, slot: u64, is_root: bool) -> u64 {
    let Some(value) = target.read_object(slot) else { return UNKNOWN };
    let collector = &jvm.chunks.collector;
    match collector.kind {
        Collector::STOPS => address(jvm, value, is_root),
        Collector::SHENANDOAH => forwardee(target, address(jvm, value, is_root)),
        Collector::X if is_root && !is_colored(collector, value) => 0,
        Collector::X => {
            let found = without_generations(target, jvm, value);
            still(target, slot, value, found)
        }
        Collector::Z if is_root => {
            if is_address(collector, value) {
                value
            } else {
                0
            }
        }
        Collector::Z => {
            let found = generational(target, jvm, value);
            still(target, slot, value, found)
        }
        _ => UNKNOWN,
    }
}

/// Whether an object that a root led to may be elsewhere now. Asked once what it refers to is read.
///
/// A root has no color. ZGC corrects those of a thread before it runs Java code in a new phase, but not while native code runs.
/// Until then the object's page is in the tables, and the object too once it has moved.
#[inline(always)]
pub fn may_have_moved(target: &mut impl Target, jvm: &Jvm, object: u64) -> bool {
    let collector = &jvm.chunks.collector;
    collector.kind == Collector::Z
        && (target.new_place(collector.young, object, jvm) > NOT_YET
            || target.new_place(collector.old, object, jvm) > NOT_YET)
}

/// What was found, unless the reference has been corrected meanwhile, and the tables may be those of another collection.
#[inline(always)]
fn still(target: &mut impl Target, slot: u64, value: u64, found: u64) -> u64 {
    if target.read_object(slot) == Some(value) { found } else { UNKNOWN }
}

#[inline(always)]
fn address(jvm: &Jvm, value: u64, is_root: bool) -> u64 {
    let chunks = &jvm.chunks;
    if chunks.oops_are_narrow == 0 || is_root {
        return value;
    }
    let narrow = value & 0xffff_ffff;
    if narrow == 0 { 0 } else { chunks.oop_base.wrapping_add(narrow << (chunks.oop_shift & 7)) }
}

/// Where Shenandoah has copied this object to, or where it is still.
#[inline(always)]
fn forwardee(target: &mut impl Target, object: u64) -> u64 {
    if object == 0 {
        return 0;
    }
    let Some(mark) = target.read_object(object) else { return UNKNOWN };
    // share/oops/markWord.hpp: `marked_value`, and clear the bit that JDK 24 and later set in objects that stay. Without an
    // address it is a mark of others.
    if mark & 7 == 3 && mark > 7 { mark & !7 } else { object }
}

/// Whether this may be an address as threads use it under the generational ZGC.
#[inline(always)]
fn is_address(collector: &Collector, value: u64) -> bool {
    value & !collector.offset_mask == collector.base && value.is_multiple_of(8)
}

/// Whether this may be a reference of the ZGC without generations: it has four bits of color above the offset (share/gc/x/xGlobals.hpp,
/// `XAddressMetadataMask`).
#[inline(always)]
fn is_colored(collector: &Collector, value: u64) -> bool {
    let color = value & !collector.offset_mask;
    color != 0 && color < collector.base << 4 && value.is_multiple_of(8)
}

#[inline(always)]
fn generational(target: &mut impl Target, jvm: &Jvm, value: u64) -> u64 {
    let collector = &jvm.chunks.collector;
    if value & !ALL_COLORS == 0 {
        return 0;
    }
    let remapped = (value & REMAPPED) >> REMAPPED_SHIFT;
    if !remapped.is_power_of_two() {
        return UNKNOWN;
    }
    // Of 1, 2, 4 and 8 the logarithm, for which this machine has no instruction.
    let bit = (remapped >> 1) - (remapped >> 3);
    let object = value >> (u64::from(REMAPPED_SHIFT) + 1 + bit);
    if !is_address(collector, object) {
        return UNKNOWN;
    }
    let Some(good) = target.read_object(collector.mask_at) else { return UNKNOWN };
    if value & good & REMAPPED != 0 {
        return object;
    }
    let is_good_as = |first: u64| (value & first != 0) == (good & first != 0);
    let is_of_old = !is_good_as(FIRST_OLD)
        && (is_good_as(FIRST_YOUNG)
            || value & REMEMBERED == REMEMBERED
            || target.new_place(collector.young, object, jvm) == HERE);
    let table = if is_of_old { collector.old } else { collector.young };
    here_or_there(object, target.new_place(table, object, jvm))
}

#[inline(always)]
fn without_generations(target: &mut impl Target, jvm: &Jvm, value: u64) -> u64 {
    let collector = &jvm.chunks.collector;
    if value == 0 {
        return 0;
    }
    if !is_colored(collector, value) {
        return UNKNOWN;
    }
    let Some(bad) = target.read_object(collector.mask_at) else { return UNKNOWN };
    let object = if value & bad == 0 {
        value
    } else {
        here_or_there(value, target.new_place(collector.young, value, jvm))
    };
    if object == UNKNOWN { UNKNOWN } else { in_view(target, collector, object) }
}

/// The same object at an address that can be read: each color has a mapping of its own, whose pages are there once they were used.
#[inline(always)]
fn in_view(target: &mut impl Target, collector: &Collector, object: u64) -> u64 {
    let mut view = 0;
    while view < VIEWS {
        let address = object & collector.offset_mask | collector.base << view;
        if target.read_object(address).is_some() {
            return address;
        }
        view += 1;
    }
    UNKNOWN
}

#[inline(always)]
fn here_or_there(object: u64, place: u64) -> u64 {
    match place {
        HERE => object,
        NOT_YET | UNDECIDED => UNKNOWN,
        place => place,
    }
}

/// What [`new_place`] says besides addresses: the object's page isn't in the table, ...
pub const HERE: u64 = 0;
/// ... it is, and the object has not moved yet, ...
const NOT_YET: u64 = 1;
/// ... or may have.
pub const UNDECIDED: u64 = 2;

/// Where an object has moved that was here when its page got into this table.
#[inline(always)]
pub fn new_place(target: &mut impl Target, jvm: &Jvm, table: u64, object: u64) -> u64 {
    find_place(target, &jvm.chunks.collector, table, object).unwrap_or(UNDECIDED)
}

#[inline(always)]
fn find_place(target: &mut impl Target, collector: &Collector, table: u64, object: u64) -> Option<u64> {
    let offset = object & collector.offset_mask;
    let forwarding = target.read_object(table + (offset >> (collector.granule_shift & 63)) * 8)?;
    if forwarding == 0 {
        return Some(HERE);
    }
    let mut field = |offset: u16| target.read_object(forwarding.wrapping_add(u64::from(offset)));
    let start = field(collector.forwarding_start)?;
    let alignment = field(collector.forwarding_alignment)?;
    let length = field(collector.forwarding_length)?;
    let index = offset.wrapping_sub(start) >> (alignment & 63);
    let mut slot = u64::from(hash(index as u32));
    let mut probe = 0;
    while probe < MAX_PROBES {
        slot &= length.wrapping_sub(1);
        let entry = forwarding.wrapping_add(u64::from(collector.forwarding_bytes)).wrapping_add(slot * 8);
        let entry = target.read_object(entry)?;
        // From the lowest bit: whether there is an entry, 45 bits of the new offset, and which object it is
        // (share/gc/z/zForwardingEntry.hpp).
        if entry & 1 == 0 {
            return Some(NOT_YET);
        }
        if entry >> 46 == index {
            return Some((entry >> 1) & ((1 << 45) - 1) | collector.base);
        }
        slot += 1;
        probe += 1;
    }
    None
}

/// `ZHash::uint32_to_uint32` (share/gc/z/zHash.inline.hpp).
#[inline(always)]
const fn hash(key: u32) -> u32 {
    let key = (!key).wrapping_add(key << 15);
    let key = key ^ (key >> 12);
    let key = key.wrapping_add(key << 2);
    let key = key ^ (key >> 4);
    let key = key.wrapping_mul(2057);
    key ^ (key >> 16)
}
