//! A census of virtual threads: how many there are, and of those that wait and aren't mounted where
//! they wait.
//!
//! Such threads have no stack and run nowhere: they are objects of the heap, which is read from
//! outside. What was read is believed only if no collection moved objects meanwhile, and of a
//! thread only if it hasn't gone on. A large number of threads is estimated from a part of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use jvmprof_common::frame::UserFrame;
use jvmprof_common::jvm::Jvm;
use rand::seq::index;

use super::census_error::VirtualThreadsError;
use super::census_fields::{CensusFields, CensusLayout};
use super::frozen_stack::FrozenStack;
use super::heap_reader::HeapReader;
use super::thread_sets::{SetMembers, members};
use crate::hotspot::code_cache::unsigned5::Unsigned5Encoding;
use crate::hotspot::java_heap::{HeapLayout, KlassReader};
use crate::hotspot::process_memory::ProcessMemory;
use crate::types::Avma;

/// The effort of each attempt: buckets of each set, and stacks. Each is quicker than the one
/// before, so that one of them fits between two collections.
const EFFORTS: [Effort; 4] = [
    Effort { buckets: 1 << 17, stacks: 2000 },
    Effort { buckets: 1 << 14, stacks: 500 },
    Effort { buckets: 1 << 12, stacks: 120 },
    Effort { buckets: 1 << 10, stacks: 30 },
];
/// Attempts with the last of them.
const LAST_ATTEMPTS: usize = 6;
/// Time that is given to objects to be moved before the next attempt.
const MOVING: Duration = Duration::from_millis(10);
/// States without the bit of a thread that a debugger has suspended.
const SUSPENDED: i32 = 1 << 8;

/// States of threads that wait and aren't mounted, ...
const WAITING: [&str; 5] = ["PARKED", "TIMED_PARKED", "BLOCKED", "WAIT", "TIMED_WAIT"];
/// ... and of those that could run and aren't. In all others of a started thread it is mounted.
const RUNNABLE: [&str; 5] = ["STARTED", "RUNNABLE", "UNPARKED", "YIELDED", "UNBLOCKED"];

#[derive(Clone, Copy, Debug)]
struct Effort {
    buckets: usize,
    stacks: usize,
}

/// The time that a census may take: whoever counts does nothing else meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CensusTimes {
    /// To read the sets, in one attempt. All attempts have twice that to begin.
    pub sets: Duration,
    /// To take the stacks of one attempt; those that have been taken then stand for the rest.
    pub stacks: Duration,
}

/// The virtual threads of a JVM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VirtualThreads {
    /// Those that wait and aren't mounted.
    pub waiting: f64,
    /// Those that could run and aren't mounted.
    pub runnable: f64,
    pub mounted: f64,
    /// These numbers are estimates, from a part of the threads.
    pub is_estimate: bool,
    /// Stacks of those that wait; of many threads a part.
    pub stacks: Vec<WaitingStack>,
}

/// A virtual thread that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingStack {
    /// How many threads it stands for.
    pub threads: f64,
    /// As `java.lang.VirtualThread` calls its state.
    pub state: &'static str,
    /// The class of what it was parked with.
    pub blocker: Option<Arc<str>>,
    /// Leaf first.
    pub frames: Vec<UserFrame>,
    pub is_whole: bool,
}

/// Counts the virtual threads of a JVM whose chunks can be walked; `None` if it has none of their
/// sets yet, or doesn't say where.
///
/// # Errors
/// Returns why they could not be counted.
pub(in crate::hotspot) fn count<M: ProcessMemory>(
    jvm: &Jvm,
    (fields, encoding): (&CensusFields, Unsigned5Encoding),
    heap_layout: &HeapLayout,
    memory: &M,
    times: CensusTimes,
) -> Option<Result<VirtualThreads, VirtualThreadsError>> {
    let layout = fields.find(&jvm.layout, encoding, memory)?;
    let first = Instant::now();
    let heap = HeapReader::new(jvm, heap_layout, memory, first);
    let mut last = VirtualThreadsError::Collected;
    let last_effort = EFFORTS[EFFORTS.len() - 1];
    for effort in EFFORTS.into_iter().chain([last_effort; LAST_ATTEMPTS - 1]) {
        let began = Instant::now();
        let found = census(&heap, fields, &layout, effort, times);
        let error = found.as_ref().err();
        tracing::debug!(?effort, taken = ?began.elapsed(), ?error, "virtual threads are counted");
        match found {
            Ok(threads) => return Some(Ok(threads)),
            Err(error) => last = error,
        }
        if first.elapsed() >= 2 * times.sets {
            break;
        }
        if last == VirtualThreadsError::Moving {
            thread::sleep(MOVING);
        }
    }
    Some(Err(last))
}

fn census<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    fields: &CensusFields,
    layout: &CensusLayout,
    effort: Effort,
    times: CensusTimes,
) -> Result<VirtualThreads, VirtualThreadsError> {
    heap.take_unresolved();
    heap.set_deadline(Instant::now() + times.sets);
    let collections = fields.collections(heap.memory).ok_or(VirtualThreadsError::NoSet)?;
    let states = state_names(heap, layout);
    let (mut threads, waiting) = count_by_state(heap, layout, effort, &states)?;
    let stacks = waiting_stacks(heap, layout, &states, &waiting, effort, times.stacks);
    let now = fields.collections(heap.memory);
    if !now.is_some_and(|now| now.has_moved_nothing_since(collections)) {
        return Err(VirtualThreadsError::Collected);
    }
    // The stacks stand for all that wait: those that aren't chosen, and those that have gone on.
    let taken: f64 = stacks.iter().map(|stack| stack.threads).sum();
    let scale = if taken > 0.0 { threads.waiting / taken } else { 0.0 };
    threads.stacks =
        stacks.into_iter().map(|stack| WaitingStack { threads: stack.threads * scale, ..stack }).collect();
    Ok(threads)
}

