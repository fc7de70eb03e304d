//! Lines on standard error, for people. Where it is closed or full they are lost and nothing else:
//! `eprintln!` panics there, and a recording would lose its files and its command's exit code.

use std::fmt;
use std::io::{self, Write as _};

use super::terminal_text;

/// Like `eprintln!`, for a standard error that may be closed or full.
macro_rules! stderr_line {
    ($($text:tt)*) => {
        $crate::own_process::write_stderr_line(format_args!($($text)*))
    };
}
pub(crate) use stderr_line;

/// Writes a line to standard error; an error of the write is ignored. What a terminal would obey
/// is written out: errors and summaries have names in them that other processes chose.
pub fn write_stderr_line(line: fmt::Arguments<'_>) {
    let text = format!("{line}\n");
    // At once: a line that is written in parts could be cut by those of other threads.
    let _ = io::stderr().lock().write_all(terminal_text::lines(&text).as_bytes());
}
