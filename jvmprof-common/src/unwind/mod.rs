//! The unwinder: one frame at a time, from registers and memory, by the rule of the code that holds the pc.
//!
//! The kernel program and the daemon run this same code. The kernel program reads the live stack and knows what its maps
//! tell it; the daemon reads a copy of the stack and knows unwind rows; tests read recorded snapshots.

pub mod call;
pub mod frame_pointer;
pub mod hotspot;
pub mod memory;
pub mod rows;

use crate::abi::Stop;
use crate::rows::Row;
pub use memory::{Memory, Source, Window};

/// User addresses end below this with five-level page tables (`TASK_SIZE_MAX`, Linux arch/x86/include/asm/page_64_types.h).
pub const USER_ADDRESS_END: u64 = 1 << 56;
/// Nothing is mapped below the smallest `vm.mmap_min_addr`: a smaller value isn't a code address.
pub const USER_ADDRESS_START: u64 = 0x1000;

/// Registers of the frame being looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// rip: the interrupted instruction, or the address that the callee returns to.
    pub pc: u64,
    /// rsp. It only grows from frame to frame, which bounds every walk.
    pub sp: u64,
    /// rbp.
    pub fp: u64,
    /// `pc` is the interrupted instruction itself, not a return address.
    pub exact: bool,
}

/// How to find the caller of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The frame pointer is set up: code of runtimes that keep it, and code without unwind rows.
    FramePointer,
    /// The code's unwind row.
    Row(Row),
    /// No code is known at this pc.
    Unknown,
}

/// What is known of the target's code.
pub trait Code {
    /// The rule at a cursor's pc. For a return address the rule of the call, at `pc - 1`, applies.
    fn rule(&mut self, cursor: &Cursor) -> Rule;
}

/// Code of which nothing is known but that it keeps frame pointers.
#[derive(Debug)]
pub struct FramePointersOnly;

impl Code for FramePointersOnly {
    #[inline(always)]
    fn rule(&mut self, _: &Cursor) -> Rule {
        Rule::FramePointer
    }
}

/// Moves the cursor from a frame to its caller.
///
/// # Errors
/// The reason why there is no caller to be found; the cursor stays where it was.
#[inline(always)]
pub fn step(cursor: &mut Cursor, memory: &mut impl Memory, code: &mut impl Code) -> Result<(), Stop> {
    match code.rule(cursor) {
        Rule::FramePointer => frame_pointer::step(cursor, memory),
        Rule::Row(row) => rows::step(cursor, &row, memory),
        Rule::Unknown => Err(Stop::UnknownCode),
    }
}

/// Could this be an address of user code?
#[inline(always)]
pub const fn is_code_address(address: u64) -> bool {
    address >= USER_ADDRESS_START && address < USER_ADDRESS_END
}
