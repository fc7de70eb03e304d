//! Blockers of threads of JVMs: the class of the monitor or blocker, and who has the monitor.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jvmprof_common::blocker::{
    Blocker, BlockerLayout, EnteredMonitor, entered_monitor, find_blocker, monitored_object,
};
use jvmprof_common::held_monitor::{held_monitor, is_owner};
use jvmprof_common::off_cpu::WaitRecord;
use jvmprof_common::unwind_tables::NS_PER_TICK;

use super::holder_stacks::{HolderStacks, TimeSpan, method_of};
use super::monitor_holders::MonitorHolders;
use crate::hotspot::java_heap::{HeapLayout, KlassReader, ThreadObjects};
use crate::hotspot::{JvmBlockers, LiveMemory};
use crate::pipeline::thread_local_variables::find_private_variable;
use crate::process::{Backing, MappedCode, Process, ProcessKey};
use crate::profile::aggregate::NamedStack;
use crate::sampler::{OffCpuMaps, SamplerError, StackSample};
use crate::types::Avma;

const SECOND_NS: u64 = 1_000_000_000;
/// Longest interval of searching a JVM that doesn't say what its threads wait for.
const MAX_SEARCH_NS: u64 = 64 * SECOND_NS;
/// Searches after which a JVM counts as one that doesn't say it.
const MAX_SEARCHES: u32 = 4;
/// JVMs that are followed, at most: as many as the kernel's map holds.
const MAX_JVMS: usize = crate::sampler::MAX_BLOCKER_LAYOUTS as usize;
/// Different holders, and their methods, in the labels of one window, at most; further ones are
/// one.
const MAX_HOLDERS: usize = 512;
const OTHER_HOLDERS: &str = "[other]";

/// The JVMs whose blockers are read.
#[derive(Debug)]
pub(super) struct Blockers {
    /// Owners of monitors are asked for, too.
    has_owners: bool,
    jvms: HashMap<ProcessKey, BlockerJvm>,
    /// The names of this window's holders, and their methods.
    holders: HashSet<Arc<str>>,
    stacks: HolderStacks,
    /// Blockers that were read, and whose class isn't known.
    unnamed: u64,
    /// JVMs that don't say what their threads wait for.
    silent: u64,
}

#[derive(Debug)]
struct BlockerJvm {
    pid: u32,
    /// `None`: it hasn't said what its threads wait for.
    found: Option<FoundJvm>,
    searches: u32,
    /// Time of the next search, in ns of `CLOCK_MONOTONIC`, and what comes after it.
    next_ns: u64,
    search_ns: u64,
}

#[derive(Debug)]
struct FoundJvm {
    layout: BlockerLayout,
    heap: HeapLayout,
    klasses: KlassReader,
    /// `None`: it doesn't say who has its monitors.
    holders: Option<MonitorHolders>,
}

/// The blocker of a thread of a JVM, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NamedBlocker {
    /// A [`jvmprof_common::blocker::BlockerKind`] as `u64`.
    pub(super) kind: u64,
    pub(super) class: Option<Arc<str>>,
    /// The name of the thread that had the monitor.
    pub(super) holder: Option<Arc<str>>,
    /// The method that it was in while it had it, and this thread waited.
    pub(super) holder_method: Option<Arc<str>>,
}

impl Blockers {
    /// `has_owners`: the owners of monitors are asked for, too.
    pub(super) fn new(has_owners: bool) -> Self {
        let (jvms, holders, stacks) = Default::default();
        Self { has_owners, jvms, holders, stacks, unnamed: 0, silent: 0 }
    }

    /// Returns true if it is worth asking a JVM now where it keeps what its threads wait for.
    pub(super) fn wants(&self, key: ProcessKey, now_ns: u64) -> bool {
        match self.jvms.get(&key) {
            Some(jvm) => jvm.found.is_none() && now_ns >= jvm.next_ns,
            None => self.jvms.len() < MAX_JVMS,
        }
    }

