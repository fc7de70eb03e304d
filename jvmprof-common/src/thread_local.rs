//! Thread-local variables of native code: where a thread has one, read from outside.
//!
//! Access models: U. Drepper, "ELF Handling For Thread-Local Storage".

use crate::address::Avma;

/// Where the threads of a process have a thread-local variable.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLocalVariable {
    /// [`crate::abi::SampleHeader::start_ns`] / [`crate::unwind_tables::NS_PER_TICK`]: an entry of
    /// an earlier process with the pid isn't used.
    pub start_ticks: u64,
    /// Distance from the thread pointer, or from the begin of the module's block; a negative one
    /// wraps.
    pub offset: u64,
    /// Number of the module in the thread's vector of blocks; 0: the variable lies at a constant
    /// distance from the thread pointer.
    pub module: u32,
    /// A value of [`DtvLayout`] as `u32`.
    pub dtv: u32,
}

/// The layout of a thread's vector of blocks (DTV), whose address is the second word at the thread
/// pointer.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtvLayout {
    /// Entries of 16 bytes, the number of which stands 16 bytes before the vector (glibc,
    /// sysdeps/generic/dl-dtv.h and elf/dl-tls.c).
    Glibc = 0,
    /// Entries of 8 bytes, the number of which is the first (musl, ldso/dynlink.c).
    Musl = 1,
}

impl DtvLayout {
    /// Returns bytes of an entry.
    #[inline(always)]
    pub const fn entry_bytes(dtv: u32) -> u64 {
        if dtv == Self::Musl as u32 { 8 } else { 16 }
    }

    /// Returns how far before the vector the number of its entries stands.
    #[inline(always)]
    pub const fn length_distance(dtv: u32) -> u64 {
        if dtv == Self::Musl as u32 { 0 } else { 16 }
    }
}

/// Reads a word of the process; `None` where there is no memory.
pub trait ReadWord {
    fn read_word(&self, address: Avma) -> Option<u64>;
}

/// Returns the thread's value of a thread-local variable; `None` if it hasn't used it yet.
#[inline(always)]
pub fn thread_local(
    memory: &impl ReadWord,
    thread_pointer: Avma,
    variable: &ThreadLocalVariable,
) -> Option<u64> {
    let base = if variable.module == 0 {
        thread_pointer
    } else {
        block_of_module(memory, thread_pointer, variable)?
    };
    memory.read_word(base.wrapping_add(variable.offset))
}

/// Returns the address of the thread's block of a module's variables; `None` if it hasn't used one
/// of them yet.
#[inline(always)]
fn block_of_module(memory: &impl ReadWord, thread: Avma, variable: &ThreadLocalVariable) -> Option<Avma> {
    /// `TLS_DTV_UNALLOCATED` of glibc (elf/dl-tls.c).
    const UNALLOCATED: u64 = u64::MAX;
    let vector = Avma(memory.read_word(thread + 8)?);
    let module = u64::from(variable.module);
    if memory.read_word(vector.wrapping_sub(DtvLayout::length_distance(variable.dtv)))? < module {
        return None;
    }
    let entry = vector.wrapping_add(module * DtvLayout::entry_bytes(variable.dtv));
    match memory.read_word(entry)? {
        0 | UNALLOCATED => None,
        block => Some(Avma(block)),
    }
}
