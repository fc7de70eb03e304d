//! Reading a file takes little memory, whatever its size: measured on files that are generated, by
//! a process that does nothing else.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jvmprof_daemon::hotspot::stubs::analyze_native;
use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::file_cache::{FileCache, FileCacheLimits};
use jvmprof_daemon::native::open_file::open_regular;
use jvmprof_daemon::native::unwind_rows::UnwindRows;
use jvmprof_daemon::own_process::allocator::configure_malloc;
use nix::time::{ClockId, clock_gettime};

use crate::support::scratch;

/// Names the file that a process of this test reads.
const FILE: &str = "JVMPROF_TEST_READS_FILE";
/// A process that has the file read takes no more CPU time, in a build without optimization.
const MOST_TIME: Duration = Duration::from_secs(60);

/// The daemon has some 24 MiB beside what one file takes, and 60 in all.
const LARGEST_GROWTH: usize = 36 << 20;

/// A section: name, `sh_type`, `sh_flags`, address, index of the linked one, contents.
struct Section<'a>(&'a str, u32, u64, u64, u32, &'a [u8]);

const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const CODE: u64 = 6;

/// Writes a shared object with one executable segment over everything; section 0 is the empty one.
fn write_elf(path: &Path, sections: &[Section<'_>]) {
    let mut names = vec![0];
    let mut headers = vec![0; 64];
    let mut offset = 64 + 56;
    let mut header =
        |Section(name, kind, flags, address, link, bytes): &Section<'_>, at: u64, name_at: usize| {
            headers.extend([name_at as u32, *kind].map(u32::to_le_bytes).concat());
            headers.extend([*flags, *address, at, bytes.len() as u64].map(u64::to_le_bytes).concat());
            headers.extend([*link, 0].map(u32::to_le_bytes).concat());
            headers.extend([8, if *kind == SYMTAB { 24 } else { 0_u64 }].map(u64::to_le_bytes).concat());
            let _ = name;
        };
    for section in sections {
        header(section, offset, names.len());
        names.extend([section.0.as_bytes(), b"\0"].concat());
        offset += section.5.len() as u64;
    }
    header(&Section("", STRTAB, 0, 0, 0, &names), offset, 0);
    let count = sections.len() as u16 + 2;
    let mut start = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    start.extend([0, 64, offset + names.len() as u64].map(u64::to_le_bytes).concat());
    start.extend([0_u16, 0, 64, 56, 1, 64, count, count - 1].map(u16::to_le_bytes).concat());
    start.extend([1_u32, 5].map(u32::to_le_bytes).concat());
    start.extend([0, 0, 0, 1 << 40, 1 << 40, 4096].map(u64::to_le_bytes).concat());
    let mut file = fs::File::create(path).expect("created");
    let mut write = |bytes: &[u8]| file.write_all(bytes).expect("written");
    write(&start);
    sections.iter().for_each(|section| write(section.5));
    write(&names);
    write(&headers);
}

