//! Unwind rows of whole files against gimli's own evaluation, and against `readelf`.
//!
//! Needs binutils and JDK 17's libjvm.so, and fails where they are missing.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::Command;
use std::time::Instant;

use gimli::{
    BaseAddresses, EhFrame, EndianSlice, EvaluationResult, LittleEndian, Location, Register, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection, Value, X86_64,
};
use jvmprof_common::rows::{self, CfaRule, RaRule, RbpRule, Row};
use jvmprof_daemon::hotspot::stubs::analyze_native;
use jvmprof_daemon::kernel_tables::FileRows;
use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::unwind_rows::{EhFrameHdrRows, UnwindRows};
use jvmprof_daemon::types::Svma;

const LIBJVM: &str = "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so";
const LIBJSVML: &str = "/usr/lib/jvm/java-17-openjdk-amd64/lib/libjsvml.so";
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Made-up contents of registers and memory: the two evaluations must read the same places.
struct Machine {
    rip: u64,
    rsp: u64,
    rbp: u64,
}

impl Machine {
    fn at(pc: u64) -> Self {
        Self { rip: pc, rsp: 0x7ffc_1234_5600 ^ (pc << 4), rbp: 0x7ffd_9876_5400 ^ (pc << 3) }
    }

    fn memory(&self, address: u64) -> u64 {
        address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) & 0x7fff_ffff_fff8
    }

    /// By its number in instruction encodings; gimli's is DWARF's.
    fn encoded(&self, register: rows::Register) -> u64 {
        const DWARF: [u16; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
        self.register(Register(DWARF[usize::from(register.0)]))
    }

    fn register(&self, register: Register) -> u64 {
        match register {
            X86_64::RSP => self.rsp,
            X86_64::RBP => self.rbp,
            X86_64::RA => self.rip,
            other => 0x1111_0000_0000 + u64::from(other.0),
        }
    }
}

/// The frame above: CFA, rbp, return address. `None` for what is undefined.
type Caller = (u64, Option<u64>, Option<u64>);

/// Steps by our row; `None` if it says that it can't.
fn step_by_row(row: &Row, machine: &Machine) -> Option<Caller> {
    let plus = |base: u64, offset: i32| base.wrapping_add_signed(i64::from(offset));
    let read = |base, offset| machine.memory(plus(base, offset));
    let cfa = match row.cfa {
        CfaRule::Rsp(offset) => plus(machine.rsp, offset),
        CfaRule::Rbp(offset) => plus(machine.rbp, offset),
        CfaRule::Plt { index_pushed } => {
            machine.rsp + 8 + (u64::from(machine.rip & 15 >= u64::from(index_pushed)) << 3)
        }
        CfaRule::RspIndirect { at, add } => plus(read(machine.rsp, at), add),
        CfaRule::RbpIndirect { at, add } => plus(read(machine.rbp, at), add),
        CfaRule::RspIndexed { index, at, add } => {
            plus(read(machine.rsp.wrapping_add(machine.encoded(index) * 8), at), add)
        }
        CfaRule::RegisterPlus { register, add } => plus(machine.encoded(register), add),
        CfaRule::Register(_) | CfaRule::OtherStack(_) | CfaRule::Goroutine { .. } => {
            panic!("frame information has no such rows: {row:?}")
        }
        CfaRule::Unsupported => return None,
    };
    let rbp = match row.rbp {
        RbpRule::Same => Some(machine.rbp),
        RbpRule::AtCfa(offset) => Some(read(cfa, offset)),
        RbpRule::AtRsp(offset) => Some(read(machine.rsp, offset)),
        RbpRule::AtRbp(offset) => Some(read(machine.rbp, offset)),
        RbpRule::Undefined => None,
        RbpRule::Unsupported => return None,
    };
    let ra = match row.ra {
        RaRule::AtCfa(offset) => Some(read(cfa, offset)),
        RaRule::AtRsp(offset) => Some(read(machine.rsp, offset)),
        RaRule::Register(register) => Some(machine.encoded(register)),
        RaRule::AtRbp(_) | RaRule::AfterClone => panic!("frame information has no such rows: {row:?}"),
        RaRule::Undefined => None,
        RaRule::Unsupported => return None,
    };
    Some((cfa, rbp, ra))
}

struct Gimli<'a> {
    section: EhFrame<Slice<'a>>,
    encoding: gimli::Encoding,
    machine: Machine,
}

