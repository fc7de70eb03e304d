use std::cell::Cell;

use jvmprof_common::allocation::TlabRecord;

use super::*;
use crate::hotspot::java_heap::heap_layout::KlassWord;
use crate::hotspot::process_memory::{MemoryRead, RecordedMemory};

const HEAP: u64 = 0x1_0000_0000;
const COLLECTIONS: u64 = 0x5000;
const LAYOUT_HELPER: u64 = 8;
const KLASS_NAME: u64 = 16;

fn layout() -> HeapLayout {
    HeapLayout {
        collections_at: Some(Avma(COLLECTIONS)),
        allocated_bytes: 0,
        layout_helper: LAYOUT_HELPER,
        klass_name: KLASS_NAME,
        symbol_length: 0,
        symbol_body: 6,
        klass_word: KlassWord { at: 8, right: 0, mask: 0xffff_ffff, base: 0x8000_0000, left: 0 },
        array_length: 12,
        alignment: 8,
        mirror_size: None,
        stack_chunk: None,
        has_narrow_oops: true,
    }
}

/// A JVM's memory: two classes, and a heap.
struct Jvm {
    memory: RecordedMemory,
    heap: Vec<u8>,
}

const NODE: u32 = 0x100;
const BYTES: u32 = 0x200;
/// As HotSpot has them: 24 bytes; arrays of bytes with 16 bytes before the first.
const NODE_HELPER: u32 = 24;
const BYTES_HELPER: u32 = 0xc010_0800;

impl Jvm {
    fn new() -> Self {
        let mut memory = RecordedMemory::default();
        for (klass, helper, name) in [(NODE, NODE_HELPER, "acme/Node"), (BYTES, BYTES_HELPER, "[B")] {
            let (at, symbol) = (0x8000_0000 + u64::from(klass), 0x9000 + u64::from(klass));
            let mut bytes = vec![0; 32];
            bytes[8..12].copy_from_slice(&helper.to_le_bytes());
            bytes[16..24].copy_from_slice(&symbol.to_le_bytes());
            memory.insert(Avma(at), bytes);
            let length = (name.len() as u16).to_le_bytes();
            memory.insert(Avma(symbol), [&length[..], &[0; 4], name.as_bytes()].concat());
        }
        memory.insert(Avma(COLLECTIONS), vec![7, 0, 0, 0]);
        Self { memory, heap: Vec::new() }
    }

    fn node(&mut self) {
        self.heap.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        self.heap.extend(NODE.to_le_bytes());
        self.heap.extend([0xab; 12]);
    }

    fn bytes(&mut self, length: u32) {
        self.heap.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        self.heap.extend(BYTES.to_le_bytes());
        self.heap.extend(length.to_le_bytes());
        let end = (self.heap.len() + length as usize).next_multiple_of(8);
        self.heap.resize(end, 0xcd);
    }

    fn nodes(&mut self, bytes: usize) {
        (0..bytes / 24).for_each(|_| self.node());
    }

    /// Screens the heap, whose first so many bytes are counted otherwise.
    fn screen(mut self, large_first: u64, klasses: &KlassReader) -> Result<bool, CensusError> {
        let used = self.heap.len() as u64;
        let tlab = TlabRecord { start: HEAP, used, large_first, collections: 7, ..TlabRecord::default() };
        self.memory.insert(Avma(HEAP), self.heap);
        TlabScreen::default().has_large_object(&tlab, &layout(), klasses, &self.memory)
    }

    fn count(mut self, used: Option<u64>, collections: u64) -> Result<Vec<Row>, CensusError> {
        let used = used.unwrap_or(self.heap.len() as u64);
        self.memory.insert(Avma(HEAP), self.heap);
        count_in(&self.memory, used, collections)
    }
}

/// Name, class of sizes, objects, bytes.
type Row = (String, u32, u64, u64);

fn count_in(memory: &impl ProcessMemory, used: u64, collections: u64) -> Result<Vec<Row>, CensusError> {
    let (mut klasses, mut census) = (KlassReader::default(), TlabCensus::default());
    let found = census.count(Avma(HEAP), used, collections, &layout(), &mut klasses, memory)?;
    let mut rows: Vec<_> = found
        .counts
        .into_iter()
        .map(|it| (it.class.name.to_string(), it.size_class, it.objects, it.bytes))
        .collect();
    rows.sort();
    Ok(rows)
}