/// A Go program of Go 1.20's layout with so many functions of 32 bytes, whose records have `record`
/// bytes each.
fn go_program(path: &Path, functions: u32, record: usize) {
    // push rbp; mov rbp, rsp; ...; pop rbp; ret
    let mut body = [0x90; 32];
    body[..4].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5]);
    body[30..].copy_from_slice(&[0x5d, 0xc3]);
    let mut text = body.repeat(functions as usize);
    // runtime.goexit calls runtime.goexit1, which is the next function.
    text[..7].copy_from_slice(&[0x90, 0xe8, 26, 0, 0, 0, 0x90]);
    let mut names = b"\0".to_vec();
    let mut records = Vec::new();
    for number in 0..functions {
        let mut fields = vec![0; record];
        fields[..4].copy_from_slice(&(32 * number).to_le_bytes());
        fields[4..8].copy_from_slice(&(names.len() as u32).to_le_bytes());
        records.extend(fields);
        let name = match number {
            0 => "runtime.goexit".to_owned(),
            1 => "runtime.goexit1".to_owned(),
            _ => format!("example.com/server/package{}.(*Type).Method{number}", number / 100),
        };
        names.extend([name.as_bytes(), b"\0"].concat());
    }
    // Nothing on the stack for one byte, eight for 30, nothing for one.
    let steps = [2, 1, 16, 30, 15, 1, 0];
    let index_size = 8 * functions as usize + 4;
    let mut index = Vec::with_capacity(index_size);
    for number in 0..functions {
        index.extend((32 * number).to_le_bytes());
        index.extend(((index_size + record * number as usize) as u32).to_le_bytes());
    }
    index.extend((32 * functions).to_le_bytes());
    let header = 8 + 8 * 8;
    let (names_at, steps_at) = (header, header + names.len());
    let index_at = steps_at + steps.len();
    let fields =
        [functions as usize, 0, 1 << 20, names_at, 0, 0, steps_at, index_at].map(|field| field as u64);
    let table = [
        &0xffff_fff1_u32.to_le_bytes()[..],
        &[0, 0, 1, 8],
        &fields.map(u64::to_le_bytes).concat(),
        &names,
        &steps,
        &index,
        &records,
    ]
    .concat();
    assert!(table.len() > 50 << 20, "{} bytes", table.len());
    let sections = [
        Section(".text", PROGBITS, CODE, 1 << 20, 0, &text),
        Section(".gopclntab", PROGBITS, 2, 0, 0, &table),
    ];
    write_elf(path, &sections);
}

/// A library with so many functions, whose entries in `.eh_frame` have `entry` bytes each.
fn large_eh_frame(path: &Path, functions: usize, entry: usize) {
    let text = vec![0x90; 64 * functions];
    // Version 1, no augmentation; the CFA is rsp + 8, the return address is at CFA - 8.
    let cie = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0];
    let mut frames = cie.to_vec();
    for number in 0..functions {
        let mut fde = ((entry - 4) as u32).to_le_bytes().to_vec();
        fde.extend((frames.len() as u32 + 4).to_le_bytes());
        fde.extend([(1 << 20) + 64 * number as u64, 64].map(u64::to_le_bytes).concat());
        // DW_CFA_advance_loc 1; DW_CFA_def_cfa_offset 16
        fde.extend([0x41, 0x0e, 16]);
        fde.resize(entry, 0);
        frames.extend(fde);
    }
    frames.extend([0; 4]);
    let sections = [
        Section(".text", PROGBITS, CODE, 1 << 20, 0, &text),
        Section(".eh_frame", PROGBITS, 2, 0, 0, &frames),
    ];
    write_elf(path, &sections);
}

/// A library with so many functions in `.symtab`, whose names take `name` bytes each.
fn large_symtab(path: &Path, functions: usize, name: usize) {
    let text = vec![0x90; 16 * functions];
    let (mut symbols, mut names) = (vec![0; 24], vec![0]);
    for number in 0..functions {
        symbols.extend((names.len() as u32).to_le_bytes());
        // STB_GLOBAL, STT_FUNC, of section 1
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend([(1 << 20) + 16 * number as u64, 16].map(u64::to_le_bytes).concat());
        names.extend(format!("{number:0name$}\0").into_bytes());
    }
    let sections = [
        Section(".text", PROGBITS, CODE, 1 << 20, 0, &text),
        Section(".symtab", SYMTAB, 0, 0, 3, &symbols),
        Section(".strtab", STRTAB, 0, 0, 0, &names),
    ];
    write_elf(path, &sections);
}

/// Bytes of this process's memory that were resident at most.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("one's own status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

/// Reads what the daemon reads of a file that is mapped: the numbers of rows and functions.
fn read(path: &Path) -> [usize; 2] {
    let files = FileCache::new(FileCacheLimits::default()).with_analysis(analyze_native);
    let open = || open_regular(path);
    let key = files.identify(&open().expect("the file"), path).expect("an ELF file").key;
    let mut rows = 0;
    let count = |file: &UnwindRows| file.for_each(&mut |_, _, _| rows += 1);
    files.convert_rows(&key, path, open, count).expect("unwind rows");
    let symbols = files.symbols(&key, path, &DebugFileLocator::default(), open).expect("symbols");
    [rows, symbols.len()]
}

