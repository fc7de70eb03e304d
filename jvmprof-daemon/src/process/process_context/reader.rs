//! Finding a process's context in its mappings, and reading it.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSliceMut, Read};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::header::ContextHeader;
use super::payload::decode;
use super::{ContextError, ProcessContext};
use crate::types::Avma;

/// Names of the mapping: shared or private memory that was named, and a memory file, unlinked as
/// all are.
const NAMES: [&[u8]; 3] = [b"[anon_shmem:OTEL_CTX]", b"[anon:OTEL_CTX]", b"/memfd:OTEL_CTX (deleted)"];

/// Mappings of one process that are tried. There should be only one.
pub(in crate::process) const MAX_CONTEXTS: usize = 4;

/// Most bytes of `/proc/PID/maps` that are searched.
const MAX_MAPS_BYTES: u64 = 32 << 20;

/// Attempts to read a context while it is being written.
const ATTEMPTS: usize = 3;

/// Returns the address of a context's mapping, if a line of `/proc/PID/maps` is of one.
pub(in crate::process) fn context_mapping(line: &[u8]) -> Option<Avma> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    // Most lines end here.
    let name = NAMES.iter().find(|name| line.ends_with(name))?;
    // Five fields, then blanks, then the name.
    let fields = line.get(..line.len() - name.len())?;
    let is_name =
        fields.ends_with(b" ") && fields.split(|it| *it == b' ').filter(|it| !it.is_empty()).count() == 5;
    let start = fields.split(|it| *it == b'-').next()?;
    let start = u64::from_str_radix(str::from_utf8(start).ok()?, 16).ok()?;
    is_name.then_some(Avma(start))
}

/// Returns the addresses of the mappings that may hold a process's context; none if its mappings
/// can't be read.
pub(in crate::process) fn search(pid: u32) -> Vec<Avma> {
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let (mut maps, mut line) = (BufReader::new(file.take(MAX_MAPS_BYTES)), Vec::new());
    let mut found = Vec::new();
    while found.len() < MAX_CONTEXTS {
        line.clear();
        if !matches!(maps.read_until(b'\n', &mut line), Ok(1..)) {
            break;
        }
        found.extend(context_mapping(&line));
    }
    found
}

/// Reads the header at an address.
///
/// # Errors
/// See [`ContextHeader::parse`]; [`ContextError::Unreadable`].
pub(super) fn read_header(pid: u32, at: Avma) -> Result<ContextHeader, ContextError> {
    let mut bytes = [0; ContextHeader::SIZE];
    read_memory(pid, at, &mut bytes)?;
    ContextHeader::parse(&bytes)
}

/// Reads the context whose header is at an address, and the header that belongs to it.
///
/// # Errors
/// See [`ContextError`].
pub(super) fn read(pid: u32, at: Avma) -> Result<(ContextHeader, ProcessContext), ContextError> {
    let mut last = ContextError::Torn;
    for _ in 0..ATTEMPTS {
        match read_once(pid, at) {
            // The payload may be gone, too, when another one has been published.
            Err(error @ (ContextError::Torn | ContextError::Unreadable)) => last = error,
            result => return result,
        }
    }
    Err(last)
}

fn read_once(pid: u32, at: Avma) -> Result<(ContextHeader, ProcessContext), ContextError> {
    let before = read_header(pid, at)?;
    let mut payload = vec![0; before.payload_size as usize];
    read_memory(pid, before.payload, &mut payload)?;
    if read_header(pid, at)? != before {
        return Err(ContextError::Torn);
    }
    Ok((before, decode(&payload)?))
}

fn read_memory(pid: u32, at: Avma, into: &mut [u8]) -> Result<(), ContextError> {
    let len = into.len();
    let base = usize::try_from(at.0).map_err(|_| ContextError::Unreadable)?;
    let pid = Pid::from_raw(pid.cast_signed());
    let read = process_vm_readv(pid, &mut [IoSliceMut::new(into)], &[RemoteIoVec { base, len }]);
    if read == Ok(len) { Ok(()) } else { Err(ContextError::Unreadable) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_found_by_the_name_of_its_mapping() {
        for (line, expected) in [
            (&b"7f00-7f02 r--s 00000000 00:01 2   [anon_shmem:OTEL_CTX]\n"[..], Some(0x7f00)),
            (b"7f00-7f02 r--p 00000000 00:00 0                  [anon:OTEL_CTX]\n", Some(0x7f00)),
            (b"7f00-7f02 r--p 00000000 00:01 7    /memfd:OTEL_CTX (deleted)\n", Some(0x7f00)),
            (b"7f00-7f02 r--p 00000000 00:01 7    /memfd:OTEL_CTX (deleted)", Some(0x7f00)),
            (b"7f00-7f02 r--p 00000000 08:01 7    /memfd:OTEL_CTX\n", None),
            (b"7f00-7f02 r--p 00000000 08:01 7    /x [anon:OTEL_CTX]\n", None),
            (b"7f00-7f02 r--p 00000000 08:01 7    /x/memfd:OTEL_CTX (deleted)\n", None),
            (b"7f00-7f02 r--p 00000000 00:00 0    [anon:OTEL_CTX2]\n", None),
            (b"7f00-7f02 r--p 00000000 00:00 0 \n", None),
            (b"[anon:OTEL_CTX]", None),
            (b" [anon:OTEL_CTX]", None),
            (b"", None),
        ] {
            assert_eq!(context_mapping(line), expected.map(Avma), "{}", line.escape_ascii());
        }
    }
}