impl Gimli<'_> {
    fn expression(&self, expression: &UnwindExpression<usize>, initial: Option<u64>) -> u64 {
        let expression = expression.get(&self.section).expect("an expression");
        let mut evaluation = expression.evaluation(self.encoding);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut state = evaluation.evaluate().expect("it evaluates");
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.machine.register(register);
                    evaluation.resume_with_register(Value::Generic(value)).expect("it goes on")
                }
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    let value = self.machine.memory(address);
                    evaluation.resume_with_memory(Value::Generic(value)).expect("it goes on")
                }
                other => panic!("an expression needs {other:?}"),
            };
        }
        match evaluation.result()[..] {
            [gimli::Piece { location: Location::Address { address }, .. }] => address,
            ref other => panic!("an expression gives {other:?}"),
        }
    }

    fn value(&self, rule: &RegisterRule<usize>, register: Register, cfa: u64) -> Option<u64> {
        match rule {
            RegisterRule::Undefined => None,
            RegisterRule::SameValue => Some(self.machine.register(register)),
            RegisterRule::Offset(offset) => Some(self.machine.memory(cfa.wrapping_add_signed(*offset))),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => Some(self.machine.register(*other)),
            RegisterRule::Expression(e) => Some(self.machine.memory(self.expression(e, Some(cfa)))),
            RegisterRule::ValExpression(e) => Some(self.expression(e, Some(cfa))),
            other => panic!("a rule {other:?}"),
        }
    }

    /// The frame above as gimli's row tells it, and the caller's rsp.
    fn step(&self, row: &gimli::UnwindTableRow<usize>) -> (Caller, u64) {
        let cfa = match row.cfa() {
            gimli::CfaRule::RegisterAndOffset { register, offset } => {
                self.machine.register(*register).wrapping_add_signed(*offset)
            }
            gimli::CfaRule::Expression(expression) => self.expression(expression, None),
        };
        let rule = |register| row.register(register);
        let rbp = rule(X86_64::RBP).unwrap_or(RegisterRule::SameValue);
        let rsp = rule(X86_64::RSP).unwrap_or(RegisterRule::ValOffset(0));
        let ra = rule(X86_64::RA).expect("the return address has a rule");
        let caller = (cfa, self.value(&rbp, X86_64::RBP, cfa), self.value(&ra, X86_64::RA, cfa));
        (caller, self.value(&rsp, X86_64::RSP, cfa).expect("rsp is known"))
    }
}

fn load(path: &str) -> (UnwindRows, EhFrameHdrRows, Vec<u8>, BaseAddresses) {
    let file = File::open(path).unwrap_or_else(|e| panic!("this test reads {path}: {e}"));
    let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
    let begin = Instant::now();
    let rows = UnwindRows::load(&elf).expect("unwind rows");
    println!(
        "{path}: {} functions, {} bytes, indexed in {:?}",
        rows.functions(),
        rows.size_bytes(),
        begin.elapsed()
    );
    let section = elf.section(".eh_frame").expect(".eh_frame");
    let bytes = elf.read(section, 1 << 30).expect("its bytes");
    let bases = BaseAddresses::default().set_eh_frame(section.address.0);
    let sought = EhFrameHdrRows::load(&elf).expect("its sections").expect("a table of its functions");
    (rows, sought, bytes, bases)
}

