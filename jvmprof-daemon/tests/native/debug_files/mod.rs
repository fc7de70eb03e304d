//! Names and lines of stripped files: from MiniDebugInfo, debug links and build ids, in a container
//! and on the host.
//!
//! Needs gcc, binutils and xz, and fails where they are missing.

mod library;
mod sharing;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::debug_files_to_upload::extract_debug_info::{
    ExtractError, SymbolSources, extract,
};
use jvmprof_daemon::native::dwarf_lines::DwarfLineTable;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::file_cache::{FileCache, FileCacheLimits};
use jvmprof_daemon::native::function_symbols::mini_debug_info;
use jvmprof_daemon::native::open_file::open_regular;
use jvmprof_daemon::types::Svma;
use library::{CODE, Library, build_id, run, text};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// The four functions, and what each is called.
fn check_names(library: &Library, places: &DebugFileLocator, functions: &[(&str, Svma)], all: bool) {
    for (name, at) in functions {
        let found = library.name(places, *at);
        let expected = (all || name.starts_with("exported")).then_some(*name);
        assert_eq!(found.as_deref(), expected, "{name} at {at}");
    }
}

fn functions(library: &Library) -> [(&'static str, Svma); 4] {
    ["hidden", "exported", "hidden_too", "exported_too"].map(|name| (name, library.function(name)))
}

#[test]
fn a_debug_file_is_found_by_build_id_in_the_processs_own_root() {
    let library = Library::build(&[]);
    let functions = functions(&library);
    let debug = library.keep_debug(&library.build_id_path());
    library.strip();
    check_names(&library, &library.places(), &functions, true);
    check_names(&library, &DebugFileLocator::default(), &functions, false);
    // As Fedora has them: links, absolute or relative, that the root holds.
    for target in ["/usr/lib/debug/opt/liba.so.debug", "../../../../../usr/lib/debug/opt/liba.so.debug"] {
        let kept = library.keep_debug("usr/lib/debug/opt/other");
        fs::remove_file(&kept).expect("removed");
        if debug.symlink_metadata().expect("there").is_file() {
            fs::rename(&debug, library.file("usr/lib/debug/opt/liba.so.debug")).expect("moved");
        } else {
            fs::remove_file(&debug).expect("removed");
        }
        symlink(target, &debug).expect("linked");
        check_names(&library, &library.places(), &functions, true);
    }
}

#[test]
fn a_debug_file_of_another_build_or_outside_of_the_root_is_not_used() {
    let (library, other) = (Library::build(&[]), Library::build(&[]));
    assert_ne!(library.id, other.id);
    let functions = functions(&library);
    let debug = other.keep_debug(&library.build_id_path());
    let place = library.file(&library.build_id_path());
    fs::create_dir_all(place.parent().expect("a folder")).expect("made");
    fs::rename(&debug, &place).expect("moved");
    let true_one = library.keep_debug("true.debug");
    let outside = tempfile::tempdir().expect("a directory");
    let stolen = outside.path().join("stolen.debug");
    fs::rename(&true_one, &stolen).expect("moved");
    library.strip();
    check_names(&library, &library.places(), &functions, false);
    // The right file, but a link leads out of the root to it.
    fs::remove_file(&place).expect("removed");
    symlink(&stolen, &place).expect("linked");
    check_names(&library, &library.places(), &functions, false);
    // What isn't a file is never waited for.
    fs::remove_file(&place).expect("removed");
    mkfifo(&place, Mode::S_IRWXU).expect("a FIFO");
    check_names(&library, &library.places(), &functions, false);
    fs::remove_file(&place).expect("removed");
    fs::create_dir(&place).expect("a directory");
    check_names(&library, &library.places(), &functions, false);
    fs::remove_dir(&place).expect("removed");
    // Cut short, and with headers of nothing.
    let bytes = fs::read(&stolen).expect("read");
    for cut in [0, 4, 63, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&place, &bytes[..cut]).expect("written");
        check_names(&library, &library.places(), &functions, false);
    }
    fs::write(&place, &bytes).expect("written");
    check_names(&library, &library.places(), &functions, true);
}

#[test]
fn a_debug_link_is_followed_if_the_checksum_agrees() {
    for place in ["opt/lib/liba.debug", "opt/lib/.debug/liba.debug", "usr/lib/debug/opt/lib/liba.debug"] {
        let library = Library::build(&["-Wl,--build-id=none"]);
        let functions = functions(&library);
        let debug = library.keep_debug(place);
        library.strip();
        run("objcopy", &[&format!("--add-gnu-debuglink={}", text(&debug)), text(&library.path)]);
        check_names(&library, &library.places(), &functions, true);
        let mut bytes = fs::read(&debug).expect("read");
        *bytes.last_mut().expect("not empty") ^= 1;
        fs::write(&debug, bytes).expect("written");
        check_names(&library, &library.places(), &functions, false);
    }
}

