//! Reading objects of the Java heap from outside, under each collector.

use std::cell::Cell;
use std::time::Instant;

use jvmprof_common::address::StackAddress;
use jvmprof_common::jvm::{GarbageCollector, Jvm};
use jvmprof_common::rows::Row;
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::HotspotTarget;
use jvmprof_common::unwind::hotspot::compiled::instructions::LoadedCode;
use jvmprof_common::unwind::hotspot::continuation::load_barriers::{UNRESOLVED, load_reference};

use crate::hotspot::java_heap::HeapLayout;
use crate::hotspot::loaded_pieces::LoadedPieces;
use crate::hotspot::process_memory::ProcessMemory;
use crate::types::Avma;

/// References that are followed one by one until the clock is looked at again.
const UNTIL_CLOCK: usize = 1024;

/// The heap of a running JVM.
#[derive(Debug)]
pub(super) struct HeapReader<'a, M> {
    pub(super) jvm: &'a Jvm,
    pub(super) layout: &'a HeapLayout,
    pub(super) memory: &'a M,
    /// What could not be read, or of which can't be told what it refers to: whoever takes that for
    /// an empty field must look here afterwards.
    unresolved: Cell<u32>,
    /// When references aren't followed any more.
    deadline: Cell<Instant>,
}

impl<'a, M: ProcessMemory> HeapReader<'a, M> {
    pub(super) fn new(jvm: &'a Jvm, layout: &'a HeapLayout, memory: &'a M, deadline: Instant) -> Self {
        Self { jvm, layout, memory, unresolved: Cell::new(0), deadline: Cell::new(deadline) }
    }

    /// Returns how much was unresolved since this was asked last.
    pub(super) fn take_unresolved(&self) -> u32 {
        self.unresolved.take()
    }

    /// Counts something that is unresolved.
    pub(super) fn count_unresolved(&self) {
        self.unresolved.set(self.unresolved.get().saturating_add(1));
    }

    pub(super) fn set_deadline(&self, deadline: Instant) {
        self.deadline.set(deadline);
    }