/// Reads a file and prints what that took; only in a process that [`growth`] has started.
#[test]
fn a_process_reads_a_file() {
    let Ok(path) = std::env::var(FILE) else { return };
    // As in the daemon: what is freed goes back.
    configure_malloc();
    // The code that reads is in memory before it is measured.
    read(Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
    let before = peak();
    let [rows, functions] = read(Path::new(&path));
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).expect("a clock");
    println!("\n{} {rows} {functions} {}", peak() - before, time.as_millis());
}

/// Has a process read a file: bytes by which its memory grew at most, rows, and functions.
fn growth(path: &Path) -> [usize; 3] {
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", "memory::a_process_reads_a_file", "--nocapture"]).env(FILE, path);
    let output = child.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let numbers = |line: &str| -> Option<[usize; 4]> {
        let numbers: Vec<usize> = line.split(' ').map_while(|number| number.parse().ok()).collect();
        numbers.try_into().ok()
    };
    let [bytes, rows, functions, ms] = text.lines().find_map(numbers).expect("what was measured");
    println!("{}: {bytes} bytes, {rows} rows, {functions} functions in {ms} ms", path.display());
    assert!(Duration::from_millis(ms as u64) < MOST_TIME, "{}: {ms} ms", path.display());
    [bytes, rows, functions]
}

#[test]
fn a_large_table_of_go_functions_is_not_in_memory() {
    let directory = scratch();
    let path = directory.path().join("go");
    go_program(&path, 80_000, 700);
    let [bytes, rows, functions] = growth(&path);
    assert_eq!(functions, 80_000);
    assert!(rows >= 150_000, "{rows} rows");
    assert!(bytes < 8 << 20, "{bytes} bytes for a table of {} bytes", path.metadata().expect("there").len());
}

#[test]
fn a_large_section_of_frame_information_is_not_in_memory() {
    let directory = scratch();
    let path = directory.path().join("frames");
    large_eh_frame(&path, 5_000, 4 << 10);
    let [bytes, rows, _] = growth(&path);
    assert_eq!(rows, 10_000);
    assert!(bytes < 6 << 20, "{bytes} bytes for a section of 20 MiB");
}

#[test]
fn a_large_symbol_table_takes_little_more_than_what_is_kept_of_it() {
    let directory = scratch();
    let path = directory.path().join("symbols");
    large_symtab(&path, 400_000, 90);
    let [bytes, _, functions] = growth(&path);
    assert_eq!(functions, 400_000);
    assert!(bytes < 10 << 20, "{bytes} bytes for 400,000 functions: 16 each, then 12");
}

/// The largest programs and libraries that the project's own tools bring to each machine.
fn large_real_files() -> Vec<PathBuf> {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output().expect("the tests need rustc");
    let sysroot = String::from_utf8(rustc.stdout).expect("a path in UTF-8");
    let libraries = fs::read_dir(Path::new(sysroot.trim()).join("lib")).expect("its libraries");
    let libraries = libraries.map(|entry| entry.expect("readable").path());
    let is_large =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.len() > 100 << 20);
    let mut files: Vec<PathBuf> = libraries.filter(is_large).collect();
    assert!(!files.is_empty(), "rustc's driver is a library of 150 MB");
    files.push("/usr/lib/chromium/chromium".into());
    files
}

#[test]
fn real_programs_of_hundreds_of_megabytes_take_less_than_what_the_daemon_may_have() {
    for path in large_real_files() {
        let [bytes, rows, functions] = growth(&path);
        assert!(rows > 10_000 && functions > 0, "{}: {rows} rows, {functions} functions", path.display());
        assert!(bytes < LARGEST_GROWTH, "{}: {bytes} bytes", path.display());
    }
}
