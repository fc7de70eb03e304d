//! A look at a thread that waits and doesn't come back: where its user code was when it entered the
//! kernel.

use aya_ebpf::{
    bindings::pt_regs,
    helpers::{bpf_get_current_task, bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_task_pt_regs},
    macros::{map, raw_tracepoint},
    maps::Array,
    programs::RawTracePointContext,
};
use jvmprof_common::off_cpu::WaitingThread;

use super::off_cpu::FOLLOWED_THREADS;
use crate::task::Task;

const _: () = assert!(size_of::<pt_regs>() == 21 * 8);

#[map]
static WAITING: Array<WaitingThread> = Array::with_max_entries(1, 0);

/// Fills [`WAITING`]. It belongs to no tracepoint: `BPF_PROG_TEST_RUN` runs it.
#[raw_tracepoint]
fn look_at_waiting(_: RawTracePointContext) -> i32 {
    if let Some(waiting) = WAITING.get_ptr_mut(0) {
        // SAFETY: the daemon waits for this program before it looks.
        let waiting = unsafe { &mut *waiting };
        waiting.is_waiting = u32::from(look(waiting).is_some());
    }
    0
}

#[inline(always)]
fn look(waiting: &mut WaitingThread) -> Option<()> {
    // SAFETY: the values are read one by one, and looked at again below.
    let thread = unsafe { FOLLOWED_THREADS.get(waiting.tid) }?;
    let (task, since) = (Task(thread.task), thread.since_ns);
    waiting.since_ns = since;
    waiting.pid = thread.pid;
    waiting.state = thread.state;
    waiting.comm = task.name()?;
    waiting.process_start_ns = task.process_start()?;
    waiting.thread_pointer = task.thread_pointer()?.0;
    // All kernel stacks have the registers at the same place, which depends on the kernel's
    // configuration: it is where this thread has its own.
    // SAFETY: no arguments; the helper returns the current task.
    let own = Task(unsafe { bpf_get_current_task() });
    // SAFETY: both helpers take and return pointers that the kernel checks.
    let own_registers = number_of(waiting, unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64);
    let offset = own_registers.wrapping_sub(own.kernel_stack()?);
    let registers = task.kernel_stack()?.wrapping_add(offset) as *const [u64; 21];
    // SAFETY: the helper reads any kernel address without faulting and reports failure.
    waiting.registers = unsafe { bpf_probe_read_kernel(registers) }.ok()?;
    // The structure may be another thread's by now, and the thread may have gone on.
    let is_same = task.tid() == Some(waiting.tid) && task.start() == Some(thread.start_ns);
    (is_same && since != 0 && thread.since_ns == since).then_some(())
}

/// Returns the address that a pointer has: the verifier lets nobody calculate with pointers of its
/// own, but with what was written and read again.
#[inline(always)]
fn number_of(waiting: &mut WaitingThread, pointer: u64) -> u64 {
    let place = &raw mut waiting.registers[0];
    // SAFETY: the place is there, and nobody else uses it meanwhile.
    unsafe {
        place.write_volatile(pointer);
        place.read_volatile()
    }
}
