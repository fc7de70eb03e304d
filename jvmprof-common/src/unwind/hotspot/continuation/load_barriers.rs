//! References between objects of the Java heap, also under collectors that move objects while
//! threads run: a reference may still say where its object was.
//!
//! Each collector's own rule is followed, as its load barrier has it; nothing is read from an
//! address that an object has left. ZGC colors references: one whose color is good now says where
//! its object is; for others the tables of pages whose objects move say it (openjdk
//! src/hotspot/share/gc/z/zAddress.hpp, zBarrier.inline.hpp `remap_generation`,
//! zForwarding.inline.hpp). These tables stay until no reference needs them any more. Shenandoah
//! leaves the new address in the old copy's mark word
//! (share/gc/shenandoah/shenandoahForwarding.inline.hpp), and takes the old copy's memory only when
//! nothing refers to it.

use super::super::HotspotTarget;
use crate::address::Avma;
use crate::jvm::{GarbageCollector, Jvm};

/// [`load_reference`] of an object that can't be found: the collector is moving it, or what should
/// be a reference isn't one.
pub const UNRESOLVED: Avma = Avma(1);
const NULL: Avma = Avma(0);

/// Bits of a reference that say what ZGC's collections know of it: four that say since when its
/// address holds, ...
pub const REMAPPED: u64 = 0xf000;
/// ... which stand for the four pairs of phases of the young and the old collection: these are of
/// the first phase, ...
const FIRST_YOUNG: u64 = 0x5000;
const FIRST_OLD: u64 = 0x3000;
/// ... and both of these are set in references from an old object to an old one.
const REMEMBERED: u64 = 0x30;
const ALL_COLORS: u64 = 0xfff0;
/// A reference's address begins at the bit after the one of [`REMAPPED`] that is set.
const REMAPPED_SHIFT: u32 = 12;

/// Colors of the ZGC without generations that have mappings: `XAddressMetadataMarked0`, `Marked1`,
/// `Remapped`.
const VIEWS: u32 = 3;

/// Entries of a page's hash table that are probed; it is half empty, and 28 was the most that
/// was seen.
const MAX_PROBES: u32 = 64;

/// Returns the object that the field or root at `slot` refers to; 0 for none, and for what is no
/// root; [`UNRESOLVED`] if the collector may be moving it, or the slot can't be read.
#[inline(always)]
pub fn load_reference(target: &mut impl HotspotTarget, jvm: &Jvm, slot: Avma, is_root: bool) -> Avma {
    let Some(value) = target.read_object(slot) else { return UNRESOLVED };
    let collector = &jvm.chunks.collector;
    match collector.kind {
        GarbageCollector::STOPS => decode(jvm, value, is_root),
        GarbageCollector::SHENANDOAH => shenandoah_forwardee(target, decode(jvm, value, is_root)),
        GarbageCollector::X if is_root && !is_coloured(collector, value) => NULL,
        GarbageCollector::X => {
            let object = remap_single_generation(target, jvm, value);
            unless_healed(target, slot, value, object)
        }
        GarbageCollector::Z if is_root => {
            if is_address(collector, Avma(value)) {
                Avma(value)
            } else {
                NULL
            }
        }
        GarbageCollector::Z => {
            let object = remap_generational(target, jvm, value);
            unless_healed(target, slot, value, object)
        }
        _ => UNRESOLVED,
    }
}

/// Returns true if an object that a root led to may be elsewhere now. To be called once what it
/// refers to is read.
///
/// A root has no color. ZGC corrects those of a thread before it runs Java code in a new phase, but
/// not while native code runs. Until then the object's page is in the tables, and the object too
/// once it has moved.
#[inline(always)]
pub fn may_have_moved(target: &mut impl HotspotTarget, jvm: &Jvm, object: Avma) -> bool {
    let collector = &jvm.chunks.collector;
    collector.kind == GarbageCollector::Z
        && (target.forwardee(jvm, Avma(collector.young), object) > NOT_FORWARDED_YET
            || target.forwardee(jvm, Avma(collector.old), object) > NOT_FORWARDED_YET)
}

/// Returns `object`, unless the reference has been corrected meanwhile, and the tables may be those
/// of another collection.
#[inline(always)]
fn unless_healed(target: &mut impl HotspotTarget, slot: Avma, value: u64, object: Avma) -> Avma {
    if target.read_object(slot) == Some(value) { object } else { UNRESOLVED }
}

/// Returns the object of a reference that may be narrow.
#[inline(always)]
fn decode(jvm: &Jvm, value: u64, is_root: bool) -> Avma {
    let chunks = &jvm.chunks;
    if chunks.oops_are_narrow == 0 || is_root {
        return Avma(value);
    }
    let narrow = value & 0xffff_ffff;
    if narrow == 0 { NULL } else { Avma(chunks.oop_base.wrapping_add(narrow << (chunks.oop_shift & 7))) }
}

/// Returns where Shenandoah has copied this object to, or where it is still.
#[inline(always)]
fn shenandoah_forwardee(target: &mut impl HotspotTarget, object: Avma) -> Avma {
    if object == NULL {
        return NULL;
    }
    let Some(mark) = target.read_object(object) else { return UNRESOLVED };
    // share/oops/markWord.hpp: `marked_value`, and clear the bit that JDK 24 and later set in
    // objects that stay. Without an address it is a mark of others.
    if mark & 7 == 3 && mark > 7 { Avma(mark & !7) } else { object }
}

