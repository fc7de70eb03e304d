//! Addresses of static variables that a JVM doesn't export: from the `.symtab` of its file, or of
//! the debug file that has the same build id.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use memchr::memmem::Finder;
use object::LittleEndian as Le;
use object::elf::{self, Sym64, SymbolType};
use object::pod;

use super::exported_symbols::Image;
use crate::hotspot::process_memory::ProcessMemory;
use crate::native::byte_source::{ByteSource, RegularFile};
use crate::native::debug_files::DebugFileLocator;
use crate::native::elf::section_chunks::{CHUNK_BYTES, for_each_chunk};
use crate::native::elf::{ElfFile, Section};
use crate::native::open_file::{open_in_root, open_regular};
use crate::process::procfs;
use crate::types::{Avma, BuildId, Svma};

/// Bytes of a symbol in the file.
const ENTRY: u64 = size_of::<Sym64<Le>>() as u64;
/// Builds of JVMs that are remembered, at most: all are forgotten then.
const MAX_BUILDS: usize = 64;
/// Bytes of a file that must be in the JVM's memory, too: program headers and, behind them, the
/// build id.
const HEAD_BYTES: usize = 1024;

/// Number of variables in [`NAMES`].
const COUNT: usize = 10;
/// Mangled names of `StubCodeDesc::_list`, `VtableStubs::_table`,
/// `java_lang_Thread::_park_blocker_offset`, `Thread::_thr_current`, `VMThread::_cur_vm_operation`,
/// `java_lang_Thread::_name_offset`, and `java_lang_String::_value_offset` and `_coder_offset`,
/// each followed by the name that it has in older JDKs.
const NAMES: [&str; COUNT] = [
    "_ZN12StubCodeDesc5_listE",
    "_ZN11VtableStubs6_tableE",
    "_ZN16java_lang_Thread20_park_blocker_offsetE",
    "_ZN6Thread12_thr_currentE",
    "_ZN8VMThread17_cur_vm_operationE",
    "_ZN16java_lang_Thread12_name_offsetE",
    "_ZN16java_lang_String13_value_offsetE",
    "_ZN16java_lang_String12value_offsetE",
    "_ZN16java_lang_String13_coder_offsetE",
    "_ZN16java_lang_String12coder_offsetE",
];

/// Addresses of variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymtabVariables {
    /// `StubCodeDesc::_list`.
    pub stub_code_descs: Option<Avma>,
    /// `VtableStubs::_table`.
    pub vtable_stubs: Option<Avma>,
    /// Those that lead to what threads wait for.
    pub blockers: BlockerVariables,
    /// `VMThread::_cur_vm_operation`.
    pub vm_operation: Option<Avma>,
}

/// The addresses of the variables that lead to what threads wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockerVariables {
    /// `Thread::_thr_current`: the distance from the begin of the module's thread-local variables.
    pub current_thread: Option<Svma>,
    /// `java_lang_Thread::_park_blocker_offset`, an `int`.
    pub park_blocker_offset: Option<Avma>,
    pub names: NameVariables,
}

/// The addresses of the variables that say where threads have their names: each is an `int`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameVariables {
    /// `java_lang_Thread::_name_offset`.
    pub thread_name: Option<Avma>,
    /// `java_lang_String::_value_offset`.
    pub string_value: Option<Avma>,
    /// `java_lang_String::_coder_offset`; `None` on JDK 8.
    pub string_coder: Option<Avma>,
}

/// The variables of the builds that were read: files are searched once a build.
#[derive(Debug, Default)]
pub(crate) struct VariablesByBuild(Mutex<HashMap<BuildId, [Option<Svma>; COUNT]>>);

impl VariablesByBuild {
    /// Finds the variables of the JVM that a process has mapped at `image`. None of them is found
    /// in a file that can't be opened, or isn't what is mapped there.
    pub(crate) fn locate(&self, pid: u32, image: Image, memory: &impl ProcessMemory) -> SymtabVariables {
        self.find(pid, image, memory).unwrap_or_default()
    }