fn check_against_gimli(path: &str, least_coverage: f64) {
    let (rows, sought, bytes, bases) = load(path);
    let mut found = 0u64;
    let section = EhFrame::new(&bytes, LittleEndian);
    let mut context = UnwindContext::new();
    let (mut checked, mut covered, mut total, mut functions) = (0u64, 0u64, 0u64, 0);
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().expect("an entry") {
        let gimli::CieOrFde::Fde(fde) = entry else { continue };
        let fde = fde.parse(EhFrame::cie_from_offset).expect("an FDE");
        functions += 1;
        let mut table = fde.rows(&section, &bases, &mut context).expect("its rows");
        while let Some(expected) = table.next_row().expect("a row") {
            let (start, end) = (expected.start_address(), expected.end_address());
            total += end - start;
            let mut places = vec![start, start + (end - start) / 2, end.max(start + 1) - 1];
            places.retain(|pc| *pc < end);
            places.dedup();
            for pc in places {
                let row = rows.row(Svma(pc)).unwrap_or_else(|| panic!("no row at {pc:#x} of {path}"));
                let gimli = Gimli { section, encoding: fde.cie().encoding(), machine: Machine::at(pc) };
                checked += 1;
                if let Some(one) = sought.row(Svma(pc)) {
                    assert_eq!(one, row, "at {pc:#x} of {path}, found by its table");
                    found += 1;
                }
                assert_eq!(row.signal, fde.is_signal_trampoline());
                let Some(ours) = step_by_row(&row, &gimli.machine) else { continue };
                let (caller, rsp) = gimli.step(expected);
                assert_eq!(ours, caller, "at {pc:#x} of {path}: {row:?}, gimli {expected:?}");
                assert_eq!(ours.0, rsp, "rsp at {pc:#x} of {path}: {row:?}, gimli {expected:?}");
                if pc == start {
                    covered += end - start;
                }
            }
        }
        let behind = rows.row(Svma(fde.end_address()));
        assert!(sought.row(Svma(fde.end_address())).is_none_or(|one| Some(one) == behind));
        // glibc has no frame information of the few instructions behind the system calls that make
        // a thread and end a signal.
        let is_added = |row: &Row| row.ra == RaRule::AfterClone || row.signal && fde.is_signal_trampoline();
        let behind = behind.filter(|row| !is_added(row));
        assert!(behind.is_none() || rows.function_ranges().any(|(start, _)| start.0 == fde.end_address()));
    }
    let coverage = covered as f64 / total as f64;
    let making = Instant::now();
    let packed = FileRows::new(|handle| rows.for_each(handle));
    let (bytes_of_rows, count) = (packed.size_bytes(), packed.len());
    println!(
        "{path}: {count} packed rows, {bytes_of_rows} bytes, {:.2} a row, {:.3} of .eh_frame, made in {:?} a MB of it",
        bytes_of_rows as f64 / count as f64,
        bytes_of_rows as f64 / bytes.len() as f64,
        making.elapsed().mul_f64(1e6 / bytes.len() as f64)
    );
    println!(
        "{path}: {checked} addresses of {functions} FDEs checked, {:.4} % of code covered",
        coverage * 100.0
    );
    println!("{path}: {found} of them found by its table of functions");
    assert!(found * 100 >= checked * 99, "{path}: {found} of {checked} found by its table of functions");
    assert_eq!((rows.functions(), rows.malformed(), rows.over_budget()), (functions, 0, 0));
    assert!(coverage > least_coverage, "{path}: only {coverage} of the code has rows that can be followed");
}

#[test]
fn rows_of_libc_equal_gimlis_evaluation() {
    check_against_gimli(LIBC, 0.999);
}

#[test]
fn rows_of_libjvm_equal_gimlis_evaluation() {
    check_against_gimli(LIBJVM, 0.9999);
}

#[test]
fn rows_of_libstdcxx_equal_gimlis_evaluation() {
    check_against_gimli("/usr/lib/x86_64-linux-gnu/libstdc++.so.6", 0.999);
}

#[test]
fn rows_of_node_equal_gimlis_evaluation() {
    check_against_gimli("/usr/bin/node", 0.999);
}

#[test]
#[ignore = "takes the files that JVMPROF_TEST_FILES=path:path names"]
fn rows_of_other_files_equal_gimlis_evaluation() {
    let paths = std::env::var("JVMPROF_TEST_FILES").expect("JVMPROF_TEST_FILES names files");
    paths.split(':').for_each(|path| check_against_gimli(path, 0.999));
}

#[test]
fn rows_of_hand_written_assembly_equal_gimlis_evaluation() {
    // Some of it finds its frame by rax, r9 or r11: known where it is interrupted, and it calls
    // nothing.
    check_against_gimli("/lib/x86_64-linux-gnu/libcrypto.so.3", 0.9999);
}

#[test]
fn a_file_without_section_headers_has_the_same_rows() {
    for path in [LIBC, LIBJVM, "/usr/bin/node"] {
        let mut bytes = std::fs::read(path).expect("this test reads it");
        let load =
            |bytes: &[u8]| UnwindRows::load(&ElfFile::parse(bytes).expect("an ELF file")).expect("rows");
        let whole = load(&bytes);
        // e_shoff; e_shnum and e_shstrndx.
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
        let cut = load(&bytes);
        assert!(whole.functions() > 1000, "{path} has functions");
        assert_eq!((cut.functions(), cut.malformed()), (whole.functions(), 0), "{path}");
        for (start, end) in whole.function_ranges() {
            for at in [start.0, end.0 - 1] {
                assert_eq!(cut.row(Svma(at)), whole.row(Svma(at)), "{at:#x} of {path}");
            }
        }
    }
}

