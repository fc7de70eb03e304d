//! ELF files that no linker makes.

use std::cell::Cell;
use std::io;

use jvmprof_daemon::native::byte_source::ByteSource;

pub(crate) const PROGBITS: u32 = 1;
pub(crate) const STRTAB: u32 = 3;
/// `SHF_ALLOC | SHF_EXECINSTR`.
const CODE_FLAGS: u64 = 6;

/// A section: its name as the offset in the names, where its bytes are in the file, and its
/// address.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) name: u32,
    pub(crate) kind: u32,
    pub(crate) is_code: bool,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// A shared object of one executable segment over everything, with `body` behind its headers.
/// `names`: which section has the names.
pub(crate) fn image(body: &[u8], headers: &[Header], names: u16) -> Vec<u8> {
    let mut out = Vec::new();
    let sections_at = (BODY_AT + body.len() as u64).next_multiple_of(8);
    out.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let half = |out: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|it| out.extend(it.to_le_bytes()));
    let word = |out: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|it| out.extend(it.to_le_bytes()));
    let long = |out: &mut Vec<u8>, values: &[u64]| values.iter().for_each(|it| out.extend(it.to_le_bytes()));
    half(&mut out, &[3, 62]);
    word(&mut out, &[1]);
    long(&mut out, &[0, 64, sections_at]);
    word(&mut out, &[0]);
    half(&mut out, &[64, 56, 1, 64, u16::try_from(headers.len()).expect("16 bits"), names]);
    // PT_LOAD, readable and executable.
    word(&mut out, &[1, 5]);
    long(&mut out, &[0, 0, 0, 1 << 40, 1 << 40, 4096]);
    out.extend_from_slice(body);
    out.resize(sections_at as usize, 0);
    for header in headers {
        word(&mut out, &[header.name, header.kind]);
        long(
            &mut out,
            &[if header.is_code { CODE_FLAGS } else { 0 }, header.address, header.offset, header.size],
        );
        word(&mut out, &[0, 0]);
        long(&mut out, &[1, 0]);
    }
    out
}

/// Where the body begins in the file.
pub(crate) const BODY_AT: u64 = 64 + 56;

/// A file of these sections, one behind the other, none of them code; all lie at address zero.
pub(crate) fn of_sections(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut body, mut names, mut headers) = (Vec::new(), vec![0], Vec::new());
    for (name, bytes) in sections {
        headers.push(Header {
            name: names.len() as u32,
            kind: PROGBITS,
            is_code: false,
            address: 0,
            offset: BODY_AT + body.len() as u64,
            size: bytes.len() as u64,
        });
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        body.extend_from_slice(bytes);
    }
    let (offset, size) = (BODY_AT + body.len() as u64, names.len() as u64);
    headers.push(Header { name: 0, kind: STRTAB, is_code: false, address: 0, offset, size });
    body.extend_from_slice(&names);
    image(&body, &headers, headers.len() as u16 - 1)
}

/// Counts the bytes that are read.
pub(crate) struct Counted<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) read: Cell<u64>,
}

impl ByteSource for Counted<'_> {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.set(self.read.get() + buffer.len() as u64);
        self.bytes.read_exact_at(offset, buffer)
    }
}

/// An `.eh_frame` of one CIE with so many bytes of `DW_CFA_nop`, and this many functions of 16
/// bytes from address 4096 on.
pub(crate) fn eh_frame(functions: u32, nops: usize) -> Vec<u8> {
    // Version 1, no augmentation; the CFA is rsp + 8, the return address is at CFA - 8.
    let mut cie = vec![0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
    cie.resize((cie.len() + nops).next_multiple_of(8) + 4, 0);
    let mut out = Vec::new();
    let entry = |out: &mut Vec<u8>, body: &[u8]| {
        out.extend((body.len() as u32).to_le_bytes());
        out.extend_from_slice(body);
    };
    entry(&mut out, &cie);
    for n in 0..functions {
        let mut body = (out.len() as u32 + 4).to_le_bytes().to_vec();
        body.extend((4096 + 16 * u64::from(n)).to_le_bytes());
        body.extend(16_u64.to_le_bytes());
        entry(&mut out, &body);
    }
    out.extend([0; 4]);
    out
}

/// DWARF of one unit with one function at `address`, in which functions are inlined so many levels
/// deep, and a line program of `rows` rows.
pub(crate) fn dwarf(address: u64, depth: usize, rows: usize) -> Vec<u8> {
    let abbreviations = [
        &[1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0, 0][..], // a unit: low_pc, high_pc, stmt_list
        &[2, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0x03, 0x08, 0, 0],     // a function: low_pc, high_pc, name
        &[3, 0x1d, 1, 0x11, 0x01, 0x12, 0x07, 0, 0],                 // an inlined one: low_pc, high_pc
        &[0],
    ];
    let range = |out: &mut Vec<u8>| {
        out.extend(address.to_le_bytes());
        out.extend(64_u64.to_le_bytes());
    };
    // DWARF 4.
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8];
    unit.push(1);
    range(&mut unit);
    unit.extend([0; 4]);
    unit.push(2);
    range(&mut unit);
    unit.extend_from_slice(b"leaf\0");
    for _ in 0..depth {
        unit.push(3);
        range(&mut unit);
    }
    unit.resize(unit.len() + depth + 2, 0);
    let header =
        [&[1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0][..], b"a.c\0\0\0\0\0"].concat();
    let mut lines = vec![4, 0];
    lines.extend((header.len() as u32).to_le_bytes());
    lines.extend_from_slice(&header);
    lines.extend([0, 9, 2]);
    lines.extend(address.to_le_bytes());
    // A special opcode each: one address and one line further.
    lines.resize(lines.len() + rows, 33);
    lines.extend([0, 1, 1]);
    let with_length = |bytes: Vec<u8>| [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
    let (unit, lines) = (with_length(unit), with_length(lines));
    of_sections(&[
        (".debug_abbrev", &abbreviations.concat()),
        (".debug_info", &unit),
        (".debug_line", &lines),
    ])
}
