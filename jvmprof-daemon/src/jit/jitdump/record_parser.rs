//! Parsing of a jitdump's header and records.
//!
//! Layout: Linux `tools/perf/Documentation/jitdump-specification.txt`, version 1. Everything is in
//! the writer's byte order, which the magic number shows.

use std::sync::Arc;

use crate::jit::code_unwind_rows::MAX_EH_FRAME;
use crate::jit::name_formats::printable;
use crate::jit::timeline::CodeLines;
use crate::types::Avma;

/// Bytes of the file's header that are used.
pub(super) const HEADER_BYTES: usize = 40;
/// Bytes of a record's header: id, size, time.
pub(super) const RECORD_HEADER_BYTES: usize = 16;

const MAGIC: u32 = 0x4A69_5444;
const VERSION: u32 = 1;
/// Value of `EM_X86_64` in elf.h.
const MACHINE: u32 = 62;
/// Value of `EM_NONE` in elf.h.
const NO_MACHINE: u32 = 0;
/// Flag `JITDUMP_FLAGS_ARCH_TIMESTAMP`: times are those of the CPU's counter.
const FLAG_ARCH_TIMESTAMP: u64 = 1;
/// Largest code that is accepted, as for perf maps, in bytes.
const MAX_CODE: u64 = 256 << 20;
const MAX_ADDRESS: u64 = 1 << 56;
/// Most source files of one record.
const MAX_FILES: usize = 1024;

/// Error of a file that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JitDumpHeaderError {
    #[error("parsing the jitdump: its magic number is {0:#x}, not 0x4A695444")]
    Magic(u32),
    #[error("parsing the jitdump: its version {0} isn't supported")]
    Version(u32),
    #[error("parsing the jitdump: its ELF machine {0} isn't x86-64")]
    Machine(u32),
    #[error("parsing the jitdump: its times are those of the CPU's counter, which can't be converted")]
    ArchTimestamps,
}

impl JitDumpHeaderError {
    /// Returns a short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Magic(_) => "no jitdump",
            Self::Version(_) => "unknown version",
            Self::Machine(_) => "other machine",
            Self::ArchTimestamps => "CPU timestamps",
        }
    }
}

/// The writer's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

/// The file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) order: ByteOrder,
    /// Offset of the first record.
    pub(super) size: u32,
    /// Pid in the writer's own namespace.
    pub(super) pid: u32,
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JitdumpRecordHeader {
    pub(super) id: u32,
    /// Size in bytes with this header: at least [`RECORD_HEADER_BYTES`].
    pub(super) size: u32,
    pub(super) time_ns: u64,
}

impl JitdumpRecordHeader {
    /// Returns the bytes after the header that are needed to parse the record: the code itself
    /// isn't.
    pub(super) fn needed(&self, max_name: usize, max_lines: usize) -> usize {
        let most = match self.id {
            CODE_LOAD => 40 + max_name + 1,
            DEBUG_INFO => max_lines,
            UNWINDING_INFO => 24 + MAX_EH_FRAME,
            _ => 64,
        };
        most.min(self.size as usize - RECORD_HEADER_BYTES)
    }
}

/// A parsed record. Addresses are user addresses, sizes not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JitDumpRecord {
    Load {
        address: Avma,
        size: u32,
        name: String,
        /// The name is longer than allowed.
        is_cut: bool,
    },
    /// Code without a name, or code that was moved from impossible addresses.
    UnnamedCode {
        address: Avma,
        size: u32,
    },
    Move {
        from: Avma,
        to: Avma,
        size: u32,
    },
    /// Lines of the code that will be loaded at `address`.
    Lines {
        address: Avma,
        lines: CodeLines,
    },
    /// The `.eh_frame` of the code that will be loaded; empty if it has none.
    Unwinding {
        eh_frame: Box<[u8]>,
    },
    Close,
    /// A record of an unknown id.
    Other,
}

const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;
const UNWINDING_INFO: u32 = 4;

