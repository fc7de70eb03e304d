//! Completion of stacks that the kernel program could not walk to their roots.

mod code_rules;
pub(super) mod completer;
pub(super) mod remapped_code;
pub(super) mod resumed_walk;
pub(super) mod whole_stacks;
