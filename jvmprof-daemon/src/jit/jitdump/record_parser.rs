//! The records of a jitdump, out of bytes.
//!
//! Layout: Linux `tools/perf/Documentation/jitdump-specification.txt`, version 1. Everything is in
//! the writer's byte order, which the magic number tells.

use std::sync::Arc;

use crate::jit::code_unwind_rows::MAX_EH_FRAME;
use crate::jit::name_formats::printable;
use crate::jit::timeline::CodeLines;

/// Bytes of the file's header that are used.
pub(super) const HEADER_BYTES: usize = 40;
/// Bytes of what each record begins with: id, size, time.
pub(super) const PREFIX_BYTES: usize = 16;

const MAGIC: u32 = 0x4A69_5444;
const VERSION: u32 = 1;
/// `EM_X86_64` of elf.h.
const MACHINE: u32 = 62;
/// `EM_NONE`.
const NO_MACHINE: u32 = 0;
/// `JITDUMP_FLAGS_ARCH_TIMESTAMP`: times are those of the CPU's counter.
const FLAG_ARCH_TIMESTAMP: u64 = 1;
/// Largest code that is believed, as for perf maps.
const MAX_CODE: u64 = 256 << 20;
const MAX_ADDRESS: u64 = 1 << 56;
/// Most source files of one record.
const MAX_FILES: usize = 1024;

/// A file can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("a jitdump begins with the magic number 0x4A695444, not with {0:#x}")]
    Magic(u32),
    #[error("version {0} of jitdump isn't known")]
    Version(u32),
    #[error("a jitdump for the ELF machine {0} can't be of this host")]
    Machine(u32),
    #[error("the times of a jitdump are those of the CPU's counter, which can't be converted")]
    ArchTimestamps,
}

impl HeaderError {
    /// A short name for counters.
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
pub(super) enum Order {
    Little,
    Big,
}

/// The file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) order: Order,
    /// Where the first record is.
    pub(super) size: u32,
    /// As the writer sees itself.
    pub(super) pid: u32,
}

/// What a record begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) id: u32,
    /// In bytes, this prefix included: at least [`PREFIX_BYTES`].
    pub(super) size: u32,
    pub(super) time_ns: u64,
}

impl Prefix {
    /// Bytes behind the prefix that are needed to understand the record: the code itself isn't.
    pub(super) fn needed(&self, longest_name: usize, most_lines: usize) -> usize {
        let most = match self.id {
            CODE_LOAD => 40 + longest_name + 1,
            DEBUG_INFO => most_lines,
            UNWINDING_INFO => 24 + MAX_EH_FRAME,
            _ => 64,
        };
        most.min(self.size as usize - PREFIX_BYTES)
    }
}

/// What a record says. Addresses are user addresses, sizes not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Load {
        address: u64,
        size: u32,
        name: String,
        /// The name goes on.
        is_cut: bool,
    },
    /// Code whose name isn't told, or that was moved from where none can have been.
    Nameless {
        address: u64,
        size: u32,
    },
    Move {
        from: u64,
        to: u64,
        size: u32,
    },
    /// Lines of the code that will be loaded at `address`.
    Lines {
        address: u64,
        lines: CodeLines,
    },
    /// The `.eh_frame` of the code that will be loaded; empty if it has none.
    Unwinding {
        eh_frame: Box<[u8]>,
    },
    Close,
    /// Of no interest: an id of a later version.
    Other,
}

const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;
const UNWINDING_INFO: u32 = 4;

/// Parses the file's header.
pub(super) fn header(bytes: &[u8; HEADER_BYTES]) -> Result<Header, HeaderError> {
    let mut fields = Fields { bytes, order: Order::Little };
    let magic = fields.u32().unwrap_or_default();
    fields.order = match magic {
        MAGIC => Order::Little,
        _ if magic.swap_bytes() == MAGIC => Order::Big,
        _ => return Err(HeaderError::Magic(magic)),
    };
    let mut next = || fields.u32().unwrap_or_default();
    let (version, size, machine, _, pid) = (next(), next(), next(), next(), next());
    let _time = fields.u64();
    let flags = fields.u64().unwrap_or_default();
    if version != VERSION {
        return Err(HeaderError::Version(version));
    }
    // CPython 3.13.0 leaves the field empty. What runs here is of this machine.
    if machine != MACHINE && machine != NO_MACHINE {
        return Err(HeaderError::Machine(machine));
    }
    if flags & FLAG_ARCH_TIMESTAMP != 0 {
        return Err(HeaderError::ArchTimestamps);
    }
    Ok(Header { order: fields.order, size: size.max(HEADER_BYTES as u32), pid })
}

/// Parses what a record begins with; `None` if it can't be one.
pub(super) fn prefix(bytes: &[u8; PREFIX_BYTES], order: Order) -> Option<Prefix> {
    let mut fields = Fields { bytes, order };
    let prefix = Prefix { id: fields.u32()?, size: fields.u32()?, time_ns: fields.u64()? };
    (prefix.size as usize >= PREFIX_BYTES).then_some(prefix)
}

