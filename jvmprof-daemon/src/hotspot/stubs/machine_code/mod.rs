//! Abstract interpretation of machine code: each instruction's effect on the places of return
//! address, frame pointer and caller's stack pointer, followed along all paths.

mod apx_instructions;
pub(super) mod control_flow;
pub(super) mod frame_state;
pub(super) mod instruction_effects;
pub(super) mod relocatable_fields;
mod rows_by_offset;
