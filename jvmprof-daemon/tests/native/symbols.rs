//! Symbol tables of real files against what binutils say of them.
//!
//! Needs binutils and JDK 17's libjvm.so, and fails where they are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::symbols::SymbolTable;
use jvmprof_daemon::native::symbols::demangle::demangle;
use jvmprof_daemon::types::Svma;

const LIBJVM: &str = "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so";
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

/// The functions of a file, and the file to read their names from.
struct Loaded {
    table: SymbolTable,
    file: File,
}

impl Loaded {
    fn name_at(&self, address: Svma) -> Option<String> {
        let source = RegularFile::new(&self.file).expect("a regular file");
        self.table.lookup(address).and_then(|found| self.table.name(found, &source).expect("its name"))
    }
}

fn load(path: &str) -> Loaded {
    let file = File::open(path).unwrap_or_else(|e| panic!("this test reads {path}: {e}"));
    let source = RegularFile::new(&file).expect("a regular file");
    let elf = ElfFile::parse(source).expect("an ELF file");
    let table = SymbolTable::load(&elf).expect("symbols");
    Loaded { table, file }
}

fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let spawned = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = spawned.unwrap_or_else(|e| panic!("this test runs {program}: {e}"));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        child.wait_with_output().expect("its output")
    });
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The numbers of the sections that `readelf` flags as code.
fn code_sections_of(path: &str) -> BTreeSet<String> {
    let list = run("readelf", &["-SW", path], "");
    let lines = list.lines().filter_map(|line| line.trim_start().strip_prefix('['));
    let code = lines.filter_map(|line| {
        let (number, rest) = line.split_once(']')?;
        // "Name Type Address Off Size ES Flg Lk Inf Al"
        let flags = rest.split_whitespace().nth(6)?;
        (flags.contains('X')).then(|| number.trim().to_owned())
    });
    code.collect()
}

/// What `readelf` lists as functions with a size, by start and size, with all names.
fn functions_of(path: &str) -> BTreeMap<(u64, u64), BTreeSet<String>> {
    let code = code_sections_of(path);
    let mut functions = BTreeMap::<_, BTreeSet<String>>::new();
    for line in run("readelf", &["-sW", "--sym-base=16", path], "").lines() {
        // "   Num:    Value          Size Type    Bind   Vis      Ndx Name"
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, value, size, kind, _, _, section, name, ..] = fields[..] else { continue };
        if !["FUNC", "IFUNC", "NOTYPE"].contains(&kind) || !code.contains(section) {
            continue;
        }
        let start = u64::from_str_radix(value, 16).expect("an address");
        let size = u64::from_str_radix(size.trim_start_matches("0x"), 16).expect("a size");
        if size > 0 {
            // Versions of dynamic symbols are written by readelf, not by the string table.
            let bare = name.split('@').next().unwrap_or(name);
            functions.entry((start, size)).or_default().extend([name.to_owned(), bare.to_owned()]);
        }
    }
    assert!(functions.len() > 100, "readelf lists no functions of {path}");
    functions
}

fn check_against_readelf(path: &str) {
    let loaded = load(path);
    let functions = functions_of(path);
    let longest = functions.keys().map(|(_, size)| *size).max().unwrap_or_default();
    let mut checked = 0;
    for (start, size) in functions.keys() {
        for address in [*start, start + size / 2, start + size - 1, start + size] {
            // The function that starts last has the bytes; of those that start there, the smallest.
            let near = functions.range((address.saturating_sub(longest), 0)..=(address, u64::MAX));
            let covering = near.filter(|((start, size), _)| address < start + size);
            let expected = covering.max_by_key(|((start, size), _)| (*start, std::cmp::Reverse(*size)));
            match (expected, loaded.table.lookup(Svma(address))) {
                (Some(((start, size), names)), Some(found)) => {
                    assert_eq!((found.start, found.size), (Svma(*start), *size), "{path} at {address:#x}");
                    let name = loaded.name_at(Svma(address)).expect("a name");
                    assert!(names.contains(&name), "{name} at {address:#x} of {path}");
                }
                (None, Some(found)) => {
                    // A label of assembly, to which readelf gives no size.
                    assert!(
                        !functions.contains_key(&(found.start.0, found.size)),
                        "{found:?} at {address:#x}"
                    );
                }
                (Some(expected), None) => panic!("nothing at {address:#x} of {path}, expected {expected:?}"),
                (None, None) => {}
            }
            checked += 1;
        }
    }
    println!("{path}: {checked} addresses of {} functions checked", functions.len());
}

