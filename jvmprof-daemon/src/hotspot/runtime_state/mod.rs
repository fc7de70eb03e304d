//! State of a JVM's run, as it says itself: flags, performance counters, Java threads and pauses.

pub(crate) mod java_threads;
pub(crate) mod monitor_owners;
pub(crate) mod pause_variables;
pub(crate) mod perf_counters;
pub(crate) mod safepoint_counters;
pub(crate) mod vm_flags;

use self::java_threads::ThreadFields;
use self::monitor_owners::OwnerFields;
use self::perf_counters::{ClassCounters, PerfFields};
use self::vm_flags::FlagFields;
use super::process_memory::ProcessMemory;
use super::vmstructs::field_offsets::FieldLookup;

/// Offsets that aren't needed to profile a JVM, only to describe it; each part is there if the JVM
/// says where it is.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeStateFields {
    pub(crate) flags: Option<FlagFields>,
    pub(crate) threads: Option<ThreadFields>,
    pub(crate) owners: Option<OwnerFields>,
    pub(crate) perf: Option<PerfFields>,
}

impl RuntimeStateFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Self {
        Self {
            flags: FlagFields::new(lookup).ok(),
            threads: ThreadFields::new(lookup).ok(),
            owners: OwnerFields::new(lookup),
            perf: PerfFields::new(lookup).ok(),
        }
    }
}

impl RuntimeStateFields {
    /// The addresses of the JVM's counters of classes; `None` while it starts, and with
    /// `-XX:-UsePerfData`.
    pub(crate) fn classes(&self, memory: &impl ProcessMemory) -> Option<ClassCounters> {
        self.perf?.classes(memory)
    }
}