#[test]
fn each_object_is_counted_by_class_and_size() {
    let mut jvm = Jvm::new();
    for index in 0..5000 {
        jvm.node();
        jvm.bytes(index % 3);
        if index % 100 == 0 {
            jvm.bytes(65_536);
        }
    }
    jvm.node();
    let found = jvm.count(None, 7).expect("it is a row of objects");
    let row = |name: &str, size, objects, bytes| (name.to_owned(), size, objects, bytes);
    // 16 bytes without an element, 24 with one or two.
    assert_eq!(
        found,
        [
            row("acme.Node", 5, 5001, 5001 * 24),
            row("byte[]", 4, 1667, 1667 * 16),
            row("byte[]", 5, 3333, 3333 * 24),
            row("byte[]", 17, 50, 50 * 65_552),
        ]
    );
}

#[test]
fn what_is_no_row_of_objects_is_not_believed() {
    let jvm = || {
        let mut jvm = Jvm::new();
        jvm.node();
        jvm.bytes(100);
        jvm
    };
    let whole = jvm().heap.len() as u64;
    assert!(jvm().count(None, 7).is_ok());
    assert_eq!(jvm().count(None, 6), Err(CensusError::Collected));
    for used in 1..whole {
        // Both ends of objects are ends of a row.
        let is_row = used == 24;
        let found = jvm().count(Some(used), 7);
        assert_eq!(found.is_ok(), is_row, "{used}: {found:?}");
    }
    assert_eq!(jvm().count(Some(whole + 8), 7), Err(CensusError::Unreadable));
    assert_eq!(jvm().count(Some(u64::MAX), 7), Err(CensusError::TooLarge));
    let mut unknown = jvm();
    unknown.heap.extend([0; 16]);
    assert_eq!(unknown.count(None, 7), Err(CensusError::NoClass));
    let mut endless = jvm();
    endless.bytes(0);
    let at = endless.heap.len() - 4;
    endless.heap[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(endless.count(None, 7), Err(CensusError::WrongEnd));
}

#[test]
fn a_buffer_of_gigabytes_is_counted_if_its_objects_are_large() {
    const BYTES: u64 = 1 << 30;
    let mut jvm = Jvm::new();
    for index in 0..3 {
        jvm.bytes(4096);
        let length = (BYTES as u32 - 16).to_le_bytes();
        jvm.heap[12..16].copy_from_slice(&length);
        // Where it begins is all that is read of it.
        jvm.memory.insert(Avma(HEAP + index * BYTES), std::mem::take(&mut jvm.heap));
    }
    let found = count_in(&jvm.memory, 3 * BYTES, 7);
    assert_eq!(found, Ok(vec![("byte[]".to_owned(), 30, 3, 3 * BYTES)]));
    assert_eq!(count_in(&jvm.memory, MAX_BYTES + 8, 7), Err(CensusError::TooLarge));
}

/// A heap of instances without end, of which some are given.
struct Endless(RecordedMemory, Vec<u8>);

impl ProcessMemory for Endless {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        for read in reads {
            if read.address.0 < HEAP {
                read.done = self.0.read_into(read.address, read.into);
                continue;
            }
            let from = (read.address.0 - HEAP) as usize % 24;
            read.into.copy_from_slice(&self.1[from..][..read.into.len()]);
            read.done = true;
        }
    }
}

#[test]
fn a_buffer_of_too_many_objects_is_given_up() {
    let mut jvm = Jvm::new();
    (0..LARGEST_PIECE).for_each(|_| jvm.node());
    let endless = Endless(jvm.memory, jvm.heap);
    let (counted, refused) = (3 << 20, MAX_WORK + 1);
    let found = count_in(&endless, 24 * counted, 7);
    assert_eq!(found, Ok(vec![("acme.Node".to_owned(), 5, counted, 24 * counted)]));
    assert_eq!(count_in(&endless, 24 * refused, 7), Err(CensusError::TooLarge));
}

