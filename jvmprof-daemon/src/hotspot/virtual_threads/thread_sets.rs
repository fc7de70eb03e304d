//! The virtual threads in a JVM's sets: `ConcurrentHashMap`s, whose buckets are read. Of a large
//! table pieces are, which chance chooses, and which stand for the rest.

use std::collections::HashSet;

use rand::seq::index;

use super::census_error::VirtualThreadsError;
use super::census_fields::{CensusLayout, MapLayout, StaticField};
use super::heap_reader::HeapReader;
use crate::hotspot::process_memory::ProcessMemory;
use crate::types::Avma;

/// Buckets of a piece. A virtual thread's hash code is its number (java/lang/VirtualThread.java),
/// so that neighbours were started one after the other and mostly do the same: large pieces would
/// stand for the rest less well.
const PIECE: usize = 8;
/// Buckets of a table, at most.
const MAX_BUCKETS: u32 = 1 << 30;
/// Nodes of a bucket that are followed, at most: longer ones become trees, whose nodes are a list,
/// too.
const MAX_CHAIN: usize = 256;
/// Groups of threads whose sets are read, at most: of more chance chooses them.
const MAX_GROUPS: usize = 1024;
/// Objects of all sets, at most.
const MAX_OBJECTS: usize = 1 << 20;
/// Objects of a used bucket, and how many more a set may have: a table grows once it has three
/// objects for four buckets, so that a set with more is none.
const OBJECTS_PER_BUCKET: usize = 4;
const MORE_OBJECTS: usize = 1024;

/// Objects that are in a set, and how many each stands for.
#[derive(Debug, Default)]
pub(super) struct SetMembers {
    pub(super) objects: Vec<(Avma, f64)>,
}

/// Returns the threads in a JVM's sets. Of each set's table `buckets` are read.
///
/// # Errors
/// Returns why they could not be read. What was read isn't all if the reader has come across what
/// it could not follow: [`HeapReader::take_unresolved`].
pub(super) fn members<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    layout: &CensusLayout,
    buckets: usize,
) -> Result<SetMembers, VirtualThreadsError> {
    let mut all = SetMembers::default();
    let mut left = MAX_OBJECTS;
    let mut seen = HashSet::new();
    let root = layout.root_set.ok_or(VirtualThreadsError::Untracked)?;
    if let Some(set) = read_static(heap, root)? {
        seen.insert(set);
        all.objects.extend(read_set(heap, &layout.maps, set, buckets, &mut left)?);
    }
    let groups = match read_static(heap, layout.groups)? {
        Some(groups) => read_set(heap, &layout.maps, groups, buckets, &mut left)?,
        None => Vec::new(),
    };
    let (groups, scale) = chosen_groups(groups, MAX_GROUPS);
    let referents: Vec<Avma> =
        groups.iter().map(|(reference, _)| reference.wrapping_add(layout.referent)).collect();
    let referents = heap.references(&referents).into_iter().zip(groups);
    let (groups, weights): (Vec<Avma>, Vec<f64>) =
        referents.filter_map(|(group, (_, weight))| Some((group?, weight * scale))).unzip();
    for ((group, weight), klass) in groups.iter().zip(weights).zip(heap.klasses(&groups)) {
        let Some((_, set)) = layout.group_sets.iter().find(|(of, _)| *of == klass) else { continue };
        let set = heap.references(&[group.wrapping_add(*set)])[0];
        let Some(set) = set.filter(|set| seen.insert(*set)) else { continue };
        let objects = read_set(heap, &layout.maps, set, buckets, &mut left)?;
        all.objects.extend(objects.into_iter().map(|(object, in_set)| (object, in_set * weight)));
    }
    Ok(all)
}

/// Returns as many of these groups as may be read, and how many of all each of them stands for.
fn chosen_groups(groups: Vec<(Avma, f64)>, most: usize) -> (Vec<(Avma, f64)>, f64) {
    if groups.len() <= most {
        return (groups, 1.0);
    }
    let chosen = index::sample(&mut rand::rng(), groups.len(), most);
    let scale = groups.len() as f64 / most as f64;
    (chosen.into_iter().map(|index| groups[index]).collect(), scale)
}