    pub(super) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline.get()
    }

    /// Returns the objects that fields refer to; `None` for none, and where that can't be told or
    /// it is too late, which counts as unresolved.
    pub(super) fn references(&self, slots: &[Avma]) -> Vec<Option<Avma>> {
        let chunks = &self.jvm.chunks;
        if chunks.collector.kind != GarbageCollector::STOPS {
            let mut found = Vec::with_capacity(slots.len());
            for some in slots.chunks(UNTIL_CLOCK) {
                if self.is_late() {
                    self.count_unresolved();
                    break;
                }
                let mut target = self.target();
                found.extend(some.iter().map(|slot| self.reference(&mut target, *slot, false)));
            }
            found.resize(slots.len(), None);
            return found;
        }
        let decode = |word: Option<u64>| {
            let object = match chunks.oops_are_narrow {
                0 => word?,
                _ => match word? & 0xffff_ffff {
                    0 => return None,
                    narrow => chunks.oop_base.wrapping_add(narrow << (chunks.oop_shift & 7)),
                },
            };
            (object != 0).then_some(Avma(object))
        };
        let words = self.memory.read_words(slots).into_iter();
        words
            .inspect(|word| {
                if word.is_none() {
                    self.count_unresolved();
                }
            })
            .map(decode)
            .collect()
    }

    /// Returns the object that a slot outside of the heap refers to, by an `OopHandle`.
    pub(super) fn handle(&self, slot: Avma) -> Option<Avma> {
        let Some(slot) = self.memory.read_u64(slot) else {
            self.count_unresolved();
            return None;
        };
        let slot = Some(Avma(slot)).filter(|slot| slot.0 != 0)?;
        let kind = self.jvm.chunks.collector.kind;
        // Such slots are never narrow, but have ZGC's colors.
        let is_plain = matches!(kind, GarbageCollector::STOPS | GarbageCollector::SHENANDOAH);
        self.reference(&mut self.target(), slot, is_plain)
    }

    fn reference(&self, target: &mut HeapTarget<'a, M>, slot: Avma, is_root: bool) -> Option<Avma> {
        // The reference may be corrected just now.
        let object = match load_reference(target, self.jvm, slot, is_root) {
            UNRESOLVED => load_reference(target, self.jvm, slot, is_root),
            object => object,
        };
        if object == UNRESOLVED {
            self.count_unresolved();
        }
        (object != UNRESOLVED && object.0 != 0).then_some(object)
    }

    /// Returns the addresses of the classes of objects, or what can't be one.
    pub(super) fn klasses(&self, objects: &[Avma]) -> Vec<Avma> {
        let words: Vec<Avma> =
            objects.iter().flat_map(|object| [*object, Avma(object.0.wrapping_add(8))]).collect();
        let words = self.memory.read_words(&words);
        let klass = |words: &[Option<u64>]| match words {
            [Some(first), Some(second)] => self.layout.klass_of([*first, *second]),
            _ => Avma(0),
        };
        words.chunks(2).map(klass).collect()
    }

    /// Returns the length of an array.
    pub(super) fn array_length(&self, array: Avma) -> Option<u32> {
        Some(self.memory.read_u64(Avma(array.0.wrapping_add(self.layout.array_length)))? as u32)
    }

    /// Returns the first slot of an array of objects, and the distance to the next one.
    pub(super) fn array_slots(&self, array: Avma) -> (Avma, u64) {
        let bytes = if self.jvm.chunks.oops_are_narrow == 0 { 8 } else { 4 };
        // share/oops/objArrayOop.hpp, `base_offset_in_bytes`: after the length, aligned.
        let first = (self.layout.array_length + 4).next_multiple_of(bytes);
        (Avma(array.0.wrapping_add(first)), bytes)
    }

    pub(super) fn target(&self) -> HeapTarget<'a, M> {
        HeapTarget { memory: self.memory, piece: (Avma(0), Vec::new()), loaded: LoadedPieces::NONE }
    }
}

/// A JVM's memory for the steppers: its heap and its code, not its stacks.
#[derive(Debug)]
pub(super) struct HeapTarget<'a, M> {
    memory: &'a M,
    /// A copy of a piece, by which most reads are answered.
    piece: (Avma, Vec<u8>),
    loaded: LoadedPieces,
}

impl<M: ProcessMemory> HeapTarget<'_, M> {
    /// Answers reads from this copy from now on, as far as it goes: an address and its bytes.
    pub(super) fn use_copy(&mut self, piece: (Avma, Vec<u8>)) {
        self.piece = piece;
    }
}

impl<M: ProcessMemory> Memory for HeapTarget<'_, M> {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        self.read_object(address.avma())
    }

    fn read_object(&mut self, address: Avma) -> Option<u64> {
        let (start, bytes) = &self.piece;
        let at = address.0.checked_sub(start.0).and_then(|at| usize::try_from(at).ok());
        let copied = at.and_then(|at| bytes.get(at..)?.first_chunk());
        copied.map_or_else(|| self.memory.read_u64(address), |word| Some(u64::from_le_bytes(*word)))
    }
}

impl<M: ProcessMemory> HotspotTarget for HeapTarget<'_, M> {
    type Row = Row;

    fn read_u8(&mut self, address: Avma) -> Option<u8> {
        self.memory.read_bytes(address, 1).map(|bytes| bytes[0])
    }

    fn load_header(&mut self, address: Avma) -> bool {
        self.loaded.load_header(self.memory, address)
    }

    fn header_word(&self, index: usize) -> u64 {
        self.loaded.header_word(index)
    }

    fn load_code(&mut self, address: Avma) -> bool {
        self.loaded.load_code(self.memory, address)
    }

    fn code(&self) -> &LoadedCode {
        self.loaded.code()
    }

    // Stubs have no frames of their own among frozen ones but those of fixed size.
    fn stub_row(&mut self, _: u32, _: Avma) -> Option<Row> {
        None
    }
}
