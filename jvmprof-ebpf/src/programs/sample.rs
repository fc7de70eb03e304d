//! The perf event program `sample`: the identity of what runs, in the kernel or in user code, and
//! the registers from which the walk starts.

use aya_ebpf::{
    EbpfContext,
    bindings::{bpf_perf_event_data, pt_regs},
    helpers::{
        bpf_get_current_task, bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_get_stack,
        bpf_ktime_get_ns, bpf_task_pt_regs,
    },
    macros::perf_event,
    programs::PerfEventContext,
};
use jvmprof_common::{
    abi::{Counter, Event, FLAG_KERNEL_MODE, MAX_KERNEL_FRAMES, SAMPLE_MAGIC, SampleHeader, Stop},
    address::StackAddress,
    unwind::{
        Cursor,
        breakpoint::{TrapRegisters, next_instruction},
    },
};

use crate::{
    counters::count,
    emit, process_filter,
    program_kind::{LEAF, ProgramKind},
    scratch::{self, Scratch, ScratchSlot},
    tables,
    task::Task,
    thread::blocker,
    user_memory::UserMemory,
};

/// Code segment selector of 64-bit user code (`__USER_CS`, Linux arch/x86/include/asm/segment.h).
const USER_CS: u64 = 0x33;

#[perf_event]
fn sample(ctx: PerfEventContext) -> u32 {
    let tgid = ctx.tgid();
    if ctx.pid() == 0 {
        count(Event::Cpu, Counter::Idle);
        return 0;
    }
    // SAFETY: no arguments; the helper returns the current task.
    let task = Task(unsafe { bpf_get_current_task() });
    let start_ns = task.process_start().unwrap_or(0);
    let slot = ScratchSlot::of_clock();
    let Some(scratch) = scratch::get(slot) else {
        count(Event::Cpu, Counter::UnwinderUnavailable);
        return 0;
    };
    scratch.slot = slot;
    // The daemon publishes only processes that are profiled, so that mostly one look-up does.
    if !find_process(scratch, tgid, start_ns) && !process_filter::is_profiled(tgid) {
        count(Event::Cpu, Counter::Filtered);
        return 0;
    }
    if process_filter::is_dropped(tgid, start_ns) {
        count(Event::Cpu, Counter::Dropped);
        return 0;
    }
    count(Event::Cpu, Counter::Taken);
    // SAFETY: the context of a perf event program is a bpf_perf_event_data that begins with the
    // interrupted registers.
    let interrupted = unsafe { &(*ctx.as_ptr().cast::<bpf_perf_event_data>()).regs };
    let in_kernel = interrupted.cs & 3 == 0;

    let flags = if in_kernel { FLAG_KERNEL_MODE } else { 0 };
    fill_header(scratch, &ctx, task, start_ns, flags);
    if in_kernel {
        kernel_stack(scratch, &ctx);
        if task.is_kernel_thread() {
            emit::finish::<PerfEventContext>(scratch, ctx.as_ptr(), Stop::KernelThread as u64);
            return 0;
        }
        if !task.has_memory() {
            emit::finish::<PerfEventContext>(scratch, ctx.as_ptr(), Stop::NoMemory as u64);
            return 0;
        }
        // SAFETY: both helpers take and return pointers that the kernel checks; the task is the
        // current one.
        let user = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const pt_regs;
        // SAFETY: a task that isn't a kernel thread has its user registers there.
        start(scratch, unsafe { &*user }, &ctx);
    } else {
        start(scratch, interrupted, &ctx);
    }
    0
}

/// Writes what is published of the process to [`Scratch::process`]; returns false if nothing is.
#[inline(always)]
pub fn find_process(scratch: &mut Scratch, tgid: u32, start_ns: u64) -> bool {
    let process = tables::process(tgid, start_ns);
    let is_published = process.is_some();
    // At once: kept for later, what a process that isn't published has none of would be read from
    // the stack all the same, where nothing was written. Kernels before 6.3 refuse that.
    scratch.is_published = u64::from(is_published);
    scratch.process = process.unwrap_or_default();
    is_published
}

