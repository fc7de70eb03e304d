//! Locations of thread-local variables in the threads of a process: the one that points to their
//! context, and those that libraries keep for themselves.

use std::time::{Duration, Instant};

use jvmprof_common::thread_local::{DtvLayout, ThreadLocalVariable};

use crate::hotspot::process_memory::{LiveMemory, ProcessMemory};
use crate::native::byte_source::RegularFile;
use crate::native::elf::thread_local::{
    ThreadLocal, TlsAccess, find_private_thread_local, find_thread_local, interpreter,
};
use crate::native::elf::{ElfError, ElfFile};
use crate::native::open_file::open_regular;
use crate::process::procfs::map_files_link;
use crate::process::{Backing, MappedCode, Process};
use crate::types::{Avma, LoadBias, Svma};

/// The name of the context's variable in `.dynsym` (OTEP 4947).
const CONTEXT_NAME: &str = "otel_thread_ctx_v1";

/// Modules of a process with thread-local variables, at most: more is a sign of something else
/// taken for a module's number.
const MAX_MODULES: u64 = 4096;

/// Files of one process that are searched, at most.
const MAX_FILES: usize = 1024;
/// Longest time of one search: a file more may take that long again.
const MAX_SEARCH: Duration = Duration::from_millis(50);

/// Returns where a process has the variable of its contexts, as soon as its loader has prepared it;
/// the program's own comes before those of libraries.
pub(super) fn find_context_variable(process: &Process, start_ticks: u64) -> Option<ThreadLocalVariable> {
    let program = process.main_mapping();
    let dtv = program.map_or(DtvLayout::Glibc, |program| dtv_layout(process.pid, program));
    let is_program = |it: &MappedCode| program.is_some_and(|program| program.path == it.path);
    let files = || process.mappings.iter().filter(|it| it.backing == Backing::File);
    let programs = files().filter(|it| is_program(it));
    let libraries = files().filter(|it| !is_program(it));
    let memory = LiveMemory::new(process.pid);
    let (began, mut before) = (Instant::now(), "");
    let files = programs.chain(libraries).take(MAX_FILES).take_while(|_| began.elapsed() < MAX_SEARCH);
    files.into_iter().find_map(|mapping| {
        // Files may have several stretches of code, which lie side by side.
        let is_again = std::mem::replace(&mut before, &mapping.path) == &*mapping.path;
        if is_again {
            return None;
        }
        let find = |file: &ElfFile<RegularFile<'_>>| find_thread_local(file, CONTEXT_NAME);
        let (variable, bias) = variable_of_file(process.pid, mapping, find)?;
        let place = TlsLocation::resolve(&variable, bias, is_program(mapping), &memory)?;
        Some(ThreadLocalVariable { start_ticks, offset: place.offset, module: place.module, dtv: dtv as u32 })
    })
}

/// Returns where a process has the thread-local variable that a mapped library keeps for itself, by
/// the variable's distance from the begin of those of the library.
pub(super) fn find_private_variable(
    process: &Process,
    library: &MappedCode,
    distance: Svma,
    start_ticks: u64,
) -> Option<ThreadLocalVariable> {
    let dtv = process.main_mapping().map_or(DtvLayout::Glibc, |program| dtv_layout(process.pid, program));
    let find = |file: &ElfFile<RegularFile<'_>>| find_private_thread_local(file, distance.0);
    let (variable, bias) = variable_of_file(process.pid, library, find)?;
    let place = TlsLocation::resolve(&variable, bias, false, &LiveMemory::new(process.pid))?;
    // The slot is of the first such variable that the linker has seen; the module is the same.
    let offset = if place.module == 0 { place.offset } else { variable.offset };
    Some(ThreadLocalVariable { start_ticks, offset, module: place.module, dtv: dtv as u32 })
}

/// Returns the layout that the program's loader uses.
fn dtv_layout(pid: u32, program: &MappedCode) -> DtvLayout {
    let file = open_regular(&map_files_link(pid, program.start, program.end)).ok();
    let loader =
        file.as_ref().and_then(|file| interpreter(&ElfFile::parse(RegularFile::new(file).ok()?).ok()?));
    let is_musl = loader.is_some_and(|path| path.contains("/ld-musl-"));
    if is_musl { DtvLayout::Musl } else { DtvLayout::Glibc }
}

/// Returns the variable that a mapped file defines, and the bias with which it is mapped.
fn variable_of_file(
    pid: u32,
    mapping: &MappedCode,
    find: impl Fn(&ElfFile<RegularFile<'_>>) -> Result<Option<ThreadLocal>, ElfError>,
) -> Option<(ThreadLocal, LoadBias)> {
    let file = open_regular(&map_files_link(pid, mapping.start, mapping.end)).ok()?;
    let file = ElfFile::parse(RegularFile::new(&file).ok()?).ok()?;
    let found = find(&file)
        .inspect_err(|error| tracing::debug!(pid, path = &*mapping.path, %error, "thread-local variables"))
        .ok()??;
    let svma = file.header().svma_of(mapping.offset)?;
    Some((found, LoadBias::between(mapping.start, svma)))
}

/// The variable's place in each thread's memory: see [`ThreadLocalVariable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TlsLocation {
    module: u32,
    offset: u64,
}

impl TlsLocation {
    /// Returns the place that the loader has written to the slot, if it is a possible one.
    fn resolve(
        variable: &ThreadLocal,
        bias: LoadBias,
        is_program: bool,
        memory: &impl ProcessMemory,
    ) -> Option<Self> {
        let word = |slot: Svma, index: u64| memory.read_u64(bias.avma(slot).wrapping_add(index * 8));
        match variable.access {
            TlsAccess::Program { from_thread_pointer } => {
                is_program.then(|| Self::below_thread_pointer(from_thread_pointer.cast_unsigned()))?
            }
            TlsAccess::Static { slot } => Self::below_thread_pointer(word(slot, 0)?),
            TlsAccess::Dynamic { slot } => {
                Self::in_block(word(slot, 0)?, word(slot, 1)?, variable.block_bytes)
            }
            TlsAccess::Descriptor { slot } => {
                let argument = word(slot, 1)?;
                // Of a variable in a block that each thread gets later, it is the address of
                // module and distance (glibc sysdeps/x86_64/tlsdesc.c, `tlsdesc_dynamic_arg`).
                Self::below_thread_pointer(argument).or_else(|| {
                    let pair = |index: u64| memory.read_u64(Avma(argument.wrapping_add(index * 8)));
                    Self::in_block(pair(0)?, pair(1)?, variable.block_bytes)
                })
            }
        }
    }

    /// Returns a place in the static blocks, which lie below the thread pointer.
    fn below_thread_pointer(offset: u64) -> Option<Self> {
        const FARTHEST: i64 = 1 << 32;
        let is_possible = (-FARTHEST..0).contains(&offset.cast_signed());
        is_possible.then_some(Self { module: 0, offset })
    }

    fn in_block(module: u64, offset: u64, block_bytes: u64) -> Option<Self> {
        let is_possible = (1..MAX_MODULES).contains(&module) && offset < block_bytes;
        is_possible.then_some(Self { module: u32::try_from(module).ok()?, offset })
    }
}
