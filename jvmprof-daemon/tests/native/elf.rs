//! ELF files, whole, cut short, and put there by somebody hostile; and the cache of what is known
//! of them.
//!
//! Needs binutils, a C compiler and JDK 17's libjvm.so, and fails where they are missing.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jvmprof_common::rows::Row;
use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::elf::build_id::from_note_bytes;
use jvmprof_daemon::native::elf::{ElfError, ElfFile, ElfHeader, ElfKind, LoadSegment, read_header};
use jvmprof_daemon::native::file_cache::{FileCache, FileCacheLimits, LoadError};
use jvmprof_daemon::native::file_identity::{ContentId, FileKey};
use jvmprof_daemon::native::open_file::{OpenError, open_regular};
use jvmprof_daemon::native::symbols::SymbolTable;
use jvmprof_daemon::native::unwind_rows::UnwindRows;
use jvmprof_daemon::types::{FileOffset, Svma};

const LIBJVM: &str = "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so";
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const LS: &str = "/bin/ls";

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output();
    let output = output.unwrap_or_else(|e| panic!("this test runs {program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything that can be read of the file; errors end it, panics and hangs don't pass.
fn read_all(bytes: &[u8]) -> Result<(usize, usize), ElfError> {
    let elf = ElfFile::parse(bytes)?;
    let symbols = SymbolTable::load(&elf)?;
    let rows = UnwindRows::load(&elf)?;
    for segment in &elf.header().segments {
        for address in (0..segment.memory_size).step_by(segment.memory_size as usize / 50 + 1) {
            let address = Svma(segment.address.0.wrapping_add(address));
            if let Some(found) = symbols.lookup(address) {
                symbols.name(found, elf.source())?;
            }
            rows.row(address);
        }
    }
    Ok((symbols.len(), rows.functions()))
}

#[test]
fn headers_say_what_readelf_says() {
    for path in [LIBJVM, LIBC, LS, "/usr/bin/python3", "/usr/bin/node"] {
        let file = File::open(path).expect("this machine has it");
        let header = read_header(&RegularFile::new(&file).expect("regular")).expect("an ELF file");
        let notes = run("readelf", &["-n", path]);
        let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
        assert_eq!(header.build_id.map(|id| id.to_string()).as_deref(), id, "{path}");
        let listed = run("readelf", &["-hW", path]);
        let entry = listed.lines().find_map(|line| line.trim().strip_prefix("Entry point address:"));
        assert_eq!(entry.map(str::trim), Some(&*format!("{:#x}", header.entry.0)), "{path}");
        assert_eq!(header.kind == ElfKind::Executable, listed.contains("EXEC (Executable"), "{path}");
        let programs = run("readelf", &["-lW", path]);
        let loads: Vec<_> = programs.lines().filter(|line| line.trim().starts_with("LOAD")).collect();
        assert_eq!(header.segments.len(), loads.len(), "{path}");
        for (segment, line) in header.segments.iter().zip(loads) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let hex = |at: usize| u64::from_str_radix(&fields[at][2..], 16).expect("hex");
            assert_eq!((segment.offset.0, segment.address.0), (hex(1), hex(2)));
            assert_eq!((segment.file_size, segment.memory_size), (hex(4), hex(5)));
            assert_eq!(segment.executable, fields[6..].contains(&"E") || fields[6].contains('E'));
        }
    }
}

#[test]
fn code_is_where_its_segment_puts_it() {
    let file = File::open(LIBC).expect("libc");
    let header = read_header(&RegularFile::new(&file).expect("regular")).expect("an ELF file");
    let text = header.segments.iter().find(|segment| segment.executable).expect("code");
    assert_eq!(header.svma_of(FileOffset(text.offset.0 + 0x1234)), Some(Svma(text.address.0 + 0x1234)));
    assert_eq!(header.svma_of(FileOffset(1 << 40)), None);
    // The first page of node's code holds the end of its constants, too.
    let file = File::open("/usr/bin/node").expect("node");
    let header = read_header(&RegularFile::new(&file).expect("regular")).expect("an ELF file");
    assert!(
        header.segments.iter().filter(|s| s.executable).all(|s| header.svma_of(s.offset) == Some(s.address))
    );
}

/// What rustc and lld link: the code begins within a page that it shares with constants, mapped
/// twice.
#[test]
fn a_mapping_begins_where_its_codes_page_does() {
    let segment = |offset, address, size, executable| LoadSegment {
        offset: FileOffset(offset),
        address: Svma(address),
        file_size: size,
        memory_size: size,
        executable,
    };
    let header = ElfHeader {
        kind: ElfKind::Dynamic,
        entry: Svma(0),
        segments: [segment(0, 0, 0x44_2954, false), segment(0x44_2980, 0x44_3980, 0x7a_5990, true)].into(),
        build_id: None,
        is_go: false,
    };
    assert_eq!(header.svma_of(FileOffset(0x44_2980)), Some(Svma(0x44_3980)));
    assert_eq!(header.svma_of(FileOffset(0x44_2000)), Some(Svma(0x44_3000)), "where the mapping begins");
    assert_eq!(header.svma_of(FileOffset(0x44_1fff)), Some(Svma(0x44_1fff)), "a page of constants");
}

#[test]
fn files_cut_short_at_any_length_give_errors() {
    for path in [LS, LIBC] {
        let bytes = fs::read(path).expect("this machine has it");
        let (symbols, functions) = read_all(&bytes).expect("whole, it can be read");
        assert!(
            functions > 100 && (symbols > 1000 || path == LS),
            "{path}: {symbols} symbols, {functions} functions"
        );
        // All lengths inside the headers, and some thousand more.
        let lengths = (0..4096).chain((4096..bytes.len()).step_by(bytes.len() / 1500));
        for len in lengths {
            let cut = read_all(&bytes[..len]);
            assert!(cut.is_err() || len > 64, "{path} cut at {len}");
        }
        // Cut while it is read: the source believes in its size, and the file ends before.
        let directory = tempfile::tempdir().expect("a directory");
        let copy = directory.path().join("copy");
        fs::copy(path, &copy).expect("copied");
        let file = File::options().read(true).write(true).open(&copy).expect("the copy");
        let elf = ElfFile::parse(RegularFile::new(&file).expect("regular")).expect("an ELF file");
        file.set_len(4096).expect("cut");
        assert!(matches!(UnwindRows::load(&elf), Err(ElfError::Read { .. })), "{path}");
    }
}

#[test]
fn bytes_changed_anywhere_give_errors_or_other_answers_but_no_panic() {
    let original = fs::read(LS).expect("ls");
    let mut state = 0x1234_5678_9abc_def1u64;
    for round in 0..300 {
        let mut bytes = original.clone();
        for _ in 0..1 + round % 20 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Mostly headers and tables, where it hurts.
            let place = match state >> 62 {
                0 => (state >> 8) as usize % 1024,
                1 => bytes.len() - 1 - (state >> 8) as usize % 4096,
                _ => (state >> 8) as usize % bytes.len(),
            };
            bytes[place] = (state >> 40) as u8;
        }
        let _ = read_all(&bytes);
    }
}

