//! The objects in a buffer that its thread has given up: one after the other, each says what class
//! it is of and thereby where the next one begins.
//!
//! The buffer is read from outside while the JVM runs. That is believed only if the objects end
//! exactly where the JVM says that its thread had come to, and if no collection has begun since.

mod screen;

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::allocation::size_class;

use super::HeapLayout;
use super::klass::{JavaClass, KlassReader, ObjectShape};
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::types::{Avma, FastHasher};
pub use screen::TlabScreen;

/// Bytes of a buffer, at most: those of the longest `int[]` (openjdk gc/shared/collectedHeap.cpp,
/// `max_tlab_size`), since it must be possible to fill it with one. Collectors with regions have
/// less; Parallel and Serial have a fiftieth of their young generation for each thread.
const MAX_BYTES: u64 = 8 << 30;
/// Work of a census, at most, in objects that are counted; a read is so many. 64 MiB of the
/// smallest objects are within it, and so are 8 GiB of such of 128 KiB: a tenth of a second.
const MAX_WORK: u64 = 5 << 20;
const READ_WORK: u64 = 64;
/// Bytes that are read at a time: few where objects are large, since only their begins are needed.
const FIRST_PIECE: usize = 1024;
const LARGEST_PIECE: usize = 32 << 10;
/// Bytes of an object that say what it is.
const HEADER: usize = 24;
/// Classes in one buffer, at most.
const MAX_CLASSES: usize = 4096;
/// Slots of the direct-mapped cache of classes.
const SLOTS: usize = 256;
/// Classes of sizes: see [`size_class`].
const SIZE_CLASSES: usize = 40;

/// Reasons why a buffer could not be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CensusError {
    /// Its memory can't be read any more.
    Unreadable,
    /// An object's class is none.
    NoClass,
    /// The objects don't end where the thread had come to.
    WrongEnd,
    /// A collection has begun, which may have moved objects or used the memory again.
    Collected,
    /// It has too many objects, or objects of too many classes, or is larger than any buffer.
    TooLarge,
}

impl CensusError {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::NoClass => "no class",
            Self::WrongEnd => "wrong end",
            Self::Collected => "collected",
            Self::TooLarge => "too large",
        }
    }
}

/// The objects of one class whose sizes have the same [`size_class`].
#[derive(Clone, Debug)]
pub struct ObjectCount {
    pub class: Arc<JavaClass>,
    pub size_class: u32,
    pub objects: u64,
    pub bytes: u64,
}

/// The objects of one buffer.
#[derive(Clone, Debug, Default)]
pub struct TlabObjects {
    pub counts: Vec<ObjectCount>,
    /// The first object, which the buffer was asked for; it is among `counts`, too.
    pub first: Option<ObjectCount>,
}

/// Walks buffers of one JVM.
#[derive(Debug, Default)]
pub struct TlabCensus {
    buffer: Vec<u8>,
}

/// A class, and where its counts begin.
#[derive(Clone, Debug)]
struct ClassSlot {
    class: Arc<JavaClass>,
    first_count: usize,
}

/// Counter of the objects in one buffer.
#[derive(Debug)]
struct ObjectCounter<'a, M> {
    layout: &'a HeapLayout,
    memory: &'a M,
    klasses: &'a mut KlassReader,
    by_klass: HashMap<u64, usize, FastHasher>,
    classes: Vec<ClassSlot>,
    /// The address of a class, and its index in `classes`.
    cache: Box<[(u64, u32); SLOTS]>,
    /// Objects and bytes; arrays have one for each class of sizes.
    counts: Vec<(u64, u64)>,
}

/// Returns true if other than so many collections have begun by now.
fn has_collected(collections: u64, layout: &HeapLayout, memory: &impl ProcessMemory) -> bool {
    let now = layout.collections_at.and_then(|at| memory.read_bytes(at, 4));
    now.and_then(|bytes| field::u32(&bytes, 0)).map(u64::from) != Some(collections)
}

impl TlabCensus {
    /// Counts the objects from `start` on, which take `used` bytes.
    ///
    /// # Errors
    /// Returns why the buffer could not be counted.
    pub fn count<M: ProcessMemory>(
        &mut self,
        start: Avma,
        used: u64,
        collections: u64,
        layout: &HeapLayout,
        klasses: &mut KlassReader,
        memory: &M,
    ) -> Result<TlabObjects, CensusError> {
        if used > MAX_BYTES || start.0.checked_add(used).is_none() {
            return Err(CensusError::TooLarge);
        }
        if has_collected(collections, layout, memory) {
            return Err(CensusError::Collected);
        }
        let mut counter = ObjectCounter {
            layout,
            memory,
            klasses,
            by_klass: HashMap::default(),
            classes: Vec::new(),
            cache: Box::new([(0, 0); SLOTS]),
            counts: Vec::new(),
        };
        let walked = self.walk(start, used, &mut counter);
        // What was read may be anything then.
        if has_collected(collections, layout, memory) {
            return Err(CensusError::Collected);
        }
        let first = counter.first_object(walked?);
        Ok(TlabObjects { counts: counter.into_counts(), first })
    }