/// A JVM in which a collection begins after some reads of its memory.
struct Collecting {
    memory: RecordedMemory,
    reads: Cell<u32>,
    until: u32,
}

impl ProcessMemory for Collecting {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        for read in reads {
            read.done = self.memory.read_into(read.address, read.into);
            if read.address.0 == COLLECTIONS && self.reads.get() >= self.until {
                read.into[0] += 1;
            }
            self.reads.set(self.reads.get() + 1);
        }
    }
}

#[test]
fn a_census_is_not_believed_if_a_collection_begins_meanwhile() {
    let count = |until| {
        let mut jvm = Jvm::new();
        jvm.node();
        // What is read by pieces.
        jvm.bytes(100_000);
        jvm.node();
        let used = jvm.heap.len() as u64;
        jvm.memory.insert(Avma(HEAP), jvm.heap);
        let memory = Collecting { memory: jvm.memory, reads: Cell::new(0), until };
        (count_in(&memory, used, 7), memory.reads.get())
    };
    let (found, reads) = count(u32::MAX);
    assert!(found.is_ok() && reads > 5, "{found:?} in {reads} reads");
    for until in 0..reads {
        assert_eq!(count(until).0, Err(CensusError::Collected), "after {until} of {reads} reads");
    }
    assert_eq!(count(reads).0, found, "after the last read");
}

/// Returns a reader that has read both classes.
fn known_klasses() -> KlassReader {
    let (jvm, mut klasses) = (Jvm::new(), KlassReader::default());
    for klass in [NODE, BYTES] {
        let at = Avma(0x8000_0000 + u64::from(klass));
        assert!(klasses.read(at, &layout(), &jvm.memory).is_some());
    }
    klasses
}

#[test]
fn an_object_that_takes_an_eighth_of_a_buffer_is_found_without_a_census() {
    // Arrays, each behind nodes of so many bytes, in buffers of two and a half megabytes and more.
    for (array, nodes, is_large) in
        [(8, 50_000, false), (65_536, 57_000, false), (700_000, 900_000, true), (2_000_000, 400_000, true)]
    {
        let mut jvm = Jvm::new();
        while jvm.heap.len() < 5 << 19 {
            jvm.nodes(nodes);
            jvm.bytes(array);
        }
        jvm.nodes(nodes);
        assert_eq!(jvm.screen(0, &known_klasses()), Ok(is_large), "{array} behind {nodes}");
    }
}

#[test]
fn a_large_first_object_is_no_part_of_what_is_screened() {
    for (large_first, is_large) in [((3 << 20) + 16, false), (0, true)] {
        let mut jvm = Jvm::new();
        jvm.bytes(3 << 20);
        jvm.nodes(2 << 20);
        assert_eq!(jvm.screen(large_first, &known_klasses()), Ok(is_large));
    }
}

#[test]
fn a_buffer_whose_classes_are_unknown_seems_to_be_a_large_object() {
    for (klasses, is_large) in [(KlassReader::default(), true), (known_klasses(), false)] {
        let mut jvm = Jvm::new();
        jvm.nodes(2 << 20);
        assert_eq!(jvm.screen(0, &klasses), Ok(is_large));
    }
}

#[test]
fn a_buffer_that_cannot_be_read_is_not_screened() {
    let screen = |used, collections| {
        let mut jvm = Jvm::new();
        jvm.nodes(1 << 20);
        jvm.memory.insert(Avma(HEAP), jvm.heap);
        let tlab = TlabRecord { start: HEAP, used, collections, ..TlabRecord::default() };
        TlabScreen::default().has_large_object(&tlab, &layout(), &known_klasses(), &jvm.memory)
    };
    assert_eq!(screen(1 << 20, 7), Ok(false));
    assert_eq!(screen(1 << 20, 6), Err(CensusError::Collected));
    assert_eq!(screen(2 << 20, 7), Err(CensusError::Unreadable));
    assert_eq!(screen(u64::MAX, 7), Err(CensusError::TooLarge));
    assert_eq!(screen(64 << 10, 7), Ok(false), "a census of it is as cheap");
}
