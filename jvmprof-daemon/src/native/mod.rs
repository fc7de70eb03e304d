//! Native code: ELF files, their build ids, symbols, unwind rows and lines.
//!
//! - `elf`, `byte_source`, `paged_reader`, `open_file`: how a file of another process is opened and
//!   parsed;
//! - `file_identity`, `file_cache`: what tells files apart, and what is kept of each;
//! - `unwind_rows`: how stacks of native code are walked; `go`: the tables of Go programs;
//! - `symbols`, `function_symbols`, `dwarf_lines`, `demangle`: names of functions, and their lines;
//! - `debug_files`, `debuginfod`: where the symbols of stripped files are found or fetched;
//! - `upload`: what is sent to a server that names addresses itself.
//!
//! Everything here reads files that others wrote, so it is written for hostile input: every read is
//! bounded, nothing is mapped into memory (a file cut short while mapped would raise SIGBUS), and
//! what can't be used is a typed error or a counter, never a panic.

pub mod byte_source;
pub mod debug_files;
pub mod debuginfod;
pub mod dwarf_lines;
pub mod elf;
pub mod file_cache;
pub mod file_identity;
pub mod function_symbols;
pub mod go;
pub(crate) mod http_client;
pub mod open_file;
mod paged_reader;
pub mod symbols;
pub mod unwind_rows;
pub mod upload;
