//! Per-CPU cache of resolved pcs: how to leave the frames that the last samples met, and of which
//! Java code the daemon has been woken for.
//!
//! Finding either anew reads some dozen words all over memory, which a sample a hundredth of a
//! second later finds in no cache of the CPU. So this cache keeps what was found side by side. An
//! entry holds for one *epoch* of its process
//! ([`ProcessEntry::epoch`](jvmprof_common::tables::ProcessEntry)): each publish of the process
//! makes all older ones invalid.

use aya_ebpf::{macros::map, maps::Array};
use jvmprof_common::{
    address::Avma,
    frame::{FrameWord, compiled_delta},
    jvm::{Jvm, mix},
    tables::{PackedRule, Region},
    unwind::{
        Cursor,
        hotspot::{
            cached_frames::{CachedFrame, Nmethod},
            compiled::frame_layout::FrameLayout,
        },
        verifier::BarrierVar,
    },
};

use crate::{scratch::Scratch, tables};

/// How to leave the frame at one pc. Two of them lie in a line of the CPU's caches.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CachedPc {
    /// With its top bit set if it was interrupted.
    pc: u64,
    epoch: u32,
    /// One of those below, and a stub's bytes from its blob's begin to the pc above.
    kind: u32,
    /// The words of a rule; or a compiled frame's second word and layout; or the address of a
    /// stub's name and the number of its rule.
    payload: [u64; 2],
}

impl CachedPc {
    /// Nothing is cached.
    pub const NONE: u32 = 0;
    /// By a row.
    pub const ROWS: u32 = 1;
    /// A compiled frame.
    pub const COMPILED: u32 = 2;
    /// A stub, by a row.
    pub const STUB: u32 = 3;
    const KIND_BITS: u32 = 2;
}

/// What this CPU found in its last samples.
#[repr(C)]
pub struct UnwindCache {
    regions: [CachedRegion; REGIONS],
    /// The JVM that was sampled last, and its process's epoch.
    jvm: Jvm,
    jvm_epoch: u64,
    pcs: [CachedPc; PCS],
    pub nmethods: [CachedNmethod; NMETHODS],
}

// Powers of two all of them.
const PCS: usize = 2048;
/// A region has an entry for each MiB.
const REGIONS: usize = 64;
/// An nmethod has an entry for each page of its code.
pub const NMETHODS: usize = 256;

const INTERRUPTED: u64 = 1 << 63;

#[inline(always)]
fn key(here: &Cursor) -> u64 {
    here.pc.0 | if here.exact { INTERRUPTED } else { 0 }
}

/// Reads [`Scratch::process`], and copies the entry of its JVM to the cache unless it is there.
#[inline(always)]
pub fn begin_sample(scratch: &mut Scratch) {
    let epoch = u64::from(scratch.process.epoch);
    if scratch.process.jvm != 0 && scratch.unwind_cache.jvm_epoch != epoch {
        match tables::jvm(scratch.process.jvm) {
            Some(jvm) => (scratch.unwind_cache.jvm, scratch.unwind_cache.jvm_epoch) = (*jvm, epoch),
            None => scratch.process.jvm = 0,
        }
    }
}

/// Returns the JVM of the process that is sampled: [`UnwindCache::jvm`].
#[inline(always)]
pub fn jvm<'a>(scratch: &Scratch) -> Option<&'a Jvm> {
    let jvm = &raw const scratch.unwind_cache.jvm;
    // SAFETY: it stays as it is until the next sample begins.
    (scratch.process.jvm != 0).then_some(unsafe { &*jvm })
}

#[inline(always)]
fn slot(scratch: &mut Scratch, key: u64) -> &mut CachedPc {
    let index = scratch.barrier_var.opaque(mix(0, key)) as usize & (PCS - 1);
    &mut scratch.unwind_cache.pcs[index]
}

/// Copies what is cached of a pc to [`Scratch::rule`] and `cached` of [`Scratch::frame`], and
/// returns its kind.
#[inline(always)]
pub fn get(scratch: &mut Scratch, here: &Cursor) -> u32 {
    let (key, epoch) = (key(here), scratch.process.epoch);
    let slot = slot(scratch, key);
    if slot.pc != key || slot.epoch != epoch {
        return CachedPc::NONE;
    }
    let CachedPc { kind, payload: [first, second], .. } = *slot;
    let delta = u64::from(kind >> CachedPc::KIND_BITS);
    let kind = kind & ((1 << CachedPc::KIND_BITS) - 1);
    match kind {
        CachedPc::ROWS => scratch.rule = PackedRule::from_words([first, second]),
        CachedPc::COMPILED => {
            let blob = here.pc - compiled_delta(first);
            let layout = FrameLayout::from_bits(second);
            scratch.frame.cached = CachedFrame { kind: CachedFrame::COMPILED, blob, word: first, layout };
        }
        _ => {
            let Some(rule) = tables::rule(second as u32) else { return CachedPc::NONE };
            scratch.rule = *rule;
            let layout = FrameLayout::AT_ENTRY;
            let blob = here.pc - delta;
            scratch.frame.cached = CachedFrame { kind: CachedFrame::STUB, blob, word: first, layout };
        }
    }
    kind
}

/// Caches the rule in [`Scratch::rule`].
#[inline(always)]
pub fn insert_rule(scratch: &mut Scratch, here: &Cursor) {
    let payload = scratch.rule.to_words();
    insert(scratch, here, CachedPc::ROWS, payload);
}

