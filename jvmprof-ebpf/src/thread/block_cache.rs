//! Cache of where threads have their block of a module's variables.
//!
//! Finding it takes two of the four reads of the thread's memory that a context costs there. The
//! loader frees a block when its library is closed, which the daemon hears of by the mappings that
//! come and go: it publishes the process anew then, in another epoch. What is cached holds for a
//! second at most all the same.

use jvmprof_common::{address::Avma, thread_local::ThreadLocalVariable, unwind::verifier::BarrierVar};

/// A power of two.
const BLOCKS: usize = 128;

const LIFETIME_NS: u64 = 1_000_000_000;

/// The block of a thread.
#[repr(C)]
#[derive(Clone, Copy)]
struct CachedBlock {
    thread: ThreadKey,
    block: Avma,
    /// When it was found: [`jvmprof_common::abi::SampleHeader::time_ns`].
    found_ns: u64,
}

/// A thread and the module that its block is of.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ThreadKey {
    /// `task_struct.start_boottime` of the thread, ns.
    start_ns: u64,
    tid: u32,
    /// [`jvmprof_common::unwind_tables::ProcessEntry::epoch`], never 0.
    epoch: u32,
    module: u64,
}

impl ThreadKey {
    #[inline(always)]
    pub fn new(tid: u32, start_ns: u64, epoch: u32, variable: &ThreadLocalVariable) -> Self {
        Self { start_ns, tid, epoch, module: u64::from(variable.module) }
    }
}

#[repr(C)]
pub struct BlockCache([CachedBlock; BLOCKS]);

impl BlockCache {
    #[inline(always)]
    fn slot(&mut self, thread: ThreadKey, barrier_var: &mut BarrierVar) -> &mut CachedBlock {
        &mut self.0[barrier_var.opaque(u64::from(thread.tid)) as usize & (BLOCKS - 1)]
    }

    /// Returns what was cached for a thread less than [`LIFETIME_NS`] ago.
    #[inline(always)]
    pub fn get(&mut self, thread: ThreadKey, now_ns: u64, barrier_var: &mut BarrierVar) -> Option<Avma> {
        let cached = self.slot(thread, barrier_var);
        let is_cached = cached.thread == thread && now_ns.wrapping_sub(cached.found_ns) < LIFETIME_NS;
        is_cached.then_some(cached.block)
    }

    #[inline(always)]
    pub fn insert(&mut self, thread: ThreadKey, block: Avma, now_ns: u64, barrier_var: &mut BarrierVar) {
        *self.slot(thread, barrier_var) = CachedBlock { thread, block, found_ns: now_ns };
    }
}
