//! Screening of buffers, for a small part of what a census takes: does a single object take a good
//! part of this one?
//!
//! Where objects are small, any thousand bytes have the begin of one: a mark word as new objects
//! have it, and a class that is known. Places of the buffer are read at equal distances; where many
//! of them, one after the other, have no such begin, an object goes across all of them.
//!
//! The answer may be wrong, since elements of an array can be like a begin, and a row of arrays
//! like a single one. It only decides how likely the buffer is to be counted.

use std::ops::Range;

use jvmprof_common::allocation::TlabRecord;

use super::{CensusError, HEADER, MAX_BYTES, has_collected};
use crate::hotspot::java_heap::{HeapLayout, KlassReader};
use crate::hotspot::process_memory::{MemoryRead, ProcessMemory};
use crate::types::Avma;

/// Places that are read at first.
const PLACES: usize = 64;
/// Places without a begin, one after the other, from which on more are read between them: an eighth
/// of the buffer.
const STRETCH: usize = 8;
/// Places of a stretch between which more are read, at most.
const LONGEST_STRETCH: usize = 3 * STRETCH;
/// Places then in the distance of two of the first ones.
const CLOSER: usize = 8;
/// Bytes of a place.
const PLACE: usize = 1024;
/// The least distance of the first places: those in between don't overlap each other much.
const LEAST_DISTANCE: u64 = 4 * PLACE as u64;
/// The lowest byte of a new object's mark word: unlocked, without an age, and, in JDKs before 18,
/// biased to no thread (openjdk share/oops/markWord.hpp).
const NEW_MARKS: [u8; 2] = [0b001, 0b101];

/// Screens buffers of one JVM.
#[derive(Debug, Default)]
pub struct TlabScreen {
    places: Vec<u8>,
}

impl TlabScreen {
    /// Returns true if an object seems to take an eighth of what a buffer has beside a large first
    /// object.
    ///
    /// # Errors
    /// Returns why the buffer could not be read.
    pub fn has_large_object<M: ProcessMemory>(
        &mut self,
        tlab: &TlabRecord,
        layout: &HeapLayout,
        klasses: &KlassReader,
        memory: &M,
    ) -> Result<bool, CensusError> {
        let end = tlab.start.checked_add(tlab.used).filter(|_| tlab.used <= MAX_BYTES);
        let end = end.ok_or(CensusError::TooLarge)?;
        let distance = tlab.uncounted() / PLACES as u64;
        if distance < LEAST_DISTANCE {
            return Ok(false);
        }
        let first = end - tlab.uncounted() + distance / 2;
        let found = seems_large(first, distance, |from, distance, places| {
            // Objects begin at multiples of this.
            let address = |index: usize| Avma((from + index as u64 * distance) & !(layout.alignment - 1));
            self.read((0..places).map(address), memory)?;
            Ok(self.places.chunks_exact(PLACE).map(|place| !has_begin(place, layout, klasses)).collect())
        });
        // What was read may be anything then.
        if has_collected(tlab.collections, layout, memory) {
            return Err(CensusError::Collected);
        }
        found
    }

    /// Reads the places at some addresses.
    fn read<M: ProcessMemory>(
        &mut self,
        addresses: impl ExactSizeIterator<Item = Avma>,
        memory: &M,
    ) -> Result<(), CensusError> {
        self.places.clear();
        self.places.resize(addresses.len() * PLACE, 0);
        let mut reads: Vec<MemoryRead<'_>> = addresses
            .zip(self.places.chunks_exact_mut(PLACE))
            .map(|(address, place)| MemoryRead::new(address, place))
            .collect();
        memory.read_many(&mut reads);
        let is_read = reads.iter().all(|read| read.done);
        is_read.then_some(()).ok_or(CensusError::Unreadable)
    }
}

/// Returns true if a stretch without a begin stays one where it is read more closely. `is_bare`
/// says of places at a distance from an address on, and their number, which have no begin.
fn seems_large(
    first: u64,
    distance: u64,
    mut is_bare: impl FnMut(u64, u64, usize) -> Result<Vec<bool>, CensusError>,
) -> Result<bool, CensusError> {
    const LEAST: usize = (STRETCH - 1) * CLOSER + 1;
    for stretch in stretches(&is_bare(first, distance, PLACES)?, STRETCH) {
        let between = stretch.len().min(LONGEST_STRETCH) - 1;
        let from = first + stretch.start as u64 * distance;
        let closer = is_bare(from, distance / CLOSER as u64, between * CLOSER + 1)?;
        if !stretches(&closer, LEAST).is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if an object begins in this place.
fn has_begin(place: &[u8], layout: &HeapLayout, klasses: &KlassReader) -> bool {
    let begins = (0..place.len()).step_by(layout.alignment as usize);
    let mut headers = begins.map_while(|at| place[at..].first_chunk::<HEADER>());
    headers.any(|header| NEW_MARKS.contains(&header[0]) && klasses.is_known(layout.klass(header)))
}

/// Returns the stretches of so many places and more that are all without a begin.
fn stretches(is_bare: &[bool], least: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, is_bare) in is_bare.iter().chain([&false]).enumerate() {
        if !is_bare {
            if at - begin >= least {
                found.push(begin..at);
            }
            begin = at + 1;
        }
    }
    found
}