/// Parses what is behind the prefix, as much of it as [`Prefix::needed`]; `None` if it makes no
/// sense.
pub(super) fn record(id: u32, body: &[u8], order: Order, longest_name: usize) -> Option<Record> {
    let mut fields = Fields { bytes: body, order };
    Some(match id {
        CODE_LOAD => {
            fields.skip(16)?; // pid, tid, and the address in the writer's own view.
            let (address, size) = (fields.u64()?, fields.u64()?);
            fields.skip(8)?; // A number for the code.
            let size = code_size(address, size)?;
            let (name, is_cut) = match fields.text(longest_name) {
                Some(name) => (name, false),
                None if fields.bytes.len() > longest_name => (&fields.bytes[..longest_name], true),
                None => return Some(Record::Nameless { address, size }),
            };
            Record::Load { address, size, name: printable(name).into_owned(), is_cut }
        }
        CODE_MOVE => {
            fields.skip(16)?;
            let (from, to, size) = (fields.u64()?, fields.u64()?, fields.u64()?);
            let size_there = code_size(to, size)?;
            match code_size(from, size) {
                Some(size) => Record::Move { from, to, size },
                None => Record::Nameless { address: to, size: size_there },
            }
        }
        DEBUG_INFO => {
            let address = fields.u64()?;
            let count = fields.u64()?;
            Record::Lines { address, lines: debug_lines(&mut fields, address, count, longest_name) }
        }
        UNWINDING_INFO => {
            // All of it, and the `.eh_frame_hdr` at its end, which isn't needed for one function.
            let (data, header) = (fields.u64()?, fields.u64()?);
            fields.skip(8)?; // How much of it the writer has mapped.
            let bytes = usize::try_from(data.checked_sub(header)?).ok()?;
            Record::Unwinding { eh_frame: fields.bytes.get(..bytes)?.into() }
        }
        CODE_CLOSE => Record::Close,
        _ => Record::Other,
    })
}

fn code_size(address: u64, size: u64) -> Option<u32> {
    let fits = size > 0 && size <= MAX_CODE && address.checked_add(size)? <= MAX_ADDRESS;
    fits.then_some(u32::try_from(size).ok()?)
}

/// As many of the entries as are there and make sense.
fn debug_lines(fields: &mut Fields<'_>, start: u64, count: u64, longest_name: usize) -> CodeLines {
    let mut lines = CodeLines::default();
    for _ in 0..count {
        let Some((address, line)) = fields.u64().zip(fields.u32()) else { break };
        if fields.skip(4).is_none() {
            break;
        }
        let Some(name) = fields.text(longest_name) else { break };
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
            lines.places.push((offset, line, lines.files.len() as u32 - 1));
        }
    }
    lines.places.sort_by_key(|place| place.0);
    lines.places.shrink_to_fit();
    lines
}

struct Fields<'a> {
    bytes: &'a [u8],
    order: Order,
}

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take()?;
        Some(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    fn u64(&mut self) -> Option<u64> {
        let bytes = self.take()?;
        Some(match self.order {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        })
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.bytes = self.bytes.get(bytes..)?;
        Some(())
    }

    /// A text ended by a zero, which isn't part of it.
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

    fn header_bytes(order: Order, version: u32, machine: u32, flags: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::new();
        let mut put = |words: &[u32]| {
            for word in words {
                bytes.extend(if order == Order::Little { word.to_le_bytes() } else { word.to_be_bytes() });
            }
        };
        put(&[MAGIC, version, 40, machine, 0, 7]);
        for word in [99u64, flags] {
            bytes.extend(if order == Order::Little { word.to_le_bytes() } else { word.to_be_bytes() });
        }
        bytes.try_into().expect("40 bytes")
    }

    #[test]
    fn both_byte_orders_are_read() {
        for order in [Order::Little, Order::Big] {
            let expected = Header { order, size: 40, pid: 7 };
            assert_eq!(header(&header_bytes(order, 1, MACHINE, 0)), Ok(expected));
        }
    }

    #[test]
    fn what_cant_be_used_is_refused_by_name() {
        let parse = |version, machine, flags| header(&header_bytes(Order::Little, version, machine, flags));
        assert_eq!(parse(2, MACHINE, 0), Err(HeaderError::Version(2)));
        assert!(parse(1, NO_MACHINE, 0).is_ok());
        assert_eq!(parse(1, 183, 0), Err(HeaderError::Machine(183)));
        assert_eq!(parse(1, MACHINE, 1), Err(HeaderError::ArchTimestamps));
        assert_eq!(header(&[0; HEADER_BYTES]), Err(HeaderError::Magic(0)));
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
        let Some(Record::Lines { address: 0x1000, lines }) = record(DEBUG_INFO, &body, Order::Little, 100)
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
            record(CODE_LOAD, &[&numbers, name].concat(), Order::Little, 8)
        };
        let named =
            |name: &str, is_cut| Some(Record::Load { address: 0x1000, size: 16, name: name.into(), is_cut });
        assert_eq!(load(0x1000, 16, b"f\0"), named("f", false));
        assert_eq!(load(0x1000, 16, b"too long a name\0"), named("too long", true));
        assert_eq!(load(0x1000, 16, b"f"), Some(Record::Nameless { address: 0x1000, size: 16 }));
        for refused in [
            load(0x1000, 0, b"f\0"),
            load(u64::MAX, 16, b"f\0"),
            load(0x1000, u64::MAX, b"f\0"),
            record(CODE_LOAD, b"short", Order::Little, 8),
            record(UNWINDING_INFO, &[7u64, 8, 0].map(u64::to_le_bytes).concat(), Order::Little, 8),
        ] {
            assert_eq!(refused, None);
        }
    }
}
