//! Reports on standard output.

use std::io::{self, Write};

/// Writes a report to standard output. A reader that closes the pipe early, as `head` does, is no
/// error.
pub(super) fn print_report(report: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
