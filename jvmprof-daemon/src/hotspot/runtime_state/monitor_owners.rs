//! Owners of monitors: what `ObjectMonitor::_owner` means.
//!
//! Up to JDK 23 it is the address of a `JavaThread`, or an address in its stack, where a lock that
//! has become a monitor since has its record (openjdk src/hotspot/share/runtime/synchronizer.cpp,
//! `ObjectSynchronizer::inflate`); later it is a thread's number (objectMonitor.hpp,
//! `owner_id_from`). Small values mean that the JVM itself doesn't know the owner yet
//! (`ANONYMOUS_OWNER`): it is the thread that has the object in its lock stack (lockStack.hpp, JDK
//! 21 and later).

use std::collections::HashMap;

use jvmprof_common::held_monitor::is_owner;
use jvmprof_common::jvm::GarbageCollector;
use jvmprof_common::unwind::hotspot::continuation::load_barriers::generational_address;

use crate::hotspot::process_memory::ProcessMemory;
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

use super::java_threads::{JavaThread, ThreadFields};

/// `LockStack::CAPACITY`.
const LOCK_STACK_SLOTS: u64 = 8;
/// Stacks are smaller.
const MAX_STACK_BYTES: u64 = 1 << 34;

/// Offsets in threads by which owners are found.
#[derive(Clone, Debug)]
pub struct OwnerFields {
    threads: ThreadFields,
    stack_base: u16,
    stack_size: u16,
    /// `JavaThread::_monitor_owner_id`; `None`: owners are addresses.
    owner_id: Option<u16>,
    /// `None`: it has no lock stack.
    lock_stack: Option<LockStackFields>,
    /// Handles of the thread's own object and of that which runs on it: another one is a virtual
    /// thread's (JDK 21 and later).
    objects: Option<[u16; 2]>,
}

/// `LockStack::_top` and `_base`, from the thread's begin.
#[derive(Clone, Copy, Debug)]
struct LockStackFields {
    top: u16,
    base: u16,
}

/// A thread that may have a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerThread {
    /// As the kernel knows it in the thread's own pid namespace.
    pub tid: u32,
    /// A virtual thread runs on it; `None` if that can't be told.
    pub is_virtual: Option<bool>,
    /// The `JavaThread`.
    pub address: Avma,
    /// Its stack: the lowest address, and the one after it.
    stack: [u64; 2],
    id: Option<u64>,
}