/// A virtual thread's object, and how many threads it stands for.
type WeighedThread = (Avma, f64);

/// Counts the members of the sets of virtual threads by their states. Returns those that wait, too.
fn count_by_state<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    layout: &CensusLayout,
    effort: Effort,
    states: &HashMap<i32, &'static str>,
) -> Result<(VirtualThreads, Vec<WeighedThread>), VirtualThreadsError> {
    let objects = match members(heap, layout, effort.buckets) {
        Ok(SetMembers { objects }) => objects,
        Err(_) if heap.is_late() => return Err(VirtualThreadsError::Slow),
        Err(_) if heap.take_unresolved() > 0 => return Err(VirtualThreadsError::Moving),
        Err(error) => return Err(error),
    };
    let addresses: Vec<Avma> = objects.iter().map(|(object, _)| *object).collect();
    let at_state: Vec<Avma> = addresses.iter().map(|object| object.wrapping_add(layout.state)).collect();
    let read = heap.memory.read_words(&at_state).into_iter().zip(heap.klasses(&addresses));
    let mut threads = VirtualThreads::default();
    let mut waiting = Vec::new();
    for ((object, weight), (state, klass)) in objects.iter().zip(read) {
        if state.is_none() || klass == Avma(0) {
            heap.count_unresolved();
        }
        // Sets of executors have threads of any kind.
        let state = state.filter(|_| klass == layout.virtual_thread);
        let Some(name) = state.and_then(|state| states.get(&state_number(state))) else { continue };
        threads.is_estimate |= *weight > 1.0;
        if WAITING.contains(name) {
            threads.waiting += weight;
            waiting.push((*object, *weight));
        } else if RUNNABLE.contains(name) {
            threads.runnable += weight;
        } else {
            threads.mounted += weight;
        }
    }
    // What can't be told isn't nothing: a part of the threads would be missing.
    if heap.take_unresolved() > 0 || states.is_empty() {
        let is_late = heap.is_late();
        return Err(if is_late { VirtualThreadsError::Slow } else { VirtualThreadsError::Moving });
    }
    Ok((threads, waiting))
}

/// Returns stacks of threads that wait: of many a part, chosen by chance, for `limit` at most. What
/// isn't known of a stack, or not in time, loses that stack only.
fn waiting_stacks<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    layout: &CensusLayout,
    states: &HashMap<i32, &'static str>,
    waiting: &[WeighedThread],
    effort: Effort,
    limit: Duration,
) -> Vec<WaitingStack> {
    let until = Instant::now() + limit;
    heap.set_deadline(until);
    let chosen = index::sample(&mut rand::rng(), waiting.len(), waiting.len().min(effort.stacks));
    let mut klasses = KlassReader::default();
    chosen
        .into_iter()
        .take_while(|_| Instant::now() < until)
        .filter_map(|index| {
            let (thread, weight) = waiting[index];
            let stack = waiting_stack(heap, layout, states, &mut klasses, thread)?;
            Some(WaitingStack { threads: weight, ..stack })
        })
        .collect()
}

/// Returns the names of states by their numbers, which differ between JDKs.
fn state_names<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    layout: &CensusLayout,
) -> HashMap<i32, &'static str> {
    let Some(mirror) = layout.states.first().and_then(|(_, field)| heap.handle(field.mirror)) else {
        return HashMap::new();
    };
    let places: Vec<Avma> =
        layout.states.iter().map(|(_, field)| Avma(mirror.0.wrapping_add(field.offset))).collect();
    let numbers = heap.memory.read_words(&places).into_iter().zip(&layout.states);
    let numbers = numbers.inspect(|(number, _)| {
        if number.is_none() {
            heap.count_unresolved();
        }
    });
    numbers.filter_map(|(number, (name, _))| Some((state_number(number?), *name))).collect()
}

const fn state_number(word: u64) -> i32 {
    (word as u32).cast_signed() & !SUSPENDED
}

/// Returns where a thread waits; `None` if it has gone on meanwhile.
fn waiting_stack<M: ProcessMemory>(
    heap: &HeapReader<'_, M>,
    layout: &CensusLayout,
    states: &HashMap<i32, &'static str>,
    klasses: &mut KlassReader,
    thread: Avma,
) -> Option<WaitingStack> {
    let state = || {
        let word = heap.memory.read_u64(thread.wrapping_add(layout.state))?;
        states.get(&state_number(word)).copied().filter(|name| WAITING.contains(name))
    };
    let before = state()?;
    let fields = heap.references(&[layout.cont, layout.park_blocker].map(|field| thread.wrapping_add(field)));
    let [continuation, blocker] = fields[..] else { return None };
    let tail = continuation?.wrapping_add(u64::from(heap.jvm.chunks.cont_tail));
    let youngest = heap.references(&[tail])[0]?;
    let stack = FrozenStack::walk(heap, youngest)?;
    let klass = blocker.map(|blocker| heap.klasses(&[blocker])[0]);
    let class = klass.and_then(|klass| klasses.read(klass, heap.layout, heap.memory));
    // A thread that goes on sets its state and takes frames out of its chunk. If it waits again
    // meanwhile, it may have another chunk.
    let is_same = stack.is_unchanged(heap)
        && state() == Some(before)
        && heap.references(&[tail])[0] == Some(youngest)
        && state() == Some(before);
    is_same.then(|| WaitingStack {
        threads: 1.0,
        state: before,
        blocker: class.map(|class| Arc::clone(&class.name)),
        frames: stack.frames,
        is_whole: stack.is_whole,
    })
}
