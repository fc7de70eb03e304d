//! The unwinder: one frame at a time, from registers and memory, by the rule of the code that holds
//! the pc.
//!
//! The kernel program and the daemon run this same code. The kernel program reads the live stack
//! and knows what its tables say; the daemon reads a copy of the stack and knows unwind rows; tests
//! read recorded snapshots.
//!
//! - A frame of native code is left by its unwind row ([`row_stepper`]), or by its frame pointer
//!   ([`frame_pointer_stepper`]); [`step`] takes either.
//! - A frame of HotSpot's generated code is left by what the JVM itself says of it ([`hotspot`]).
//! - Steppers read the process through [`Memory`], in the kernel program through a [`StackWindow`].
//! - [`crate::verifier`] says what is written as it is for the sake of the eBPF verifier.

pub mod breakpoint;
pub mod call_instruction;
pub mod frame_pointer_stepper;
pub mod hotspot;
pub mod memory;
pub mod row_stepper;

use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::rows::Row;
pub use memory::{Memory, StackWindow, WindowSource};

/// User addresses end below this with five-level page tables (`TASK_SIZE_MAX`, Linux
/// arch/x86/include/asm/page_64_types.h).
pub const USER_ADDRESS_END: u64 = 1 << 56;
/// Nothing is mapped below the smallest `vm.mmap_min_addr`: a smaller value isn't a code address.
pub const USER_ADDRESS_START: u64 = 0x1000;

/// Registers of the current frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// rip: the interrupted instruction, or the address that the callee returns to.
    pub pc: Avma,
    /// rsp. It only grows from frame to frame, which bounds every walk.
    pub sp: StackAddress,
    /// rbp.
    pub fp: StackAddress,
    /// True if `pc` is the interrupted instruction itself, not a return address.
    pub exact: bool,
}

impl Cursor {
    /// Returns the cursor of an interrupted frame, by its registers.
    #[inline(always)]
    pub const fn interrupted(rip: u64, rsp: u64, rbp: u64) -> Self {
        Self { pc: Avma(rip), sp: StackAddress(rsp), fp: StackAddress(rbp), exact: true }
    }
}

/// The rule that finds the caller of a frame of native code. For a return address the rule of the
/// call, at `pc - 1`, applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindRule {
    /// The frame pointer is set up: code of runtimes that keep it, and code without unwind rows.
    FramePointer,
    /// The code's unwind row.
    Row(Row),
    /// No code is known at this pc.
    Unknown,
}

/// Moves the cursor from a frame to its caller.
///
/// # Errors
/// The reason why there is no caller to be found; the cursor stays where it was.
#[inline(always)]
pub fn step(cursor: &mut Cursor, memory: &mut impl Memory, rule: &UnwindRule) -> Result<(), Stop> {
    match rule {
        UnwindRule::FramePointer => frame_pointer_stepper::step(cursor, memory),
        UnwindRule::Row(row) => row_stepper::step(cursor, row, memory),
        UnwindRule::Unknown => Err(Stop::UnknownCode),
    }
}

/// Returns true if this may be an address of user code.
#[inline(always)]
pub const fn is_code_address(address: Avma) -> bool {
    address.0 >= USER_ADDRESS_START && address.0 < USER_ADDRESS_END
}
