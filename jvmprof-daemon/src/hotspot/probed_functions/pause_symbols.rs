//! Functions in which a JVM's code stops its threads, and the types of the operations that it stops
//! them for: by `.symtab` of its file or of the debug file with the same build id. See
//! [`jvmprof_common::pause`].

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use memchr::memmem::find_iter;
use object::LittleEndian as Le;
use object::elf::{self, Sym64};
use object::pod;

use super::{FunctionsError, debug_file_of, file_offset, parse};
use crate::hotspot::vmstructs::exported_symbols::Image;
use crate::hotspot::vmstructs::symtab_variables::symtab;
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::elf::section_chunks::for_each_chunk;
use crate::native::open_file::open_regular;
use crate::sampler::PauseFunctions;
use crate::types::Svma;

/// The begins of mangled names of the functions. What follows are the types of their arguments.
const FUNCTIONS: [&str; 3] = [
    "_ZN14RuntimeService22record_safepoint_beginE",
    "_ZN14RuntimeService29record_safepoint_synchronizedE",
    "_ZN14RuntimeService20record_safepoint_endE",
];
/// The place of the second one.
const REACHED: usize = 1;
/// What follows the second one's where it has an argument, a `long`: since JDK 13 the nanoseconds
/// that it took to stop the threads (openjdk src/hotspot/share/runtime/safepoint.cpp,
/// `SafepointTracing::synchronized`).
const DURATION: &[u8] = b"El";
/// Mangled names of the variables that have the times of the last pause, JDK 13 and later.
const TIMES: [&str; 2] = [
    "_ZN16SafepointTracing28_last_safepoint_sync_time_nsE",
    "_ZN16SafepointTracing27_last_safepoint_end_time_nsE",
];
/// The begin of names of tables of virtual functions. The length of the type's name follows, then
/// it.
const VTABLE: &str = "_ZTV";
/// The prefix of types of VM operations (openjdk src/hotspot/share/runtime/vmOperations.hpp).
const OPERATION: &str = "VM_";
/// Bytes from such a table's symbol to what objects have as their first word: the offset to the
/// whole object and its type information come first (Itanium C++ ABI, 2.5.2).
const VTABLE_HEAD: u64 = 16;
/// Bytes of a mangled name, at most.
const MAX_NAME: u64 = 256;
/// Bytes of an operation's name, at most; the longest one of JDK 17 and 25 has 34.
const MAX_OPERATION_NAME: usize = 64;
/// Types of VM operations that are remembered, at most; JDK 25 has 84.
const MAX_OPERATIONS: usize = 1024;

/// The symbols of a libjvm that concern its pauses.
#[derive(Clone, Debug)]
pub struct PauseSymbols {
    pub functions: PauseFunctions,
    pub operations: Arc<OperationNames>,
    /// `None` before JDK 13.
    pub times: Option<PauseTimes>,
}

/// Distances in memory from a JVM's file to the variables that have the times of its last pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseTimes {
    reached: u64,
    end: u64,
}

impl PauseTimes {
    /// Returns the addresses of `SafepointTracing::_last_safepoint_sync_time_ns` and
    /// `_last_safepoint_end_time_ns`. `image`: where the JVM's file is mapped.
    pub fn addresses(self, image: Image) -> [u64; 2] {
        // The file may say anything: what is read there is checked.
        [self.reached, self.end].map(|distance| image.0.0.wrapping_add(distance))
    }
}

/// The names of VM operations by their types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationNames {
    /// The stated address of the file's first byte.
    first: Svma,
    /// By the stated addresses of their tables of virtual functions.
    by_table: BTreeMap<Svma, Arc<str>>,
}

impl OperationNames {
    /// Knows these, in a file that begins at 0.
    #[cfg(test)]
    pub(crate) fn for_tests(names: &[(u64, &str)]) -> Self {
        let by_table = names.iter().map(|(table, name)| (Svma(*table), (*name).into())).collect();
        Self { first: Svma(0), by_table }
    }

    /// Returns the name of an operation, as in the JVM's own log, by its first word. `image`: where
    /// the JVM's file is mapped.
    pub fn name(&self, first_word: u64, image: Image) -> Option<&Arc<str>> {
        let from_image = first_word.checked_sub(VTABLE_HEAD)?.checked_sub(image.0.0)?;
        self.by_table.get(&Svma(from_image.checked_add(self.first.0)?))
    }
}

