//! Names of the kernel's own code, from the kernel itself: the daemon runs this program for an
//! address that it has no name of.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_get_stack, generated::bpf_snprintf},
    macros::{map, raw_tracepoint},
    maps::Array,
    programs::RawTracePointContext,
};
use jvmprof_common::abi::{KERNEL_NAME_BYTES, KERNEL_NAMES, KernelName};

#[map]
static NAMES: Array<[KernelName; KERNEL_NAMES]> = Array::with_max_entries(1, 0);

/// The name, where in it, how long it is, and of which module (Linux
/// Documentation/core-api/printk-formats.rst).
static FORMAT: [u8; 4] = *b"%pS\0";

/// Names the first addresses of [`NAMES`], as many as its argument is. It belongs to no
/// tracepoint: `BPF_PROG_TEST_RUN` runs it.
#[raw_tracepoint]
fn kernel_names(ctx: RawTracePointContext) -> i32 {
    let Some(names) = NAMES.get_ptr_mut(0) else {
        return 0;
    };
    let count = ctx.arg::<u64>(0);
    for index in 0..KERNEL_NAMES {
        if index as u64 >= count {
            break;
        }
        // SAFETY: the index is within the value, and the daemon waits for this program before it
        // looks.
        let name = unsafe { &mut (*names)[index] };
        let mut address = name.address;
        if address == 0 {
            // SAFETY: the context is this program's, and the buffer holds one address.
            unsafe { bpf_get_stack(ctx.as_ptr(), (&raw mut address).cast(), 8, 0) };
        }
        // SAFETY: the text is that long, the format ends in a zero and takes one argument of eight
        // bytes.
        name.length = unsafe {
            bpf_snprintf(
                name.text.as_mut_ptr().cast(),
                KERNEL_NAME_BYTES as u32,
                FORMAT.as_ptr().cast(),
                &raw mut address,
                8,
            )
        };
    }
    0
}