impl OwnerFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let offset = |names: &[&'static str]| lookup.optional_offset(names);
        let own = offset(&["JavaThread::_threadObj"]);
        let lock_stack = || {
            let stack = offset(&["JavaThread::_lock_stack"])?;
            let [top, base] = [offset(&["LockStack::_top"])?, offset(&["LockStack::_base[0]"])?];
            Some(LockStackFields { top: stack.checked_add(top)?, base: stack.checked_add(base)? })
        };
        Some(Self {
            threads: ThreadFields::new(lookup).ok()?,
            stack_base: offset(&["JavaThread::_stack_base", "Thread::_stack_base"])?,
            stack_size: offset(&["JavaThread::_stack_size", "Thread::_stack_size"])?,
            owner_id: offset(&["JavaThread::_monitor_owner_id"]),
            lock_stack: lock_stack(),
            objects: own.zip(offset(&["JavaThread::_vthread"])).map(|(own, running)| [own, running]),
        })
    }

    /// Returns true if the owner of a monitor that a virtual thread has is its carrier.
    pub const fn has_carriers_as_owners(&self) -> bool {
        self.objects.is_some() && self.owner_id.is_none()
    }

    /// Returns true if the thread's `JavaThread` is still its own.
    pub fn is_still(&self, thread: &OwnerThread, memory: &impl ProcessMemory) -> bool {
        self.threads.tid_of(thread.address, memory) == Some(thread.tid)
    }

    /// Returns the owners of monitors that don't say it, as others would: the threads that have the
    /// objects in their lock stacks, by the objects' addresses.
    pub fn owners_by_lock_stack(
        &self,
        threads: &[OwnerThread],
        memory: &impl ProcessMemory,
    ) -> HashMap<u64, u64> {
        self.lock_stack.map(|fields| fields.owners(threads, memory)).unwrap_or_default()
    }

    /// Returns the Java threads there are now; those that end meanwhile are left out.
    pub fn threads(
        &self,
        collector: &GarbageCollector,
        memory: &impl ProcessMemory,
    ) -> Option<Vec<OwnerThread>> {
        let threads = self.threads.threads(memory)?;
        let at = |address: Avma, field: u16| Avma(address.0.wrapping_add(field.into()));
        let [own, running] = self.objects.unwrap_or_default();
        let offsets = [self.stack_base, self.stack_size, self.owner_id.unwrap_or(0), own, running];
        let places: Vec<Avma> =
            threads.iter().flat_map(|thread| offsets.map(|offset| at(thread.address, offset))).collect();
        let words = memory.read_words(&places);
        let handles: Vec<Avma> =
            words.chunks(5).flat_map(|words| [words[3], words[4]]).map(|at| Avma(at.unwrap_or(0))).collect();
        let objects = memory.read_words(&handles);
        let ids = match self.owner_id {
            Some(field) => {
                let places: Vec<Avma> = threads.iter().map(|thread| at(thread.address, field)).collect();
                memory.read_words(&places)
            }
            None => vec![None; threads.len()],
        };
        let mut words = words.chunks(5).zip(objects.chunks(2)).zip(ids);
        let owner = |thread: &JavaThread| {
            let ((words, objects), id) = words.next()?;
            // A virtual thread, whose number it has while it runs on it, has come or gone
            // meanwhile.
            if self.owner_id.and(words[2]) != id {
                return None;
            }
            let (base, size) = (words[0]?, words[1]?.min(MAX_STACK_BYTES));
            let is_platform = match self.objects {
                Some(_) => is_same(collector, objects[0]?, objects[1]?, memory),
                None => Some(true),
            };
            Some(OwnerThread {
                tid: thread.tid,
                is_virtual: is_platform.map(|is_platform| !is_platform),
                address: thread.address,
                stack: [base.saturating_sub(size), base],
                id,
            })
        };
        Some(threads.iter().filter_map(owner).collect())
    }
}

impl LockStackFields {
    fn owners(self, threads: &[OwnerThread], memory: &impl ProcessMemory) -> HashMap<u64, u64> {
        let places = |thread: &OwnerThread| {
            let slots = (0..LOCK_STACK_SLOTS).map(|slot| u64::from(self.base) + slot * 8);
            let offsets = std::iter::once(u64::from(self.top)).chain(slots);
            let address = thread.address;
            offsets.map(move |offset| address.wrapping_add(offset)).collect::<Vec<_>>()
        };
        let words = memory.read_words(&threads.iter().flat_map(places).collect::<Vec<_>>());
        let mut owners = HashMap::new();
        for (thread, words) in threads.iter().zip(words.chunks(LOCK_STACK_SLOTS as usize + 1)) {
            let Some((Some(top), slots)) = words.split_first() else { continue };
            // The end of what is used, from the thread's begin.
            let used = (top & 0xffff_ffff).saturating_sub(self.base.into()) / 8;
            let objects = slots.iter().take(used as usize).filter_map(|slot| *slot);
            owners.extend(objects.map(|object| (object, thread.id.unwrap_or(thread.address.0))));
        }
        owners
    }
}

/// Returns whether two references outside of the heap are to the same object; `None` if one of them
/// may say where its object was.
fn is_same(collector: &GarbageCollector, one: u64, other: u64, memory: &impl ProcessMemory) -> Option<bool> {
    if one == other {
        return Some(true);
    }
    match collector.kind {
        GarbageCollector::STOPS => Some(false),
        GarbageCollector::Z => {
            let [one, other] = [one, other].map(generational_address);
            let is_same = one.is_some() && one == other;
            is_same.then_some(true)
        }
        GarbageCollector::X => {
            let bad = memory.read_u64(Avma(collector.mask_at))?;
            let is_same = (one ^ other) & collector.offset_mask == 0;
            if is_same { Some(true) } else { ((one | other) & bad == 0).then_some(false) }
        }
        _ => None,
    }
}

