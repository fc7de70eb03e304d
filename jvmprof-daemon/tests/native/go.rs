//! Go programs by their own table: names and rows against what the linker wrote for debuggers.
//! Needs go.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::support::{go_cache, scratch};
use gimli::{BaseAddresses, DebugFrame, LittleEndian, UnwindContext, UnwindSection, X86_64};
use jvmprof_common::rows::{CfaRule, RaRule, RbpRule};
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::symbols::SymbolTable;
use jvmprof_daemon::native::unwind_rows::UnwindRows;
use jvmprof_daemon::types::Svma;

fn build(directory: &Path, flags: &[&str]) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/whole_stacks/programs/load.go");
    let program = directory.join("program");
    let mut go = Command::new("go");
    go.env("GOCACHE", go_cache()).env("GOFLAGS", "").env("CGO_ENABLED", "0");
    go.args(["build", "-o"]).arg(&program).args(flags).arg(source).current_dir(directory);
    assert!(go.status().expect("this test runs go").success(), "go build {flags:?}");
    std::fs::read(program).expect("what go has built")
}

fn name(table: &SymbolTable, image: &[u8], at: u64) -> Option<String> {
    table.name(table.lookup(Svma(at))?, &image).expect("the name is in the file")
}

#[test]
fn a_stripped_program_has_the_names_of_the_one_that_is_not() {
    let directory = scratch();
    let (whole, stripped) = (build(directory.path(), &[]), build(directory.path(), &["-ldflags=-s -w"]));
    let pie = build(directory.path(), &["-ldflags=-s -w", "-buildmode=pie"]);
    let parsed = ElfFile::parse(&*whole).expect("an ELF file");
    let known = SymbolTable::load(&parsed).expect("symbols");
    let own = SymbolTable::load_go(&parsed).expect("readable").expect("a table");
    let text = parsed.section(".text").expect("code");
    let (mut named, mut holes) = (0, 0);
    for at in (text.address.0..text.address.0 + text.size).step_by(4) {
        let (expected, found) = (name(&known, &whole, at), name(&own, &whole, at));
        // Wrappers for assembly have a suffix that the table leaves out; the linker's own marks
        // aren't in it.
        let expected = expected.map(|name| name.trim_end_matches(".abi0").to_owned());
        match (found, expected) {
            (None, None) => holes += 1,
            (Some(mark), None) if mark.starts_with("go:") => {}
            (None, Some(mark)) => assert!(mark.starts_with("runtime.") || mark.starts_with("go:"), "{mark}"),
            (found, expected) => {
                named += 1;
                // The linker writes a dot where the compiler has another one.
                assert_eq!(found.map(|name| name.replace('·', ".")), expected, "{at:#x}");
            }
        }
    }
    println!("{named} places named, {holes} in holes");
    assert!(named > 50_000 && holes > 1_000);
    for image in [&stripped, &pie] {
        let parsed = ElfFile::parse(&**image).expect("an ELF file");
        assert!(SymbolTable::load(&parsed).expect("symbols").len() < 100, "stripped");
        let own = SymbolTable::load_go(&parsed).expect("readable").expect("a table");
        assert!(own.len() > 1_000, "{} functions", own.len());
        assert!(UnwindRows::load(&parsed).expect("rows").size_bytes() > 10_000);
    }
}