/// Begins a sample. `flags`: those of [`SampleHeader::flags`].
#[inline(always)]
pub fn fill_header(scratch: &mut Scratch, ctx: &impl EbpfContext, task: Task, start_ns: u64, flags: u8) {
    scratch.used = 0;
    scratch.frames = 0;
    scratch.by_frame_pointer = 0;
    scratch.has_new_code = 0;
    scratch.frozen.entry = StackAddress(0);
    scratch.frozen.thawed_until = StackAddress(0);
    let header = &mut scratch.header;
    header.magic = SAMPLE_MAGIC;
    // SAFETY: helpers without arguments.
    header.time_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: as above.
    header.cpu = unsafe { bpf_get_smp_processor_id() };
    header.start_ns = start_ns;
    header.pid = ctx.tgid();
    header.tid = ctx.pid();
    header.comm = task.name().unwrap_or_default();
    header.tail_sp = 0;
    header.tail_fp = 0;
    header.head_words = 0;
    header.user_words = 0;
    header.tail_words = 0;
    header.flags = flags;
    header.tail_below = 0;
    header.far_words = 0;
    header.thread_pointer = 0;
    header.held_monitor = 0;
}

#[inline(always)]
fn kernel_stack(scratch: &mut Scratch, ctx: &PerfEventContext) {
    // SAFETY: the buffer is at least as long as the size given.
    let bytes = unsafe {
        bpf_get_stack(ctx.as_ptr(), scratch.words.as_mut_ptr().cast(), (MAX_KERNEL_FRAMES * 8) as u32, 0)
    };
    if bytes <= 0 {
        count(Event::Cpu, Counter::KernelStackUnreadable);
        return;
    }
    let frames = (bytes as u64 >> 3) & 0xff;
    scratch.header.head_words = frames as u16;
    scratch.used = frames;
}

/// Starts the walk from these registers.
#[inline(always)]
pub fn start<C: ProgramKind>(scratch: &mut Scratch, regs: &pt_regs, ctx: &C) {
    let header: &mut SampleHeader = &mut scratch.header;
    header.tail_sp = regs.rsp;
    header.tail_fp = regs.rbp;
    // A thread that the kernel started for the process, such as a worker of io_uring (Linux
    // arch/x86/kernel/process.c, `copy_thread`).
    if regs.rip == 0 && regs.rsp == 0 {
        emit::finish::<C>(scratch, ctx.as_ptr(), Stop::KernelThread as u64);
        return;
    }
    if regs.cs != USER_CS {
        emit::finish::<C>(scratch, ctx.as_ptr(), Stop::Not64Bit as u64);
        return;
    }
    scratch.header.held_monitor = blocker::held_by_current(scratch.header.pid, regs.rsp);
    let in_kernel = scratch.header.flags & FLAG_KERNEL_MODE != 0;
    let pc = if in_kernel { next_instruction(&UserMemory, trap_registers(regs)) } else { regs.rip };
    scratch.cursor = Cursor::interrupted(pc, regs.rsp, regs.rbp);
    keep_registers(&mut scratch.header, regs);
    ctx.tail_call(LEAF);
    emit::abandon::<C>(scratch.slot);
}

#[inline(always)]
fn trap_registers(regs: &pt_regs) -> TrapRegisters {
    let &pt_regs { rip: pc, rsp: sp, rbp, rbx, orig_rax, .. } = regs;
    TrapRegisters { pc, sp, rbp, rbx, orig_rax }
}

/// Keeps the registers in the order of their numbers in instruction encodings.
#[inline(always)]
fn keep_registers(header: &mut SampleHeader, regs: &pt_regs) {
    header.registers = [
        regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi, regs.r8, regs.r9,
        regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ];
}