    fn find(&self, pid: u32, image: Image, memory: &impl ProcessMemory) -> Option<SymtabVariables> {
        let file = open_image(pid, image)?;
        let elf = ElfFile::parse(RegularFile::new(&file).ok()?).ok()?;
        let mut head = vec![0; HEAD_BYTES];
        elf.source().read_exact_at(0, &mut head).ok()?;
        if memory.read_bytes(image.0, HEAD_BYTES)? != head {
            return None;
        }
        let first = elf.header().segments.iter().find(|segment| segment.offset.0 == 0)?;
        let bias = image.0.0.checked_sub(first.address.0)?;
        let build_id = elf.build_id();
        let known = build_id.and_then(|id| self.builds().get(&id).copied());
        let found = known.unwrap_or_else(|| variables_of(&elf, pid));
        if let Some(id) = build_id.filter(|_| known.is_none()) {
            let mut builds = self.builds();
            if builds.len() >= MAX_BUILDS {
                builds.clear();
            }
            builds.insert(id, found);
        }
        let [descs, vtables, park_blocker_offset, _, vm_operation, thread_name, strings @ ..] =
            found.map(|svma| Some(Avma(svma?.0.checked_add(bias)?)));
        let [value, old_value, coder, old_coder] = strings;
        let (string_value, string_coder) = (value.or(old_value), coder.or(old_coder));
        let names = NameVariables { thread_name, string_value, string_coder };
        // That of a thread-local variable is a distance.
        let blockers = BlockerVariables { current_thread: found[3], park_blocker_offset, names };
        Some(SymtabVariables { stub_code_descs: descs, vtable_stubs: vtables, blockers, vm_operation })
    }

    fn builds(&self) -> std::sync::MutexGuard<'_, HashMap<BuildId, [Option<Svma>; COUNT]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the file whose first byte a process has mapped at `image`.
fn open_image(pid: u32, image: Image) -> Option<File> {
    let (end, path) = procfs::mapped_file(pid, image.0)?;
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    // The former takes CAP_CHECKPOINT_RESTORE or more.
    open_regular(&procfs::map_files_link(pid, image.0, end))
        .or_else(|_| open_in_root(&root, Path::new(path.trim_start_matches('/'))))
        .ok()
}

fn variables_of(file: &ElfFile<RegularFile<'_>>, pid: u32) -> [Option<Svma>; COUNT] {
    let own = find_variables(file, &NAMES);
    if own != [None; COUNT] {
        return own;
    }
    let process_root = Some(PathBuf::from(format!("/proc/{pid}/root")));
    let locator = DebugFileLocator { process_root, host: true, downloads: None };
    let debug = || {
        let debug = locator.by_build_id(file.build_id()?)?;
        let parsed = ElfFile::parse(RegularFile::new(&debug.file).ok()?).ok()?;
        let found = find_variables(&parsed, &NAMES);
        debug.check_unchanged().is_ok().then_some(found)
    };
    debug().unwrap_or_default()
}

/// Returns the stated addresses of these variables, by their mangled names, as `.symtab` has them.
fn find_variables<S: ByteSource>(file: &ElfFile<S>, names: &[&str; COUNT]) -> [Option<Svma>; COUNT] {
    let Some((symbols, strings)) = symtab(file) else { return [None; COUNT] };
    let offsets = find_strings(file, strings, names);
    if offsets == [None; COUNT] {
        return [None; COUNT];
    }
    find_addresses(file, symbols, &[elf::STT_OBJECT, elf::STT_TLS], offsets)
}

/// Returns the section `.symtab`, and that of its strings.
pub(crate) fn symtab<S: ByteSource>(file: &ElfFile<S>) -> Option<(&Section, &Section)> {
    let sections = file.sections();
    let symbols = sections.iter().find(|it| it.kind == elf::SHT_SYMTAB.0 && !it.no_bits)?;
    Some((symbols, sections.get(symbols.link as usize)?))
}

/// Returns the stated addresses of the symbols of these types that have these names, which are
/// places in the table of strings.
pub(crate) fn find_addresses<S: ByteSource, const N: usize>(
    file: &ElfFile<S>,
    symbols: &Section,
    kinds: &[SymbolType],
    names: [Option<u64>; N],
) -> [Option<Svma>; N] {
    let mut found = [None; N];
    for_each_chunk(file, symbols, 0, |_, bytes| {
        let whole = bytes.len() - bytes.len() % ENTRY as usize;
        for symbol in pod::slice_from_all_bytes::<Sym64<Le>>(&bytes[..whole]).unwrap_or_default() {
            let name = Some(u64::from(symbol.st_name.get(Le)));
            let is_meant = kinds.contains(&symbol.st_type()) && symbol.st_shndx.get(Le) != elf::SHN_UNDEF;
            if let Some(index) = names.iter().position(|wanted| is_meant && *wanted == name) {
                found[index] = Some(Svma(symbol.st_value.get(Le)));
            }
        }
    });
    found
}

/// Returns where these strings are in a string table.
fn find_strings<S: ByteSource>(
    file: &ElfFile<S>,
    strings: &Section,
    names: &[&str; COUNT],
) -> [Option<u64>; COUNT] {
    let texts = names.map(|name| format!("\0{name}\0"));
    let finders = texts.each_ref().map(Finder::new);
    let overlap = texts.iter().map(String::len).max().unwrap_or(0) as u64;
    let mut found = [None; COUNT];
    for_each_chunk(file, strings, overlap, |start, bytes| {
        for (finder, found) in finders.iter().zip(&mut found) {
            *found = found.or_else(|| Some(start + finder.find(bytes)? as u64 + 1));
        }
    });
    found
}

const _: () = assert!(CHUNK_BYTES.is_multiple_of(ENTRY), "a chunk ends between two symbols");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::process_memory::LiveMemory;