#[test]
fn a_debug_file_that_is_written_anew_gives_no_more_names() {
    let library = Library::build(&[]);
    let at = library.function("hidden");
    let debug = library.keep_debug(&format!("downloads/{}.debug", library.id));
    library.strip();
    let places =
        DebugFileLocator { downloads: Some(library.file("downloads")), ..DebugFileLocator::default() };
    let cache = FileCache::new(FileCacheLimits::default());
    assert_eq!(library.name_in(&cache, &places, at).as_deref(), Some("hidden"));
    let bytes = fs::read(&debug).expect("read");
    let mut renamed = bytes.clone();
    let place = renamed.windows(7).position(|name| name == b"hidden\0").expect("its name");
    renamed[place] = b'H';
    fs::write(&debug, renamed).expect("written");
    let known =
        cache.identify(&File::open(&library.path).expect("there"), &library.path).expect("an ELF file");
    let name = cache.function_name(&known.key, &library.path, &places, || open_regular(&library.path), at);
    assert!(name.is_err(), "{name:?}");
    // Another file in its place changes nothing: the first one is open.
    fs::remove_file(&debug).expect("removed");
    fs::write(&debug, &bytes).expect("written");
    let fresh = FileCache::new(FileCacheLimits::default());
    assert_eq!(library.name_in(&fresh, &places, at).as_deref(), Some("hidden"));
    fs::remove_file(&debug).expect("removed");
    assert_eq!(library.name_in(&fresh, &places, at).as_deref(), Some("hidden"));
}

/// What Fedora's `find-debuginfo` does: the symbols that `.dynsym` lacks, compressed.
fn add_mini_debug_info(library: &Library, replace: Option<&[u8]>) {
    let (mini, packed) = (library.file("mini"), library.file("mini.xz"));
    run(
        "objcopy",
        &["-S", "--keep-symbol=hidden", "--keep-symbol=hidden_too", text(&library.path), text(&mini)],
    );
    run("xz", &["-k", "-f", text(&mini)]);
    if let Some(bytes) = replace {
        fs::write(&packed, bytes).expect("written");
    }
    library.strip();
    run("objcopy", &["--add-section", &format!(".gnu_debugdata={}", text(&packed)), text(&library.path)]);
}

#[test]
fn mini_debug_info_names_what_dynsym_lacks() {
    let library = Library::build(&[]);
    let functions = functions(&library);
    add_mini_debug_info(&library, None);
    check_names(&library, &DebugFileLocator::default(), &functions, true);
    // Its names stay known without the file being expanded again.
    let cache = FileCache::new(FileCacheLimits::default());
    for _ in 0..3 {
        for (name, at) in functions {
            let found = library.name_in(&cache, &DebugFileLocator::default(), at);
            assert_eq!(found.as_deref(), Some(name));
        }
    }
    assert_eq!(cache.counters().misses, 2, "headers and symbols are read once");
}

#[test]
fn broken_mini_debug_info_leaves_dynsym() {
    let good = {
        let library = Library::build(&[]);
        add_mini_debug_info(&library, None);
        fs::read(library.file("mini.xz")).expect("read")
    };
    let bomb = {
        let scratch = tempfile::tempdir().expect("a directory");
        let zeros = scratch.path().join("zeros");
        File::create(&zeros).expect("made").set_len(200 << 20).expect("sparse");
        run("xz", &["-1", text(&zeros)]);
        fs::read(scratch.path().join("zeros.xz")).expect("read")
    };
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 0x55;
    for bytes in [&b""[..], b"xz", &good[..good.len() / 2], &flipped, &bomb] {
        let library = Library::build(&[]);
        let functions = functions(&library);
        add_mini_debug_info(&library, Some(bytes));
        check_names(&library, &DebugFileLocator::default(), &functions, false);
    }
}

