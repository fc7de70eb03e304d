//! Completion of stacks that the kernel program could not walk to their roots.

pub(super) mod completer;
pub(super) mod load_budget;
pub(super) mod remapped_code;
pub(super) mod resumed_walk;
pub(super) mod single_row_lookup;
pub(super) mod whole_stacks;
