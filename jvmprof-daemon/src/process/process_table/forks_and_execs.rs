//! Forks and execs, by which processes begin: an entry is a program in a process, so that an exec,
//! seen or not, begins another one.

use std::sync::Arc;

use super::{Process, ProcessTable, empty_process};
use crate::process::ProcessKey;

/// Maximum number of replaced programs that are kept until the window's end, and maximum memory of
/// their mappings in bytes.
const MAX_REPLACED: usize = 256;
const MAX_REPLACED_BYTES: usize = 4 << 20;

impl ProcessTable {
    /// Records an exec, whose mappings follow as events. `time_ns`: of `CLOCK_MONOTONIC`.
    pub fn exec(&mut self, pid: u32, comm: &str, time_ns: u64) {
        let before = self.by_pid.remove(&pid);
        let start_ns = before.as_ref().and_then(|process| process.start_ns);
        let cgroup = before.as_ref().and_then(Process::cgroup).cloned().map(Arc::new);
        let mut process = self.new_process(pid, comm);
        process.inherited_cgroup = cgroup;
        // Exec keeps the start time. Other information of `/proc` is read again.
        process.start_ns = start_ns;
        process.exec_ns = Some(time_ns);
        self.by_pid.insert(pid, process);
        self.keep_replaced(before);
    }

    /// Records a fork: a child begins with its parent's mappings. A child of an unknown parent is
    /// read when it is sampled.
    pub fn fork(&mut self, pid: u32, parent: u32) {
        let before = self.by_pid.remove(&pid);
        self.keep_replaced(before);
        let Some(parent) = self.by_pid.get(&parent).filter(|parent| !parent.needs_maps) else { return };
        let (comm, mappings) = (parent.comm.clone(), parent.mappings.clone());
        let cgroup = parent.cgroup().cloned().map(Arc::new);
        let info = parent.info.clone();
        let mut process = self.new_process(pid, &comm);
        process.inherited_cgroup = cgroup;
        process.inherited_info = info;
        process.mappings = mappings;
        self.by_pid.insert(pid, process);
    }

    /// Invalidates every process, which is read again at its next sample, since events were lost.
    pub fn invalidate_all(&mut self) {
        for process in self.by_pid.values_mut() {
            process.needs_maps = true;
            process.needs_info = true;
        }
    }

    /// Keeps a program in whose place another one has begun, if it was sampled: its frames may wait
    /// for their names.
    fn keep_replaced(&mut self, before: Option<Process>) {
        let Some(process) = before.filter(|process| !process.needs_info) else { return };
        let kept: usize = self.replaced.iter().map(|process| process.mappings.bytes()).sum();
        if self.replaced.len() < MAX_REPLACED && kept + process.mappings.bytes() <= MAX_REPLACED_BYTES {
            self.replaced.push(Process { is_replaced: true, ..process });
        }
    }
}

impl Process {
    /// Begins another program, whose exec wasn't seen: nothing holds any more but what was just
    /// read of it.
    pub(super) fn begin_program(&mut self, key: ProcessKey) {
        let before = std::mem::replace(self, empty_process(self.pid));
        self.key = key;
        self.start_ns = before.start_ns;
        self.comm = before.comm;
        self.info = before.info;
        self.inherited_cgroup = before.inherited_cgroup;
        (self.needs_info, self.needs_maps) = (false, true);
    }
}
