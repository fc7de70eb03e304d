//! The process as the steppers see it from here: its memory by helpers of the kernel, pieces of it
//! in [`Copies`], registers from the sample's header, and subprograms as global functions.

mod subprograms;

use aya_ebpf::helpers::bpf_get_current_task;
use jvmprof_common::{
    abi::Stop,
    address::{Avma, StackAddress},
    hotspot_subprograms,
    jvm::Jvm,
    rows::Register,
    unwind::{
        Memory, WindowSource,
        hotspot::{
            CodeBlob, HotspotTarget,
            cached_frames::Nmethod,
            code_blobs::{HEADER_BYTES, HEADER_WORDS, SHORT_HEADER_BYTES},
            compiled::{
                c1_pushed_words::ArrayCopyState,
                instructions::{CODE_BYTES, LoadedCode},
            },
            continuation::stack_chunk::ChunkBounds,
            frame_layout::FrameLayout,
            method_identity::MethodIdentity,
        },
        memory::{WINDOW_BYTES, WINDOW_WORDS},
    },
    unwind_tables::PackedRule,
    verifier::{BarrierVar, Scalar, bounded},
};

use crate::{
    scratch::{
        BLOCK_WORDS, Copies, ScratchSlot,
        unwind_cache::{self, CachedNmethod, NMETHODS},
    },
    tables,
    task::Task,
    user_memory::{read, read_byte, read_word},
};
use subprograms::{calls, identify_method, refill_window};

/// The process as the current frame's step sees it.
pub struct FrameTarget<'a> {
    pub slot: ScratchSlot,
    pub copies: *mut Copies,
    pub barrier_var: &'a mut BarrierVar,
    /// Registers of the interrupted frame; `None` once it is left.
    pub registers: Option<&'a [u64; 16]>,
    /// The address that the JVM's own table counts from.
    pub code_start: u64,
    /// Gets the rule of a stub.
    pub rule: &'a mut PackedRule,
    pub nmethods: &'a mut [CachedNmethod; NMETHODS],
    pub epoch: u32,
}

/// A [`FrameTarget`] over the scratch memory.
macro_rules! frame_target {
    ($scratch:ident, $copies:ident, $registers:expr, $code_start:expr) => {
        $crate::walk::target::FrameTarget {
            slot: $scratch.slot,
            copies: $copies,
            barrier_var: &mut $scratch.barrier_var,
            registers: $registers,
            code_start: $code_start,
            rule: &mut $scratch.rule,
            nmethods: &mut $scratch.unwind_cache.nmethods,
            epoch: $scratch.process.epoch,
        }
    };
}
pub(crate) use frame_target;

/// The methods that both targets share.
macro_rules! shared_methods {
    () => {
        #[inline(always)]
        fn read_u8(&mut self, address: Avma) -> Option<u8> {
            read_byte(address)
        }

        #[inline(always)]
        fn load_header(&mut self, address: Avma) -> bool {
            load_header(self.copies(), address)
        }

        #[inline(always)]
        fn header_word(&self, index: usize) -> u64 {
            // SAFETY: the index is in range.
            unsafe { (*self.copies()).header[index & (HEADER_WORDS - 1)] }
        }

        #[inline(always)]
        fn load_code(&mut self, address: Avma) -> bool {
            load_code(self.copies(), address)
        }

        #[inline(always)]
        fn code(&self) -> &LoadedCode {
            // SAFETY: the code stays as it is until it is loaded again.
            unsafe { &(*self.copies()).code }
        }

        hotspot_subprograms!(calls);
    };
}

impl FrameTarget<'_> {
    #[inline(always)]
    const fn copies(&self) -> *mut Copies {
        self.copies
    }

    #[inline(always)]
    const fn slot(&self) -> ScratchSlot {
        self.slot
    }
}

impl Memory for FrameTarget<'_> {
    #[inline(always)]
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        // SAFETY: the reference ends before anything else uses the copies.
        if let Some(word) = unsafe { (*self.copies).window.get(address) } {
            return Some(word);
        }
        if refill_window(self.slot.to_argument(), address.0) == 0 {
            return None;
        }
        // SAFETY: as above.
        Some(unsafe { (*self.copies).window.first() })
    }

    #[inline(always)]
    fn read_object(&mut self, address: Avma) -> Option<u64> {
        read_word(address)
    }

    #[inline(always)]
    fn register(&self, register: Register) -> Option<u64> {
        self.registers.map(|registers| registers[usize::from(register.0) & 15])
    }

    #[inline(always)]
    fn thread_pointer(&self) -> Option<Avma> {
        // SAFETY: no arguments; the helper returns the current task.
        Task(unsafe { bpf_get_current_task() }).thread_pointer()
    }
}

