//! Variables that the daemon sets before it loads the object: kernel field offsets and switches.
//!
//! They are read-only data to the verifier, so that a switch that is off removes its code.

macro_rules! global {
    ($name:ident, $read:ident) => {
        #[unsafe(no_mangle)]
        static $name: u32 = 0;

        #[inline(always)]
        pub fn $read() -> u32 {
            // SAFETY: the static is initialised and never written while programs run; volatile,
            // since the loader changes it behind the compiler's back.
            unsafe { core::ptr::read_volatile(&raw const $name) }
        }
    };
}

global!(TASK_GROUP_LEADER, task_group_leader);
global!(TASK_START_BOOTTIME, task_start_boottime);
global!(TASK_FLAGS, task_flags);
global!(TASK_TGID, task_tgid);
global!(TASK_MM, task_mm);
global!(TASK_FSBASE, task_fsbase);
global!(TASK_PID, task_pid);
global!(TASK_ON_CPU, task_on_cpu);
global!(TASK_STATE, task_state);
global!(TASK_SIGNAL, task_signal);
global!(TASK_THREAD_NODE, task_thread_node);
global!(SIGNAL_THREAD_HEAD, signal_thread_head);
global!(TASK_STACK, task_stack);
global!(TASK_RAN, task_ran);
global!(TASK_RUN_DELAY, task_run_delay);
global!(TASK_LAST_QUEUED, task_last_queued);
global!(TASK_GROUP_QUEUE, task_group_queue);
global!(QUEUE_THROTTLED, queue_throttled);
global!(QUEUE_CPU, queue_cpu);
global!(CPU_CLOCK, cpu_clock);
global!(SWITCH_CLOCK, switch_clock);
global!(FOLLOWED_MASK, followed_mask);
global!(TASK_COMM, task_comm);
global!(VMA_START, vma_start);
global!(VMA_END, vma_end);
global!(VMA_FLAGS, vma_flags);
global!(VMA_FILE, vma_file);
global!(AREA_LENGTH, area_length);
global!(FILTER, filter);
global!(WAKEUP_BYTES, wakeup_bytes);
global!(FIRST_PROBE_SLOT, first_probe_slot);
global!(THREAD_CONTEXT, thread_context);
global!(MONITOR_OWNERS, monitor_owners);
global!(THREAD_ENDS, thread_ends);
global!(LOG, log);