/// Returns the thread that a monitor's owner is; `None` if it isn't known.
pub fn monitor_owner(owner: u64, threads: &[OwnerThread]) -> Option<&OwnerThread> {
    let is_it = |thread: &&OwnerThread| match thread.id {
        Some(id) => id == owner,
        None => thread.address.0 == owner || (thread.stack[0]..thread.stack[1]).contains(&owner),
    };
    threads.iter().filter(|_| is_owner(owner)).find(is_it)
}

#[cfg(test)]
impl OwnerFields {
    /// Returns offsets that lead nowhere.
    pub(crate) fn for_tests() -> Self {
        Self {
            threads: ThreadFields::for_tests(),
            stack_base: 0,
            stack_size: 0,
            owner_id: None,
            lock_stack: None,
            objects: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::process_memory::RecordedMemory;

    const fn thread(tid: u32, id: Option<u64>) -> OwnerThread {
        let address = 0x1000 * tid as u64;
        let stack = [address + 0x100, address + 0x200];
        OwnerThread { tid, is_virtual: Some(false), address: Avma(address), stack, id }
    }

    #[test]
    fn the_owner_of_a_monitor_that_does_not_say_it_has_the_object_in_its_lock_stack() {
        let fields = LockStackFields { top: 0x40, base: 0x50 };
        let threads = [thread(7, None), thread(8, Some(31))];
        let stack = |used: u64, slots: [u64; 8]| {
            let top = 0xdead_0000_0000 | (0x50 + used * 8);
            [[top, 0].as_slice(), &slots].concat().into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        let object = 0xabc0;
        let mut memory = RecordedMemory::default();
        // What is above its end isn't in the stack any more.
        memory.insert(Avma(0x7040), stack(1, [1, object, 0, 0, 0, 0, 0, 0]));
        memory.insert(Avma(0x8040), stack(2, [1, object, 0, 0, 0, 0, 0, 0]));
        let owners = fields.owners(&threads, &memory);
        assert_eq!((owners.get(&object), owners.get(&2)), (Some(&31), None));
    }

    #[test]
    fn a_platform_thread_runs_its_own_object_whatever_its_references_colors_are() {
        let (memory, object, other) = (RecordedMemory::default(), 0x400_1234_5678, 0x400_2234_5678);
        let is_same = |kind, one, other| {
            let collector = GarbageCollector { kind, ..GarbageCollector::default() };
            is_same(&collector, one, other, &memory)
        };
        assert_eq!(is_same(GarbageCollector::STOPS, object, other), Some(false));
        let [first, third] = [object << 13 | 0x1000, object << 15 | 0x4000];
        assert_eq!(is_same(GarbageCollector::Z, first, third), Some(true));
        assert_eq!(is_same(GarbageCollector::Z, first, other << 15 | 0x4000), None, "it may have moved");
        assert_eq!(is_same(GarbageCollector::SHENANDOAH, object, other), None);
    }

    #[test]
    fn an_owner_is_an_address_of_the_thread_or_its_number() {
        let tid = |owner, threads: &[OwnerThread]| monitor_owner(owner, threads).map(|thread| thread.tid);
        let by_address = [thread(7, None), thread(8, None)];
        assert_eq!(tid(0x8000, &by_address), Some(8));
        assert_eq!(tid(0x7180, &by_address), Some(7), "a record of a lock in its stack");
        assert_eq!(tid(0x7200, &by_address), None);
        assert_eq!(tid(1, &by_address), None, "anonymous");
        let by_id = [thread(7, Some(30)), thread(8, Some(31))];
        assert_eq!(tid(31, &by_id), Some(8));
        assert_eq!(tid(0x8000, &by_id), None);
        assert_eq!(tid(0, &[thread(9, Some(0))]), None);
    }
}
