//! The code cache: its code heaps and blobs, the interpreter's codelets, nmethods and their debug
//! information.

pub mod code_heaps;
pub mod interpreter_codelets;
pub(crate) mod nmethod;
pub mod scope_descs;
pub mod unsigned5;