/// Returns true if this may be an address as threads use it under the generational ZGC.
#[inline(always)]
fn is_address(collector: &GarbageCollector, value: Avma) -> bool {
    value.0 & !collector.offset_mask == collector.base && value.is_multiple_of(8)
}

/// Returns true if this may be a reference of the ZGC without generations: it has four bits of
/// color above the offset (share/gc/x/xGlobals.hpp, `XAddressMetadataMask`).
#[inline(always)]
fn is_coloured(collector: &GarbageCollector, value: u64) -> bool {
    let color = value & !collector.offset_mask;
    color != 0 && color < collector.base << 4 && value.is_multiple_of(8)
}

/// Returns the address in a reference of the generational ZGC, whatever its color; `None` for what
/// isn't one.
#[inline(always)]
pub fn generational_address(value: u64) -> Option<Avma> {
    let remapped = (value & REMAPPED) >> REMAPPED_SHIFT;
    if !remapped.is_power_of_two() {
        return None;
    }
    // Of 1, 2, 4 and 8 the logarithm, for which the kernel's machine has no instruction.
    let bit = (remapped >> 1) - (remapped >> 3);
    Some(Avma(value >> (u64::from(REMAPPED_SHIFT) + 1 + bit)))
}

/// Returns the object of a reference of the generational ZGC.
#[inline(always)]
fn remap_generational(target: &mut impl HotspotTarget, jvm: &Jvm, value: u64) -> Avma {
    let collector = &jvm.chunks.collector;
    if value & !ALL_COLORS == 0 {
        return NULL;
    }
    let Some(object) = generational_address(value) else { return UNRESOLVED };
    if !is_address(collector, object) {
        return UNRESOLVED;
    }
    let Some(good) = target.read_object(Avma(collector.mask_at)) else { return UNRESOLVED };
    if value & good & REMAPPED != 0 {
        return object;
    }
    let is_good_as = |first: u64| (value & first != 0) == (good & first != 0);
    let is_of_old = !is_good_as(FIRST_OLD)
        && (is_good_as(FIRST_YOUNG)
            || value & REMEMBERED == REMEMBERED
            || target.forwardee(jvm, Avma(collector.young), object) == NOT_RELOCATING);
    let table = Avma(if is_of_old { collector.old } else { collector.young });
    let forwardee = target.forwardee(jvm, table, object);
    current_address(object, forwardee)
}

/// Returns the object of a reference of the ZGC without generations.
#[inline(always)]
fn remap_single_generation(target: &mut impl HotspotTarget, jvm: &Jvm, value: u64) -> Avma {
    let collector = &jvm.chunks.collector;
    if value == 0 {
        return NULL;
    }
    if !is_coloured(collector, value) {
        return UNRESOLVED;
    }
    let Some(bad) = target.read_object(Avma(collector.mask_at)) else { return UNRESOLVED };
    let object = if value & bad == 0 {
        Avma(value)
    } else {
        let forwardee = target.forwardee(jvm, Avma(collector.young), Avma(value));
        current_address(Avma(value), forwardee)
    };
    if object == UNRESOLVED { UNRESOLVED } else { in_readable_view(target, collector, object) }
}

/// Returns the same object at an address that can be read: each color has a mapping of its own,
/// whose pages are there once they were used.
#[inline(always)]
fn in_readable_view(target: &mut impl HotspotTarget, collector: &GarbageCollector, object: Avma) -> Avma {
    let mut view = 0;
    while view < VIEWS {
        let address = Avma(object.0 & collector.offset_mask | collector.base << view);
        if target.read_object(address).is_some() {
            return address;
        }
        view += 1;
    }
    UNRESOLVED
}

#[inline(always)]
fn current_address(object: Avma, forwardee: Avma) -> Avma {
    match forwardee {
        NOT_RELOCATING => object,
        NOT_FORWARDED_YET | UNDECIDED => UNRESOLVED,
        forwardee => forwardee,
    }
}

/// [`forwardee`] of an object whose page isn't in the table, ...
pub const NOT_RELOCATING: Avma = Avma(0);
/// ... whose page is, but which has not moved yet, ...
const NOT_FORWARDED_YET: Avma = Avma(1);
/// ... or of which that can't be read.
pub const UNDECIDED: Avma = Avma(2);

/// Returns where an object has moved that was here when its page got into this table.
#[inline(always)]
pub fn forwardee(target: &mut impl HotspotTarget, jvm: &Jvm, table: Avma, object: Avma) -> Avma {
    find_forwardee(target, &jvm.chunks.collector, table, object).unwrap_or(UNDECIDED)
}

#[inline(always)]
fn find_forwardee(
    target: &mut impl HotspotTarget,
    collector: &GarbageCollector,
    table: Avma,
    object: Avma,
) -> Option<Avma> {
    let offset = object.0 & collector.offset_mask;
    let forwarding = Avma(target.read_object(table + (offset >> (collector.granule_shift & 63)) * 8)?);
    if forwarding == NULL {
        return Some(NOT_RELOCATING);
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
        // From the lowest bit: whether there is an entry, 45 bits of the new offset, and which
        // object it is (share/gc/z/zForwardingEntry.hpp).
        if entry & 1 == 0 {
            return Some(NOT_FORWARDED_YET);
        }
        if entry >> 46 == index {
            return Some(Avma((entry >> 1) & ((1 << 45) - 1) | collector.base));
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
