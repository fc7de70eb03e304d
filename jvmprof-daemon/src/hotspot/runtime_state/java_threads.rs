//! The Java threads of a JVM: openjdk src/hotspot/share/runtime/threadSMR.hpp (JDK 12 and later),
//! thread.hpp before.

use std::collections::HashMap;

use crate::hotspot::error::HotspotError;
use crate::hotspot::process_memory::ProcessMemory;
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Threads that are looked at, at most.
const MAX_THREADS: usize = 1 << 16;

/// A Java thread. Virtual threads aren't among them, their carriers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JavaThread {
    /// The `JavaThread`.
    pub address: Avma,
    /// As the kernel knows it in the thread's own pid namespace.
    pub tid: u32,
    /// Its state: "in_Java", "in_native", "in_vm", "blocked", "new".
    pub state: &'static str,
}

const STATES: [&str; 11] = [
    "_thread_new",
    "_thread_new_trans",
    "_thread_in_native",
    "_thread_in_native_trans",
    "_thread_in_vm",
    "_thread_in_vm_trans",
    "_thread_in_Java",
    "_thread_in_Java_trans",
    "_thread_blocked",
    "_thread_blocked_trans",
    "_thread_uninitialized",
];

/// Offsets in threads.
#[derive(Clone, Debug)]
pub(crate) struct ThreadFields {
    list: ThreadListFields,
    osthread: u16,
    thread_id: u16,
    state: u16,
    states: HashMap<i32, &'static str>,
}

#[derive(Clone, Copy, Debug)]
enum ThreadListFields {
    /// The address of the pointer to the first thread, and in each thread the next one.
    Linked { first: Avma, next: u16 },
    /// The address of the pointer to the list, in it the number of threads and the array.
    Array { list: Avma, length: u16, threads: u16 },
}

impl ThreadFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Result<Self, HotspotError> {
        let list = match lookup.optional_address("ThreadsSMRSupport::_java_thread_list") {
            Some(list) => ThreadListFields::Array {
                list,
                length: lookup.offset_of("ThreadsList::_length")?,
                threads: lookup.offset_of("ThreadsList::_threads")?,
            },
            None => ThreadListFields::Linked {
                first: lookup.address("Threads::_thread_list")?,
                next: lookup.offset_of("JavaThread::_next")?,
            },
        };
        let state = |name: &&'static str| Some((lookup.0.int(name)?, name.trim_start_matches("_thread_")));
        Ok(Self {
            list,
            osthread: lookup.offset_of_any(&["JavaThread::_osthread", "Thread::_osthread"])?,
            thread_id: lookup.offset_of("OSThread::_thread_id")?,
            state: lookup.offset_of("JavaThread::_thread_state")?,
            states: STATES.iter().filter_map(state).collect(),
        })
    }

    /// The threads there are now; those that end meanwhile are left out.
    pub(crate) fn threads(&self, memory: &impl ProcessMemory) -> Option<Vec<JavaThread>> {
        let threads = self.addresses(memory)?;
        let at = |address: u64, field: u16| Avma(address.wrapping_add(field.into()));
        let places: Vec<Avma> =
            threads.iter().flat_map(|thread| [at(*thread, self.osthread), at(*thread, self.state)]).collect();
        let words = memory.read_words(&places);
        let ids: Vec<Avma> =
            words.chunks(2).map(|words| at(words[0].unwrap_or_default(), self.thread_id)).collect();
        let ids = memory.read_words(&ids);
        let known = threads.iter().zip(words.chunks(2)).zip(ids);
        let thread = |((address, words), id): ((&u64, &[Option<u64>]), Option<u64>)| {
            let state = (words[1]? as u32).cast_signed();
            Some(JavaThread {
                address: Avma(*address),
                tid: id? as u32,
                state: self.states.get(&state).copied().unwrap_or("unknown"),
            })
        };
        Some(known.filter_map(thread).collect())
    }

    /// Returns the id of the thread with this `JavaThread`, as the kernel knows it in the thread's
    /// own pid namespace.
    pub(crate) fn tid_of(&self, thread: Avma, memory: &impl ProcessMemory) -> Option<u32> {
        let os_thread = Avma(memory.read_u64(thread.wrapping_add(self.osthread.into()))?);
        Some(memory.read_u64(os_thread.wrapping_add(self.thread_id.into()))? as u32)
    }

    fn addresses(&self, memory: &impl ProcessMemory) -> Option<Vec<u64>> {
        match self.list {
            ThreadListFields::Array { list, length, threads } => {
                let list = memory.read_u64(list).filter(|list| *list != 0)?;
                let at = |field: u16| Avma(list.wrapping_add(field.into()));
                let count = (memory.read_u64(at(length))? as u32 as usize).min(MAX_THREADS);
                let bytes = memory.read_bytes(Avma(memory.read_u64(at(threads))?), count * 8)?;
                let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
                Some(words.map(u64::from_le_bytes).filter(|thread| *thread != 0).collect())
            }
            ThreadListFields::Linked { first, next } => {
                let mut threads = Vec::new();
                let mut thread = memory.read_u64(first)?;
                while thread != 0 && threads.len() < MAX_THREADS {
                    threads.push(thread);
                    thread = memory.read_u64(Avma(thread.wrapping_add(next.into()))).unwrap_or_default();
                }
                Some(threads)
            }
        }
    }
}

#[cfg(test)]
impl ThreadFields {
    /// Returns offsets that lead nowhere.
    pub(crate) fn for_tests() -> Self {
        let list = ThreadListFields::Linked { first: Avma(0), next: 0 };
        Self { list, osthread: 0, thread_id: 0, state: 0, states: HashMap::new() }
    }
}