#[test]
fn inlined_functions_come_innermost_first_with_their_lines() {
    let line_of = |text: &str| CODE.lines().position(|line| line.contains(text)).expect("there") as u32 + 1;
    for flags in [&[][..], &["-gz=zlib"], &["-gz=zstd"], &["-gdwarf-4"], &["-gdwarf-5"]] {
        if flags == ["-gz=zstd"]
            && !Command::new("objcopy")
                .arg("--help")
                .output()
                .is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("zstd"))
        {
            continue;
        }
        let library = Library::build(&[]);
        if let [flag] = flags {
            match flag.strip_prefix("-gz=") {
                // The compiler may be older than its binutils.
                Some(method) => {
                    drop(run(
                        "objcopy",
                        &[&format!("--compress-debug-sections={method}"), text(&library.path)],
                    ));
                }
                None => {
                    let code = library.file("opt/lib/a.c");
                    run(
                        "gcc",
                        &["-g", flag, "-O2", "-shared", "-fPIC", "-o", text(&library.path), text(&code)],
                    );
                }
            }
        }
        let list = run("nm", &["-S", "--defined-only", text(&library.path)]);
        let line = list.lines().find(|line| line.ends_with(" hidden")).expect("nm lists it");
        let mut fields = line.split(' ').map(|field| u64::from_str_radix(field, 16).unwrap_or_default());
        let (start, size) = (fields.next().expect("start"), fields.next().expect("size"));
        let mut deepest = Vec::new();
        for at in start..start + size {
            let found = library.lines(&library.places(), Svma(at));
            let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
            assert!(
                [&["hidden"][..], &["middle", "hidden"], &["innermost", "middle", "hidden"]]
                    .contains(&&*names),
                "{names:?} at {at:#x}"
            );
            if found.len() > deepest.len() {
                deepest = found;
            }
        }
        let [inner, middle, outer] = &deepest[..] else { panic!("{flags:?}: {deepest:?}") };
        assert_eq!(inner.2, line_of("int innermost"));
        assert_eq!(middle.2, line_of("return innermost(x) + 1"));
        assert_eq!(outer.2, line_of("return middle(x + sink)"));
        assert!(deepest.iter().all(|(_, file, _)| file.ends_with("/opt/lib/a.c")), "{deepest:?}");
        // The same from a separate debug file, and nothing without it.
        if flags.is_empty() {
            let at = library.function("hidden");
            let whole = library.lines(&library.places(), at);
            library.keep_debug(&library.build_id_path());
            library.strip();
            assert_eq!(library.lines(&library.places(), at), whole);
            assert_eq!(library.lines(&DebugFileLocator::default(), at), []);
        }
    }
}

#[test]
fn dwarf_beyond_the_limit_is_left_and_its_names_stay() {
    let library = Library::build(&[]);
    let at = library.function("hidden");
    let cache = FileCache::new(FileCacheLimits { line_bytes: 1000, ..FileCacheLimits::default() });
    let known =
        cache.identify(&File::open(&library.path).expect("there"), &library.path).expect("an ELF file");
    let open = || open_regular(&library.path);
    for _ in 0..3 {
        let error =
            cache.lines(&known.key, &library.path, &library.places(), open, at).expect_err("too large");
        assert_eq!(error.reason(), "too_large");
    }
    assert_eq!(cache.counters().load_errors.get("too_large"), Some(&1), "it isn't read again and again");
    assert_eq!(library.name_in(&cache, &library.places(), at).as_deref(), Some("hidden"));
}

fn parsed(bytes: &[u8]) -> ElfFile<&[u8]> {
    ElfFile::parse(bytes).expect("an ELF file")
}

fn extracted(program: &[u8], symbols: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let made = extract(&parsed(program), &parsed(symbols), u64::MAX, &mut out).expect("extracted");
    assert_eq!(made.size, out.len() as u64);
    out
}

#[test]
fn what_is_extracted_names_the_same_addresses_and_holds_no_code() {
    for flags in [&[][..], &["-gz=zlib"], &["-no-pie", "-fno-pic"]] {
        let library = Library::build(&[]);
        if let [flag] = flags
            && let Some(method) = flag.strip_prefix("-gz=")
        {
            run("objcopy", &[&format!("--compress-debug-sections={method}"), text(&library.path)]);
        }
        let functions = functions(&library);
        let whole = fs::read(&library.path).expect("read");
        let lines = functions.map(|(_, at)| library.lines(&library.places(), at));
        let debug = fs::read(library.keep_debug("a.debug")).expect("read");
        library.strip();
        let stripped = fs::read(&library.path).expect("read");
        for out in [extracted(&whole, &whole), extracted(&stripped, &debug)] {
            let (file, original) = (parsed(&out), parsed(&stripped));
            assert_eq!(
                file.header().segments,
                original.header().segments,
                "addresses are those of what runs"
            );
            assert_eq!(file.build_id(), original.build_id());
            assert_eq!(file.section(".text"), None, "no code");
            assert!(SymbolSources::of(&file).symtab && SymbolSources::of(&file).dwarf);
            fs::write(&library.path, &out).expect("written");
            check_names(&library, &DebugFileLocator::default(), &functions, true);
            for ((_, at), expected) in functions.iter().zip(&lines) {
                assert_eq!(library.lines(&DebugFileLocator::default(), *at), *expected);
            }
            let complaints = run("readelf", &["-aW", text(&library.path)]);
            assert!(!complaints.contains("rror"), "{complaints}");
        }
        assert_eq!(extracted(&whole, &whole), extracted(&whole, &whole), "the same on every host");
        let limit = 1000;
        let too_large = extract(&parsed(&whole), &parsed(&whole), limit, &mut Vec::new());
        assert!(matches!(too_large, Err(ExtractError::TooLarge { .. })));
    }
}

