use std::time::{Duration, Instant};

use jvmprof_common::jvm::{GarbageCollector, Jvm};

use super::*;
use crate::hotspot::java_heap::{HeapLayout, KlassWord};
use crate::hotspot::process_memory::RecordedMemory;

const THREAD: Avma = Avma(0x10);
const KEY_SET: Avma = Avma(0x20);
const MAP: Avma = Avma(0x30);
const NODE: Avma = Avma(0x40);
const GROUP: Avma = Avma(0x50);
const OTHER: Avma = Avma(0x60);
/// The fields of all objects here.
const FIRST: u64 = 16;
const SECOND: u64 = 24;
const MIRROR_OF_ROOT: Avma = Avma(0x1000);
const MIRROR_OF_GROUPS: Avma = Avma(0x1100);
const UNREADABLE: u64 = 0x2000;
const LATER: Duration = Duration::from_secs(3600);

/// A heap without narrow references, whose collector stops threads.
struct TestHeap {
    memory: RecordedMemory,
    end: u64,
}

impl TestHeap {
    fn new() -> Self {
        Self { memory: RecordedMemory::default(), end: 0x10_0000 }
    }

    fn write(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.insert(Avma(address), bytes);
    }

    fn object(&mut self, klass: Avma, fields: &[u64]) -> u64 {
        let address = self.end;
        self.write(address, &[&[1, klass.0], fields].concat());
        self.end += 16 + fields.len() as u64 * 8;
        address
    }

    fn thread(&mut self) -> u64 {
        self.object(THREAD, &[0, 0])
    }

    fn node(&mut self, key: u64, next: u64) -> u64 {
        self.object(NODE, &[key, next])
    }

    /// A set whose table has these buckets.
    fn set(&mut self, buckets: &[u64]) -> u64 {
        let table = self.object(OTHER, &[&[buckets.len() as u64], buckets].concat());
        let map = self.object(MAP, &[table, 0]);
        self.object(KEY_SET, &[map, 0])
    }

    /// A set of one object.
    fn set_of(&mut self, key: u64) -> u64 {
        let node = self.node(key, 0);
        self.set(&[0, node])
    }

    /// A reference to a group that has this set.
    fn reference_to_group_of(&mut self, set: u64) -> u64 {
        let group = self.object(GROUP, &[set, 0]);
        self.object(OTHER, &[group, 0])
    }

    fn members(mut self, root: u64, groups: u64) -> (Result<Vec<(Avma, f64)>, VirtualThreadsError>, u32) {
        for (slot, object) in [(MIRROR_OF_ROOT, root), (MIRROR_OF_GROUPS, groups)] {
            let mirror = self.object(OTHER, &[object, 0]);
            self.write(slot.0, &[slot.0 + 8, mirror]);
        }
        self.read(LATER, |heap| {
            let found = members(heap, &census_layout(), 1 << 17);
            (found.map(|found| found.objects), heap.take_unresolved())
        })
    }

