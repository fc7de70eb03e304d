//! The blocker of a thread of a JVM, as the JVM itself keeps it: the monitor that the thread enters
//! or waits on, or the blocker that it was parked with (`LockSupport.park(Object)`).
//!
//! The same code reads it in the kernel program when the thread runs again, and in the daemon while
//! it still waits. Only the thread itself changes its own fields, and it doesn't while it waits;
//! collectors change references, and other threads a monitor's owner.
//!
//! Layouts: openjdk src/hotspot/share/runtime/javaThread.hpp (thread.hpp to JDK 18),
//! objectMonitor.hpp, oops/oopHandle.hpp, oops/weakHandle.hpp; java/lang/Thread.java.

use crate::address::Avma;
use crate::jvm::GarbageCollector;
use crate::thread_local::{ReadWord, ThreadLocalVariable, thread_local};
use crate::unwind::hotspot::continuation::load_barriers;

/// Map `u32 -> BlockerLayout`, by thread group id. Exec removes an entry.
pub const BLOCKER_LAYOUTS: &str = "BLOCKER_LAYOUTS";

/// Offsets at which a JVM keeps what its threads wait for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockerLayout {
    /// `Thread::_thr_current`: the address of the thread's `JavaThread`.
    pub current_thread: ThreadLocalVariable,
    /// Added to a narrow reference that is shifted left by `oop_shift`.
    pub oop_base: u64,
    pub oop_shift: u16,
    /// 1 if references in objects have 32 bits.
    pub oops_are_narrow: u16,
    /// `JavaThread::_current_pending_monitor` and `_current_waiting_monitor`.
    pub pending_monitor: u16,
    pub waiting_monitor: u16,
    /// `JavaThread::_vthread`, where there is one, else `_threadObj`.
    pub thread_object: u16,
    /// 1 if references outside of the heap lie behind a handle (JDK 16 and later).
    pub has_handles: u16,
    /// `ObjectMonitor::_object` and `_owner`.
    pub monitor_object: u16,
    pub monitor_owner: u16,
    /// `Thread.parkBlocker`.
    pub park_blocker: u16,
    /// `JavaThread::_monitor_owner_id`; 0: owners are addresses.
    pub owner_id: u16,
    /// `JavaThread::_stack_base`.
    pub stack_base: u16,
    /// Zero.
    pub reserved: u16,
    pub collector: GarbageCollector,
}

const _: () = assert!(
    size_of::<BlockerLayout>()
        == size_of::<ThreadLocalVariable>() + 8 + 12 * 2 + size_of::<GarbageCollector>(),
    "no padding: the daemon writes its bytes"
);

/// The way in which a thread waits for an object.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockerKind {
    /// It enters the object's monitor.
    Entered = 1,
    /// It waits in `Object.wait`, or enters the monitor again after that.
    WaitedOn = 2,
    /// It is parked with the object as its blocker.
    Parked = 3,
}

/// The object that a thread waits for: not who keeps it waiting, but what it waits on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocker {
    /// A [`BlockerKind`] as `u64`; 0: nothing, or it isn't known.
    pub kind: u64,
    /// The first two words of the object, in which its class is; zero if they aren't known.
    pub object: [u64; 2],
    /// The address of the monitor that it enters; else 0.
    pub monitor: u64,
}

/// A monitor that a thread enters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnteredMonitor {
    /// Its address; 0: there is none.
    pub monitor: u64,
    /// `ObjectMonitor::_owner`; 0: nobody.
    pub owner: u64,
}

/// Returns what the thread with this thread pointer waits for.
#[inline(always)]
pub fn find_blocker(memory: &impl ReadWord, thread_pointer: Avma, layout: &BlockerLayout) -> Option<Blocker> {
    let thread = current_thread(memory, thread_pointer, layout)?;
    let field = |offset: u16| thread.wrapping_add(u64::from(offset));
    let pending = memory.read_word(field(layout.pending_monitor))?;
    let monitor = if pending == 0 { memory.read_word(field(layout.waiting_monitor))? } else { pending };
    let (kind, object) = if monitor == 0 {
        let thread_object = load_root(memory, layout, field(layout.thread_object))?;
        if thread_object == UNRESOLVED {
            return Some(Blocker { kind: BlockerKind::Parked as u64, ..Blocker::default() });
        }
        let slot = thread_object.wrapping_add(u64::from(layout.park_blocker));
        (BlockerKind::Parked, load(memory, layout, slot, false)?)
    } else {
        let kind = if pending == 0 { BlockerKind::WaitedOn } else { BlockerKind::Entered };
        (kind, load_root(memory, layout, Avma(monitor).wrapping_add(u64::from(layout.monitor_object)))?)
    };
    let unknown = Blocker { kind: kind as u64, object: [0; 2], monitor: pending };
    if object == UNRESOLVED {
        return Some(unknown);
    }
    let words = [memory.read_word(object)?, memory.read_word(object.wrapping_add(8))?];
    // A collector has left the object's new address there.
    const FORWARDED: u64 = 3;
    if words[0] & FORWARDED == FORWARDED {
        return Some(unknown);
    }
    Some(Blocker { object: words, ..unknown })
}

