//! Names of stubs: `sha256_implCompressMB`, `jbyte_disjoint_arraycopy`, `vtable stub`.
//!
//! Many stubs share a blob. A JVM lists those of `StubRoutines` with their bounds (openjdk
//! src/hotspot/share/runtime/stubCodeGenerator.hpp, `StubCodeDesc`), and vtable and itable stubs by
//! their headers ([`super::vtable_stubs`]). Both lists only grow. An address between two listed
//! stubs has no name of its own.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::blob_kinds::is_stub_routines;
use super::named_stub::NamedStub;
use super::vtable_stubs;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::symtab_variables::SymtabVariables;
use crate::types::Avma;

/// Stubs of one kind, at most. JDK 25 has 160 in `StubRoutines`, an application server a few
/// hundred vtable stubs.
const MAX_STUBS: usize = 4096;
/// Bytes of one stub, at most; the largest have some 30 KiB.
const MAX_STUB_BYTES: u64 = 1 << 20;
/// Bytes of a name, at most.
const MAX_NAME: usize = 96;
/// Times that the lists of one JVM are read, at most: each change costs one, and a JVM that goes on
/// changing them must not cost a reading with each sample.
const MAX_READS: u32 = 500;
/// Bytes of a `StubCodeDesc` that are read.
const DESC_BYTES: usize = 48;
/// `StubCodeDesc::_group` of those that belong to `StubRoutines`.
const STUB_ROUTINES: &str = "StubRoutines";

/// The named stubs of one JVM, as they were listed last.
#[derive(Debug, Default)]
pub(crate) struct StubNames {
    variables: SymtabVariables,
    routines: StubList,
    vtable_stubs: StubList,
    reads: u32,
}

/// Stubs in the order of their addresses, none of which overlaps another.
#[derive(Debug, Default)]
struct StubList {
    /// First elements of the JVM's linked lists. New stubs become the first ones.
    heads: Vec<u64>,
    /// A stub was being generated.
    is_unfinished: bool,
    stubs: Box<[NamedStub]>,
}

impl StubNames {
    pub(crate) fn new(variables: SymtabVariables) -> Self {
        Self { variables, ..Self::default() }
    }

    /// Reads the lists that have changed. True if one has.
    pub(crate) fn refresh(&mut self, memory: &impl ProcessMemory) -> bool {
        let routines = self.refresh_routines(memory);
        self.refresh_vtable_stubs(memory) || routines
    }

    /// Returns the name of the stub at `pc` in a blob; `None` if the blob's own name is all that is
    /// known. `blob_code`: all code of that blob, in which the whole stub must lie.
    pub(crate) fn name(
        &mut self,
        pc: Avma,
        blob_name: &str,
        blob_code: &Range<Avma>,
        memory: &impl ProcessMemory,
    ) -> Option<Arc<str>> {
        let is_routine = is_stub_routines(blob_name);
        if !is_routine && blob_name != vtable_stubs::BLOB {
            return None;
        }
        let find = |list: &StubList| {
            let stub = list.find(pc)?;
            let is_inside = blob_code.start <= stub.code.start && stub.code.end <= blob_code.end;
            is_inside.then(|| Arc::clone(&stub.name))
        };
        if is_routine {
            find(&self.routines).or_else(|| find(self.refresh_routines(memory).then_some(&self.routines)?))
        } else {
            let found = find(&self.vtable_stubs);
            found.or_else(|| find(self.refresh_vtable_stubs(memory).then_some(&self.vtable_stubs)?))
        }
    }

    fn refresh_routines(&mut self, memory: &impl ProcessMemory) -> bool {
        let Some(list) = self.variables.stub_code_descs else { return false };
        let Some(head) = memory.read_u64(list) else { return false };
        if !self.routines.is_changed(&[head]) || !self.may_read() {
            return false;
        }
        let (stubs, is_unfinished) = read_routines(head, memory).unwrap_or_default();
        self.routines = StubList { heads: vec![head], is_unfinished, stubs: without_overlaps(stubs) };
        true
    }

