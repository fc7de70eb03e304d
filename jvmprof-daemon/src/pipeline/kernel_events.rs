//! Dispatches each kernel event to the parts of the pipeline. The order of events is that of
//! `sampler::rings::event_order`.

use super::State;
use crate::process::MappedCode;
use crate::process::executable_mappings::is_hotspot;
use crate::process::process_table::mapped_code;
use crate::sampler::{KernelEvent, KernelEventKind};
use crate::symbolize::Deadline;

impl State {
    pub(super) fn handle_kernel_event(&mut self, event: KernelEvent) {
        match event.kind {
            KernelEventKind::Sample(sample) => self.sample(sample),
            KernelEventKind::Tlab(tlab) => {
                if let Some(allocation) = &mut self.followers.allocation {
                    allocation.count_tlab(&tlab);
                }
            }
            KernelEventKind::Pause(record) => {
                if let Some(pauses) = &mut self.followers.pauses {
                    pauses.record(&record);
                }
            }
            KernelEventKind::Exec { pid, comm } => self.handle_exec(pid, &comm, event.time_ns),
            KernelEventKind::ThreadName { pid, tid, comm } => {
                self.table.thread_name(pid, tid, &comm);
                self.targets.changed(pid);
            }
            KernelEventKind::Fork { pid, parent } => {
                // An ended process may have had the pid.
                self.complete_pending_of(pid);
                self.table.fork(pid, parent);
            }
            KernelEventKind::Exit { pid, tid } => self.handle_exit(pid, tid, event.time_ns),
            KernelEventKind::Map { pid, mapping } => {
                let code = mapped_code(
                    pid,
                    mapping.start,
                    mapping.length,
                    mapping.offset,
                    &mapping.path,
                    mapping.build_id,
                );
                self.handle_mapping(pid, code, event.time_ns);
            }
            KernelEventKind::EventsLost => self.table.invalidate_all(),
        }
    }

    /// Ends what is known of a process's program, since it runs another one now.
    fn handle_exec(&mut self, pid: u32, comm: &str, time_ns: u64) {
        self.complete_pending_of(pid);
        self.end_sums_of(pid);
        self.end_awaited_jvm(pid);
        self.table.exec(pid, comm, time_ns);
        if let Some(contexts) = &mut self.thread_contexts {
            contexts.exec(pid);
        }
        if let Some(off_cpu) = &mut self.off_cpu {
            off_cpu.exec(pid);
        }
        if let Some(pauses) = &mut self.followers.pauses {
            pauses.exec(pid, time_ns);
        }
        self.targets.ended(pid);
    }

    /// Ends a thread, and with the first one its process.
    fn handle_exit(&mut self, pid: u32, tid: u32, time_ns: u64) {
        self.table.exit(pid, tid);
        if let Some(allocation) = &mut self.followers.allocation {
            allocation.thread_ended(pid, tid);
        }
        if pid != tid {
            return;
        }
        self.end_sums_of(pid);
        self.end_awaited_jvm(pid);
        self.targets.ended(pid);
        if let Some(pauses) = &mut self.followers.pauses {
            pauses.exited(pid, time_ns);
        }
    }

    /// Adds code that a process has mapped. If it takes the place of other code, stacks that wait
    /// are completed before.
    fn handle_mapping(&mut self, pid: u32, code: MappedCode, time_ns: u64) {
        if self.table.replaces_file_code(pid, time_ns, &code) {
            tracing::debug!(pid, path = &*code.path, start = ?code.start, "code takes the place of other code");
            self.complete_pending_of(pid);
            if let Some(process) = self.table.get(pid) {
                self.symbolizer.record_code_replaced(process.key, &code, time_ns);
            }
        }
        let is_jvm = is_hotspot(&code);
        self.table.insert_mapping(pid, time_ns, code);
        self.targets.changed(pid);
        if is_jvm {
            self.await_mapped_jvm(pid);
        }
    }

    /// Reads no more sums of a JVM's pauses: its memory is another program's, or nobody's.
    fn end_sums_of(&mut self, pid: u32) {
        if let Some(process) = self.table.get(pid) {
            self.followers.summed_jvms.ended(process.key);
        }
    }

    /// Completes the pending samples of a process, since its code is about to change.
    pub(super) fn complete_pending_of(&mut self, pid: u32) {
        if self.pending.len() == 0 {
            return;
        }
        for sample in self.pending.take(|_, of| of.header.pid == pid) {
            self.process_sample(sample, Deadline::Expired);
        }
    }
}
