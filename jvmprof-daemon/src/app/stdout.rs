//! Reports on standard output.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;

/// Prints a report for people, or as a line of JSON.
pub(super) fn print_text_or_json(report: &(impl Display + Serialize), json: bool) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::to_string(report).context("cannot encode the report")? + "\n",
        false => report.to_string(),
    };
    Ok(print_report(&text)?)
}

/// Writes a report to standard output. A reader that closes the pipe early, as `head` does, is no
/// error.
pub(super) fn print_report(report: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
