//! The context of the request that the sampled thread works on, where its process publishes one.

use aya_ebpf::{helpers::bpf_get_current_task, macros::map, maps::HashMap};
use jvmprof_common::{
    abi::{COPY_WORDS, Counter, Event, FLAG_THREAD_CONTEXT, SAMPLE_WORDS, Stop},
    address::Avma,
    thread_context::{ATTRIBUTES_SIZE_OFFSET, MAX_RECORD_BYTES, RECORD_HEADER_BYTES, VALID_OFFSET},
    thread_local::{ThreadLocalVariable, thread_local},
    unwind::verifier::bounded,
    unwind_tables::NS_PER_TICK,
};

use crate::{
    counters::count,
    globals,
    scratch::{self, ScratchSlot},
    task::Task,
    user_memory::{self, UserMemory},
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
    // SAFETY: the entry is copied at once; the daemon replaces entries, it doesn't change them.
    let Some(variable) = unsafe { THREAD_CONTEXT_VARIABLES.get(scratch.header.pid) }.copied() else {
        return 0;
    };
    if variable.start_ticks != scratch.header.start_ns / NS_PER_TICK {
        return 0;
    }
    let Some(record) = record_address(&variable) else {
        return 0;
    };
    let at = scratch.used as usize;
    if at > SAMPLE_WORDS - COPY_WORDS {
        return 0;
    }
    // SAFETY: `at` leaves space for as many bytes.
    let into = unsafe {
        core::slice::from_raw_parts_mut(scratch.words.as_mut_ptr().add(at).cast::<u8>(), COPY_WORDS * 8)
    };
    if !user_memory::read(record, &mut into[..RECORD_HEADER_BYTES]) {
        return 1;
    }
    if into[VALID_OFFSET] != 1 {
        return 0;
    }
    let size = u16::from_le_bytes([into[ATTRIBUTES_SIZE_OFFSET], into[ATTRIBUTES_SIZE_OFFSET + 1]]);
    const MAX_ATTRIBUTES: usize = MAX_RECORD_BYTES - RECORD_HEADER_BYTES;
    let mut bytes = if size as usize > MAX_ATTRIBUTES { MAX_ATTRIBUTES } else { size as usize };
    let mut is_unreadable = 0;
    if bytes != 0 {
        let attributes = bounded::<{ MAX_ATTRIBUTES.next_power_of_two() }>(bytes);
        let end = RECORD_HEADER_BYTES + attributes;
        let into_attributes = &mut into[RECORD_HEADER_BYTES..end];
        if !user_memory::read(record + RECORD_HEADER_BYTES as u64, into_attributes) {
            bytes = 0;
            is_unreadable = 1;
            into[ATTRIBUTES_SIZE_OFFSET] = 0;
            into[ATTRIBUTES_SIZE_OFFSET + 1] = 0;
        }
    }
    scratch.header.flags |= FLAG_THREAD_CONTEXT;
    scratch.used += (RECORD_HEADER_BYTES + bytes).div_ceil(8) as u64;
    is_unreadable
}

/// Returns the address of this thread's record; `None` if it has none.
#[inline(always)]
fn record_address(variable: &ThreadLocalVariable) -> Option<Avma> {
    // SAFETY: the helper has no preconditions.
    let thread = Task(unsafe { bpf_get_current_task() }).thread_pointer()?;
    let record = thread_local(&UserMemory, thread, variable)?;
    (record != 0).then_some(Avma(record))
}
