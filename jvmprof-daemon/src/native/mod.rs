//! Native code: ELF files, their build ids, symbols and unwind rows, and the kernel's own symbols.
//!
//! Everything here reads files that others wrote, so it is written for hostile input: every read is
//! bounded, nothing is mapped into memory (a file cut short while mapped would raise SIGBUS), and
//! what can't be used is a typed error or a counter, never a panic.

pub mod build_id;
pub mod cache;
mod compressed;
pub mod debug_directory;
pub mod debug_files;
pub mod debuginfod;
pub mod demangle;
pub mod elf;
pub mod extract;
pub mod functions;
mod go;
pub mod gopclntab;
pub(crate) mod http;
pub mod lines;
pub mod offers;
pub mod open;
pub mod rows;
pub mod source;
pub mod symbols;
mod symbols_names;
mod symbols_table;
