//! Native code: ELF files, their build ids, symbols, unwind rows and lines.
//!
//! - `elf`, `byte_source`, `paged_reader`, `open_file`: opening and parsing a file of another
//!   process;
//! - `file_identity`, `file_cache`: keys of files, and the cache of their data, part of which
//!   outlives this program;
//! - `unwind_rows`: rows by which stacks of native code are walked; `go`: the tables of Go
//!   programs;
//! - `symbols`, `function_symbols`, `dwarf_lines`, `demangle`: names of functions, and their lines;
//! - `debug_files`, `debuginfod`: symbols of stripped files, found or fetched;
//! - `debug_files_to_upload`: debug information for servers that resolve addresses themselves.
//!
//! Everything here reads untrusted files, so it is written for hostile input: every read is
//! bounded, nothing is mapped into memory (a file truncated while mapped would raise SIGBUS), and a
//! failure is a typed error or a counter, never a panic. `docs/native.md` has a table of the
//! limits.

pub mod byte_source;
pub mod debug_files;
pub mod debug_files_to_upload;
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