#[test]
fn every_function_of_libjvm_is_found_where_readelf_says() {
    check_against_readelf(LIBJVM);
}

#[test]
fn every_function_of_libc_is_found_where_readelf_says() {
    check_against_readelf(LIBC);
    let loaded = load(LIBC);
    let functions = functions_of(LIBC);
    let (at, _) = functions.iter().find(|(_, names)| names.contains("malloc")).expect("libc has malloc");
    assert_eq!(loaded.name_at(Svma(at.0)).as_deref(), Some("malloc"));
}

#[test]
fn the_table_of_libjvm_is_small_and_loads_fast() {
    let begin = Instant::now();
    let Loaded { table, .. } = load(LIBJVM);
    let file_size = Path::new(LIBJVM).metadata().expect("libjvm").len();
    println!("{LIBJVM}: {} ranges, {} bytes, {:?}", table.len(), table.size_bytes(), begin.elapsed());
    assert!(table.len() > 30_000);
    assert!((table.size_bytes() as u64) < file_size / 40);
}

#[test]
fn stripped_functions_are_holes_and_take_no_neighbours_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, binary) = (directory.path().join("holes.c"), directory.path().join("libholes.so"));
    let code = "__attribute__((noinline)) static int hidden(int x) { return x * 3 + 1; }\n\
                int visible(int x) { return hidden(x) + 1; }\n\
                __attribute__((noinline)) static int hidden_too(int x) { return x * 5 + 2; }\n\
                int visible_too(int x) { return hidden_too(x) - 7; }\n\
                __asm__(\".globl label\\nlabel: nop\\nnop\\nret\");\n";
    std::fs::write(&source, code).expect("the source");
    let (source, binary) = (source.to_string_lossy(), binary.to_string_lossy());
    run("cc", &["-O1", "-fno-inline", "-shared", "-fPIC", "-o", &binary, &source], "");
    let address = |name: &str| {
        let functions = run("nm", &["--defined-only", &binary], "");
        let line = functions
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")))
            .expect("nm lists it")
            .to_owned();
        Svma(u64::from_str_radix(line.split(' ').next().expect("address"), 16).expect("hex"))
    };
    let all = ["hidden", "visible", "hidden_too", "visible_too", "label"].map(|name| (name, address(name)));
    let loaded = load(&binary);
    for (name, at) in all {
        assert_eq!(loaded.name_at(at).as_deref(), Some(name));
    }
    run("strip", &[&binary], "");
    let loaded = load(&binary);
    for (name, at) in all {
        let found = loaded.name_at(at);
        assert_eq!(found.as_deref(), name.starts_with("visible").then_some(name), "{name} at {at}");
    }
}

/// What two demanglers spell differently: spaces, and unsigned literals (`(unsigned long)7`,
/// `7ul`).
fn squeeze(name: &str) -> String {
    let mut squeezed = String::new();
    for c in name.replace("(unsigned long)", "").replace("(unsigned int)", "").chars() {
        let suffix = "ul".contains(c) && squeezed.ends_with(|c: char| c.is_ascii_digit());
        if c != ' ' && !suffix {
            squeezed.push(c);
        }
    }
    squeezed.replace("0l>", "0>")
}

#[test]
fn names_are_demangled_as_cppfilt_does() {
    let names: BTreeSet<String> =
        functions_of(LIBJVM).into_values().flatten().filter(|name| name.starts_with("_Z")).collect();
    let list: Vec<&String> = names.iter().collect();
    let input: String = list.iter().map(|name| format!("{name}\n")).collect();
    let expected = run("c++filt", &["-p"], &input);
    let mut different = 0;
    for (raw, expected) in list.iter().zip(expected.lines()) {
        let ours = demangle(raw).unwrap_or_else(|| (*raw).clone());
        if squeeze(&ours) != squeeze(expected) {
            different += 1;
            if different <= 3 {
                println!("{raw}\n    ours     {ours}\n    c++filt  {expected}");
            }
        }
    }
    println!("{different} of {} differ", list.len());
    assert!(list.len() > 20_000);
    assert!(different * 200 < list.len(), "{different} of {} differ", list.len());
}
