//! Holders of the monitors that threads of JVMs wait for.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jvmprof_common::held_monitor::is_owner;
use jvmprof_common::jvm::GarbageCollector;
use jvmprof_common::unwind_tables::NS_PER_TICK;
use nix::time::{ClockId, clock_gettime};

use crate::clock::monotonic_ns;
use crate::hotspot::java_heap::{ThreadObject, ThreadObjects};
use crate::hotspot::{LiveMemory, OwnerFields, OwnerThread, monitor_owner};
use crate::types::Avma;

/// Shortest interval of reading the threads of one JVM.
const THREADS_NS: u64 = 50_000_000;
/// The name that virtual threads are given: many have none of their own.
const VIRTUAL: &str = "[virtual thread]";

/// The thread that has a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MonitorHolder {
    /// Its id in the initial pid namespace; `None` for a virtual thread.
    pub(super) tid: Option<u32>,
    pub(super) name: String,
}

/// The threads of one JVM that may have its monitors.
#[derive(Debug)]
pub(super) struct MonitorHolders {
    pid: u32,
    /// Its pid in its own namespace is another one.
    has_namespace: bool,
    fields: OwnerFields,
    collector: GarbageCollector,
    /// Its threads, and when they were read.
    threads: Vec<OwnerThread>,
    read_ns: u64,
    /// Owners by the objects in their lock stacks, once they were asked for.
    by_object: Option<HashMap<u64, u64>>,
    /// Its threads' folders in `/proc`, by their ids in its own namespace.
    tasks: HashMap<u32, PathBuf>,
    /// When the threads were read for which these were: a process states any ids, and each that
    /// isn't there would have all folders read again.
    tasks_read_ns: Option<u64>,
    /// `None`: it doesn't say where the objects of threads have their names.
    objects: Option<ThreadObjects>,
    /// What these say, by the address of the `JavaThread`; `None` of those that can't be read.
    known_objects: HashMap<Avma, Option<ThreadObject>>,
}

impl MonitorHolders {
    pub(super) fn new(
        pid: u32,
        has_namespace: bool,
        fields: OwnerFields,
        collector: GarbageCollector,
        objects: Option<ThreadObjects>,
    ) -> Self {
        Self {
            pid,
            has_namespace,
            fields,
            collector,
            threads: Vec::new(),
            read_ns: 0,
            by_object: None,
            tasks: HashMap::new(),
            tasks_read_ns: None,
            objects,
            known_objects: HashMap::new(),
        }
    }

    /// Returns the thread that had a monitor with this owner at `began_ns`, when the wait for it
    /// began, in ns of `CLOCK_MONOTONIC`. One that wasn't there then has only its place in memory.
    pub(super) fn holder(&mut self, owner: u64, began_ns: u64, now_ns: u64) -> Option<MonitorHolder> {
        if !is_owner(owner) {
            return None;
        }
        self.read_threads(now_ns);
        let thread = *monitor_owner(owner, &self.threads)?;
        let task = self.task(thread.tid)?;
        let age = age_of(&task);
        let was_there = age.is_some_and(|age| was_there(age, began_ns, monotonic_ns()));
        if thread.is_virtual.filter(|_| was_there)? {
            return Some(MonitorHolder { tid: None, name: VIRTUAL.to_owned() });
        }
        let object = self.object(&thread);
        // The virtual thread that it carried then has left it since.
        if self.fields.has_carriers_as_owners() && object.as_ref().is_none_or(|object| object.is_carrier) {
            return None;
        }
        let tid = task.file_name()?.to_str()?.parse().ok()?;
        let name = object.and_then(|object| object.name).or_else(|| kernel_name(&task))?;
        Some(MonitorHolder { tid: Some(tid), name })
    }

    /// Returns what the object of a thread says; `None` if that can't be read now.
    fn object(&mut self, thread: &OwnerThread) -> Option<ThreadObject> {
        let objects = self.objects.as_mut()?;
        let (fields, memory) = (&self.fields, LiveMemory::new(self.pid));
        let known = self.known_objects.entry(thread.address).or_insert_with(|| {
            let object = objects.read(thread.address, &memory);
            // Another thread may have begun there since the threads were read.
            object.filter(|_| fields.is_still(thread, &memory))
        });
        known.clone()
    }

    /// Returns the owner of the monitor of an object that doesn't say it, as another one would.
    pub(super) fn owner_by_lock_stack(&mut self, object: Avma, now_ns: u64) -> Option<u64> {
        self.read_threads(now_ns);
        let (fields, threads, memory) = (&self.fields, &self.threads, LiveMemory::new(self.pid));
        let by_object = self.by_object.get_or_insert_with(|| fields.owners_by_lock_stack(threads, &memory));
        by_object.get(&object.0).copied()
    }

