//! ELF files around bytes that are to be read.

/// A shared object of these sections, none of them code but `.text`, and of one executable segment
/// over everything. Section `n` lies at `n << 20`.
pub fn of_sections(sections: &[(&str, &[u8])]) -> Vec<u8> {
    const HEADERS: usize = 64 + 56;
    let (mut body, mut names, mut headers) = (Vec::new(), vec![0], Vec::new());
    let mut header = |name: usize, kind: u32, flags: u64, address: usize, offset: usize, size: usize| {
        headers.extend([name as u32, kind].map(u32::to_le_bytes).concat());
        headers.extend([flags, address as u64, offset as u64, size as u64].map(u64::to_le_bytes).concat());
        headers.extend([0, 1, 0].map(u64::to_le_bytes).concat());
    };
    for (index, (name, bytes)) in sections.iter().enumerate() {
        let flags = if *name == ".text" { 6 } else { 0 };
        header(names.len(), 1, flags, index << 20, HEADERS + body.len(), bytes.len());
        names.extend([name.as_bytes(), b"\0"].concat());
        body.extend_from_slice(bytes);
    }
    header(0, 3, 0, 0, HEADERS + body.len(), names.len());
    body.extend(names);
    let count = sections.len() as u16 + 1;
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    out.extend([0, 64, (HEADERS + body.len()) as u64].map(u64::to_le_bytes).concat());
    out.extend([0_u16, 0, 64, 56, 1, 64, count, count - 1].map(u16::to_le_bytes).concat());
    out.extend([1_u32, 5].map(u32::to_le_bytes).concat());
    out.extend([0, 0, 0, 1 << 40, 1 << 40, 4096].map(u64::to_le_bytes).concat());
    out.extend(body);
    out.extend(headers);
    out
}