/// Parses the file's header.
pub(super) fn file_header(bytes: &[u8; HEADER_BYTES]) -> Result<FileHeader, JitDumpHeaderError> {
    let mut fields = RecordFields { bytes, order: ByteOrder::Little };
    let magic = fields.u32().unwrap_or_default();
    fields.order = match magic {
        MAGIC => ByteOrder::Little,
        _ if magic.swap_bytes() == MAGIC => ByteOrder::Big,
        _ => return Err(JitDumpHeaderError::Magic(magic)),
    };
    let mut next = || fields.u32().unwrap_or_default();
    let (version, size, machine, _, pid) = (next(), next(), next(), next(), next());
    let _time = fields.u64();
    let flags = fields.u64().unwrap_or_default();
    if version != VERSION {
        return Err(JitDumpHeaderError::Version(version));
    }
    // CPython 3.13.0 leaves the field empty. Its code is of this machine.
    if machine != MACHINE && machine != NO_MACHINE {
        return Err(JitDumpHeaderError::Machine(machine));
    }
    if flags & FLAG_ARCH_TIMESTAMP != 0 {
        return Err(JitDumpHeaderError::ArchTimestamps);
    }
    Ok(FileHeader { order: fields.order, size: size.max(HEADER_BYTES as u32), pid })
}

/// Parses a record's header; `None` if it can't be one.
pub(super) fn record_header(
    bytes: &[u8; RECORD_HEADER_BYTES],
    order: ByteOrder,
) -> Option<JitdumpRecordHeader> {
    let mut fields = RecordFields { bytes, order };
    let header = JitdumpRecordHeader { id: fields.u32()?, size: fields.u32()?, time_ns: fields.u64()? };
    (header.size as usize >= RECORD_HEADER_BYTES).then_some(header)
}

/// Parses the bytes after a record's header, of the length of [`JitdumpRecordHeader::needed`];
/// `None` if they are malformed.
pub(super) fn record(id: u32, body: &[u8], order: ByteOrder, max_name: usize) -> Option<JitDumpRecord> {
    let mut fields = RecordFields { bytes: body, order };
    Some(match id {
        CODE_LOAD => {
            fields.skip(16)?; // pid, tid, and the address in the writer's own view.
            let (address, size) = (fields.u64()?, fields.u64()?);
            fields.skip(8)?; // A number for the code.
            let (address, size) = (Avma(address), code_size(address, size)?);
            let (name, is_cut) = match fields.text(max_name) {
                Some(name) => (name, false),
                None if fields.bytes.len() > max_name => (&fields.bytes[..max_name], true),
                None => return Some(JitDumpRecord::UnnamedCode { address, size }),
            };
            JitDumpRecord::Load { address, size, name: printable(name).into_owned(), is_cut }
        }
        CODE_MOVE => {
            fields.skip(16)?;
            let (from, to, size) = (fields.u64()?, fields.u64()?, fields.u64()?);
            let size_there = code_size(to, size)?;
            match code_size(from, size) {
                Some(size) => JitDumpRecord::Move { from: Avma(from), to: Avma(to), size },
                None => JitDumpRecord::UnnamedCode { address: Avma(to), size: size_there },
            }
        }
        DEBUG_INFO => {
            let address = fields.u64()?;
            let count = fields.u64()?;
            let lines = debug_lines(&mut fields, address, count, max_name);
            JitDumpRecord::Lines { address: Avma(address), lines }
        }
        UNWINDING_INFO => {
            // All of it, and the `.eh_frame_hdr` at its end, which isn't needed for one function.
            let (data, header) = (fields.u64()?, fields.u64()?);
            fields.skip(8)?; // How much of it the writer has mapped.
            let bytes = usize::try_from(data.checked_sub(header)?).ok()?;
            JitDumpRecord::Unwinding { eh_frame: fields.bytes.get(..bytes)?.into() }
        }
        CODE_CLOSE => JitDumpRecord::Close,
        _ => JitDumpRecord::Other,
    })
}

fn code_size(address: u64, size: u64) -> Option<u32> {
    let fits = size > 0 && size <= MAX_CODE && address.checked_add(size)? <= MAX_ADDRESS;
    fits.then_some(u32::try_from(size).ok()?)
}

/// Parses source lines up to the first malformed one.
fn debug_lines(fields: &mut RecordFields<'_>, start: u64, count: u64, max_name: usize) -> CodeLines {
    let mut lines = CodeLines::default();
    for _ in 0..count {
        let Some((address, line)) = fields.u64().zip(fields.u32()) else { break };
        if fields.skip(4).is_none() {
            break;
        }
        let Some(name) = fields.text(max_name) else { break };
        // A byte 0xff stands for the file of the entry before.
        if name != b"\xff" || lines.files.is_empty() {
            let name = printable(name);
            if lines.files.last().is_none_or(|last| **last != *name) {
                if lines.files.len() >= MAX_FILES {
                    break;
                }
                lines.files.push(Arc::from(name));
            }
        }
        let offset = address.checked_sub(start).and_then(|offset| u32::try_from(offset).ok());
        if let Some(offset) = offset {
            lines.rows.push((offset, line, lines.files.len() as u32 - 1));
        }
    }
    lines.rows.sort_by_key(|place| place.0);
    lines.rows.shrink_to_fit();
    lines
}