    /// Has the kernel programs read blockers of a JVM, if it says where they are.
    pub(super) fn follow(
        &mut self,
        process: &Process,
        start_ns: u64,
        found: Option<JvmBlockers>,
        maps: &mut OffCpuMaps,
        now_ns: u64,
    ) {
        let jvm = self.jvms.entry(process.key).or_insert_with(|| BlockerJvm {
            pid: process.pid,
            found: None,
            searches: 0,
            next_ns: 0,
            search_ns: SECOND_NS / 4,
        });
        jvm.searches += 1;
        jvm.next_ns = now_ns + jvm.search_ns;
        jvm.search_ns = (jvm.search_ns * 2).min(MAX_SEARCH_NS);
        match found.and_then(|found| FoundJvm::new(process, start_ns, found)) {
            Some(found) => match set_layout(maps, process.pid, found.layout, self.has_owners) {
                Ok(()) => jvm.found = Some(found),
                Err(error) => {
                    tracing::warn!(pid = process.pid, %error, "what its threads wait for isn't read");
                }
            },
            None => self.silent += u64::from(jvm.searches == MAX_SEARCHES),
        }
    }

    /// Returns what a thread that still waits waits for, and the owner of a monitor that it enters.
    pub(super) fn inspect(&mut self, pid: u32, thread_pointer: u64, now_ns: u64) -> (Blocker, u64) {
        let jvm = self.jvms.values_mut().find(|jvm| jvm.pid == pid);
        let Some(jvm) = jvm.and_then(|jvm| jvm.found.as_mut()) else { return Default::default() };
        let (memory, layout) = (LiveMemory::new(pid), jvm.layout);
        let thread_pointer = Avma(thread_pointer);
        let blocker = find_blocker(&memory, thread_pointer, &layout).unwrap_or_default();
        let Some(holders) = jvm.holders.as_mut().filter(|_| self.has_owners) else { return (blocker, 0) };
        let entered = entered_monitor(&memory, thread_pointer, &layout);
        let EnteredMonitor { monitor, owner } = entered.unwrap_or_default();
        let is_anonymous = owner != 0 && !is_owner(owner);
        let object = is_anonymous.then(|| monitored_object(&memory, monitor, &layout)).flatten();
        let found = object.and_then(|object| holders.owner_by_lock_stack(object, now_ns));
        (blocker, found.unwrap_or(owner))
    }

    /// Returns a monitor that a thread which still waits has, and another one waits for; 0: none.
    pub(super) fn held_by(&self, maps: &OffCpuMaps, pid: u32, thread_pointer: u64, sp: u64) -> u64 {
        let jvm = self.jvms.values().find(|jvm| jvm.pid == pid);
        let jvm = jvm.and_then(|jvm| jvm.found.as_ref()).filter(|_| self.has_owners);
        let contended = jvm.and_then(|jvm| Some((jvm.layout, maps.contended_monitors(pid)?)));
        contended.map_or(0, |(layout, contended)| {
            held_monitor(&LiveMemory::new(pid), Avma(thread_pointer), sp, &layout, &contended)
        })
    }

    /// Keeps the whole stack of a sample whose thread has a monitor, for those that wait for it.
    pub(super) fn keep_holder(&mut self, key: ProcessKey, sample: &StackSample, stack: &NamedStack) {
        self.stacks.keep(key, sample, stack);
    }

    /// Names what a thread waited for, as far as what was read of it is valid, and returns the
    /// stack of the thread that had it, if it is known. `span`: the time of the wait, or of the
    /// part of it that the record is of. `began_ns`: when the wait began.
    pub(super) fn name(
        &mut self,
        key: ProcessKey,
        record: &WaitRecord,
        span: TimeSpan,
        began_ns: u64,
        now_ns: u64,
    ) -> (NamedBlocker, Option<NamedStack>) {
        let blocker = &record.blocker;
        let jvm = self.jvms.get_mut(&key).filter(|_| blocker.kind != 0);
        let Some((pid, jvm)) = jvm.and_then(|jvm| Some((jvm.pid, jvm.found.as_mut()?))) else {
            return Default::default();
        };
        let class = jvm.klasses.read(jvm.heap.klass_of(blocker.object), &jvm.heap, &LiveMemory::new(pid));
        self.unnamed += u64::from(class.is_none());
        let class = class.map(|class| Arc::clone(&class.name));
        let holders = jvm.holders.as_mut();
        let holder = holders.and_then(|it| it.holder(record.monitor_owner, began_ns, now_ns));
        let tid = holder.as_ref().and_then(|holder| holder.tid);
        let stack = tid.and_then(|tid| self.stacks.find(key, blocker.monitor, tid, span)).cloned();
        let method = stack.as_ref().and_then(|stack| method_of(&stack.frames));
        let holder = holder.map(|holder| self.label(holder.name));
        let holder_method = method.map(|method| self.label(method));
        (NamedBlocker { kind: blocker.kind, class, holder, holder_method }, stack)
    }