#[test]
fn rows_of_the_table_are_those_that_debuggers_get() {
    let directory = scratch();
    let image = build(directory.path(), &[]);
    let parsed = ElfFile::parse(&*image).expect("an ELF file");
    let rows = UnwindRows::load(&parsed).expect("rows");
    let names = SymbolTable::load(&parsed).expect("symbols");
    let text = parsed.section(".text").expect("code");
    let section = parsed.section(".debug_frame").expect("frame information");
    let bytes = parsed.read(section, 1 << 30).expect("its bytes");
    let mut section = DebugFrame::new(&bytes, LittleEndian);
    section.set_address_size(8);
    let (bases, mut context) = (BaseAddresses::default(), UnwindContext::new());
    let (mut equal, mut other) = (0u64, BTreeMap::<String, u64>::new());
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().expect("an entry") {
        let gimli::CieOrFde::Fde(fde) = entry else { continue };
        let fde = fde.parse(DebugFrame::cie_from_offset).expect("an FDE");
        let mut table = fde.rows(&section, &bases, &mut context).expect("its rows");
        while let Some(expected) = table.next_row().expect("a row") {
            for pc in [expected.start_address(), expected.end_address() - 1] {
                let name = name(&names, &image, pc).unwrap_or_default();
                let code = &image[(text.offset.0 + pc - text.address.0) as usize..];
                let row = match rows.row(Svma(pc)) {
                    Some(row) => row,
                    // There, functions reach over the padding behind them. This one takes its
                    // return address away.
                    None if code[0] == 0xcc || name.starts_with("syscall.rawVforkSyscall") => continue,
                    // No stack has frames of a gigabyte, which one function for reflection is
                    // prepared for.
                    None if name.starts_with("runtime.call1073741824") => continue,
                    None => panic!("no row at {pc:#x}, {name}"),
                };
                // The last rows there begin before the function's last instructions, `pop rbp;
                // ret`.
                if code[0] == 0x5d && code[1] == 0xc3 && matches!(row.cfa, CfaRule::Rsp(_)) && !row.is_root()
                {
                    assert_eq!(row.cfa, CfaRule::Rsp(16), "{pc:#x} {name}");
                    continue;
                }
                let gimli::CfaRule::RegisterAndOffset { register, offset } = expected.cfa() else {
                    panic!("an expression at {pc:#x}")
                };
                // Nor have they the last `add rsp, bytes; ret`: the row behind it begins within it.
                let at = (text.offset.0 + pc - text.address.0) as usize;
                let freed = (at - 3..=at).find_map(|at| match image[at..] {
                    [0x48, 0x83, 0xc4, bytes, 0xc3, ..] => Some(bytes),
                    _ => None,
                });
                if let (8, Some(bytes)) = (*offset, freed) {
                    assert_eq!(row.cfa, CfaRule::Rsp(8 + i32::from(bytes)), "{pc:#x} {name}");
                    continue;
                }
                match row.cfa {
                    CfaRule::Rsp(found) if !row.is_root() && !row.signal => {
                        assert_eq!((*register, *offset), (X86_64::RSP, i64::from(found)), "{pc:#x} {name}");
                        assert_eq!(row.ra, RaRule::AtCfa(-8), "{pc:#x} {name}");
                        // Behind a push of rbp, whatever follows, it is there.
                        assert!(found > 8 || row.rbp == RbpRule::Same, "{pc:#x} {name}: {row:?}");
                        equal += 1;
                    }
                    _ => *other.entry(name).or_default() += 1,
                }
            }
        }
    }
    println!("{equal} rows are equal, others: {other:?}");
    assert!(equal > 10_000);
    assert!(other.len() < 40, "{other:?}");
    for special in
        ["runtime.goexit.abi0", "runtime.systemstack.abi0", "runtime.morestack.abi0", "runtime.mcall"]
    {
        assert!(other.contains_key(special), "{special} is left as others are");
    }
}

#[test]
fn a_broken_table_is_refused_or_has_fewer_functions() {
    let directory = scratch();
    let image = build(directory.path(), &["-ldflags=-s -w"]);
    let parsed = ElfFile::parse(&*image).expect("an ELF file");
    let table = parsed.section(".gopclntab").expect("a table");
    let (start, size) = (table.offset.0 as usize, table.size as usize);
    let whole = SymbolTable::load_go(&parsed).expect("readable").expect("a table").len();
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for turn in 0..60 {
        let mut broken = image.clone();
        // The header, the index of functions, anything.
        let below = [80, 40_000, size][turn % 3].min(size);
        for _ in 0..1 + turn / 10 {
            broken[start + random(below)] = random(256) as u8;
        }
        let parsed = ElfFile::parse(&*broken).expect("an ELF file");
        if let Some(found) = SymbolTable::load_go(&parsed).expect("readable") {
            assert!(found.len() <= 2 * whole, "{} functions", found.len());
        }
        UnwindRows::load(&parsed).expect("what makes no sense has no rows");
    }
}
