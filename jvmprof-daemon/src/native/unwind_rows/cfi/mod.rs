//! Call frame information of DWARF: `.eh_frame` and `.debug_frame`.

pub(super) mod dwarf_rules;
pub(super) mod fde_index;
pub(super) mod stripped_section_headers;