    fn read<T>(&self, time: Duration, read: impl FnOnce(&HeapReader<'_, RecordedMemory>) -> T) -> T {
        let layout = heap_layout();
        read(&HeapReader::new(&Jvm::default(), &layout, &self.memory, Instant::now() + time))
    }
}

fn heap_layout() -> HeapLayout {
    HeapLayout {
        collections_at: None,
        allocated_bytes: 0,
        layout_helper: 0,
        klass_name: 0,
        symbol_length: 0,
        symbol_body: 0,
        klass_word: KlassWord { at: 8, right: 0, mask: u64::MAX, base: 0, left: 0 },
        array_length: 16,
        alignment: 8,
        mirror_size: None,
        stack_chunk: None,
        has_narrow_oops: false,
    }
}

fn census_layout() -> CensusLayout {
    CensusLayout {
        virtual_thread: THREAD,
        state: FIRST,
        cont: FIRST,
        park_blocker: SECOND,
        states: Vec::new(),
        root_set: Some(StaticField { mirror: MIRROR_OF_ROOT, offset: FIRST }),
        groups: StaticField { mirror: MIRROR_OF_GROUPS, offset: FIRST },
        referent: FIRST,
        group_sets: vec![(GROUP, FIRST)],
        maps: MapLayout {
            key_set: KEY_SET,
            map_of_view: FIRST,
            map: MAP,
            table: FIRST,
            node: NODE,
            tree_node: None,
            key: FIRST,
            next: SECOND,
            tree: None,
            moved: None,
        },
    }
}

#[test]
fn threads_of_the_root_and_of_groups_are_found_once_each() {
    let mut heap = TestHeap::new();
    let threads = [heap.thread(), heap.thread(), heap.thread()];
    let last = heap.node(threads[1], 0);
    let first = heap.node(threads[0], last);
    let root = heap.set(&[0, first]);
    let of_group = heap.set_of(threads[2]);
    // Both groups say that they have the same set, and a third one the root's.
    let nodes = [of_group, of_group, root].map(|set| {
        let reference = heap.reference_to_group_of(set);
        heap.node(reference, 0)
    });
    let groups = heap.set(&[nodes[0], nodes[1], 0, nodes[2]]);
    let expected = threads.map(|thread| (Avma(thread), 1.0)).to_vec();
    assert_eq!(heap.members(root, groups), (Ok(expected), 0));
}

#[test]
fn what_cannot_be_read_is_counted_rather_than_taken_for_nothing() {
    let mut heap = TestHeap::new();
    let thread = heap.thread();
    let whole = heap.node(thread, 0);
    let root = heap.set(&[whole, UNREADABLE]);
    let (found, unresolved) = heap.members(root, 0);
    assert_eq!(found, Ok(vec![(Avma(thread), 1.0)]));
    assert_eq!(unresolved, 1);
}

#[test]
fn lists_that_lead_to_themselves_are_no_sets() {
    for buckets in [1, 4096] {
        let mut heap = TestHeap::new();
        let thread = heap.thread();
        let node = heap.end;
        assert_eq!(heap.node(thread, node), node);
        let root = heap.set(&vec![node; buckets]);
        assert_eq!(heap.members(root, 0), (Err(VirtualThreadsError::NoSet), 0));
    }
}

#[test]
fn all_sets_together_have_a_limit_and_a_time() {
    let mut heap = TestHeap::new();
    let nodes = [(); 3].map(|()| {
        let thread = heap.thread();
        heap.node(thread, 0)
    });
    let set = Avma(heap.set(&[nodes[0], nodes[1], nodes[2], 0]));
    let read = |left: &mut usize, time: Duration| {
        heap.read(time, |heap| Ok(read_set(heap, &census_layout().maps, set, 4, left)?.len()))
    };
    let mut left = 5;
    assert_eq!((read(&mut left, LATER), left), (Ok(3), 2));
    assert_eq!(read(&mut left, LATER), Err(VirtualThreadsError::NoSet));
    assert_eq!(read(&mut 5, Duration::ZERO), Err(VirtualThreadsError::Slow));
}

#[test]
fn fields_beyond_the_address_space_are_unreadable() {
    let mut heap = TestHeap::new();
    let root = heap.set(&[u64::MAX - 7]);
    let (found, unresolved) = heap.members(root, 0);
    assert_eq!(found, Ok(Vec::new()));
    assert_eq!(unresolved, 1);
}

#[test]
fn of_many_groups_those_that_are_read_stand_for_all() {
    let mut heap = TestHeap::new();
    let nodes: Vec<u64> = (0..2 * MAX_GROUPS)
        .map(|_| {
            let thread = heap.thread();
            let set = heap.set_of(thread);
            let reference = heap.reference_to_group_of(set);
            heap.node(reference, 0)
        })
        .collect();
    let groups = heap.set(&nodes);
    let (found, unresolved) = heap.members(0, groups);
    let found = found.expect("sets");
    assert_eq!((found.len(), unresolved), (MAX_GROUPS, 0));
    assert!(found.iter().all(|(_, weight)| *weight == 2.0), "{found:?}");
}

#[test]
fn references_that_a_collector_hides_are_counted_and_not_followed_too_late() {
    let mut heap = TestHeap::new();
    let thread = heap.thread();
    let whole = Avma(heap.object(OTHER, &[thread]));
    // Shenandoah's object says where it is now: this one can't be asked.
    let hidden = Avma(heap.object(OTHER, &[UNREADABLE]));
    let empty = Avma(heap.object(OTHER, &[0]));
    let slots = [whole, hidden, empty].map(|object| object.wrapping_add(FIRST));
    let (mut jvm, layout) = (Jvm::default(), heap_layout());
    jvm.chunks.collector.kind = GarbageCollector::SHENANDOAH;
    let reader = HeapReader::new(&jvm, &layout, &heap.memory, Instant::now() + LATER);
    assert_eq!(reader.references(&slots), [Some(Avma(thread)), None, None]);
    assert_eq!(reader.take_unresolved(), 1);
    reader.set_deadline(Instant::now());
    assert_eq!(reader.references(&slots), [None; 3]);
    assert_eq!(reader.take_unresolved(), 1);
}