/// Caches what [`Scratch::frame`] says of a frame of generated code.
#[inline(always)]
pub fn insert_generated(scratch: &mut Scratch, here: &Cursor) {
    let CachedFrame { kind, blob, word, layout } = scratch.frame.cached;
    if kind == CachedFrame::COMPILED {
        insert(scratch, here, CachedPc::COMPILED, [word, layout.to_bits()]);
    } else if kind == CachedFrame::STUB {
        let Some(jvm) = jvm(scratch) else { return };
        let at = if here.exact { here.pc } else { here.pc - 1 };
        let rule = tables::rule_at(u64::from(jvm.table), at.0 - jvm.code_start);
        let delta = here.pc - blob;
        if delta < 1 << (32 - CachedPc::KIND_BITS) {
            insert(scratch, here, CachedPc::STUB | (delta as u32) << CachedPc::KIND_BITS, [word, rule]);
        }
    }
}

#[inline(always)]
fn insert(scratch: &mut Scratch, here: &Cursor, kind: u32, payload: [u64; 2]) {
    let (key, epoch) = (key(here), scratch.process.epoch);
    *slot(scratch, key) = CachedPc { pc: key, epoch, kind, payload };
}

/// An nmethod that was interrupted lately: most samples hit another instruction of the same few.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CachedNmethod {
    nmethod: Nmethod,
    /// The highest pc that was met in it: what lies between its code's begin and here is its own,
    /// too.
    highest: Avma,
    epoch: u64,
}

#[inline(always)]
fn nmethod_slot<'a>(
    nmethods: &'a mut [CachedNmethod; NMETHODS],
    barrier_var: &mut BarrierVar,
    address: Avma,
) -> &'a mut CachedNmethod {
    let index = barrier_var.opaque(mix(0, address.0 >> 12)) as usize & (NMETHODS - 1);
    &mut nmethods[index]
}

/// Copies the nmethod that was interrupted around this address lately to `into`.
#[inline(always)]
pub fn get_nmethod(
    nmethods: &mut [CachedNmethod; NMETHODS],
    barrier_var: &mut BarrierVar,
    epoch: u32,
    address: Avma,
    into: &mut Nmethod,
) -> bool {
    let cached = nmethod_slot(nmethods, barrier_var, address);
    let is_within = address >= cached.nmethod.code && address <= cached.highest;
    if cached.epoch != u64::from(epoch) || !is_within || cached.nmethod.compile_id == 0 {
        return false;
    }
    *into = cached.nmethod;
    true
}

/// Caches the interrupted nmethod, which [`Scratch::frame`] says.
#[inline(always)]
pub fn insert_nmethod(scratch: &mut Scratch, here: &Cursor) {
    if scratch.frame.nmethod.blob == Avma(0) {
        return;
    }
    let epoch = u64::from(scratch.process.epoch);
    let cached = nmethod_slot(&mut scratch.unwind_cache.nmethods, &mut scratch.barrier_var, here.pc);
    let is_same = cached.epoch == epoch
        && cached.nmethod.blob == scratch.frame.nmethod.blob
        && cached.nmethod.compile_id == scratch.frame.nmethod.compile_id;
    if !is_same || here.pc > cached.highest {
        cached.highest = here.pc;
    }
    cached.epoch = epoch;
    cached.nmethod = scratch.frame.nmethod;
}

/// A region that was found lately.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CachedRegion {
    region: Region,
    epoch: u64,
}

/// Copies the region that holds an address to [`Scratch::region`]; returns false if no region does.
#[inline(always)]
pub fn find_region(scratch: &mut Scratch, address: Avma) -> bool {
    let epoch = u64::from(scratch.process.epoch);
    let index = scratch.barrier_var.opaque(mix(0, address.0 >> 20)) as usize & (REGIONS - 1);
    let slot = &mut scratch.unwind_cache.regions[index];
    if slot.epoch == epoch && address.0 >= slot.region.start && address.0 < slot.region.end {
        scratch.region = slot.region;
        return true;
    }
    let process = scratch.process;
    if !tables::find_region(&process, address, &mut scratch.region) {
        return false;
    }
    scratch.unwind_cache.regions[index] = CachedRegion { region: scratch.region, epoch };
    true
}

/// Hashes of nmethods and interpreted methods that were sampled, on any CPU. What is lost in a race
/// wakes the daemon again.
#[map]
static SEEN: Array<[u64; SEEN_CODE]> = Array::with_max_entries(1, 0);
/// A power of two.
const SEEN_CODE: usize = 65536;

/// Reads [`Scratch::frame`], and sets [`Scratch::has_new_code`] if its Java code wasn't sampled
/// before: the daemon reads what it is called while it is there, once.
#[inline(always)]
pub fn flag_new_code(scratch: &mut Scratch) {
    let [first, second, third] = scratch.frame.words;
    let Some(code) = FrameWord(first).code_identity(second, third) else { return };
    let process = u64::from(scratch.header.pid) << 32 ^ scratch.process.start_ticks;
    let hash = mix(mix(0, process), code);
    let Some(seen) = SEEN.get_ptr_mut(0) else { return };
    let index = scratch.barrier_var.opaque(hash) as usize & (SEEN_CODE - 1);
    // SAFETY: the index is in range, and words are read and written whole.
    let slot = unsafe { &mut (*seen)[index] };
    if *slot != hash {
        *slot = hash;
        scratch.has_new_code = 1;
    }
}