    fn refresh_vtable_stubs(&mut self, memory: &impl ProcessMemory) -> bool {
        let Some(heads) = self.variables.vtable_stubs.and_then(|at| vtable_stubs::heads(at, memory)) else {
            return false;
        };
        if !self.vtable_stubs.is_changed(&heads) || !self.may_read() {
            return false;
        }
        let nodes = read_chains(&heads, vtable_stubs::HEADER_BYTES, memory).unwrap_or_default();
        let stubs = vtable_stubs::stubs(&nodes, memory);
        self.vtable_stubs = StubList { heads, is_unfinished: false, stubs: without_overlaps(stubs) };
        true
    }

    fn may_read(&mut self) -> bool {
        self.reads += 1;
        self.reads <= MAX_READS
    }
}

impl StubList {
    fn is_changed(&self, heads: &[u64]) -> bool {
        self.is_unfinished || self.heads != heads
    }

    fn find(&self, pc: Avma) -> Option<&NamedStub> {
        let after = self.stubs.partition_point(|stub| stub.code.start <= pc);
        self.stubs.get(after.checked_sub(1)?).filter(|stub| stub.code.contains(&pc))
    }
}

/// Reads the listed stubs of `StubRoutines`; true if one of them isn't finished.
fn read_routines(head: u64, memory: &impl ProcessMemory) -> Option<(Vec<NamedStub>, bool)> {
    let nodes = read_chains(&[head], DESC_BYTES, memory)?;
    let word = |bytes: &[u8], index: usize| field::u64(bytes, index * 8).unwrap_or_default();
    let strings: Vec<Avma> =
        nodes.iter().flat_map(|(_, bytes)| [Avma(word(bytes, 1)), Avma(word(bytes, 2))]).collect();
    let texts = memory.read_c_strings(&strings, MAX_NAME);
    let is_unfinished = nodes.iter().any(|(_, bytes)| word(bytes, 3) != 0 && word(bytes, 4) == 0);
    let stub = |((_, bytes), texts): (&(u64, Vec<u8>), &[Option<String>])| {
        // Up to JDK 8 a number stands before the bounds, and in the padding after it anything.
        let bounds = [(3, 4), (4, 5)].map(|(start, end)| word(bytes, start)..word(bytes, end));
        let code = bounds
            .into_iter()
            .find(|code| (1..=MAX_STUB_BYTES).contains(&code.end.wrapping_sub(code.start)))?;
        let name = texts[1].as_deref().filter(|name| is_name(name))?;
        let is_listed = texts[0].as_deref() == Some(STUB_ROUTINES);
        // `call_stub` since JDK 26, as it was before.
        let name = name.strip_suffix("_stub (stub gen)").unwrap_or(name);
        is_listed.then(|| NamedStub { code: Avma(code.start)..Avma(code.end), name: name.into() })
    };
    Some((nodes.iter().zip(texts.chunks(2)).filter_map(stub).collect(), is_unfinished))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// The elements of linked lists that begin with the address of the next one: address and bytes.
/// `None` if one is in two lists, or there are too many; what can't be read ends its list.
fn read_chains(
    heads: &[u64],
    element_bytes: usize,
    memory: &impl ProcessMemory,
) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut seen = HashSet::new();
    let mut elements = Vec::new();
    let mut next: Vec<u64> = heads.iter().copied().filter(|head| *head != 0).collect();
    while !next.is_empty() {
        if !next.iter().all(|address| seen.insert(*address)) || seen.len() > MAX_STUBS {
            return None;
        }
        let places: Vec<(Avma, usize)> = next.iter().map(|at| (Avma(*at), element_bytes)).collect();
        let read = next.iter().zip(memory.read_ranges(&places));
        let read: Vec<(u64, Vec<u8>)> = read.filter_map(|(at, bytes)| Some((*at, bytes?))).collect();
        next = read.iter().filter_map(|(_, bytes)| field::u64(bytes, 0)).filter(|at| *at != 0).collect();
        elements.extend(read);
    }
    Some(elements)
}