    /// Returns a label's value, of which a window has a limited number.
    fn label(&mut self, value: String) -> Arc<str> {
        let is_full = self.holders.len() >= MAX_HOLDERS && !self.holders.contains(&*value);
        let value: Arc<str> = if is_full { OTHER_HOLDERS.into() } else { value.into() };
        self.holders.insert(Arc::clone(&value));
        value
    }

    /// Returns how many blockers were read whose class isn't known.
    pub(super) const fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Returns how many JVMs don't say what their threads wait for.
    pub(super) const fn silent_jvms(&self) -> u64 {
        self.silent
    }

    /// Forgets JVMs that have ended, and what was read of threads.
    pub(super) fn begin_window(&mut self, live: &HashSet<ProcessKey>, maps: &mut OffCpuMaps, now_ns: u64) {
        self.holders.clear();
        self.stacks.begin_window(now_ns);
        let ended: Vec<u32> =
            self.jvms.extract_if(|key, _| !live.contains(key)).map(|(_, jvm)| jvm.pid).collect();
        let running: HashSet<u32> = self.jvms.values().map(|jvm| jvm.pid).collect();
        ended
            .into_iter()
            .filter(|pid| !running.contains(pid))
            .for_each(|pid| maps.remove_blocker_layout(pid));
        let found = self.jvms.values_mut().filter_map(|jvm| jvm.found.as_mut());
        found.filter_map(|jvm| jvm.holders.as_mut()).for_each(MonitorHolders::begin_window);
    }

    /// Forgets the JVM that a process has replaced.
    pub(super) fn exec(&mut self, pid: u32, maps: &mut OffCpuMaps) {
        if self.jvms.values().any(|jvm| jvm.pid == pid) {
            self.jvms.retain(|_, jvm| jvm.pid != pid);
            maps.remove_blocker_layout(pid);
        }
    }
}

fn set_layout(
    maps: &mut OffCpuMaps,
    pid: u32,
    layout: BlockerLayout,
    has_owners: bool,
) -> Result<(), SamplerError> {
    if has_owners {
        maps.follow_monitors(pid)?;
    }
    maps.set_blocker_layout(pid, layout)
}

impl FoundJvm {
    fn new(process: &Process, start_ns: u64, found: JvmBlockers) -> Option<Self> {
        // Code follows the headers that the image begins with. Paths wouldn't do: that of a process
        // with a root of its own is another one for this program, and a replaced file's changes.
        let is_behind = |it: &&Arc<MappedCode>| it.start >= found.image.0 && it.backing == Backing::File;
        let library = process.mappings.iter().filter(is_behind).min_by_key(|it| it.start)?;
        let ticks = start_ns / NS_PER_TICK;
        let current_thread = find_private_variable(process, library, found.current_thread, ticks)?;
        let layout = BlockerLayout { current_thread, ..found.layout };
        tracing::debug!(pid = process.pid, ?layout, "what its threads wait for is read");
        let has_namespace = process.inner_pid() != process.pid;
        let objects = found.names.map(|names| ThreadObjects::new(names, layout, found.heap.clone()));
        let (pid, collector) = (process.pid, layout.collector);
        let holders = |fields| MonitorHolders::new(pid, has_namespace, fields, collector, objects);
        let holders = found.owners.map(holders);
        Some(Self { layout, heap: found.heap, klasses: KlassReader::default(), holders })
    }
}