/// Returns the monitor that the thread with this thread pointer enters, and its owner.
#[inline(always)]
pub fn entered_monitor(
    memory: &impl ReadWord,
    thread_pointer: Avma,
    layout: &BlockerLayout,
) -> Option<EnteredMonitor> {
    let thread = current_thread(memory, thread_pointer, layout)?;
    let monitor = memory.read_word(thread.wrapping_add(u64::from(layout.pending_monitor)))?;
    if monitor == 0 {
        return None;
    }
    let owner = memory.read_word(Avma(monitor).wrapping_add(u64::from(layout.monitor_owner)))?;
    Some(EnteredMonitor { monitor, owner })
}

/// Returns the object whose monitor this is.
pub fn monitored_object(memory: &impl ReadWord, monitor: u64, layout: &BlockerLayout) -> Option<Avma> {
    let object = load_root(memory, layout, Avma(monitor).wrapping_add(u64::from(layout.monitor_object)))?;
    (object != UNRESOLVED).then_some(object)
}

/// Returns the `JavaThread` of the thread with this thread pointer.
#[inline(always)]
pub fn current_thread(memory: &impl ReadWord, thread_pointer: Avma, layout: &BlockerLayout) -> Option<Avma> {
    let thread = thread_local(memory, thread_pointer, &layout.current_thread)?;
    (thread != 0).then_some(Avma(thread))
}

/// Returns the object of a reference outside of the heap.
#[inline(always)]
fn load_root(memory: &impl ReadWord, layout: &BlockerLayout, at: Avma) -> Option<Avma> {
    let slot = if layout.has_handles == 0 { at } else { Avma(memory.read_word(at)?) };
    load(memory, layout, slot, true)
}

/// The object of a reference that may say where its object was.
const UNRESOLVED: Avma = Avma(1);

/// Returns the object of the reference at `slot`; `None` if it refers to none; under ZGC
/// [`UNRESOLVED`] unless the reference has a good color.
#[inline(always)]
fn load(memory: &impl ReadWord, layout: &BlockerLayout, slot: Avma, is_root: bool) -> Option<Avma> {
    let value = memory.read_word(slot)?;
    let collector = &layout.collector;
    let object = match collector.kind {
        GarbageCollector::Z => {
            let good = memory.read_word(Avma(collector.mask_at))?;
            if value >> COLOR_BITS == 0 {
                return None;
            }
            if value & good & load_barriers::REMAPPED == 0 {
                return Some(UNRESOLVED);
            }
            load_barriers::generational_address(value)?.0
        }
        GarbageCollector::X => {
            if value != 0 && value & memory.read_word(Avma(collector.mask_at))? != 0 {
                return Some(UNRESOLVED);
            }
            value
        }
        _ if is_root || layout.oops_are_narrow == 0 => value,
        _ => {
            let narrow = value & 0xffff_ffff;
            if narrow == 0 {
                return None;
            }
            layout.oop_base.wrapping_add(narrow << (layout.oop_shift & 7))
        }
    };
    (object != 0 && object.is_multiple_of(8)).then_some(Avma(object))
}

/// Bits below the address, at most.
const COLOR_BITS: u64 = 16;

/// Returns the object of a reference outside of the heap; `None` if it refers to none, or may say
/// where the object was.
pub fn root_object(memory: &impl ReadWord, layout: &BlockerLayout, at: Avma) -> Option<Avma> {
    load_root(memory, layout, at).filter(|object| *object != UNRESOLVED)
}

