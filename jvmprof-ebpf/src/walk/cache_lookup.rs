//! Looking the current frame up in the slot's
//! [`UnwindCache`](crate::scratch::unwind_cache::UnwindCache), and inserting it there; and of which
//! Java code the daemon has been woken for.

use aya_ebpf::{helpers::generated::bpf_probe_read_kernel, macros::map, maps::Array};
use jvmprof_common::{
    address::Avma,
    frame::{FrameWord, compiled_delta, mix},
    jvm::Jvm,
    unwind::{
        Cursor,
        hotspot::{cached_frames::CachedFrame, frame_layout::FrameLayout},
    },
    unwind_tables::PackedRule,
};

use crate::{
    scratch::{
        Scratch,
        unwind_cache::{CachedPc, CachedRegion, PCS, REGIONS, nmethod_slot},
    },
    tables,
};

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
            Some(jvm) if copy(jvm, &mut scratch.unwind_cache.jvm) => scratch.unwind_cache.jvm_epoch = epoch,
            _ => scratch.process.jvm = 0,
        }
    }
}

/// Copies an entry by a helper: the compiler's copy needs more stack than there is. Returns false
/// if it failed.
#[inline(always)]
fn copy(from: &Jvm, to: &mut Jvm) -> bool {
    // SAFETY: both have this size; the helper reads any kernel address without faulting.
    unsafe {
        bpf_probe_read_kernel((&raw mut *to).cast(), size_of::<Jvm>() as u32, (&raw const *from).cast()) == 0
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
        let rule = tables::rule_at(scratch.slot.to_argument(), u64::from(jvm.table), at.0 - jvm.code_start);
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
