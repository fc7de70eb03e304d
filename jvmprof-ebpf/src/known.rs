//! What was found out lately: how to leave the places where code was, and which Java code the daemon has been told of.
//!
//! Finding either anew reads some dozen places all over memory, which a sample a hundredth of a second later finds in no cache
//! of the CPU. So a CPU keeps what it found in one place.

use aya_ebpf::{macros::map, maps::Array};
use jvmprof_common::{
    frame::{FrameWord, compiled_delta},
    jvm::{Jvm, mix},
    tables::{PackedRule, Region},
    unwind::{
        Cursor,
        hotspot::known::{Known, Nmethod},
        memory::Veil,
    },
};

use crate::{scratch::Scratch, tables};

/// How to leave the frame at one pc. Two of them lie in a line of the CPU's caches.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Place {
    /// With its top bit set if it was interrupted.
    pc: u64,
    epoch: u32,
    /// One of those below, and a stub's bytes from its blob's begin to the pc above.
    kind: u32,
    /// The words of a rule; or those that [`Known`] has; or address of a stub's name and number of its rule.
    how: [u64; 2],
}

impl Place {
    /// Nothing is known.
    pub const UNKNOWN: u32 = 0;
    /// By a row.
    pub const ROWS: u32 = 1;
    /// A compiled frame.
    pub const COMPILED: u32 = 2;
    /// A stub, by a row.
    pub const STUB: u32 = 3;
    const KIND_BITS: u32 = 2;
}

/// What was found lately.
#[repr(C)]
pub struct Recent {
    regions: [RecentRegion; REGIONS],
    /// The JVM that was sampled last, and its process's epoch.
    jvm: Jvm,
    jvm_epoch: u64,
    places: [Place; PLACES],
    pub nmethods: [RecentNmethod; NMETHODS],
}

// Powers of two all of them.
const PLACES: usize = 2048;
/// A region has an entry for each MiB.
const REGIONS: usize = 64;
/// An nmethod has an entry for each page of its code.
pub const NMETHODS: usize = 256;

const INTERRUPTED: u64 = 1 << 63;

#[inline(always)]
fn key(here: &Cursor) -> u64 {
    here.pc | if here.exact { INTERRUPTED } else { 0 }
}

/// Another sample begins.
#[inline(always)]
pub fn begin_sample(scratch: &mut Scratch) {
    let epoch = u64::from(scratch.process.epoch);
    if scratch.process.jvm != 0 && scratch.recent.jvm_epoch != epoch {
        match tables::jvm(scratch.process.jvm) {
            Some(jvm) => (scratch.recent.jvm, scratch.recent.jvm_epoch) = (*jvm, epoch),
            None => scratch.process.jvm = 0,
        }
    }
}

/// The JVM of the process that is sampled.
#[inline(always)]
pub fn jvm<'a>(scratch: &Scratch) -> Option<&'a Jvm> {
    let jvm = &raw const scratch.recent.jvm;
    // SAFETY: it stays as it is until the next sample begins.
    (scratch.process.jvm != 0).then_some(unsafe { &*jvm })
}

#[inline(always)]
fn place(scratch: &mut Scratch, key: u64) -> &mut Place {
    let index = scratch.veil.hide(mix(0, key)) as usize & (PLACES - 1);
    &mut scratch.recent.places[index]
}

/// Brings what is known of a place to `scratch.rule` and `scratch.frame.known`, and says what it is.
#[inline(always)]
pub fn recall(scratch: &mut Scratch, here: &Cursor) -> u32 {
    let (key, epoch) = (key(here), scratch.process.epoch);
    let place = place(scratch, key);
    if place.pc != key || place.epoch != epoch {
        return Place::UNKNOWN;
    }
    let Place { kind, how: [first, second], .. } = *place;
    let delta = u64::from(kind >> Place::KIND_BITS);
    let kind = kind & ((1 << Place::KIND_BITS) - 1);
    match kind {
        Place::ROWS => scratch.rule = PackedRule::from_words([first, second]),
        Place::COMPILED => {
            let blob = here.pc - compiled_delta(first);
            scratch.frame.known = Known { kind: Known::COMPILED, blob, word: first, leaf: second };
        }
        _ => {
            let Some(rule) = tables::rule(second as u32) else { return Place::UNKNOWN };
            scratch.rule = *rule;
            scratch.frame.known = Known { kind: Known::STUB, blob: here.pc - delta, word: first, leaf: 0 };
        }
    }
    kind
}

/// Remembers the rule in `scratch.rule`.
#[inline(always)]
pub fn remember_rule(scratch: &mut Scratch, here: &Cursor) {
    let how = scratch.rule.to_words();
    remember(scratch, here, Place::ROWS, how);
}