#[test]
fn foreign_and_hostile_files_are_refused_with_a_reason() {
    assert!(matches!(read_all(b""), Err(ElfError::NotElf)));
    assert!(matches!(read_all(b"#!/bin/sh\nexit\n"), Err(ElfError::NotElf)));
    let ls = fs::read(LS).expect("ls");
    let with = |at: usize, value: u8| {
        let mut bytes = ls.clone();
        bytes[at] = value;
        read_all(&bytes).expect_err("refused").to_string()
    };
    assert!(with(4, 1).contains("class 1"));
    assert!(with(5, 2).contains("byte order 2"));
    assert!(with(18, 183).contains("machine 183"));
    assert!(with(16, 1).contains("type 1"));
    for path in ["/dev/null", "/dev/zero", "/tmp"] {
        assert!(matches!(open_regular(Path::new(path)), Err(OpenError::NotRegular { .. })), "{path}");
        let file = File::open(path).expect("it can be opened");
        assert!(RegularFile::new(&file).is_err());
    }
}

#[test]
fn a_sparse_file_that_claims_gigabytes_is_refused_without_reading_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("sparse");
    fs::copy(LIBC, &path).expect("copied");
    let elf = fs::read(&path).expect("libc");
    let section_headers = u64::from_le_bytes(elf[40..48].try_into().expect("eight bytes"));
    let mut file = File::options().read(true).write(true).open(&path).expect("the copy");
    file.set_len(4 << 30).expect("sparse");
    for section in 1..u64::from(u16::from_le_bytes([elf[60], elf[61]])) {
        // sh_size of every section.
        file.seek(SeekFrom::Start(section_headers + section * 64 + 32)).expect("there");
        file.write_all(&(3u64 << 30).to_le_bytes()).expect("written");
    }
    let parsed = ElfFile::parse(RegularFile::new(&file).expect("regular"));
    assert!(matches!(parsed, Err(ElfError::TooLarge { .. })), "{parsed:?}");
}

