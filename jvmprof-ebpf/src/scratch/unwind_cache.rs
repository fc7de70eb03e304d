//! Per-CPU cache of resolved pcs: how to leave the frames of the last samples.
//! [`crate::walk::cache_lookup`] looks frames up.
//!
//! Resolving a pc anew reads some dozen words all over memory, which a sample a hundredth of a
//! second later finds in no cache of the CPU. So this cache keeps what was found side by side. An
//! entry holds for one *epoch* of its process
//! ([`ProcessEntry::epoch`](jvmprof_common::unwind_tables::ProcessEntry)): each publish of the
//! process makes all older ones invalid.

use jvmprof_common::{
    address::Avma, frame::mix, jvm::Jvm, unwind::hotspot::cached_frames::Nmethod, unwind_tables::Region,
    verifier::BarrierVar,
};

/// The way to leave the frame at one pc. Two of them lie in a line of the CPU's caches.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CachedPc {
    /// With its top bit set if it was interrupted.
    pub pc: u64,
    pub epoch: u32,
    /// One of those below, and a stub's bytes from its blob's begin to the pc above.
    pub kind: u32,
    /// The words of a rule; or a compiled frame's second word and layout; or the address of a
    /// stub's name and the number of its rule.
    pub payload: [u64; 2],
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
    pub const KIND_BITS: u32 = 2;
}

/// The caches of one CPU.
#[repr(C)]
pub struct UnwindCache {
    pub regions: [CachedRegion; REGIONS],
    /// The JVM that was sampled last, and its process's epoch.
    pub jvm: Jvm,
    pub jvm_epoch: u64,
    pub pcs: [CachedPc; PCS],
    pub nmethods: [CachedNmethod; NMETHODS],
}

// Powers of two all of them.
pub const PCS: usize = 2048;
/// A region has an entry for each MiB.
pub const REGIONS: usize = 64;
/// An nmethod has an entry for each page of its code.
pub const NMETHODS: usize = 256;

/// An nmethod that was interrupted lately: most samples hit another instruction of the same few.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CachedNmethod {
    pub nmethod: Nmethod,
    /// The highest pc that was sampled in it: what lies between its code's begin and here is its
    /// own, too.
    pub highest: Avma,
    pub epoch: u64,
}

#[inline(always)]
pub fn nmethod_slot<'a>(
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

/// A region that was found lately.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CachedRegion {
    pub region: Region,
    pub epoch: u64,
}
