//! Code that is mapped where other code was: a library that was unloaded, and the next one at the
//! same address.

use aya_ebpf::{
    EbpfContext,
    helpers::bpf_probe_read_kernel,
    macros::{fentry, raw_tracepoint},
    programs::{FEntryContext, RawTracePointContext},
};

use jvmprof_common::address::Avma;

use crate::{globals, tables};

/// `VM_EXEC` of include/linux/mm.h.
const VM_EXEC: u64 = 4;

/// `perf_event_mmap(vma)`: the kernel calls it for each new mapping, and for one whose protection
/// has changed, before the process goes on. What the tables say of these addresses doesn't hold any
/// more then; until the daemon has published the process anew, it walks the stacks.
///
/// Runtimes map and protect their generated code all the time. That is anonymous memory, or lies
/// where the tables expect such code, and changes nothing.
#[fentry(function = "perf_event_mmap")]
fn new_mapping(ctx: FEntryContext) -> i32 {
    let vma = Vma(ctx.arg::<u64>(0));
    let tgid = ctx.tgid();
    if vma.is_code_of_file()
        && let (Some(start), Some(end)) = (vma.start(), vma.end())
        && tables::has_code_of_files(tgid, Avma(start), Avma(end))
    {
        tables::forget(tgid);
    }
    0
}

/// `vm_unmapped_area(address, info)`: the kernel has found free addresses for a new mapping. If the
/// tables speak of code there, that was unmapped. For kernels that don't take [`new_mapping`]: what
/// is mapped over other code, at an address of the process's choice, passes it by.
#[raw_tracepoint(tracepoint = "vm_unmapped_area")]
fn unmapped_area(ctx: RawTracePointContext) -> i32 {
    let start = ctx.arg::<u64>(0);
    let length = ctx.arg::<u64>(1) + u64::from(globals::area_length());
    let tgid = ctx.tgid();
    // The address is one of user space, unless it is an error's number.
    if start < 1 << 56
        && let Some(length) = read(length)
        && length != 0
        && tables::has_code_of_files(tgid, Avma(start), Avma(start.wrapping_add(length)))
    {
        tables::forget(tgid);
    }
    0
}

/// The address of a `vm_area_struct`.
#[derive(Clone, Copy)]
struct Vma(u64);

impl Vma {
    #[inline(always)]
    fn is_code_of_file(self) -> bool {
        self.read(globals::vma_flags()).unwrap_or(0) & VM_EXEC != 0
            && self.read(globals::vma_file()).unwrap_or(0) != 0
    }

    #[inline(always)]
    fn start(self) -> Option<u64> {
        self.read(globals::vma_start())
    }

    /// The first address after it.
    #[inline(always)]
    fn end(self) -> Option<u64> {
        self.read(globals::vma_end())
    }

    #[inline(always)]
    fn read(self, offset: u32) -> Option<u64> {
        read(self.0 + u64::from(offset))
    }
}

#[inline(always)]
fn read(address: u64) -> Option<u64> {
    // SAFETY: the helper reads any kernel address without faulting and reports failure.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}
