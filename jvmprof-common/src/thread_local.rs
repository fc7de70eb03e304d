//! Thread-local variables of native code: where a thread has one, read from outside.
//!
//! Access models: U. Drepper, "ELF Handling For Thread-Local Storage".

use crate::address::Avma;

/// Location of a thread-local variable in the threads of a process.
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

    /// Reads two words, the second of which lies after the first in the same piece of memory; an
    /// implementation to which a read costs more than its length may read what is between them.
    #[inline(always)]
    fn read_ends(&self, first: Avma, last: Avma) -> Option<[u64; 2]> {
        Some([self.read_word(first)?, self.read_word(last)?])
    }
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
    let length = vector.wrapping_sub(DtvLayout::length_distance(variable.dtv));
    let entry = vector.wrapping_add(module * DtvLayout::entry_bytes(variable.dtv));
    match memory.read_ends(length, entry)? {
        // An entry beyond the vector is other memory.
        [length, _] if length < module => None,
        [_, 0 | UNALLOCATED] => None,
        [_, block] => Some(Avma(block)),
    }
}

#[cfg(test)]
pub(crate) mod testing {
    extern crate std;

    use std::collections::HashMap;

    use super::ReadWord;
    use crate::address::Avma;

    /// Words of memory by address.
    pub(crate) struct Words(pub(crate) HashMap<u64, u64>);

    impl ReadWord for Words {
        fn read_word(&self, address: Avma) -> Option<u64> {
            self.0.get(&address.0).copied()
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;

    use super::testing::Words;
    use super::*;

    const THREAD: Avma = Avma(0x1000);
    const VECTOR: u64 = 0x2000;

    fn variable(module: u32, dtv: DtvLayout) -> ThreadLocalVariable {
        ThreadLocalVariable { start_ticks: 1, offset: 0x28, module, dtv: dtv as u32 }
    }

    fn value(variable: ThreadLocalVariable, words: &[(u64, u64)]) -> Option<u64> {
        let words: HashMap<u64, u64> = words.iter().copied().chain([(0x3028, 7)]).collect();
        thread_local(&Words(words), THREAD, &variable)
    }

    #[test]
    fn a_variable_lies_at_the_thread_pointer_or_in_the_block_of_its_module() {
        let offset = 0x10_u64.wrapping_neg();
        let in_static_block = ThreadLocalVariable { offset, ..variable(0, DtvLayout::Glibc) };
        assert_eq!(value(in_static_block, &[(0xff0, 9)]), Some(9));
        let glibc = [(0x1008, VECTOR), (VECTOR - 16, 3), (VECTOR + 3 * 16, 0x3000)];
        assert_eq!(value(variable(3, DtvLayout::Glibc), &glibc), Some(7));
        let musl = [(0x1008, VECTOR), (VECTOR, 3), (VECTOR + 3 * 8, 0x3000)];
        assert_eq!(value(variable(3, DtvLayout::Musl), &musl), Some(7));
    }

    #[test]
    fn a_thread_that_has_no_block_of_the_module_has_no_variable() {
        for (length, block) in [(2, 0x3000), (3, 0), (3, u64::MAX)] {
            let words = [(0x1008, VECTOR), (VECTOR - 16, length), (VECTOR + 3 * 16, block)];
            assert_eq!(value(variable(3, DtvLayout::Glibc), &words), None, "{length} {block:x}");
        }
        for missing in [0x1008, VECTOR - 16, VECTOR + 3 * 16] {
            let mut words = [(0x1008, VECTOR), (VECTOR - 16, 3), (VECTOR + 3 * 16, 0x3000)].to_vec();
            words.retain(|(address, _)| *address != missing);
            assert_eq!(value(variable(3, DtvLayout::Glibc), &words), None, "{missing:x}");
        }
    }
}
