//! Reading the memory of the process that runs: helpers that read any user address without faulting
//! and report failure.

use aya_ebpf::helpers::{bpf_probe_read_user, bpf_probe_read_user_buf};
use jvmprof_common::{address::Avma, thread_local::ReadWord};

#[inline(always)]
pub fn read_word(address: Avma) -> Option<u64> {
    // SAFETY: the helper takes any address.
    unsafe { bpf_probe_read_user(address.0 as *const u64) }.ok()
}

#[inline(always)]
pub fn read_byte(address: Avma) -> Option<u8> {
    // SAFETY: as above.
    unsafe { bpf_probe_read_user(address.0 as *const u8) }.ok()
}

/// Fills `into`; returns false if not all of it can be read.
#[inline(always)]
pub fn read(address: Avma, into: &mut [u8]) -> bool {
    // SAFETY: as above.
    unsafe { bpf_probe_read_user_buf(address.0 as *const u8, into) }.is_ok()
}

/// The memory of the process that runs.
pub struct UserMemory;

impl ReadWord for UserMemory {
    #[inline(always)]
    fn read_word(&self, address: Avma) -> Option<u64> {
        read_word(address)
    }
}