/// Finds the functions and types in a libjvm. Debug files are those of the host, and those that
/// were fetched to the folder `downloads`: see
/// [`find_allocation_functions`](super::find_allocation_functions).
///
/// # Errors
/// Returns why they can't be found.
pub fn find_pause_symbols(file: &Path, downloads: Option<&Path>) -> Result<PauseSymbols, FunctionsError> {
    let opened = open_regular(file).map_err(|_| FunctionsError::Unreadable)?;
    let own = parse(&opened)?;
    let found = find_symbols(&own).or_else(|| find_in_debug_file(&own, downloads));
    let found = found.ok_or(FunctionsError::NoSymbols(own.build_id()))?;
    let [begin, reached, end] = found.functions.map(|address| file_offset(&own, address));
    let (Some(begin), Some(reached), Some(end)) = (begin, reached, end) else {
        return Err(FunctionsError::Unreadable);
    };
    let first = own.header().segments.iter().find(|segment| segment.offset.0 == 0);
    let first = first.map_or(Svma(0), |segment| segment.address);
    let times = found.times.map(|times| times.map(|variable| variable.0.wrapping_sub(first.0)));
    Ok(PauseSymbols {
        functions: PauseFunctions { begin: (!found.has_duration).then_some(begin), reached, end },
        operations: Arc::new(OperationNames { first, by_table: found.operations }),
        times: times.map(|[reached, end]| PauseTimes { reached, end }),
    })
}

/// Stated addresses in the file that has the symbols.
#[derive(Debug)]
struct PauseSymbolAddresses {
    functions: [Svma; 3],
    /// The second function has [`DURATION`].
    has_duration: bool,
    /// Those of [`TIMES`].
    times: Option<[Svma; 2]>,
    operations: BTreeMap<Svma, Arc<str>>,
}

/// The role of a symbol, by its name.
enum SymbolRole {
    /// Its place in [`FUNCTIONS`], and whether it has [`DURATION`].
    Function(usize, bool),
    /// Its place in [`TIMES`].
    Time(usize),
    Operation(Arc<str>),
}

fn find_in_debug_file<S: ByteSource>(
    own: &ElfFile<S>,
    downloads: Option<&Path>,
) -> Option<PauseSymbolAddresses> {
    let debug = debug_file_of(own, downloads)?;
    let found = find_symbols(&parse(&debug.file).ok()?)?;
    debug.check_unchanged().is_ok().then_some(found)
}

/// Returns the stated addresses of the functions, and of the operations' types; `None` without the
/// functions.
fn find_symbols<S: ByteSource>(file: &ElfFile<S>) -> Option<PauseSymbolAddresses> {
    let (symbols, strings) = symtab(file)?;
    let mut wanted: HashMap<u64, SymbolRole> = HashMap::new();
    for_each_chunk(file, strings, MAX_NAME, |start, bytes| {
        for at in find_iter(bytes, "_Z") {
            let is_whole = at.checked_sub(1).is_some_and(|before| bytes[before] == 0);
            let Some(end) = memchr::memchr(0, &bytes[at..]).filter(|_| is_whole) else { continue };
            let name = &bytes[at..at + end];
            if let Some(role) = role_of(name).filter(|_| wanted.len() < MAX_OPERATIONS) {
                wanted.insert(start + at as u64, role);
            }
        }
    });
    let (mut functions, mut times, mut operations) = ([None; 3], [None; 2], BTreeMap::new());
    let mut has_duration = false;
    for_each_chunk(file, symbols, 0, |_, bytes| {
        let whole = bytes.len() - bytes.len() % size_of::<Sym64<Le>>();
        for symbol in pod::slice_from_all_bytes::<Sym64<Le>>(&bytes[..whole]).unwrap_or_default() {
            if symbol.st_shndx.get(Le) == elf::SHN_UNDEF {
                continue;
            }
            let address = Svma(symbol.st_value.get(Le));
            match (wanted.get(&u64::from(symbol.st_name.get(Le))), symbol.st_type()) {
                (Some(SymbolRole::Function(index, has_argument)), elf::STT_FUNC) => {
                    functions[*index] = Some(address);
                    has_duration |= has_argument;
                }
                (Some(SymbolRole::Time(index)), elf::STT_OBJECT) => times[*index] = Some(address),
                (Some(SymbolRole::Operation(name)), elf::STT_OBJECT) => {
                    operations.insert(address, Arc::clone(name));
                }
                _ => {}
            }
        }
    });
    let [Some(begin), Some(reached), Some(end)] = functions else { return None };
    let [reached_time, end_time] = times;
    let times = reached_time.zip(end_time).map(|(reached, end)| [reached, end]);
    Some(PauseSymbolAddresses { functions: [begin, reached, end], has_duration, times, operations })
}

/// Returns what a symbol of this name is.
fn role_of(mangled: &[u8]) -> Option<SymbolRole> {
    let time = || TIMES.iter().position(|name| name.as_bytes() == mangled).map(SymbolRole::Time);
    let operation = || operation_of_table(mangled).map(SymbolRole::Operation);
    let function = |index| SymbolRole::Function(index, index == REACHED && mangled.ends_with(DURATION));
    function_of(mangled).map(function).or_else(time).or_else(operation)
}