    #[test]
    fn a_file_without_these_variables_has_none() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = ElfFile::parse(RegularFile::new(&file).unwrap()).unwrap();
        assert_eq!(find_variables(&elf, &NAMES), [None; COUNT]);
        let image = Image(procfs::image_starts(std::process::id()).unwrap()[0]);
        let memory = LiveMemory::new(std::process::id());
        let builds = VariablesByBuild::default();
        assert_eq!(builds.locate(std::process::id(), image, &memory), SymtabVariables::default());
        let elsewhere = Image(Avma(image.0.0 + 4096));
        assert_eq!(builds.locate(std::process::id(), elsewhere, &memory), SymtabVariables::default());
    }

    /// A static variable of this test, whose mangled name isn't guessed: what is searched is its
    /// name as the linker has it.
    #[test]
    fn variables_are_found_where_they_are() {
        static VARIABLE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);
        let file = File::open("/proc/self/exe").unwrap();
        let elf = ElfFile::parse(RegularFile::new(&file).unwrap()).unwrap();
        let symbols = elf.sections().iter().find(|it| it.kind == elf::SHT_SYMTAB.0).unwrap();
        let strings = elf.section(".strtab").unwrap();
        let strings = elf.read(strings, 1 << 30).unwrap();
        let bytes = elf.read(symbols, 1 << 30).unwrap();
        let (parsed, _) = pod::slice_from_bytes::<Sym64<Le>>(&bytes, bytes.len() / ENTRY as usize).unwrap();
        let name = |symbol: &Sym64<Le>| {
            let from = &strings[symbol.st_name.get(Le) as usize..];
            String::from_utf8_lossy(&from[..from.iter().position(|byte| *byte == 0).unwrap()]).into_owned()
        };
        let own = parsed.iter().find(|it| name(it).contains("variables_are_found_where_they_are8VARIABLE"));
        let own = own.expect("tests keep their symbols");
        let own_name = name(own);
        let mut names = ["no such variable"; COUNT];
        names[1] = &own_name;
        let mut expected = [None; COUNT];
        expected[1] = Some(Svma(own.st_value.get(Le)));
        assert_eq!(find_variables(&elf, &names), expected);
        let base = procfs::image_starts(std::process::id()).unwrap()[0].0;
        assert_eq!(base + own.st_value.get(Le), std::ptr::from_ref(&VARIABLE) as u64);
    }
}