#[test]
fn a_file_without_sections_is_extracted_without_sections() {
    let mut bytes = fs::read("/bin/true").expect("read");
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let out = extracted(&bytes, &bytes);
    assert!(parsed(&out).sections().is_empty());
    assert_eq!(parsed(&out).header().segments, parsed(&bytes).header().segments);
}

#[test]
fn a_section_that_reaches_to_the_end_of_all_offsets_is_too_large_to_be_extracted() {
    let library = Library::build(&[]);
    let mut bytes = fs::read(&library.path).expect("read");
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let headers = usize::try_from(word(&bytes, 40)).expect("an offset");
    // The symbols: of type 2.
    let symbols = (headers..bytes.len()).step_by(64).find(|at| bytes[at + 4..at + 8] == [2, 0, 0, 0]);
    let size_at = symbols.expect("a symbol table") + 32;
    for size in [u64::MAX, u64::MAX - 6000, 1 << 63] {
        bytes[size_at..size_at + 8].copy_from_slice(&size.to_le_bytes());
        let made = extract(&parsed(&bytes), &parsed(&bytes), 1 << 20, &mut Vec::new());
        assert!(matches!(made, Err(ExtractError::TooLarge { .. })), "{size:#x}: {made:?}");
    }
}

#[test]
fn dwarf_that_dwz_split_is_not_extracted() {
    let library = Library::build(&[]);
    let link = library.file("link");
    fs::write(&link, b"/usr/lib/debug/.dwz/x\0abcdefgh").expect("written");
    run("objcopy", &["--add-section", &format!(".gnu_debugaltlink={}", text(&link)), text(&library.path)]);
    let whole = fs::read(&library.path).expect("read");
    let out = extracted(&whole, &whole);
    assert_eq!(
        SymbolSources::of(&parsed(&out)),
        SymbolSources { symtab: true, dynsym: true, ..SymbolSources::default() }
    );
}

#[test]
fn changed_bytes_anywhere_give_errors_or_other_answers_but_no_panic() {
    let library = Library::build(&[]);
    let at = library.function("hidden");
    let original = fs::read(&library.path).expect("read");
    let mut state = 7_u64;
    let (mut with_lines, mut without) = (0, 0);
    for round in 0..400 {
        let mut bytes = original.clone();
        for _ in 0..1 + round % 30 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (state >> 20) as usize % bytes.len();
            bytes[place] = (state >> 52) as u8;
        }
        let Ok(elf) = ElfFile::parse(&*bytes) else { continue };
        let mut out = Vec::new();
        if extract(&elf, &elf, 1 << 20, &mut out).is_ok() {
            assert_eq!(parsed(&out).header().segments, elf.header().segments);
            assert_eq!(SymbolSources::of(&parsed(&out)).dwarf, SymbolSources::of(&elf).dwarf);
        }
        let _ = mini_debug_info(&elf);
        let lines = DwarfLineTable::load(&elf, Path::new("/x"), &DebugFileLocator::default(), 1 << 20);
        match lines.map(|table| table.map(|table| table.find(at))) {
            Ok(Some(Ok(lines))) if !lines.is_empty() => with_lines += 1,
            _ => without += 1,
        }
    }
    println!("{with_lines} with lines, {without} without");
    assert!(with_lines > 20);
}

#[test]
fn shared_dwarf_is_found_by_a_path_that_counts_from_the_debug_file() {
    let library = Library::build(&[]);
    library.keep_debug("usr/lib/debug/.dwz/shared.debug");
    let link = library.file("link");
    let id = build_id(&library.path).expect("a build id");
    // Another library, whose debug file refers to what is shared.
    let other = Library::build(&[]);
    let stripped = library.file("stripped");
    run("strip", &["-o", text(&stripped), text(&other.path)]);
    let debug = library.file(&other.build_id_path());
    fs::create_dir_all(debug.parent().expect("a folder")).expect("made");
    for name in
        ["../../.dwz/shared.debug", "../../../debug/.dwz/shared.debug", "/usr/lib/debug/.dwz/shared.debug"]
    {
        fs::write(&link, [name.as_bytes(), b"\0", id.as_bytes()].concat()).expect("written");
        let section = format!(".gnu_debugaltlink={}", text(&link));
        run("objcopy", &["--only-keep-debug", "--add-section", &section, text(&other.path), text(&debug)]);
        let bytes = fs::read(&stripped).expect("read");
        let found = library.places().find(&parsed(&bytes), Path::new("/opt/lib/x.so")).expect("by build id");
        let bytes = fs::read(&found.path).expect("read");
        let shared = library.places().supplementary(&parsed(&bytes), &found.place);
        let shared = shared.unwrap_or_else(|| panic!("{name} isn't found"));
        assert_eq!(build_id(&shared.path), Some(id));
    }
}