    /// Counts the objects, and returns the bytes of the first one.
    fn walk<M: ProcessMemory>(
        &mut self,
        start: Avma,
        used: u64,
        counter: &mut ObjectCounter<'_, M>,
    ) -> Result<u64, CensusError> {
        let (mut at, mut piece_start, mut piece) = (0_u64, 0_u64, FIRST_PIECE);
        let (mut first_bytes, mut work) = (0, 0);
        self.buffer.clear();
        while at < used {
            if work > MAX_WORK {
                return Err(CensusError::TooLarge);
            }
            let offset = (at - piece_start) as usize;
            let Some(header) = self.buffer.get(offset..offset + HEADER) else {
                // The last object may be shorter than what says what an object can be.
                let is_next = at - piece_start <= self.buffer.len() as u64;
                let rest = (used - at) as usize;
                piece = if is_next { (piece * 2).min(LARGEST_PIECE) } else { FIRST_PIECE };
                self.buffer.clear();
                self.buffer.resize(piece.min(rest), 0);
                work += READ_WORK;
                if !counter.memory.read_into(Avma(start.0 + at), &mut self.buffer) {
                    return Err(CensusError::Unreadable);
                }
                if self.buffer.len() < HEADER {
                    self.buffer.resize(HEADER, 0);
                }
                piece_start = at;
                continue;
            };
            let header: &[u8; HEADER] = header.try_into().map_err(|_| CensusError::Unreadable)?;
            work += 1;
            let bytes = counter.object(start.0 + at, header)?;
            if at == 0 {
                first_bytes = bytes;
            }
            at += bytes;
        }
        if at == used { Ok(first_bytes) } else { Err(CensusError::WrongEnd) }
    }
}

impl<M: ProcessMemory> ObjectCounter<'_, M> {
    /// Counts an object, and returns its bytes.
    #[inline]
    fn object(&mut self, address: u64, header: &[u8; HEADER]) -> Result<u64, CensusError> {
        let klass = self.layout.klass(header);
        let slot = (klass >> 3) as usize % SLOTS;
        let index = match self.cache[slot] {
            (cached, index) if cached == klass && klass != 0 => index as usize,
            _ => self.find(klass, slot)?,
        };
        let ClassSlot { class, first_count } = &self.classes[index];
        let (unaligned, count) = match class.shape {
            ObjectShape::Instance(bytes) => (bytes, *first_count),
            ObjectShape::Array { header: before, log2_element } => {
                let bytes = before + (self.layout.array_length(header) << log2_element);
                let aligned = bytes.next_multiple_of(self.layout.alignment);
                (bytes, first_count + size_class(aligned) as usize)
            }
            ObjectShape::Mirror(_) | ObjectShape::StackChunk(_) => {
                let bytes = self.own_size(address, class.shape).ok_or(CensusError::NoClass)?;
                (bytes, first_count + size_class(bytes) as usize)
            }
        };
        let bytes = unaligned.next_multiple_of(self.layout.alignment);
        if bytes > MAX_BYTES {
            return Err(CensusError::WrongEnd);
        }
        let (objects, all) = self.counts.get_mut(count).ok_or(CensusError::WrongEnd)?;
        *objects += 1;
        *all += bytes;
        Ok(bytes)
    }

    /// Returns the index of a class, which takes a slot of the cache.
    #[cold]
    fn find(&mut self, klass: u64, slot: usize) -> Result<usize, CensusError> {
        let index = match self.by_klass.get(&klass) {
            Some(index) => *index,
            None => {
                if self.classes.len() >= MAX_CLASSES {
                    return Err(CensusError::TooLarge);
                }
                let class =
                    self.klasses.read(Avma(klass), self.layout, self.memory).ok_or(CensusError::NoClass)?;
                let first_count = self.counts.len();
                let counts = if matches!(class.shape, ObjectShape::Instance(_)) { 1 } else { SIZE_CLASSES };
                self.counts.resize(first_count + counts, (0, 0));
                self.classes.push(ClassSlot { class, first_count });
                self.by_klass.insert(klass, self.classes.len() - 1);
                self.classes.len() - 1
            }
        };
        self.cache[slot] = (klass, index as u32);
        Ok(index)
    }

    /// Returns the bytes of an object that says by itself how long it is.
    fn own_size(&self, address: u64, shape: ObjectShape) -> Option<u64> {
        let int = |offset: u64| {
            let bytes = self.memory.read_bytes(Avma(address + offset), 4)?;
            field::u32(&bytes, 0).map(u64::from)
        };
        match shape {
            // Words (share/classfile/javaClasses.cpp, `java_lang_Class::oop_size`).
            ObjectShape::Mirror(least) => Some(int(self.layout.mirror_size?)? * 8).filter(|it| *it >= least),
            // Its stack, and a bit for each place that may have a reference
            // (share/oops/instanceStackChunkKlass.hpp, `instance_size`).
            ObjectShape::StackChunk(_) => {
                let (size_at, stack) = self.layout.stack_chunk?;
                let words = int(size_at)?;
                let bits = words << u32::from(self.layout.has_narrow_oops);
                Some(stack + words * 8 + bits.div_ceil(64) * 8)
            }
            ObjectShape::Instance(_) | ObjectShape::Array { .. } => None,
        }
    }

    /// Returns the first object, which has so many bytes.
    fn first_object(&self, bytes: u64) -> Option<ObjectCount> {
        let class = Arc::clone(&self.classes.first()?.class);
        Some(ObjectCount { class, size_class: size_class(bytes), objects: 1, bytes })
    }

    fn into_counts(self) -> Vec<ObjectCount> {
        let mut found = Vec::new();
        for ClassSlot { class, first_count } in self.classes {
            let is_instance = matches!(class.shape, ObjectShape::Instance(_));
            let counts = if is_instance { 1 } else { SIZE_CLASSES };
            for (index, &(objects, bytes)) in self.counts[first_count..][..counts].iter().enumerate() {
                let Some(mean) = bytes.checked_div(objects) else { continue };
                let size_class = if is_instance { size_class(mean) } else { index as u32 };
                found.push(ObjectCount { class: Arc::clone(&class), size_class, objects, bytes });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