struct RecordFields<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl<'a> RecordFields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take()?;
        Some(match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    fn u64(&mut self) -> Option<u64> {
        let bytes = self.take()?;
        Some(match self.order {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        })
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.bytes = self.bytes.get(bytes..)?;
        Some(())
    }

    /// Takes a text that ends in a zero byte, which isn't part of it.
    fn text(&mut self, longest: usize) -> Option<&'a [u8]> {
        let end = self.bytes.iter().take(longest + 1).position(|byte| *byte == 0)?;
        let text = &self.bytes[..end];
        self.bytes = &self.bytes[end + 1..];
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_bytes(order: ByteOrder, version: u32, machine: u32, flags: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::new();
        let mut put = |words: &[u32]| {
            for word in words {
                bytes.extend(if order == ByteOrder::Little {
                    word.to_le_bytes()
                } else {
                    word.to_be_bytes()
                });
            }
        };
        put(&[MAGIC, version, 40, machine, 0, 7]);
        for word in [99u64, flags] {
            bytes.extend(if order == ByteOrder::Little { word.to_le_bytes() } else { word.to_be_bytes() });
        }
        bytes.try_into().expect("40 bytes")
    }

    #[test]
    fn both_byte_orders_are_read() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let expected = FileHeader { order, size: 40, pid: 7 };
            assert_eq!(file_header(&header_bytes(order, 1, MACHINE, 0)), Ok(expected));
        }
    }

    #[test]
    fn what_cant_be_used_is_refused_by_name() {
        let parse =
            |version, machine, flags| file_header(&header_bytes(ByteOrder::Little, version, machine, flags));
        assert_eq!(parse(2, MACHINE, 0), Err(JitDumpHeaderError::Version(2)));
        assert!(parse(1, NO_MACHINE, 0).is_ok());
        assert_eq!(parse(1, 183, 0), Err(JitDumpHeaderError::Machine(183)));
        assert_eq!(parse(1, MACHINE, 1), Err(JitDumpHeaderError::ArchTimestamps));
        assert_eq!(file_header(&[0; HEADER_BYTES]), Err(JitDumpHeaderError::Magic(0)));
    }

    #[test]
    fn lines_keep_their_file_until_another_is_named() {
        let mut body = [0x1000u64.to_le_bytes(), 3u64.to_le_bytes()].concat();
        for (address, line, file) in
            [(0x1008u64, 4u32, &b"b.c\0"[..]), (0x1000, 3, b"\xff\0"), (0x1010, 9, b"a.c\0")]
        {
            body.extend(address.to_le_bytes());
            body.extend(line.to_le_bytes());
            body.extend([0; 4]);
            body.extend(file);
        }
        let Some(JitDumpRecord::Lines { address: Avma(0x1000), lines }) =
            record(DEBUG_INFO, &body, ByteOrder::Little, 100)
        else {
            panic!("no lines")
        };
        let at = |offset| lines.at(offset).map(|(file, line)| (&**file, line));
        assert_eq!((at(0), at(8), at(0x50)), (Some(("b.c", 3)), Some(("b.c", 4)), Some(("a.c", 9))));
    }

    #[test]
    fn code_that_cant_be_is_refused() {
        let load = |address: u64, size: u64, name: &[u8]| {
            let numbers = [0, 0, address, size, 1].map(u64::to_le_bytes).concat();
            record(CODE_LOAD, &[&numbers, name].concat(), ByteOrder::Little, 8)
        };
        let named = |name: &str, is_cut| {
            Some(JitDumpRecord::Load { address: Avma(0x1000), size: 16, name: name.into(), is_cut })
        };
        assert_eq!(load(0x1000, 16, b"f\0"), named("f", false));
        assert_eq!(load(0x1000, 16, b"too long a name\0"), named("too long", true));
        assert_eq!(
            load(0x1000, 16, b"f"),
            Some(JitDumpRecord::UnnamedCode { address: Avma(0x1000), size: 16 })
        );
        for refused in [
            load(0x1000, 0, b"f\0"),
            load(u64::MAX, 16, b"f\0"),
            load(0x1000, u64::MAX, b"f\0"),
            record(CODE_LOAD, b"short", ByteOrder::Little, 8),
            record(UNWINDING_INFO, &[7u64, 8, 0].map(u64::to_le_bytes).concat(), ByteOrder::Little, 8),
        ] {
            assert_eq!(refused, None);
        }
    }
}