impl HotspotTarget for FrameTarget<'_> {
    type Row = PackedRule;

    shared_methods!();

    #[inline(always)]
    fn read_pair(&mut self, byte: Avma, word: Avma) -> Option<(u8, u64)> {
        let distance = word.offset_from(byte);
        if distance > (BLOCK_WORDS * 8 - 8) as u64 || !distance.is_multiple_of(4) {
            return Some((read_byte(byte)?, read_word(word)?));
        }
        // SAFETY: nobody else uses the copies meanwhile.
        let block = unsafe { &mut (*self.copies).block };
        let bytes = bounded::<{ BLOCK_WORDS * 8 }>(distance as usize + 8);
        // SAFETY: `bytes` is within the words.
        let into = unsafe { core::slice::from_raw_parts_mut(block.as_mut_ptr().cast::<u8>(), bytes) };
        if !read(byte, into) {
            return None;
        }
        let found = block[self.barrier_var.opaque(distance >> 3) as usize & (BLOCK_WORDS - 1)];
        Some((block[0] as u8, found >> ((distance & 4) << 3)))
    }

    #[inline(always)]
    fn identify_method(&mut self, method: Avma, is_entered: bool, _: &Jvm) -> Option<MethodIdentity> {
        if identify_method(self.slot.to_argument(), method.0, u64::from(is_entered)) == 0 {
            return None;
        }
        // SAFETY: nobody writes the copies meanwhile.
        Some(unsafe { (*self.copies).method })
    }

    #[inline(always)]
    fn cached_nmethod(&mut self, address: Avma, into: &mut Nmethod) -> bool {
        unwind_cache::get_nmethod(self.nmethods, self.barrier_var, self.epoch, address, into)
    }

    #[inline(always)]
    fn stub_row(&mut self, table: u32, address: Avma) -> Option<PackedRule> {
        let rule = *tables::row(self.slot, table, address.0.wrapping_sub(self.code_start))?;
        *self.rule = rule;
        Some(rule)
    }
}

/// The process as subprograms see it: without the window and without registers.
pub struct SubprogramTarget {
    pub slot: ScratchSlot,
    pub copies: *mut Copies,
}

impl SubprogramTarget {
    #[inline(always)]
    const fn copies(&self) -> *mut Copies {
        self.copies
    }

    #[inline(always)]
    const fn slot(&self) -> ScratchSlot {
        self.slot
    }
}

impl Memory for SubprogramTarget {
    #[inline(always)]
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        read_word(address.avma())
    }
}

impl HotspotTarget for SubprogramTarget {
    type Row = PackedRule;

    shared_methods!();

    #[inline(always)]
    fn stub_row(&mut self, _: u32, _: Avma) -> Option<PackedRule> {
        None
    }
}

/// Copies a blob's header to [`Copies::header`].
#[inline(always)]
fn load_header(copies: *mut Copies, address: Avma) -> bool {
    // SAFETY: nobody else uses the copies meanwhile.
    let header = unsafe { &mut (*copies).header };
    if read(address, bytes_of(header, HEADER_BYTES)) {
        return true;
    }
    // The last blob of a heap may be shorter than an nmethod's header.
    read(address, bytes_of(header, SHORT_HEADER_BYTES))
}

/// Copies code to [`Copies::code`].
#[inline(always)]
fn load_code(copies: *mut Copies, address: Avma) -> bool {
    // SAFETY: the words are CODE_BYTES long, and nobody else uses the copies meanwhile.
    let into = unsafe { core::slice::from_raw_parts_mut((&raw mut (*copies).code).cast::<u8>(), CODE_BYTES) };
    read(address, into)
}

#[inline(always)]
fn bytes_of(words: &mut [u64; HEADER_WORDS], bytes: usize) -> &mut [u8] {
    let bytes = if bytes > HEADER_BYTES { HEADER_BYTES } else { bytes };
    // SAFETY: `bytes` is within the words.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bytes) }
}

/// The stack that [`Copies::window`] is filled from.
pub struct StackSource;

impl WindowSource for StackSource {
    #[inline(always)]
    fn copy(&mut self, address: StackAddress, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool {
        let bytes = bounded::<WINDOW_BYTES>(bytes);
        // SAFETY: `bytes` is within the window.
        let into = unsafe { core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), bytes) };
        read(address.avma(), into)
    }
}
