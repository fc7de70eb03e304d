//! Limits against small files that ask for much memory or time.

use std::cell::Cell;
use std::path::Path;

use jvmprof_daemon::hotspot::stubs::analyze_native;
use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::dwarf_lines::{DwarfLineTable, SourceLine};
use jvmprof_daemon::native::elf::{ElfError, ElfFile};
use jvmprof_daemon::native::unwind_rows::UnwindRows;
use jvmprof_daemon::types::Svma;

use super::image::{BODY_AT, Counted, Header, PROGBITS, STRTAB, dwarf, eh_frame, image, of_sections};

#[test]
fn names_of_sections_are_short_however_many_share_the_same_bytes() {
    const BYTES: usize = 1 << 20;
    let with = |count: u32| {
        let names =
            Header { name: 0, kind: STRTAB, is_code: false, address: 0, offset: BODY_AT, size: BYTES as u64 };
        let others = (1..count).map(|name| Header { name, kind: PROGBITS, size: 0, ..names });
        let headers: Vec<Header> = std::iter::once(names).chain(others).collect();
        image(&vec![b'a'; BYTES], &headers, 0)
    };
    let bytes = with(600);
    let elf = ElfFile::parse(&*bytes).expect("an ELF file");
    assert_eq!(elf.sections().len(), 600);
    assert!(elf.sections().iter().all(|section| section.name.len() == 256));
    let many = with(20_000);
    assert!(matches!(ElfFile::parse(&*many), Err(ElfError::TooLarge { .. })));
}

/// 16 MiB of code that frame information covers all but the last bytes of.
fn code(sections: u64, address: impl Fn(u64) -> u64) -> Vec<u8> {
    const CODE: u64 = 16 << 20;
    let mut frames = eh_frame(1, 0);
    // The only entry's length.
    let length = frames.len() - 4 - 8;
    frames[length..length + 8].copy_from_slice(&(CODE - 64).to_le_bytes());
    let names = b"\0.eh_frame\0.text\0";
    let mut body = vec![0x90; CODE as usize];
    // A function with a frame, where none is known of.
    body[CODE as usize - 64..][..9].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0]);
    body[CODE as usize - 55..][..2].copy_from_slice(&[0x5d, 0xc3]);
    let (frames_at, names_at) = (BODY_AT + CODE, BODY_AT + CODE + frames.len() as u64);
    body.extend_from_slice(&frames);
    body.extend_from_slice(names);
    let data =
        |name, kind, offset, size| Header { name, kind, is_code: false, address: 1 << 50, offset, size };
    let mut headers = vec![
        data(1, PROGBITS, frames_at, frames.len() as u64),
        data(0, STRTAB, names_at, names.len() as u64),
    ];
    headers.extend((0..sections).map(|n| Header {
        name: 11,
        kind: PROGBITS,
        is_code: true,
        address: address(n),
        offset: BODY_AT,
        size: CODE,
    }));
    image(&body, &headers, 1)
}

#[test]
fn code_is_read_once_and_up_to_a_sum() {
    let read = |bytes: &[u8]| {
        let counted = Counted { bytes, read: Cell::new(0) };
        let elf = ElfFile::parse(counted).expect("an ELF file");
        let rows = UnwindRows::load_with(&elf, Some(analyze_native)).expect("rows");
        (elf.source().read.get() >> 20, rows.row(Svma(4096 + (16 << 20) - 64)).is_some())
    };
    assert_eq!(read(&code(1, |_| 4096)), (16, true));
    assert_eq!(read(&code(600, |_| 4096)), (16, true), "the same code again and again");
    // Sections of the same bytes, each beside the other and with a hole of 64 bytes.
    let beside = code(600, |n| 4096 + n * (16 << 20));
    let (megabytes, _) = read(&beside);
    assert!(megabytes <= 64, "{megabytes} MiB are read");
}

