//! The holder of a monitor while another thread waits for it. A thread that is about to wait for
//! one notes it with its owner; a sample of that owner finds it there, and says that it has it, if
//! the monitor itself still does.
//!
//! Neither has to stop the other: the note only says where to look, and whether a thread has a
//! monitor is read while that thread stands still.
//!
//! Layouts: openjdk src/hotspot/share/runtime/objectMonitor.hpp, javaThread.hpp (thread.hpp to JDK
//! 18).

use crate::address::Avma;
use crate::blocker::{BlockerLayout, EnteredMonitor, current_thread};
use crate::thread_local::ReadWord;

/// Map `u32 -> ContendedMonitors`, by thread group id. The daemon makes the entries; exec removes
/// one.
pub const CONTENDED_MONITORS: &str = "CONTENDED_MONITORS";

/// Monitors of one JVM that are remembered: a power of two.
pub const CONTENDED_SLOTS: usize = 16;

/// Owners up to this one mean no thread, or that the JVM doesn't know it: `ANONYMOUS_OWNER`,
/// `DEFLATER_MARKER`.
pub const LAST_SPECIAL_OWNER: u64 = 2;

/// The monitors of one JVM for which threads have waited lately, each once. CPUs write them without
/// locks: of a pair that is torn the owner hasn't the monitor, and says so.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContendedMonitors {
    /// Slots that were filled so far: the next one takes the place of the oldest.
    filled: u64,
    slots: [EnteredMonitor; CONTENDED_SLOTS],
}

impl ContendedMonitors {
    /// Notes a monitor for which a thread begins to wait.
    #[inline(always)]
    pub fn note(&mut self, entered: EnteredMonitor) {
        for slot in &mut self.slots {
            if slot.monitor == entered.monitor {
                slot.owner = entered.owner;
                return;
            }
        }
        let next = self.filled as usize & (CONTENDED_SLOTS - 1);
        self.filled = self.filled.wrapping_add(1);
        self.slots[next] = entered;
    }
}

/// Returns true if this value of a monitor's owner means a thread.
#[inline(always)]
pub const fn is_owner(owner: u64) -> bool {
    owner > LAST_SPECIAL_OWNER
}

/// Returns the address of a contended monitor that the thread with this thread and stack pointer
/// has; 0 if it has none. The thread mustn't run meanwhile.
#[inline(always)]
pub fn held_monitor(
    memory: &impl ReadWord,
    thread_pointer: Avma,
    stack_pointer: u64,
    layout: &BlockerLayout,
    contended: &ContendedMonitors,
) -> u64 {
    let Some(thread) = MonitorOwner::of(memory, thread_pointer, stack_pointer, layout) else { return 0 };
    for slot in &contended.slots {
        let place = Avma(slot.monitor).wrapping_add(u64::from(layout.monitor_owner));
        if thread.is(slot.owner) && memory.read_word(place).is_some_and(|owner| thread.is(owner)) {
            return slot.monitor;
        }
    }
    0
}

/// The values of a monitor's owner that mean that a thread has it.
#[derive(Clone, Copy)]
struct MonitorOwner {
    /// The `JavaThread`, or where the JVM has numbers for its threads, that.
    own: u64,
    /// The part of its stack in use, in which the record of a lock may lie that has become a
    /// monitor.
    stack: [u64; 2],
}

impl MonitorOwner {
    #[inline(always)]
    fn of(
        memory: &impl ReadWord,
        thread_pointer: Avma,
        stack_pointer: u64,
        layout: &BlockerLayout,
    ) -> Option<Self> {
        let thread = current_thread(memory, thread_pointer, layout)?;
        if layout.owner_id != 0 {
            let own = memory.read_word(thread.wrapping_add(u64::from(layout.owner_id)))?;
            return Some(Self { own, stack: [0; 2] });
        }
        let base = memory.read_word(thread.wrapping_add(u64::from(layout.stack_base)))?;
        Some(Self { own: thread.0, stack: [stack_pointer, base] })
    }

    #[inline(always)]
    const fn is(self, owner: u64) -> bool {
        is_owner(owner) && (owner == self.own || (owner >= self.stack[0] && owner < self.stack[1]))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;

    use super::*;
    use crate::thread_local::ThreadLocalVariable;
    use crate::thread_local::testing::Words;

    /// A `JavaThread` at 0x1000 with number 30 and a stack that ends at 0x7000.
    fn layout(owner_id: u16) -> BlockerLayout {
        let current_thread = ThreadLocalVariable { start_ticks: 0, offset: 0x20, module: 0, dtv: 0 };
        BlockerLayout {
            current_thread,
            monitor_owner: 8,
            stack_base: 16,
            owner_id,
            ..BlockerLayout::default()
        }
    }

    fn held(layout: &BlockerLayout, noted: u64, owner: u64) -> u64 {
        let words = [(0x8020, 0x1000), (0x1010, 0x7000), (0x1018, 30), (0x4008, owner)];
        let mut contended = ContendedMonitors::default();
        let monitor = EnteredMonitor { monitor: 0x4000, owner: noted };
        contended.note(EnteredMonitor { monitor: 0x3000, owner: noted });
        contended.note(EnteredMonitor { owner: 1, ..monitor });
        contended.note(monitor);
        held_monitor(&Words(HashMap::from(words)), Avma(0x8000), 0x6000, layout, &contended)
    }

    #[test]
    fn a_thread_has_a_monitor_whose_owner_it_was_and_is() {
        let by_address = layout(0);
        assert_eq!(held(&by_address, 0x1000, 0x1000), 0x4000);
        assert_eq!(held(&by_address, 0x6800, 0x6800), 0x4000, "a record of a lock in its stack");
        assert_eq!(held(&by_address, 0x6800, 0x1000), 0x4000, "the record has become the thread since");
        assert_eq!(held(&by_address, 0x1000, 0), 0, "it has left the monitor");
        assert_eq!(held(&by_address, 0x1000, 0x2000), 0, "another one has it now");
        assert_eq!(held(&by_address, 0x2000, 0x1000), 0, "nobody has waited for this one");
        assert_eq!(held(&by_address, 0x5ff8, 0x5ff8), 0, "below the stack in use");
        assert_eq!(held(&by_address, 30, 30), 0);
        let by_number = layout(0x18);
        assert_eq!(held(&by_number, 30, 30), 0x4000);
        assert_eq!(held(&by_number, 0x1000, 0x1000), 0);
        assert_eq!(held(&by_number, 0, 0), 0);
    }

    #[test]
    fn a_monitor_is_noted_once_and_takes_the_place_of_the_oldest() {
        let mut contended = ContendedMonitors::default();
        let monitors = |contended: &ContendedMonitors| contended.slots.map(|slot| slot.monitor);
        for _ in 0..2 {
            for monitor in 1..=CONTENDED_SLOTS as u64 {
                contended.note(EnteredMonitor { monitor, owner: 7 });
            }
        }
        assert_eq!(monitors(&contended), core::array::from_fn(|at| at as u64 + 1));
        contended.note(EnteredMonitor { monitor: 99, owner: 7 });
        assert_eq!(monitors(&contended)[..3], [99, 2, 3]);
    }
}