/// Returns the object that a static field refers to.
fn read_static<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    field: StaticField,
) -> Result<Option<Avma>, VirtualThreadsError> {
    let mirror = heap.handle(field.mirror).ok_or(VirtualThreadsError::NoSet)?;
    Ok(heap.references(&[mirror.wrapping_add(field.offset)])[0])
}

/// Returns the objects in a set, and how many each stands for. `left` is how many may still be
/// read.
fn read_set<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    maps: &MapLayout,
    set: Avma,
    buckets: usize,
    left: &mut usize,
) -> Result<Vec<(Avma, f64)>, VirtualThreadsError> {
    let is_of = |object: Avma, klass: Avma| heap.klasses(&[object])[0] == klass;
    let refers = |object: Avma, offset: u64| heap.references(&[object.wrapping_add(offset)])[0];
    let map = Some(set).filter(|set| is_of(*set, maps.key_set)).and_then(|set| refers(set, maps.map_of_view));
    let map = map.filter(|map| is_of(*map, maps.map)).ok_or(VirtualThreadsError::NoSet)?;
    let Some(table) = refers(map, maps.table) else { return Ok(Vec::new()) };
    let length = heap.array_length(table).filter(|length| *length <= MAX_BUCKETS && length.is_power_of_two());
    let length = length.ok_or(VirtualThreadsError::NoSet)? as usize;
    let (slots, scale) = chosen_slots(heap, table, length, buckets);
    let most = (slots.len() * OBJECTS_PER_BUCKET + MORE_OBJECTS).min(*left);
    let mut nodes: Vec<Avma> = heap.references(&slots).into_iter().flatten().collect();
    let mut objects = Vec::new();
    for _ in 0..MAX_CHAIN {
        let (mut keys, mut next) = (Vec::new(), Vec::new());
        for (node, klass) in nodes.iter().zip(heap.klasses(&nodes)) {
            if klass == maps.node || Some(klass) == maps.tree_node {
                keys.push(node.wrapping_add(maps.key));
                next.push(node.wrapping_add(maps.next));
            } else if let Some((_, first)) = maps.tree.filter(|(tree, _)| *tree == klass) {
                next.push(node.wrapping_add(first));
            } else if Some(klass) == maps.moved {
                return Err(VirtualThreadsError::Resized);
            } else {
                // No other nodes are in a set: this one has gone, or can't be read.
                heap.count_unresolved();
            }
        }
        objects.extend(heap.references(&keys).into_iter().flatten().map(|object| (object, scale)));
        if objects.len() > most {
            return Err(VirtualThreadsError::NoSet);
        }
        if heap.is_late() {
            return Err(VirtualThreadsError::Slow);
        }
        nodes = heap.references(&next).into_iter().flatten().collect();
        if nodes.is_empty() {
            *left -= objects.len();
            return Ok(objects);
        }
    }
    // A list that leads to itself.
    Err(VirtualThreadsError::NoSet)
}

/// Returns the buckets of a table that are read and aren't empty, and how many of all buckets each
/// one that is read stands for.
fn chosen_slots<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    table: Avma,
    length: usize,
    most: usize,
) -> (Vec<Avma>, f64) {
    let (first, slot_bytes) = heap.array_slots(table);
    let (pieces, piece) = (length.div_ceil(PIECE), PIECE.min(length));
    let chosen = pieces.min((most / PIECE).max(1));
    let places: Vec<(Avma, usize)> = index::sample(&mut rand::rng(), pieces, chosen)
        .into_iter()
        .map(|index| (first.wrapping_add((index * piece) as u64 * slot_bytes), piece * slot_bytes as usize))
        .collect();
    let bytes = heap.memory.read_ranges(&places);
    let used = places.iter().zip(bytes).flat_map(|((start, _), bytes)| {
        let bytes = bytes.unwrap_or_else(|| {
            heap.count_unresolved();
            Vec::new()
        });
        let slots: Vec<Avma> = bytes
            .chunks(slot_bytes as usize)
            .enumerate()
            .filter(|(_, slot)| slot.iter().any(|byte| *byte != 0))
            .map(|(index, _)| start.wrapping_add(index as u64 * slot_bytes))
            .collect();
        slots
    });
    (used.collect(), pieces as f64 / chosen as f64)
}

#[cfg(test)]
mod tests;