/// Remembers what is known of the frame in `scratch.frame`.
#[inline(always)]
pub fn remember_generated(scratch: &mut Scratch, here: &Cursor) {
    let Known { kind, blob, word, leaf } = scratch.frame.known;
    if kind == Known::COMPILED {
        remember(scratch, here, Place::COMPILED, [word, leaf]);
    } else if kind == Known::STUB {
        let Some(jvm) = jvm(scratch) else { return };
        let at = if here.exact { here.pc } else { here.pc - 1 };
        let rule = tables::rule_at(u64::from(jvm.table), at - jvm.code_start);
        let delta = here.pc - blob;
        if delta < 1 << (32 - Place::KIND_BITS) {
            remember(scratch, here, Place::STUB | (delta as u32) << Place::KIND_BITS, [word, rule]);
        }
    }
}

#[inline(always)]
fn remember(scratch: &mut Scratch, here: &Cursor, kind: u32, how: [u64; 2]) {
    let (key, epoch) = (key(here), scratch.process.epoch);
    *place(scratch, key) = Place { pc: key, epoch, kind, how };
}

/// An nmethod that was interrupted lately: most samples hit another instruction of the same few.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecentNmethod {
    nmethod: Nmethod,
    /// The highest pc that was met in it: what lies between its code's begin and here is its own, too.
    highest: u64,
    epoch: u64,
}

#[inline(always)]
fn recent<'a>(
    nmethods: &'a mut [RecentNmethod; NMETHODS],
    veil: &mut Veil,
    address: u64,
) -> &'a mut RecentNmethod {
    let index = veil.hide(mix(0, address >> 12)) as usize & (NMETHODS - 1);
    &mut nmethods[index]
}

/// Brings the nmethod that was met around this address lately to `into`.
#[inline(always)]
pub fn recall_nmethod(
    nmethods: &mut [RecentNmethod; NMETHODS],
    veil: &mut Veil,
    epoch: u32,
    address: u64,
    into: &mut Nmethod,
) -> bool {
    let recent = recent(nmethods, veil, address);
    let is_within = address >= recent.nmethod.code && address <= recent.highest;
    if recent.epoch != u64::from(epoch) || !is_within || recent.nmethod.compile_id == 0 {
        return false;
    }
    *into = recent.nmethod;
    true
}

/// Remembers the interrupted nmethod.
#[inline(always)]
pub fn remember_nmethod(scratch: &mut Scratch, here: &Cursor) {
    if scratch.frame.nmethod.blob == 0 {
        return;
    }
    let epoch = u64::from(scratch.process.epoch);
    let recent = recent(&mut scratch.recent.nmethods, &mut scratch.veil, here.pc);
    let is_same = recent.epoch == epoch
        && recent.nmethod.blob == scratch.frame.nmethod.blob
        && recent.nmethod.compile_id == scratch.frame.nmethod.compile_id;
    if !is_same || here.pc > recent.highest {
        recent.highest = here.pc;
    }
    recent.epoch = epoch;
    recent.nmethod = scratch.frame.nmethod;
}

/// A region that was found lately.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecentRegion {
    region: Region,
    epoch: u64,
}

/// Brings the region that holds an address to `scratch.region`; false if no region does.
#[inline(always)]
pub fn find_region(scratch: &mut Scratch, address: u64) -> bool {
    let epoch = u64::from(scratch.process.epoch);
    let index = scratch.veil.hide(mix(0, address >> 20)) as usize & (REGIONS - 1);
    let slot = &mut scratch.recent.regions[index];
    if slot.epoch == epoch && address >= slot.region.start && address < slot.region.end {
        scratch.region = slot.region;
        return true;
    }
    let process = scratch.process;
    if !tables::find_region(&process, address, &mut scratch.region) {
        return false;
    }
    scratch.recent.regions[index] = RecentRegion { region: scratch.region, epoch };
    true
}

/// Hashes of nmethods and interpreted methods that were sampled, on any CPU. What is lost in a race is told again.
#[map]
static SEEN: Array<[u64; SEEN_CODE]> = Array::with_max_entries(1, 0);
/// A power of two.
const SEEN_CODE: usize = 65536;

/// Notes the Java code of the frame in work: the daemon reads what it is called while it is there, once.
#[inline(always)]
pub fn note_code(scratch: &mut Scratch) {
    let [first, second, third] = scratch.frame.words;
    let Some(code) = FrameWord(first).code_identity(second, third) else { return };
    let process = u64::from(scratch.header.pid) << 32 ^ scratch.process.start_ticks;
    let hash = mix(mix(0, process), code);
    let Some(seen) = SEEN.get_ptr_mut(0) else { return };
    let index = scratch.veil.hide(hash) as usize & (SEEN_CODE - 1);
    // SAFETY: the index is in range, and words are read and written whole.
    let slot = unsafe { &mut (*seen)[index] };
    if *slot != hash {
        *slot = hash;
        scratch.is_new = 1;
    }
}