#[test]
fn build_ids_are_found_in_raw_notes() {
    let mut notes = Vec::new();
    let mut note = |name: &[u8], kind: u32, desc: &[u8]| {
        for word in [name.len() as u32, desc.len() as u32, kind] {
            notes.extend(word.to_le_bytes());
        }
        for part in [name, desc] {
            notes.extend(part);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
    };
    note(b"GNU\0", 1, &[0; 16]);
    note(b"stapsdt\0", 3, &[7; 5]);
    note(b"GNU\0", 3, &[0xab; 20]);
    assert_eq!(from_note_bytes(&notes, 4).map(|id| id.to_string()), Some("ab".repeat(20)));
    for len in 0..notes.len() {
        assert_eq!(from_note_bytes(&notes[..len], 4), None, "cut at {len}");
    }
    let kernel = fs::read("/sys/kernel/notes").expect("the kernel's notes");
    assert!(from_note_bytes(&kernel, 4).is_some());
}

#[test]
fn rows_come_from_debug_frame_where_there_is_no_eh_frame() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, binary) = (directory.path().join("a.c"), directory.path().join("a.o.so"));
    fs::write(&source, "int twice(int x) { return x * 2; } int thrice(int x) { return twice(x) + x; }")
        .expect("written");
    let (source, path) = (source.to_string_lossy(), binary.to_string_lossy());
    let options =
        ["-g", "-gz=zlib", "-O1", "-fno-inline", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let arguments = [&options[..], &["-nostdlib", "-shared", "-fPIC", "-o", &path, &source]].concat();
    run("cc", &arguments);
    // What the linker makes for its own PLT.
    run("objcopy", &["--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr", &path]);
    let sections = run("readelf", &["-SW", &path]);
    assert!(sections.contains(".debug_frame") && !sections.contains(".eh_frame"), "{sections}");
    let bytes = fs::read(&binary).expect("the library");
    let elf = ElfFile::parse(&bytes[..]).expect("an ELF file");
    let (symbols, rows) = (SymbolTable::load(&elf).expect("symbols"), UnwindRows::load(&elf).expect("rows"));
    assert_eq!(rows.functions(), 2);
    for (start, end) in rows.function_ranges() {
        let symbol = symbols.lookup(start).expect("a function");
        assert_eq!((symbol.start, symbol.size), (start, end.0 - start.0));
        assert_eq!(rows.row(start), Some(Row::AT_CALL));
    }
}