/// Sorts stubs; those that overlap another one are left out.
fn without_overlaps(mut stubs: Vec<NamedStub>) -> Box<[NamedStub]> {
    stubs.sort_by_key(|stub| (stub.code.start, stub.code.end));
    let mut end = Avma(0);
    let mut is_alone: Vec<bool> = Vec::with_capacity(stubs.len());
    for (index, NamedStub { code, .. }) in stubs.iter().enumerate() {
        let next = stubs.get(index + 1);
        is_alone.push(end <= code.start && next.is_none_or(|next| code.end <= next.code.start));
        end = end.max(code.end);
    }
    let mut is_alone = is_alone.into_iter();
    stubs.retain(|_| is_alone.next() == Some(true));
    stubs.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::process_memory::{MemoryRead, RecordedMemory};
    use crate::hotspot::vmstructs::symtab_variables::{BlockerVariables, NameVariables};

    const LIST: Avma = Avma(0x10_0000);
    const BLOB: Range<Avma> = Avma(0x7f00_0000_1000)..Avma(0x7f00_0000_2000);
    const VARIABLES: SymtabVariables = SymtabVariables {
        stub_code_descs: Some(LIST),
        vtable_stubs: None,
        blockers: BlockerVariables {
            current_thread: None,
            park_blocker_offset: None,
            names: NameVariables { thread_name: None, string_value: None, string_coder: None },
        },
        vm_operation: None,
    };

    /// A list of descriptors, each `(group, name, start, end)`, as JDK 9 and later have them.
    fn memory_of(stubs: &[(&str, &str, u64, u64)], jdk_8: bool) -> RecordedMemory {
        let mut memory = RecordedMemory::default();
        let at = |index: usize| 0x20_0000 + 0x1000 * index as u64;
        for (index, (group, name, start, end)) in stubs.iter().enumerate() {
            let next = if index + 1 < stubs.len() { at(index + 1) } else { 0 };
            let strings = at(index) + 0x100;
            let mut words = vec![next, strings, strings + 0x100];
            words.extend(jdk_8.then_some(0x5555_0000_0000 + index as u64));
            words.extend([BLOB.start.0 + start, if *end == 0 { 0 } else { BLOB.start.0 + end }, 17]);
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            memory.insert(Avma(at(index)), bytes);
            for (place, text) in [(strings, group), (strings + 0x100, name)] {
                let mut bytes = text.as_bytes().to_vec();
                bytes.resize(0x100, 0);
                memory.insert(Avma(place), bytes);
            }
        }
        memory.insert(LIST, at(0).to_le_bytes());
        memory
    }

    fn name(names: &mut StubNames, memory: &impl ProcessMemory, offset: u64) -> Option<String> {
        let pc = Avma(BLOB.start.0 + offset);
        Some(names.name(pc, "StubRoutines (compiler stubs)", &BLOB, memory)?.to_string())
    }

    #[test]
    fn an_address_has_the_name_of_the_stub_that_contains_it() {
        let stubs = [
            ("StubRoutines", "sha256_implCompress_stub (stub gen)", 0x100, 0x180),
            ("StubRoutines", "forward exception", 0x0, 0x3f),
            ("MethodHandle::interpreter_entry", "_linkToStatic", 0x200, 0x240),
        ];
        for jdk_8 in [false, true] {
            let memory = memory_of(&stubs, jdk_8);
            let mut names = StubNames::new(VARIABLES);
            let mut name = |offset| name(&mut names, &memory, offset);
            assert_eq!(name(0).as_deref(), Some("forward exception"), "{jdk_8}");
            assert_eq!(name(0x3e).as_deref(), Some("forward exception"));
            assert_eq!(name(0x3f), None, "between two stubs");
            assert_eq!(name(0x100).as_deref(), Some("sha256_implCompress"));
            assert_eq!(name(0x180), None);
            assert_eq!(name(0x210), None, "of another group");
            let other = Avma(BLOB.start.0 + 0x100)..BLOB.end;
            assert!(names.name(Avma(BLOB.start.0 + 0x100), "StubRoutines (1)", &other, &memory).is_some());
            let cut = Avma(BLOB.start.0 + 0x110)..BLOB.end;
            assert!(names.name(Avma(BLOB.start.0 + 0x120), "StubRoutines (1)", &cut, &memory).is_none());
            assert!(names.name(Avma(BLOB.start.0 + 0x120), "adapters", &BLOB, &memory).is_none());
        }
    }

    #[test]
    fn stubs_that_overlap_have_no_names() {
        let stubs = [
            ("StubRoutines", "outer", 0x100, 0x200),
            ("StubRoutines", "inner", 0x140, 0x150),
            ("StubRoutines", "after", 0x200, 0x210),
            ("StubRoutines", "before", 0x80, 0x100),
            ("StubRoutines", "empty", 0x300, 0x300),
            ("StubRoutines", "bad \u{1} name", 0x400, 0x410),
            ("StubRoutines", "backwards", 0x520, 0x510),
        ];
        let memory = memory_of(&stubs, false);
        let mut names = StubNames::new(VARIABLES);
        let found: Vec<_> = (0..0x1000).filter_map(|offset| name(&mut names, &memory, offset)).collect();
        let expected = [vec!["before"; 0x80], vec!["after"; 0x10]].concat();
        assert_eq!(found, expected);
    }

    #[test]
    fn new_stubs_and_finished_ones_are_found_when_they_are_asked_for() {
        let mut names = StubNames::new(VARIABLES);
        let unfinished = memory_of(&[("StubRoutines", "new", 0x100, 0)], false);
        assert_eq!(name(&mut names, &unfinished, 0x100), None);
        let finished = memory_of(&[("StubRoutines", "new", 0x100, 0x120)], false);
        assert_eq!(name(&mut names, &finished, 0x100).as_deref(), Some("new"));
        let gone = RecordedMemory::default();
        assert_eq!(name(&mut names, &gone, 0x100).as_deref(), Some("new"), "what was read is kept");
        assert!(!names.refresh(&gone));
    }

    /// A list without an end, or one that changes with each look, whatever is read.
    struct Endless {
        is_cycle: bool,
        reads: std::cell::Cell<u64>,
    }

    impl ProcessMemory for Endless {
        fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
            for read in reads {
                self.reads.set(self.reads.get() + 1);
                let word = if self.is_cycle { 0x20_0000 } else { 0x20_0000 + self.reads.get() * 64 };
                read.into
                    .chunks_mut(8)
                    .for_each(|bytes| bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]));
                read.done = true;
            }
        }
    }

    #[test]
    fn a_list_without_an_end_is_given_up_and_not_read_for_ever() {
        let variables = SymtabVariables { vtable_stubs: Some(LIST), ..VARIABLES };
        for is_cycle in [true, false] {
            let memory = Endless { is_cycle, reads: 0.into() };
            let mut names = StubNames::new(variables);
            for _ in 0..10 {
                assert_eq!(name(&mut names, &memory, 0x100), None);
                assert_eq!(names.name(BLOB.start, vtable_stubs::BLOB, &BLOB, &memory), None);
            }
            assert!(memory.reads.get() < 25 * 2 * MAX_STUBS as u64, "{}", memory.reads.get());
            names.reads = MAX_READS;
            let before = memory.reads.get();
            for _ in 0..100 {
                assert_eq!(name(&mut names, &memory, 0x100), None);
            }
            assert!(memory.reads.get() - before <= 100, "the head alone");
        }
    }

    #[test]
    fn whatever_stands_in_memory_names_lie_in_their_blob_and_nothing_panics() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let stubs: Vec<(&str, &str, u64, u64)> =
            (0..64).map(|i| ("StubRoutines", "stub", i * 0x40, i * 0x40 + 0x3f)).collect();
        for _ in 0..300 {
            let mut memory = memory_of(&stubs, false);
            for _ in 0..next() % 40 {
                let at = Avma(0x20_0000 + 0x1000 * (next() % 64) + 8 * (next() % 6));
                let word = [0, u64::MAX, BLOB.start.0 + next() % 0x1000, next() << 20, 0x20_0000]
                    [next() as usize % 5];
                memory.insert(at, word.to_le_bytes());
            }
            let mut names = StubNames::new(VARIABLES);
            names.refresh(&memory);
            for offset in (0..0x1000).step_by(7) {
                let _ = name(&mut names, &memory, offset);
            }
            let list = &names.routines.stubs;
            assert!(list.windows(2).all(|pair| pair[0].code.end <= pair[1].code.start), "{list:?}");
        }
    }
}
