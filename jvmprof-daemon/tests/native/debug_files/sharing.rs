//! Files that share what is known of them, and files that only look as if they were the same.

use std::fs::{self, File};
use std::path::Path;

use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::file_cache::{FileCache, FileCacheLimits};
use jvmprof_daemon::native::open_file::open_regular;

use super::library::{Library, run, text};
use super::{functions, parsed};

#[test]
fn a_build_id_that_two_files_share_does_not_lend_names() {
    // A file that claims the build id of another, whose debug file is installed.
    let (library, other) = (Library::build(&[]), Library::build(&["-O0"]));
    let note = library.file("note");
    run("objcopy", &["--dump-section", &format!(".note.gnu.build-id={}", text(&note)), text(&library.path)]);
    run("objcopy", &["--update-section", &format!(".note.gnu.build-id={}", text(&note)), text(&other.path)]);
    let cache = FileCache::new(FileCacheLimits::default());
    let functions = functions(&library);
    let others = [("exported", other.function("exported")), ("exported_too", other.function("exported_too"))];
    for (name, at) in functions {
        assert_eq!(library.name_in(&cache, &library.places(), at).as_deref(), Some(name));
    }
    // Each keeps its own symbols in the same cache.
    for (name, at) in others {
        assert_eq!(other.name_in(&cache, &other.places(), at).as_deref(), Some(name));
    }
}

/// What anybody can make in a container: the build id and the headers of another file, and other
/// names, rows or code.
#[test]
fn a_file_that_differs_from_another_in_one_byte_alone_lends_it_nothing() {
    let library = Library::build(&[]);
    let at = library.function("hidden");
    let original = fs::read(&library.path).expect("read");
    let elf = parsed(&original);
    let identify = |cache: &FileCache, path: &Path| {
        cache.identify(&File::open(path).expect("there"), path).expect("an ELF file").key
    };
    for section in [".strtab", ".symtab", ".dynsym", ".dynstr", ".eh_frame", ".text", ".shstrtab"] {
        let cache = FileCache::new(FileCacheLimits::default());
        let found = elf.sections().iter().find(|it| it.name == section).expect(section);
        let place = match section {
            ".strtab" => original.windows(7).rposition(|name| name == b"hidden\0").expect("its name"),
            _ => (found.offset.0 + found.size - 1) as usize,
        };
        let mut bytes = original.clone();
        bytes[place] ^= 1;
        let (copy, hostile) = (library.file("copy.so"), library.file("hostile.so"));
        fs::write(&copy, &original).expect("written");
        fs::write(&hostile, bytes).expect("written");
        // The one that lies comes first.
        let key = identify(&cache, &hostile);
        let open = || open_regular(&hostile);
        let lie =
            cache.function_name(&key, &hostile, &DebugFileLocator::default(), open, at).expect("no error");
        let own = identify(&cache, &library.path);
        assert_eq!(key.build_id, own.build_id);
        assert_ne!(key, own, "{section}");
        assert_eq!(own, identify(&cache, &copy), "the same bytes elsewhere are the same file");
        let name = library.name_in(&cache, &DebugFileLocator::default(), at);
        assert_eq!(name.as_deref(), Some("hidden"));
        assert!(section != ".strtab" || lie.as_deref() == Some("iidden"), "{lie:?}");
    }
}

/// The same code with other lines is another file, if lines are asked for.
#[test]
fn files_that_differ_in_dwarf_alone_lend_each_other_no_lines() {
    let library = Library::build(&["-gdwarf-5"]);
    let at = library.function("hidden");
    let original = fs::read(&library.path).expect("read");
    let own = library.lines(&library.places(), at);
    let elf = parsed(&original);
    let section = elf.sections().iter().find(|it| it.name == ".debug_line_str").expect("DWARF 5");
    let start = section.offset.0 as usize;
    let mut bytes = original.clone();
    for place in start..start + section.size as usize {
        if original[place..].starts_with(b"a.c\0") {
            bytes[place] = b'b';
        }
    }
    // The one that lies comes first.
    let cache = FileCache::new(FileCacheLimits::default()).with_lines(true);
    fs::write(&library.path, bytes).expect("written");
    let lie = library.lines_in(&cache, &library.places(), at);
    assert!(lie.iter().all(|(_, file, _)| file.ends_with("b.c")), "{lie:?}");
    fs::write(&library.path, original).expect("written");
    assert_eq!(library.lines_in(&cache, &library.places(), at), own);
    assert!(own.iter().all(|(_, file, _)| file.ends_with("a.c")), "{own:?}");
}

#[test]
fn a_containers_debug_file_names_nobody_elses_functions() {
    // Two roots with the same stripped library, of which one has a debug file that says what it
    // likes.
    let library = Library::build(&[]);
    let at = library.function("hidden");
    let debug = library.keep_debug(&library.build_id_path());
    let mut bytes = fs::read(&debug).expect("read");
    let name = bytes.windows(7).rposition(|name| name == b"hidden\0").expect("its name");
    bytes[name] = b'H';
    fs::write(&debug, bytes).expect("written");
    library.strip();
    let other = tempfile::tempdir().expect("a directory");
    let others =
        DebugFileLocator { process_root: Some(other.path().to_owned()), ..DebugFileLocator::default() };
    let cache = FileCache::new(FileCacheLimits::default());
    for _ in 0..2 {
        assert_eq!(library.name_in(&cache, &library.places(), at).as_deref(), Some("Hidden"));
        for places in [&others, &DebugFileLocator::default()] {
            assert_eq!(library.name_in(&cache, places, at), None);
        }
    }
    // Without a debug file of their own containers share what is known of the file.
    let known =
        cache.identify(&File::open(&library.path).expect("there"), &library.path).expect("an ELF file");
    let key =
        cache.names_key(&known.key, Path::new("/opt/lib/liba.so"), &others, || open_regular(&library.path));
    assert_eq!(key.expect("a key"), known.key);
}