#[test]
fn a_file_is_loaded_once_for_all_who_ask_and_known_by_its_build_id() {
    let directory = tempfile::tempdir().expect("a directory");
    let copy = directory.path().join("libc-of-a-container");
    fs::copy(LIBC, &copy).expect("copied");
    let cache = FileCache::new(FileCacheLimits::default());
    let identify =
        |path: &Path| cache.identify(&File::open(path).expect("the file"), path).expect("an ELF file");
    let (first, second) = (identify(Path::new(LIBC)), identify(&copy));
    assert_eq!(first.key, second.key);
    assert!(matches!(first.key, FileKey { build_id: Some(_), content: ContentId::Hash(_), .. }));
    let opened = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let symbols = cache.symbols(&first.key, &copy, &DebugFileLocator::default(), || {
                    opened.fetch_add(1, Ordering::Relaxed);
                    open_regular(&copy)
                });
                assert!(!symbols.expect("symbols").is_empty());
            });
        }
    });
    assert_eq!(opened.load(Ordering::Relaxed), 1);
    let counters = cache.counters();
    assert_eq!((counters.hits, counters.misses, counters.evictions), (7, 3, 0));
    let rows = cache.rows(&first.key, Path::new(LIBC), || open_regular(Path::new(LIBC))).expect("rows");
    assert!(rows.functions() > 3000);
    assert!(cache.counters().bytes > 200_000);
}

#[test]
fn a_stripped_file_and_its_original_are_not_taken_for_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let stripped = directory.path().join("stripped");
    run("strip", &["-o", &stripped.to_string_lossy(), LIBJVM]);
    let cache = FileCache::new(FileCacheLimits::default());
    let identify =
        |path: &Path| cache.identify(&File::open(path).expect("the file"), path).expect("an ELF file");
    let (original, stripped_known) = (identify(Path::new(LIBJVM)), identify(&stripped));
    assert_eq!(original.header.build_id, stripped_known.header.build_id);
    assert_ne!(original.key, stripped_known.key);
    let swapped =
        cache.symbols(&original.key, &stripped, &DebugFileLocator::default(), || open_regular(&stripped));
    assert!(matches!(swapped, Err(LoadError::Changed { .. })));
    let symbols = cache.symbols(&original.key, Path::new(LIBJVM), &DebugFileLocator::default(), || {
        open_regular(Path::new(LIBJVM))
    });
    assert!(symbols.expect("an earlier failure to open isn't remembered").len() > 30_000);
}

#[test]
fn no_name_is_read_from_a_file_that_has_changed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("library");
    fs::copy(LIBJVM, &path).expect("copied");
    let cache = FileCache::new(FileCacheLimits::default());
    let known = cache.identify(&File::open(&path).expect("the file"), &path).expect("an ELF file");
    let symbols = cache
        .symbols(&known.key, &path, &DebugFileLocator::default(), || open_regular(&path))
        .expect("symbols");
    let text = known.header.segments.iter().find(|segment| segment.executable).expect("code");
    let mut code = (text.address.0..text.address.0 + text.file_size).map(Svma);
    let address = code.find(|at| symbols.lookup(*at).is_some()).expect("a function");
    let name = || {
        cache.function_name(&known.key, &path, &DebugFileLocator::default(), || open_regular(&path), address)
    };
    assert!(name().expect("unchanged").is_some());
    fs::copy(LIBC, &path).expect("written over");
    assert!(matches!(name(), Err(LoadError::Changed { .. })));
    run("strip", &["-o", &path.to_string_lossy(), LIBJVM]);
    assert!(matches!(name(), Err(LoadError::Changed { .. })), "the same build id isn't enough");
    fs::write(&path, "short").expect("written over");
    assert!(matches!(name(), Err(LoadError::Changed { .. })));
    fs::copy(LIBJVM, &path).expect("put back");
    assert!(name().expect("the same again").is_some());
    // Its name is another one now, and nothing else: the time is put back.
    let time = path.metadata().and_then(|metadata| metadata.modified()).expect("a time");
    let mut bytes = fs::read(&path).expect("read");
    let symbol = name().expect("no error").expect("a name");
    let at = bytes.windows(symbol.len()).rposition(|it| it == symbol.as_bytes()).expect("in .strtab");
    bytes[at] ^= 1;
    fs::write(&path, bytes).expect("written over");
    File::options().write(true).open(&path).and_then(|file| file.set_modified(time)).expect("set");
    assert!(matches!(name(), Err(LoadError::Changed { .. })));
}

