//! The kinds of programs that the unwinder runs in. A program array holds programs of one type, and
//! each kind has scratch memory that no other touches.

use aya_ebpf::{
    EbpfContext,
    cty::c_void,
    macros::map,
    maps::ProgramArray,
    programs::{PerfEventContext, ProbeContext, RawTracePointContext},
};
use jvmprof_common::abi::Event;

use crate::scratch::ScratchSlot;

/// Targets of the clock's tail calls: entry 0 is `leaf`, entry 1 `unwind`, entry 2 `frozen`.
#[map]
static PROGRAMS: ProgramArray = ProgramArray::with_max_entries(3, 0);

/// The same of uprobes: `probe_leaf`, `probe_unwind`, `probe_frozen`.
#[map]
static PROBE_PROGRAMS: ProgramArray = ProgramArray::with_max_entries(3, 0);

/// The same of waits: `wait_leaf`, `wait_unwind`, `wait_frozen`.
#[map]
static WAIT_PROGRAMS: ProgramArray = ProgramArray::with_max_entries(3, 0);

/// Entries of the arrays.
pub const LEAF: u32 = 0;
pub const UNWIND: u32 = 1;
pub const FROZEN: u32 = 2;

/// The context of a kind of programs.
pub trait ProgramKind: EbpfContext + Sized {
    /// The event that its samples are of.
    const EVENT: Event;

    /// Returns the context at this address.
    fn from_ptr(ctx: *mut c_void) -> Self;

    /// Returns the slot of the run that is under way.
    fn slot() -> Option<ScratchSlot>;

    /// Ends the run.
    fn release(slot: ScratchSlot);

    /// Continues in another program; returns only if that isn't possible.
    fn tail_call(&self, program: u32);
}

impl ProgramKind for PerfEventContext {
    const EVENT: Event = Event::Cpu;

    #[inline(always)]
    fn from_ptr(ctx: *mut c_void) -> Self {
        Self::new(ctx.cast())
    }

    #[inline(always)]
    fn slot() -> Option<ScratchSlot> {
        Some(ScratchSlot::of_clock())
    }

    #[inline(always)]
    fn release(_slot: ScratchSlot) {}

    #[inline(always)]
    fn tail_call(&self, program: u32) {
        // SAFETY: the programs of the array have this context's type; a missing entry makes the
        // call return.
        unsafe { PROGRAMS.tail_call(self, program) };
    }
}

impl ProgramKind for ProbeContext {
    const EVENT: Event = Event::Allocation;

    #[inline(always)]
    fn from_ptr(ctx: *mut c_void) -> Self {
        Self::new(ctx)
    }

    #[inline(always)]
    fn slot() -> Option<ScratchSlot> {
        ScratchSlot::claimed()
    }

    #[inline(always)]
    fn release(slot: ScratchSlot) {
        slot.release();
    }

    #[inline(always)]
    fn tail_call(&self, program: u32) {
        // SAFETY: as above.
        unsafe { PROBE_PROGRAMS.tail_call(self, program) };
    }
}

/// The end of a wait, at a tracepoint.
impl ProgramKind for RawTracePointContext {
    const EVENT: Event = Event::OffCpu;

    #[inline(always)]
    fn from_ptr(ctx: *mut c_void) -> Self {
        Self::new(ctx)
    }

    #[inline(always)]
    fn slot() -> Option<ScratchSlot> {
        ScratchSlot::claimed_for_wait()
    }

    #[inline(always)]
    fn release(slot: ScratchSlot) {
        slot.release();
    }

    #[inline(always)]
    fn tail_call(&self, program: u32) {
        // SAFETY: as above.
        unsafe { WAIT_PROGRAMS.tail_call(self, program) };
    }
}