/// Returns the object of a reference in an object, as [`root_object`] does.
pub fn field_object(memory: &impl ReadWord, layout: &BlockerLayout, at: Avma) -> Option<Avma> {
    load(memory, layout, at, false).filter(|object| *object != UNRESOLVED)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;

    use super::*;
    use crate::thread_local::testing::Words;

    const THREAD_POINTER: Avma = Avma(0x7000);
    const LAYOUT: BlockerLayout = BlockerLayout {
        current_thread: ThreadLocalVariable { start_ticks: 0, offset: 0x20, module: 0, dtv: 0 },
        oop_base: 0,
        oop_shift: 3,
        oops_are_narrow: 1,
        pending_monitor: 8,
        waiting_monitor: 16,
        thread_object: 24,
        has_handles: 1,
        monitor_object: 0x40,
        monitor_owner: 0x48,
        park_blocker: 0x14,
        owner_id: 0,
        stack_base: 0,
        reserved: 0,
        collector: GarbageCollector {
            kind: GarbageCollector::STOPS,
            forwarding_start: 0,
            forwarding_alignment: 0,
            forwarding_length: 0,
            forwarding_bytes: 0,
            granule_shift: 0,
            reserved: [0; 2],
            mask_at: 0,
            offset_mask: 0,
            base: 0,
            young: 0,
            old: 0,
        },
    };

    /// A `JavaThread` at 0x1000, its object at 0x2000, a blocker at 0x3000, a monitor at 0x4000 of
    /// the object at 0x5000.
    fn words(pending: u64, waiting: u64) -> Words {
        let words = [
            (0x7020, 0x1000),
            (0x1008, pending),
            (0x1010, waiting),
            (0x1018, 0x1100),
            (0x1100, 0x2000),
            (0x2014, 0xdead_0000_0600),
            (0x3000, 1),
            (0x3008, 77),
            (0x4040, 0x1200),
            (0x4048, 0x9000),
            (0x1200, 0x5000),
            (0x5000, 2),
            (0x5008, 88),
        ];
        Words(HashMap::from(words))
    }

    fn find(words: &Words, layout: &BlockerLayout) -> Option<(u64, u64)> {
        find_blocker(words, THREAD_POINTER, layout).map(|found| (found.kind, found.object[1]))
    }

    #[test]
    fn a_thread_waits_for_its_monitor_or_its_blocker() {
        assert_eq!(find(&words(0, 0), &LAYOUT), Some((BlockerKind::Parked as u64, 77)));
        assert_eq!(find(&words(0x4000, 0), &LAYOUT), Some((BlockerKind::Entered as u64, 88)));
        assert_eq!(find(&words(0, 0x4000), &LAYOUT), Some((BlockerKind::WaitedOn as u64, 88)));
        let mut without = words(0, 0);
        without.0.insert(0x2014, 0xdead_0000_0000);
        assert_eq!(find(&without, &LAYOUT), None, "no blocker");
        without.0.remove(&0x7020);
        assert_eq!(find(&without, &LAYOUT), None, "no thread of the JVM");
    }

    #[test]
    fn an_object_that_was_moved_away_has_no_class() {
        let mut words = words(0x4000, 0);
        words.0.insert(0x5000, 0x9003);
        let unknown = Some(Blocker { kind: BlockerKind::Entered as u64, object: [0; 2], monitor: 0x4000 });
        assert_eq!(find_blocker(&words, THREAD_POINTER, &LAYOUT), unknown);
    }

    #[test]
    fn only_a_monitor_that_is_entered_has_an_owner() {
        let entered = |words: &Words| entered_monitor(words, THREAD_POINTER, &LAYOUT);
        let monitor = EnteredMonitor { monitor: 0x4000, owner: 0x9000 };
        assert_eq!(entered(&words(0x4000, 0)), Some(monitor));
        assert_eq!(entered(&words(0, 0x4000)), None);
        assert_eq!(monitored_object(&words(0x4000, 0), 0x4000, &LAYOUT), Some(Avma(0x5000)));
    }

    #[test]
    fn references_are_followed_in_objects_and_outside_of_the_heap() {
        let words = words(0x4000, 0);
        assert_eq!(root_object(&words, &LAYOUT, Avma(0x1018)), Some(Avma(0x2000)));
        assert_eq!(field_object(&words, &LAYOUT, Avma(0x2014)), Some(Avma(0x3000)), "it has 32 bits");
        assert_eq!(root_object(&words, &LAYOUT, Avma(0x6000)), None);
    }

    #[test]
    fn references_of_another_color_are_not_followed() {
        let collector = GarbageCollector { kind: GarbageCollector::Z, mask_at: 0x8000, ..LAYOUT.collector };
        let layout = BlockerLayout { collector, oops_are_narrow: 0, ..LAYOUT };
        let mut words = words(0x4000, 0);
        words.0.insert(0x8000, 0x2000 | 0x30);
        // The second of the four bits: the address begins at bit 14.
        words.0.insert(0x1200, 0x5000 << 14 | 0x2000);
        assert_eq!(find(&words, &layout), Some((BlockerKind::Entered as u64, 88)));
        words.0.insert(0x1200, 0x5000 << 15 | 0x4000);
        let unknown = Some(Blocker { kind: BlockerKind::Entered as u64, object: [0; 2], monitor: 0x4000 });
        assert_eq!(find_blocker(&words, THREAD_POINTER, &layout), unknown);
        assert_eq!(monitored_object(&words, 0x4000, &layout), None);
        assert_eq!(root_object(&words, &layout, Avma(0x4040)), None);
        let collector = GarbageCollector { kind: GarbageCollector::X, ..collector };
        let layout = BlockerLayout { collector, ..layout };
        words.0.insert(0x1200, 0x5000);
        assert_eq!(find(&words, &layout), Some((BlockerKind::Entered as u64, 88)));
        words.0.insert(0x8000, 0x5000);
        assert_eq!(find_blocker(&words, THREAD_POINTER, &layout), unknown);
    }
}
