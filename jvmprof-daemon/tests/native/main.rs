//! Reading of programs, libraries and their debug files: ELF, symbols, unwind rows, hostile files.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod debug_files;
mod debuginfod;
mod elf;
mod go;
mod hostile;
mod memory;
mod rows_on_disk;
#[path = "../support/mod.rs"]
mod support;
mod symbols;
mod unwind_rows;
