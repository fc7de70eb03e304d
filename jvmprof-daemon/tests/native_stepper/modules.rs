//! The files that a process has mapped, and the packed rules of their code: what the kernel's
//! tables hold.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use jvmprof_common::unwind::Cursor;
use jvmprof_common::unwind_tables::PackedRule;
use jvmprof_daemon::hotspot::stubs::analyze_native;
use jvmprof_daemon::native::elf::{ElfFile, ElfHeader};
use jvmprof_daemon::native::symbols::SymbolTable;
use jvmprof_daemon::native::unwind_rows::UnwindRows;
use jvmprof_daemon::types::{FileOffset, Svma};

struct Module {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
    header: ElfHeader,
    rows: UnwindRows,
    symbols: SymbolTable,
    image: Vec<u8>,
}

/// See the file's documentation.
#[derive(Default)]
pub(crate) struct Modules {
    modules: Vec<Module>,
    rules: HashMap<(u64, bool), Option<PackedRule>>,
}

impl Modules {
    /// The rule for a cursor's pc, as the kernel program would find it.
    pub(crate) fn rule(&mut self, pid: u32, cursor: &Cursor) -> Option<PackedRule> {
        let key = (cursor.pc.0, cursor.exact);
        if let Some(rule) = self.rules.get(&key) {
            return *rule;
        }
        let at = if cursor.exact { cursor.pc.0 } else { cursor.pc.0 - 1 };
        if self.find(at).is_none() {
            self.load(pid);
        }
        let rule = self.find(at).and_then(|(module, svma)| module.rows.row(svma));
        let rule = rule.map(|row| PackedRule::pack(&row));
        self.rules.insert(key, rule);
        rule
    }

    fn find(&self, at: u64) -> Option<(&Module, Svma)> {
        let module = self.modules.iter().find(|module| (module.start..module.end).contains(&at))?;
        let svma = module.header.svma_of(FileOffset(at - module.start + module.offset))?;
        Some((module, svma))
    }

    /// The function and the address in its file.
    pub(crate) fn describe(&self, cursor: &Cursor) -> String {
        let at = if cursor.exact { cursor.pc.0 } else { cursor.pc.0 - 1 };
        let Some((module, svma)) = self.find(at) else { return format!("{:x}", cursor.pc.0) };
        let file = module.path.rsplit('/').next().unwrap_or_default();
        let symbol = module.symbols.lookup(svma);
        let name = symbol.and_then(|it| module.symbols.name(it, &&*module.image).ok().flatten());
        format!("{file}+{:x} {}", svma.0, name.unwrap_or_default())
    }

    /// Whether the code is that of libgcc which replaces frames by others.
    pub(crate) fn removes_frames(&self, pc: u64) -> bool {
        self.describe(&Cursor::interrupted(pc, 0, 0)).contains("_Unwind_")
    }

    fn load(&mut self, pid: u32) {
        self.modules.clear();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
        for line in maps.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [range, flags, offset, _, _, path] = fields[..] else { continue };
            if !flags.contains('x') || path == "[vsyscall]" {
                continue;
            }
            let (start, end) = range.split_once('-').expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("hex");
            let (start, end) = (number(start), number(end));
            let image = match path {
                "[vdso]" => {
                    let mut bytes = vec![0; (end - start) as usize];
                    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
                    memory.read_exact_at(&mut bytes, start).expect("the vdso is readable");
                    bytes
                }
                path => fs::read(path).expect("a mapped file"),
            };
            let elf = ElfFile::parse(&*image).expect("an ELF file");
            let rows = UnwindRows::load_with(&elf, Some(analyze_native)).expect("rows");
            let go = SymbolTable::load_go(&elf).expect("readable");
            let symbols = go.unwrap_or_else(|| SymbolTable::load(&elf).expect("symbols"));
            let (header, path) = (elf.header().clone(), path.to_owned());
            self.modules.push(Module {
                start,
                end,
                offset: number(offset),
                path,
                header,
                rows,
                symbols,
                image,
            });
        }
    }
}
