//! The context of the request that the sampled thread works on, where its process publishes one.

use aya_ebpf::{macros::map, maps::HashMap};
use jvmprof_common::{
    abi::{COPY_WORDS, Counter, Event, FLAG_THREAD_CONTEXT, SAMPLE_WORDS, Stop},
    address::Avma,
    thread_context::{ATTRIBUTES_SIZE_OFFSET, MAX_RECORD_BYTES, RECORD_HEADER_BYTES, VALID_OFFSET},
    thread_local::{ThreadLocalVariable, thread_local},
    unwind_tables::NS_PER_TICK,
    verifier::bounded,
};

use crate::{
    counters::count,
    globals,
    scratch::{self, Scratch, ScratchSlot},
    task::TypedTask,
    user_memory::{self, BUFFER_BYTES, BufferedUserMemory},
};

/// The daemon sets its size.
#[map]
static THREAD_CONTEXT_VARIABLES: HashMap<u32, ThreadLocalVariable> = HashMap::with_max_entries(1, 0);

/// Ends of walks of threads without user memory, or with another layout of it, one bit each.
const WITHOUT_CONTEXT: u64 =
    1 << Stop::KernelThread as u64 | 1 << Stop::Not64Bit as u64 | 1 << Stop::NoMemory as u64;

/// Removes the variable of a process that replaced its program.
#[inline(always)]
pub fn forget(tgid: u32) {
    if globals::thread_context() != 0 {
        // An entry that isn't there needs no removal.
        let _ = THREAD_CONTEXT_VARIABLES.remove(tgid);
    }
}

/// Appends the thread's context to the sample, if that is wanted and there is one.
#[inline(always)]
pub fn append(slot: ScratchSlot, event: Event, stop: u64) {
    if globals::thread_context() != 0
        && WITHOUT_CONTEXT & 1 << (stop & 63) == 0
        && append_record(slot.to_argument()) != 0
    {
        count(event, Counter::ThreadContextUnreadable);
    }
}

/// Reads of [`Scratch::header`](scratch::Scratch::header) whose sample it is, appends the record to
/// the words, and sets the flag. Returns 1 if there is a record whose memory can't be read. A
/// global function: the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn append_record(slot: u64) -> u64 {
    let Some(scratch) = scratch::get(ScratchSlot::from_argument(slot)) else {
        return 0;
    };
    let Some(variable) = variable(scratch) else {
        return 0;
    };
    let at = scratch.used as usize;
    if at > SAMPLE_WORDS - COPY_WORDS {
        return 0;
    }
    // SAFETY: `at` leaves space for [`COPY_WORDS`], far more than is written.
    let into = unsafe { scratch.words.as_mut_ptr().add(at).cast::<u8>() };
    let memory = BufferedUserMemory { buffer: into };
    let record = match thread_local(&memory, TypedTask::current().thread_pointer(), &variable) {
        None | Some(0) => return 0,
        Some(record) => Avma(record),
    };
    // A record need not reach to the next page, which may not be there.
    let to_page_end = PAGE_BYTES - (record.0 as usize & (PAGE_BYTES - 1));
    let first = bounded::<FIRST_BYTES>(to_page_end.clamp(RECORD_HEADER_BYTES, FIRST_BYTES));
    if !user_memory::read(record, bytes_at(into, 0, first)) {
        return 1;
    }
    let header = bytes_at(into, 0, RECORD_HEADER_BYTES);
    if header[VALID_OFFSET] != 1 {
        return 0;
    }
    let size = u16::from_le_bytes([header[ATTRIBUTES_SIZE_OFFSET], header[ATTRIBUTES_SIZE_OFFSET + 1]]);
    let mut bytes = (RECORD_HEADER_BYTES + size as usize).min(MAX_RECORD_BYTES);
    let mut is_unreadable = 0;
    if bytes > first {
        let rest = bounded::<{ MAX_RECORD_BYTES.next_power_of_two() }>(bytes - first);
        if !user_memory::read(record + first as u64, bytes_at(into, first, rest)) {
            bytes = RECORD_HEADER_BYTES;
            is_unreadable = 1;
            header[ATTRIBUTES_SIZE_OFFSET] = 0;
            header[ATTRIBUTES_SIZE_OFFSET + 1] = 0;
        }
    }
    scratch.header.flags |= FLAG_THREAD_CONTEXT;
    scratch.used += bytes.div_ceil(8) as u64;
    is_unreadable
}

/// Returns where the process has the variable, if it publishes contexts: from its entry, or by
/// itself where that has been removed because the process's code has changed.
#[inline(always)]
fn variable(scratch: &Scratch) -> Option<ThreadLocalVariable> {
    if scratch.is_published != 0 {
        return scratch.process.context_variable();
    }
    // SAFETY: the entry is copied at once; the daemon replaces entries, it doesn't change them.
    let variable = *unsafe { THREAD_CONTEXT_VARIABLES.get(scratch.header.pid) }?;
    (variable.start_ticks == scratch.header.start_ns / NS_PER_TICK).then_some(variable)
}

/// Bytes of a record that are read at once, a power of two: those of most whole records, in the
/// time that its header alone would take.
const FIRST_BYTES: usize = 128;
const PAGE_BYTES: usize = 4096;

/// The header lies in what is read first; so do both in the space of [`COPY_WORDS`].
const _: () = assert!(RECORD_HEADER_BYTES <= FIRST_BYTES && BUFFER_BYTES <= COPY_WORDS * 8);
const _: () = assert!(FIRST_BYTES + MAX_RECORD_BYTES.next_power_of_two() <= COPY_WORDS * 8);

/// A part of the words at the end of the sample.
#[inline(always)]
fn bytes_at<'a>(words: *mut u8, start: usize, bytes: usize) -> &'a mut [u8] {
    // SAFETY: the assertions above.
    unsafe { core::slice::from_raw_parts_mut(words.add(start), bytes) }
}
