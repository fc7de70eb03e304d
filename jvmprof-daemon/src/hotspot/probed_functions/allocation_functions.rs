//! Functions in which a JVM's code reports allocations: offsets in its file, by `.symtab` of that
//! or of the debug file that has the same build id.

use std::path::Path;

use memchr::memmem::find_iter;
use object::elf;

use super::{FunctionsError, debug_file_of, file_offset, parse};
use crate::hotspot::vmstructs::symtab_variables::{find_addresses, symtab};
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::elf::section_chunks::for_each_chunk;
use crate::native::open_file::open_regular;
use crate::sampler::AllocationFunctions;
use crate::types::Svma;

/// The begin of mangled names of the class's functions.
const CLASS: &str = "_ZN11AllocTracer";
/// The continuation of these names: since JDK 11, and in JDK 8. What follows are the types of their
/// arguments.
const IN_NEW_TLAB: [&str; 2] = ["27send_allocation_in_new_tlabE", "33send_allocation_in_new_tlab_eventE"];
const OUTSIDE_TLAB: [&str; 2] = ["28send_allocation_outside_tlabE", "34send_allocation_outside_tlab_eventE"];
/// `ThreadService::remove_thread(JavaThread*, bool)`, by which a JVM forgets a thread that ends.
const THREAD_END: &str = "_ZN13ThreadService13remove_threadEP10JavaThreadb";
/// The arguments that the kernel program reads: class, object, sizes, thread. JDK 8 passes neither
/// object nor thread before 8u262.
const WITH_THREAD: [&str; 2] = ["P10JavaThread", "P6Thread"];
/// Bytes of a mangled name, at most.
const MAX_NAME: u64 = 256;

/// Finds the functions in a libjvm. Debug files are those of the host, and those that were fetched
/// to the folder `downloads`: what a container says of a file that others map, too, would put
/// breakpoints into their code.
///
/// # Errors
/// Returns why they can't be found.
pub fn find_allocation_functions(
    file: &Path,
    downloads: Option<&Path>,
) -> Result<AllocationFunctions, FunctionsError> {
    let opened = open_regular(file).map_err(|_| FunctionsError::Unreadable)?;
    let own = parse(&opened)?;
    let found = match find_symbols(&own) {
        Ok(found) => found,
        Err(error) => find_in_debug_file(&own, downloads).unwrap_or(Err(error))?,
    };
    let offset = |address| file_offset(&own, address);
    let [in_new_tlab, outside_tlab] = found.reports.map(offset);
    let (Some(in_new_tlab), Some(outside_tlab)) = (in_new_tlab, outside_tlab) else {
        return Err(FunctionsError::Unreadable);
    };
    let thread_end = found.thread_end.and_then(offset);
    Ok(AllocationFunctions { in_new_tlab, outside_tlab, thread_end })
}

/// The stated addresses of the functions.
struct FunctionAddresses {
    /// Those that report allocations in a new buffer, and outside of buffers.
    reports: [Svma; 2],
    thread_end: Option<Svma>,
}

fn find_in_debug_file<S: ByteSource>(
    own: &ElfFile<S>,
    downloads: Option<&Path>,
) -> Option<Result<FunctionAddresses, FunctionsError>> {
    let debug = debug_file_of(own, downloads)?;
    let found = find_symbols(&parse(&debug.file).ok()?);
    debug.check_unchanged().is_ok().then_some(found)
}

fn find_symbols<S: ByteSource>(file: &ElfFile<S>) -> Result<FunctionAddresses, FunctionsError> {
    let no_symbols = FunctionsError::NoSymbols(file.build_id());
    let (symbols, strings) = symtab(file).ok_or(no_symbols)?;
    let (mut names, mut thread_end, mut has_others) = ([None; 2], None, false);
    for_each_chunk(file, strings, MAX_NAME, |start, bytes| {
        for at in find_iter(bytes, CLASS) {
            let Some(end) = memchr::memchr(0, &bytes[at..]) else { continue };
            let name = &bytes[at + CLASS.len()..at + end];
            let is_whole = at.checked_sub(1).is_some_and(|before| bytes[before] == 0);
            for (found, wanted) in names.iter_mut().zip([IN_NEW_TLAB, OUTSIDE_TLAB]) {
                if !is_whole || !wanted.iter().any(|prefix| name.starts_with(prefix.as_bytes())) {
                    continue;
                }
                if WITH_THREAD.iter().any(|thread| name.ends_with(thread.as_bytes())) {
                    *found = Some(start + at as u64);
                } else {
                    has_others = true;
                }
            }
        }
        let is_whole = |at: &usize| {
            let before = at.checked_sub(1).map(|before| bytes[before]);
            before == Some(0) && bytes.get(at + THREAD_END.len()) == Some(&0)
        };
        let found = find_iter(bytes, THREAD_END).find(is_whole);
        thread_end = thread_end.or(found.map(|at| start + at as u64));
    });
    if names.contains(&None) {
        return Err(if has_others { FunctionsError::NoThread } else { no_symbols });
    }
    let [in_new_tlab, outside_tlab] = names;
    let names = [in_new_tlab, outside_tlab, thread_end];
    match find_addresses(file, symbols, &[elf::STT_FUNC], names) {
        [Some(in_new_tlab), Some(outside_tlab), thread_end] => {
            Ok(FunctionAddresses { reports: [in_new_tlab, outside_tlab], thread_end })
        }
        _ => Err(no_symbols),
    }
}
