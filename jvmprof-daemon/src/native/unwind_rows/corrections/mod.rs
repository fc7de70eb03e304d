//! Functions whose call frame information is wrong or missing where it matters, and the rows that
//! replace it.

pub(super) mod after_sigreturn;
pub(super) mod cfi_pattern_search;
pub(super) mod clone_return;
pub(super) mod dl_runtime_resolve;
pub(super) mod landing_pads;
pub(super) mod libgcc_eh_return;
pub(super) mod missing_epilogues;
pub(super) mod row_overrides;