#[test]
fn evaluating_all_rows_takes_no_more_than_the_file_is_worth() {
    const FUNCTIONS: u32 = 20_000;
    let load = |nops| {
        let bytes = eh_frame(FUNCTIONS, nops);
        let size = bytes.len();
        let rows = UnwindRows::from_eh_frame(bytes.into(), Svma(0), Svma(0)..Svma(u64::MAX));
        let mut handed_on = 0;
        rows.for_each(&mut |_, _, _| handed_on += 1);
        assert_eq!(handed_on, rows.functions());
        assert!(rows.work() <= 4 * size, "{} of {size}", rows.work());
        rows
    };
    let ordinary = load(20);
    assert_eq!((ordinary.functions(), ordinary.over_budget()), (FUNCTIONS as usize, 0));
    let long = load(4000);
    assert_eq!(long.functions() as u64 + long.over_budget(), u64::from(FUNCTIONS));
    assert!((1..1000).contains(&long.functions()), "{} functions", long.functions());
    let too_long = load(5000);
    assert_eq!((too_long.functions(), too_long.malformed()), (0, u64::from(FUNCTIONS)));
}

const AT: u64 = 0x1000;

fn lines(bytes: &[u8], limit: u64) -> Result<DwarfLineTable, ElfError> {
    let elf = ElfFile::parse(bytes).expect("an ELF file");
    DwarfLineTable::load(&elf, Path::new("/x"), &DebugFileLocator::default(), limit)
        .map(|table| table.expect("DWARF"))
}

#[test]
fn dwarf_that_is_nested_deeper_than_the_stack_is_refused() {
    let deepest = lines(&dwarf(AT, 500, 10), 1 << 30).expect("DWARF");
    // With the stack that a thread has.
    let found = deepest.find(Svma(AT)).expect("lines");
    assert_eq!(found.len(), 128, "no more inlined functions than that");
    for depth in [600, 200_000] {
        assert!(matches!(lines(&dwarf(AT, depth, 10), 1 << 30), Err(ElfError::TooDeep { .. })), "{depth}");
    }
}

#[test]
fn a_line_program_of_nothing_but_rows_is_not_run() {
    let few = lines(&dwarf(AT, 1, 10_000), 1 << 30).expect("DWARF");
    let found = few.find(Svma(AT + 5)).expect("lines");
    let shown = |line: &SourceLine| (line.raw_name.as_deref().map(str::to_owned), line.line);
    let found: Vec<_> = found.iter().map(shown).collect();
    assert_eq!(found, [(None, 6), (Some("leaf".to_owned()), 0)], "what is inlined has the line");
    assert_eq!(few.find(Svma(u64::MAX)).expect("no lines").len(), 0);
    // addr2line would keep 24 bytes of each byte.
    const ROWS: usize = 8 << 20;
    let many = lines(&dwarf(AT, 1, ROWS), 1 << 30).expect("DWARF");
    for _ in 0..3 {
        assert!(matches!(many.find(Svma(AT + 5)), Err(ElfError::TooLarge { .. })));
    }
    assert!((ROWS..4 * ROWS).contains(&many.size_bytes()), "{} bytes", many.size_bytes());
}

#[test]
fn units_that_share_their_abbreviations_are_each_counted() {
    let unit = |entries: &[u8]| {
        let length = 7 + entries.len() as u32;
        [&length.to_le_bytes()[..], &[4, 0, 0, 0, 0, 0, 8], entries].concat()
    };
    // A unit without attributes, and a variable with a hundred thousand that take no byte.
    let mut abbreviations = vec![1, 0x11, 1, 0, 0, 2, 0x34, 0];
    abbreviations.extend([0x3f, 0x19].repeat(100_000));
    abbreviations.extend([0, 0, 0]);
    let of_units = |units: &[u8]| of_sections(&[(".debug_abbrev", &abbreviations), (".debug_info", units)]);
    let many = of_units(&unit(&[1, 0]).repeat(50_000));
    // The table is parsed once: shared, it takes some megabytes.
    let table = lines(&many, 256 << 20).expect("DWARF");
    assert!((50_000 * 500..256 << 20).contains(&table.size_bytes()), "{} bytes", table.size_bytes());
    assert!(matches!(lines(&many, 16 << 20), Err(ElfError::TooLarge { .. })));
    let long = of_units(&unit(&[&[1][..], &[2; 1000], &[0]].concat()));
    assert!(matches!(lines(&long, 256 << 20), Err(ElfError::TooLarge { .. })));
}

#[test]
fn dwarf_of_real_programs_is_within_the_limits() {
    let own = std::env::current_exe().expect("a test has a program");
    let bytes = std::fs::read(own).expect("it is readable");
    let table = lines(&bytes, 1 << 30).expect("DWARF");
    println!("{} bytes of DWARF and what is made of it", table.size_bytes());
}