#[test]
fn the_dynamic_linker_begins_without_a_caller() {
    let file = File::open("/lib64/ld-linux-x86-64.so.2").expect("glibc is there");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("a file")).expect("an ELF file");
    let rows = UnwindRows::load_with(&elf, Some(analyze_native)).expect("rows");
    let entry = elf.header().entry.0;
    let begin: Vec<bool> = (entry..entry + 128).map(|at| rows.is_root(Svma(at))).collect();
    let length = begin.iter().position(|is_root| !is_root).expect("other functions follow");
    // From there it calls what links, then all constructors, then it jumps to the program.
    assert!((20..128).contains(&length), "{length} bytes");
}

#[test]
fn entries_of_a_plt_with_endbr64_push_their_index_earlier() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, library) = (directory.path().join("plt.c"), directory.path().join("libplt.so"));
    std::fs::write(&source, "int there(void); int here(void) { return there() + 1; }").expect("written");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-fcf-protection=full", "-Wl,-z,ibtplt,-z,lazy", "-o"])
        .args([&library, &source])
        .output()
        .expect("this test runs cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = library.to_string_lossy();
    check_against_gimli(&path, 0.999);
    let (rows, ..) = load(&path);
    let cfas =
        rows.function_ranges().filter_map(|(start, _)| rows.row(Svma(start.0 + 16)).map(|row| row.cfa));
    assert!(cfas.into_iter().any(|cfa| cfa == CfaRule::Plt { index_pushed: 9 }));
}

#[test]
fn threads_of_libc_have_their_root_where_its_frames_say() {
    let (rows, ..) = load(LIBC);
    // Debian's libc has `undefined` return addresses in clone and clone3 and nowhere else; before
    // each the parent returns.
    let roots: Vec<_> = rows
        .function_ranges()
        .filter(|(start, end)| (start.0..end.0).any(|pc| rows.is_root(Svma(pc))))
        .collect();
    assert_eq!(roots.len(), 2, "{roots:x?}");
    for (child, _) in &roots {
        let row = rows.row(Svma(child.0 - 1)).expect("the parent's return has a row");
        assert_eq!((row.cfa, row.ra), (CfaRule::Rsp(8), RaRule::AfterClone), "{child:x?}");
    }
    let file = File::open("/usr/bin/python3").expect("python3 is here");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
    let binary = UnwindRows::load(&elf).expect("unwind rows");
    // The return address of _start's only call.
    assert!(binary.is_root(Svma(elf.header().entry.0 + 0x1f)));
}

/// Within `rt_sigreturn` a thread has the address behind the system call, where glibc's frame
/// information ends.
#[test]
fn the_end_of_a_signal_has_the_row_of_its_code() {
    let (rows, ..) = load("/lib/x86_64-linux-gnu/libc.so.6");
    let mut handed = Vec::new();
    rows.for_each(&mut |from, to, row| handed.push((from, to, row)));
    let is_signal = |range: &&(u64, u64, Row)| range.2.signal;
    let signal: Vec<_> = handed.iter().filter(is_signal).collect();
    let [(start, between, row), (behind, end, same)] = signal[..] else { panic!("{signal:x?}") };
    assert_eq!((between, end - behind, row), (behind, 1, same), "{signal:x?}");
    assert_eq!(end - start, 11, "a byte, `mov rax, 15; syscall`, a byte");
    for pc in *start..*end {
        assert_eq!(rows.row(Svma(pc)), Some(*row), "{pc:#x}");
    }
    assert_eq!(rows.row(Svma(*end)), None);
}

/// Each function of libjsvml begins with `endbr64`, behind which its frame information begins.
#[test]
fn a_landing_pad_before_frame_information_has_the_row_behind_it() {
    let (rows, ..) = load(LIBJSVML);
    let mut handed = Vec::new();
    rows.for_each(&mut |from, to, row| handed.push((from, to, row)));
    let begins =
        |at: u64| handed.iter().any(|(from, to, row)| (*from, *to, *row) == (at, at + 4, Row::AT_CALL));
    let mut pads = 0;
    for (start, _) in rows.function_ranges().filter(|(start, _)| begins(start.0 - 4)) {
        pads += 1;
        for pc in start.0 - 4..start.0 {
            assert_eq!(rows.row(Svma(pc)), Some(Row::AT_CALL), "{pc:#x}");
        }
        assert_eq!(rows.row(start), Some(Row::AT_CALL), "{start:x?}");
    }
    assert!(pads > 300, "{pads} of {} functions", rows.functions());
    assert!(handed.windows(2).all(|pair| pair[0].1 <= pair[1].0), "rows overlap");
    // Frame information of other files covers such instructions itself.
    let (rows, ..) = load(LIBC);
    let covered = |pc: u64| rows.function_ranges().any(|(from, to)| (from.0..to.0).contains(&pc));
    rows.for_each(&mut |from, to, row| {
        assert!(to - from != 4 || row != Row::AT_CALL || covered(from), "{from:#x}");
    });
}

