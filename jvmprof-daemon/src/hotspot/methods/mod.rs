//! Java methods: identity, names, line tables, bytecodes, and whether their classes were unloaded.

pub(crate) mod bytecodes;
pub(crate) mod call_operands;
pub mod class_names;
pub(crate) mod class_unloading;
pub mod line_table;
pub(crate) mod method;