/// The file that [`overwrite`] writes over while its code is looked at.
static OVERWRITTEN: OnceLock<PathBuf> = OnceLock::new();

/// Changes the file's last byte and puts its time back.
fn overwrite(_: &[u8], _: Svma, _: &[Svma]) -> Vec<(u64, u64, Row)> {
    let path = OVERWRITTEN.get().expect("set before");
    let file = File::options().read(true).write(true).open(path).expect("opened");
    let metadata = file.metadata().expect("there");
    file.write_all_at(b"!", metadata.len() - 1).expect("written");
    file.set_modified(metadata.modified().expect("a time")).expect("set");
    Vec::new()
}

#[test]
fn nothing_is_kept_of_a_file_that_changes_while_it_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, path) = (directory.path().join("a.s"), directory.path().join("without-frames.so"));
    fs::write(
        &source,
        ".globl f\n.type f, @function\nf: nop\ncall f\nret\n.fill 64, 1, 0x90\n.size f, .-f\n",
    )
    .expect("written");
    run("gcc", &["-shared", "-nostdlib", "-o", &path.to_string_lossy(), &source.to_string_lossy()]);
    OVERWRITTEN.set(path.clone()).expect("once");
    let cache = FileCache::new(FileCacheLimits::default()).with_analysis(overwrite);
    let known = cache.identify(&File::open(&path).expect("the file"), &path).expect("an ELF file");
    let rows = cache.rows(&known.key, &path, || open_regular(&path));
    assert!(matches!(rows, Err(LoadError::Changed { .. })), "{rows:?}");
    assert_eq!(cache.counters().load_errors.get("changed"), Some(&1));
}

#[test]
fn errors_are_remembered_for_a_while_and_counted_by_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("script");
    fs::write(&path, "#!/bin/sh\n").expect("written");
    let cache = |retry_after| FileCache::new(FileCacheLimits { retry_after, ..FileCacheLimits::default() });
    let identify = |cache: &FileCache| cache.identify(&File::open(&path).expect("the file"), &path);
    let errors = |cache: &FileCache| cache.counters().load_errors.get("not_elf").copied();
    let remembering = cache(Duration::from_secs(3600));
    for _ in 0..5 {
        let error = identify(&remembering).expect_err("not an ELF file");
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
    assert_eq!(errors(&remembering), Some(1));
    let forgetting = cache(Duration::from_millis(20));
    for tries in 1..=3 {
        assert!(identify(&forgetting).is_err());
        assert_eq!(errors(&forgetting), Some(tries));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_cache_keeps_its_limit_and_lets_the_least_used_leave() {
    let cache = FileCache::new(FileCacheLimits { bytes: 400 << 10, ..FileCacheLimits::default() });
    let load = |path: &Path| {
        let known = cache.identify(&File::open(path).expect("the file"), path).expect("an ELF file");
        cache.rows(&known.key, path, || open_regular(path))
    };
    assert!(matches!(load(Path::new(LIBJVM)), Err(LoadError::OverLimit { .. })));
    let small = [
        "/bin/ls",
        "/bin/bash",
        "/bin/tar",
        "/bin/sed",
        "/usr/bin/git",
        LIBC,
        "/usr/bin/gdb",
        "/usr/bin/ssh",
    ];
    let mut loaded = 0;
    for path in small.map(Path::new) {
        if path.exists() && load(path).is_ok() {
            loaded += 1;
        }
        assert!(cache.counters().bytes <= 400 << 10);
    }
    let counters = cache.counters();
    assert!(loaded >= 4 && counters.evictions > 0, "{loaded} loaded, {counters:?}");
}