/// Returns which function has this name.
fn function_of(mangled: &[u8]) -> Option<usize> {
    // Parts of it that the compiler has moved elsewhere, `.cold`, are called by it alone.
    let is_whole = !mangled.contains(&b'.');
    FUNCTIONS.iter().position(|prefix| is_whole && mangled.starts_with(prefix.as_bytes()))
}

/// Returns what a VM operation is called whose table of virtual functions has this name: its type
/// without `VM_`.
fn operation_of_table(mangled: &[u8]) -> Option<Arc<str>> {
    let rest = std::str::from_utf8(mangled).ok()?.strip_prefix(VTABLE)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (length, name) = rest.split_at(digits);
    let operation = name.strip_prefix(OPERATION)?;
    // The file may be anyone's, and the name becomes a label, and a line of a terminal.
    let is_name = (1..=MAX_OPERATION_NAME).contains(&operation.len())
        && operation.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (length.parse() == Ok(name.len()) && is_name).then(|| operation.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Avma;

    #[test]
    fn operations_are_named_by_their_types() {
        let name = |mangled: &str| operation_of_table(mangled.as_bytes());
        assert_eq!(name("_ZTV24VM_G1CollectForAllocation"), None, "the length isn't the name's");
        assert_eq!(name("_ZTV25VM_G1CollectForAllocation").as_deref(), Some("G1CollectForAllocation"));
        for other in ["_ZTV3VM_", "_ZTV12VMOperations", "_ZTV4VM_a4VM_b", "_ZTSVM_a", "_ZTV"] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn an_operations_name_has_letters_digits_and_underscores_up_to_a_length() {
        let name = |operation: &str| {
            let length = OPERATION.len() + operation.len();
            operation_of_table(format!("_ZTV{length}VM_{operation}").as_bytes())
        };
        let longest = "x".repeat(MAX_OPERATION_NAME);
        for known in ["Z_1", &longest] {
            assert_eq!(name(known).as_deref(), Some(known));
        }
        for other in ["a b", "a\u{1b}[2J", "a\n", "\u{202e}a", "\u{e4}", "<b>", &format!("{longest}x")] {
            assert_eq!(name(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_function_is_whole() {
        for (index, prefix) in FUNCTIONS.iter().enumerate() {
            assert_eq!(function_of(format!("{prefix}v").as_bytes()), Some(index));
            for part in [".cold", ".part.0"] {
                assert_eq!(function_of(format!("{prefix}v{part}").as_bytes()), None, "{part}");
            }
        }
        assert_eq!(function_of(b"_ZN14RuntimeService4initEv"), None);
    }

    #[test]
    fn the_second_function_has_the_duration_where_it_has_an_argument() {
        let function = |name: &str| match role_of(name.as_bytes()) {
            Some(SymbolRole::Function(index, has_duration)) => Some((index, has_duration)),
            _ => None,
        };
        assert_eq!(function(&format!("{}l", FUNCTIONS[REACHED])), Some((REACHED, true)));
        assert_eq!(function(&format!("{}v", FUNCTIONS[REACHED])), Some((REACHED, false)), "until JDK 12");
        // Theirs is another time.
        assert_eq!(function(&format!("{}l", FUNCTIONS[0])), Some((0, false)));
        assert_eq!(function(&format!("{}l", FUNCTIONS[2])), Some((2, false)));
        for (index, name) in TIMES.iter().enumerate() {
            let role = role_of(name.as_bytes());
            assert!(matches!(role, Some(SymbolRole::Time(place)) if place == index), "{name}");
        }
    }

    #[test]
    fn times_lie_where_the_file_is_mapped() {
        let times = PauseTimes { reached: 0x1260, end: 0x1250 };
        assert_eq!(times.addresses(Image(Avma(0x7f00_0000_0000))), [0x7f00_0000_1260, 0x7f00_0000_1250]);
    }

    #[test]
    fn an_operation_is_found_where_the_file_is_mapped() {
        let by_table = BTreeMap::from([(Svma(0x1100), Arc::from("Cleanup"))]);
        let names = OperationNames { first: Svma(0x1000), by_table };
        let image = Image(Avma(0x7f00_0000_0000));
        let found = |word| names.name(word, image).map(|name| &**name);
        assert_eq!(found(0x7f00_0000_0110), Some("Cleanup"));
        for word in [0, 1, 0x110, 0x7f00_0000_0100, 0x7f00_0000_0118, u64::MAX] {
            assert_eq!(found(word), None, "{word:#x}");
        }
    }
}