/// libgcc has four such functions; see the tests that execute them.
#[test]
fn code_that_removes_frames_has_rows_of_the_frames_before_and_behind() {
    let (rows, ..) = load("/lib/x86_64-linux-gnu/libgcc_s.so.1");
    let mut found = 0;
    for (start, end) in rows.function_ranges() {
        let all: Vec<Row> = (start.0..end.0).filter_map(|pc| rows.row(Svma(pc))).collect();
        let has = |is_it: fn(&Row) -> bool| all.iter().any(is_it);
        if !has(|row| matches!(row.cfa, CfaRule::RegisterPlus { register: rows::Register::RCX, add: 8 })) {
            continue;
        }
        found += 1;
        assert!(has(|row| matches!((row.cfa, row.ra), (CfaRule::Rbp(16), RaRule::AtRbp(_)))), "{start:x?}");
        assert!(
            has(|row| matches!((row.cfa, row.signal), (CfaRule::RbpIndirect { .. }, true))),
            "{start:x?}"
        );
        assert!(has(|row| matches!((row.ra, row.signal), (RaRule::Register(_), true))), "{start:x?}");
        let mut handed = Vec::new();
        rows.for_each(&mut |from, to, row| handed.extend((from..to).map(|pc| (pc, row))));
        handed.retain(|(pc, _)| (start.0..end.0).contains(pc));
        assert_eq!(handed, (start.0..end.0).zip(all).collect::<Vec<_>>());
    }
    assert_eq!(found, 4);
}

/// What `readelf` shows as the rows of `.eh_frame`: address to columns by name.
fn readelf_rows(path: &str) -> BTreeMap<u64, BTreeMap<String, String>> {
    let output = Command::new("readelf").args(["--wide", "--debug-dump=frames-interp", path]).output();
    let output = output.unwrap_or_else(|e| panic!("this test runs readelf: {e}"));
    let (mut rows, mut columns) = (BTreeMap::new(), Vec::new());
    let mut is_fde = false;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let fields: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        match fields.first().map(String::as_str) {
            Some("LOC") => columns = fields,
            Some(_) if fields.iter().any(|field| field == "FDE") => is_fde = true,
            Some(_) if fields.iter().any(|field| field == "CIE") => is_fde = false,
            Some(loc) if is_fde && loc.len() == 16 && fields.len() == columns.len() => {
                let address = u64::from_str_radix(loc, 16).expect("an address");
                // readelf shows an instruction that changes nothing as a row of its own; the last
                // one holds.
                rows.insert(address, columns.iter().cloned().zip(fields).collect());
            }
            _ => {}
        }
    }
    rows
}

#[test]
fn rows_of_libc_agree_with_readelf() {
    let (rows, ..) = load(LIBC);
    let expected = readelf_rows(LIBC);
    assert!(expected.len() > 10_000, "readelf shows {} rows", expected.len());
    let at_cfa = |offset: i32| format!("c{offset:+}");
    let mut compared = 0;
    for (address, columns) in &expected {
        let Some(row) = rows.row(Svma(*address)) else { panic!("no row at {address:#x}") };
        let cfa = match row.cfa {
            CfaRule::Rsp(offset) => format!("rsp{offset:+}"),
            CfaRule::Rbp(offset) => format!("rbp{offset:+}"),
            _ => "exp".into(),
        };
        if cfa != columns["CFA"] {
            assert_eq!(row.cfa, CfaRule::Unsupported, "at {address:#x}: {row:?}, readelf {columns:?}");
            continue;
        }
        let ra = match row.ra {
            RaRule::AtCfa(offset) => at_cfa(offset),
            RaRule::Undefined => "u".into(),
            _ => continue,
        };
        assert_eq!(ra, columns["ra"], "at {address:#x}");
        let rbp = columns.get("rbp").map_or("u", String::as_str);
        match row.rbp {
            RbpRule::AtCfa(offset) => assert_eq!(at_cfa(offset), rbp, "at {address:#x}"),
            RbpRule::Same => assert!(rbp == "u" || rbp == "s", "at {address:#x}: {rbp}"),
            _ => {}
        }
        compared += 1;
    }
    println!("{compared} of {} rows of readelf compared", expected.len());
    assert!(compared * 1000 > expected.len() * 995);
}
