//! The tables by which a JVM describes itself, and the field offsets that come from them.

pub(crate) mod exported_symbols;
pub(crate) mod field_offsets;
pub(crate) mod symtab_variables;
mod tables;

pub use exported_symbols::Image;
pub use tables::VmStructs;
