//! Fields in which a JVM keeps what its threads wait for: see [`jvmprof_common::blocker`].

use jvmprof_common::blocker::BlockerLayout;

use super::collector_layout::CollectorFields;
use super::{HeapLayout, ThreadNameLayout};
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::runtime_state::monitor_owners::OwnerFields;
use crate::hotspot::runtime_state::vm_flags::FlagFields;
use crate::hotspot::vmstructs::exported_symbols::Image;
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::hotspot::vmstructs::symtab_variables::{BlockerVariables, NameVariables};
use crate::types::{Avma, Svma};

/// Addresses and offsets that lead to a [`BlockerLayout`].
#[derive(Clone, Debug)]
pub(crate) struct BlockerFields {
    pending_monitor: u16,
    waiting_monitor: u16,
    thread_object: u16,
    /// `JavaThread::_threadObj`.
    own_object: u16,
    has_handles: bool,
    monitor_object: u16,
    monitor_owner: u16,
    /// `None`: owners are addresses.
    owner_id: Option<u16>,
    stack_base: u16,
    oop_base: Avma,
    oop_shift: Avma,
    collector: CollectorFields,
    flags: FlagFields,
}

/// The places where the threads of one JVM say what they wait for.
#[derive(Clone, Debug)]
pub struct JvmBlockers {
    /// But for [`BlockerLayout::current_thread`].
    pub layout: BlockerLayout,
    /// The distance of that variable from the begin of those of the JVM's file.
    pub current_thread: Svma,
    pub image: Image,
    /// By what the owners of its monitors are found, if it says that.
    pub owners: Option<OwnerFields>,
    /// Where they have their names, if it says that.
    pub names: Option<ThreadNameLayout>,
    pub heap: HeapLayout,
}

/// Objects of `java.lang.Thread` are shorter.
const MAX_THREAD_BYTES: u32 = 1024;

impl BlockerFields {
    /// Finds the fields; `None` for a JVM that doesn't say enough.
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let offset = |names: &[&'static str]| lookup.optional_offset(names);
        let address = |names: &[&'static str]| names.iter().find_map(|name| lookup.optional_address(name));
        let field = |name: &str| lookup.0.field(name);
        let thread_object = field("JavaThread::_threadObj")?;
        Some(Self {
            pending_monitor: offset(&[
                "JavaThread::_current_pending_monitor",
                "Thread::_current_pending_monitor",
            ])?,
            waiting_monitor: offset(&[
                "JavaThread::_current_waiting_monitor",
                "Thread::_current_waiting_monitor",
            ])?,
            thread_object: offset(&["JavaThread::_vthread", "JavaThread::_threadObj"])?,
            own_object: offset(&["JavaThread::_threadObj"])?,
            has_handles: thread_object.type_name.contains("Handle"),
            monitor_object: offset(&["ObjectMonitor::_object"])?,
            monitor_owner: offset(&["ObjectMonitor::_owner"])?,
            owner_id: offset(&["JavaThread::_monitor_owner_id"]),
            stack_base: offset(&["JavaThread::_stack_base", "Thread::_stack_base"])?,
            oop_base: address(&[
                "CompressedOops::_base",
                "CompressedOops::_narrow_oop._base",
                "Universe::_narrow_oop._base",
            ])?,
            oop_shift: address(&[
                "CompressedOops::_shift",
                "CompressedOops::_narrow_oop._shift",
                "Universe::_narrow_oop._shift",
            ])?,
            collector: CollectorFields::new(lookup),
            flags: FlagFields::new(lookup).ok()?,
        })
    }

    /// Reads the layout, but for the place of the thread-local variable; `None` where references
    /// can't be followed, or while the JVM starts.
    pub(crate) fn read(
        &self,
        variables: BlockerVariables,
        memory: &impl ProcessMemory,
    ) -> Option<BlockerLayout> {
        let park_blocker_offset = variables.park_blocker_offset?;
        let flag = |name: &str| self.flags.value_of(name, memory);
        let int = |at: Avma| field::u32(&memory.read_bytes(at, 4)?, 0);
        let are_narrow = flag("UseCompressedOops").as_deref() == Some("true");
        let shift = int(self.oop_shift).filter(|shift| *shift < 8)?;
        let is_possible = |offset: &u32| (8..MAX_THREAD_BYTES).contains(offset) && offset.is_multiple_of(4);
        let park_blocker = int(park_blocker_offset).filter(is_possible)?;
        Some(BlockerLayout {
            oop_base: if are_narrow { memory.read_u64(self.oop_base)? } else { 0 },
            oop_shift: shift as u16,
            oops_are_narrow: u16::from(are_narrow),
            pending_monitor: self.pending_monitor,
            waiting_monitor: self.waiting_monitor,
            thread_object: self.thread_object,
            has_handles: u16::from(self.has_handles),
            monitor_object: self.monitor_object,
            monitor_owner: self.monitor_owner,
            park_blocker: park_blocker as u16,
            owner_id: self.owner_id.unwrap_or(0),
            stack_base: self.stack_base,
            collector: self.collector.read(flag, memory)?,
            ..BlockerLayout::default()
        })
    }

    /// Reads where threads have their names; `None` while the JVM starts, or if it doesn't say
    /// that.
    pub(crate) fn names(
        &self,
        variables: NameVariables,
        memory: &impl ProcessMemory,
    ) -> Option<ThreadNameLayout> {
        ThreadNameLayout::read(self.own_object, variables, memory)
    }
}