    /// Forgets what was read.
    pub(super) fn begin_window(&mut self) {
        self.threads = Vec::new();
        self.by_object = None;
        self.tasks = HashMap::new();
        self.tasks_read_ns = None;
        self.known_objects = HashMap::new();
        self.read_ns = 0;
    }

    fn read_threads(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.read_ns) >= THREADS_NS {
            self.read_ns = now_ns;
            let memory = LiveMemory::new(self.pid);
            self.threads = self.fields.threads(&self.collector, &memory).unwrap_or_default();
            self.by_object = None;
            self.known_objects.clear();
        }
    }

    /// Returns the folder of a thread in `/proc`. `inner_tid`: in its own pid namespace.
    fn task(&mut self, inner_tid: u32) -> Option<PathBuf> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid));
        if !self.has_namespace {
            return Some(tasks.join(inner_tid.to_string()));
        }
        // A thread that has ended leaves its id to another one.
        let is_known = self.tasks.get(&inner_tid).is_some_and(|task| inner_tid_of(task) == Some(inner_tid));
        if !is_known && self.tasks_read_ns == Some(self.read_ns) {
            return None;
        }
        if !is_known {
            self.tasks_read_ns = Some(self.read_ns);
            let entries = fs::read_dir(tasks).ok()?.filter_map(Result::ok).map(|task| task.path());
            self.tasks = entries.filter_map(|task| Some((inner_tid_of(&task)?, task))).collect();
        }
        self.tasks.get(&inner_tid).cloned()
    }
}

/// Returns a thread's name as the kernel keeps it.
fn kernel_name(task: &Path) -> Option<String> {
    // The kernel may have cut a character in two.
    Some(String::from_utf8_lossy(&fs::read(task.join("comm")).ok()?).trim_end().to_owned())
}

fn inner_tid_of(task: &Path) -> Option<u32> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}

/// Returns true if a thread of this age was surely there when a wait began. Both times are in ns of
/// `CLOCK_MONOTONIC`, and `now_ns` isn't before the time of the age.
fn was_there(age: Duration, began_ns: u64, now_ns: u64) -> bool {
    // The age counts from the begin of the tick in which the thread was started.
    let since_wait_began = Duration::from_nanos(now_ns.saturating_sub(began_ns));
    age >= since_wait_began + Duration::from_nanos(NS_PER_TICK)
}

/// Returns how long a thread has been there, or up to a tick of the clock more.
fn age_of(task: &Path) -> Option<Duration> {
    // proc_pid_stat(5): the 22nd field, of which the second may have anything in it.
    const START_AFTER_NAME: usize = 19;
    let stat = fs::read(task.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, after_name) = stat.rsplit_once(") ")?;
    let ticks: u64 = after_name.split(' ').nth(START_AFTER_NAME)?.parse().ok()?;
    let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    Some(now.saturating_sub(Duration::from_nanos(ticks.saturating_mul(NS_PER_TICK))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_was_there_when_the_wait_began_is_believed() {
        const SECOND: u64 = 1_000_000_000;
        // A wait of one second that began five seconds ago.
        let (began_ns, now_ns) = (100 * SECOND, 105 * SECOND);
        let since_wait_began = Duration::from_secs(5);
        let tick = Duration::from_nanos(NS_PER_TICK);
        let nanosecond = Duration::from_nanos(1);
        for (age, expected, why) in [
            (Duration::from_secs(60), true, "it was"),
            (since_wait_began + tick, true, "it began in the tick before"),
            (since_wait_began + tick - nanosecond, false, "it began in the same tick"),
            (since_wait_began, false, "it began with the wait"),
            (Duration::from_secs(2), false, "it is older than the wait is long, and came after it"),
            (Duration::ZERO, false, "it is new"),
        ] {
            assert_eq!(was_there(age, began_ns, now_ns), expected, "{why}");
        }
    }

    #[test]
    fn a_threads_folder_is_found_in_any_namespace_and_says_how_old_it_is() {
        std::thread::sleep(Duration::from_millis(30));
        let tid = nix::unistd::gettid().as_raw().cast_unsigned();
        for has_namespace in [false, true] {
            let fields = OwnerFields::for_tests();
            let (pid, collector) = (std::process::id(), GarbageCollector::default());
            let mut holders = MonitorHolders::new(pid, has_namespace, fields, collector, None);
            let task = holders.task(tid).expect("this thread");
            let age = age_of(&task).expect("its start");
            assert!(age < Duration::from_secs(3600) && task.ends_with(tid.to_string()), "{age:?}");
            assert!(kernel_name(&task).is_some_and(|name| !name.is_empty()));
        }
        assert_eq!(inner_tid_of(Path::new("/proc/self/task/none")), None);
    }
}
