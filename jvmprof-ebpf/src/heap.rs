//! What of the target isn't on a stack: its Java heap, and what its collector keeps of it.

use aya_ebpf::helpers::bpf_probe_read_user;
use jvmprof_common::{
    jvm::Jvm,
    tables::PackedRule,
    unwind::{
        Memory,
        hotspot::{CODE_WORDS, HEADER_WORDS, Target, frozen, pushed, references, spilled, thawing},
    },
};

use crate::{
    known,
    memory::{behind_store, judge_body, load_code, load_header, returns_to_java},
    scratch::{self, Copies},
};

/// What both views of the target call: global functions, which the verifier checks once.
macro_rules! shared_calls {
    () => {
        #[inline(always)]
        fn returns_to_java(&mut self, slot: u64, _: &Jvm) -> bool {
            returns_to_java(slot) != 0
        }

        #[inline(always)]
        fn find_taken(&mut self, own: u64, taken: u64, stack: u64, _: &Jvm) -> u64 {
            find_taken(own, taken, stack)
        }

        #[inline(always)]
        fn youngest_chunk(&mut self, entry: u64, _: &Jvm) -> u64 {
            youngest_chunk(entry)
        }

        #[inline(always)]
        fn chunk_bounds(&mut self, chunk: u64, _: &Jvm) -> u64 {
            chunk_bounds(chunk)
        }

        #[inline(always)]
        fn left_to_thaw(&mut self, chunk: u64, _: &Jvm) -> u64 {
            left_to_thaw(chunk)
        }

        #[inline(always)]
        fn follow(&mut self, slot: u64, is_root: bool, _: &Jvm) -> u64 {
            follow(slot, u64::from(is_root))
        }
    };
}
pub(crate) use shared_calls;

/// The target's heaps, without a stack.
pub struct Heap(pub *mut Copies);

impl Memory for Heap {
    #[inline(always)]
    fn read_u64(&mut self, address: u64) -> Option<u64> {
        // SAFETY: the helper reads any user address without faulting and reports failure.
        unsafe { bpf_probe_read_user(address as *const u64) }.ok()
    }
}

impl Target for Heap {
    type Row = PackedRule;

    shared_calls!();

    #[inline(always)]
    fn read_u8(&mut self, address: u64) -> Option<u8> {
        // SAFETY: as above.
        unsafe { bpf_probe_read_user(address as *const u8) }.ok()
    }

    #[inline(always)]
    fn load_header(&mut self, address: u64) -> bool {
        load_header(self.0, address)
    }

    #[inline(always)]
    fn header_word(&self, index: usize) -> u64 {
        // SAFETY: the index is in range.
        unsafe { (*self.0).header[index & (HEADER_WORDS - 1)] }
    }

    #[inline(always)]
    fn load_code(&mut self, address: u64) -> bool {
        load_code(self.0, address)
    }

    #[inline(always)]
    fn code(&self) -> &[u64; CODE_WORDS] {
        // SAFETY: the code stays as it is until it is loaded again.
        unsafe { &(*self.0).code }
    }

    #[inline(always)]
    fn behind_store(&self, at: usize, bytes: u64) -> u64 {
        behind_store(at as u64, bytes)
    }

    #[inline(always)]
    fn judge_body(&mut self, bytes: u64) -> u64 {
        judge_body(bytes)
    }

    #[inline(always)]
    fn popped(&self, at: usize) -> u64 {
        popped(at as u64)
    }

    #[inline(always)]
    fn last_copy(&self) -> u64 {
        last_copy()
    }

    #[inline(always)]
    fn restoring(&self, word: u64) -> u64 {
        restoring(word)
    }

    #[inline(always)]
    fn end_within(&mut self, begin: u64, from: u64, _: &Jvm) -> u64 {
        end_within(begin, from)
    }

    #[inline(always)]
    fn may_end_room(&mut self, begin: u64, entry: u64, _: &Jvm) -> bool {
        may_end_room(begin, entry) != 0
    }

    #[inline(always)]
    fn new_place(&mut self, table: u64, object: u64, _: &Jvm) -> u64 {
        new_place(table, object)
    }

    #[inline(always)]
    fn stub_row(&mut self, _: u32, _: u64) -> Option<PackedRule> {
        None
    }
}

/// See [`pushed::popped`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn popped(at: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    // SAFETY: nobody writes the copies meanwhile.
    pushed::popped(unsafe { &(*copies).code }, at as usize)
}

/// See [`pushed::copy`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn last_copy() -> u64 {
    let Some(copies) = scratch::copies() else {
        return pushed::Copy::Unknown as u64;
    };
    // SAFETY: as above.
    pushed::copy(unsafe { &(*copies).code }) as u64
}

/// See [`spilled::restoring`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn restoring(word: u64) -> u64 {
    spilled::restoring(word)
}

/// See [`frozen::youngest_chunk`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn youngest_chunk(entry: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    known::jvm(scratch).map_or(0, |jvm| frozen::youngest_chunk(&mut Heap(copies), jvm, entry))
}

/// See [`thawing::may_end_room`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn may_end_room(begin: u64, entry: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    let may_end = |jvm| thawing::may_end_room(&mut Heap(copies), jvm, begin, entry);
    u64::from(known::jvm(scratch).is_some_and(may_end))
}

/// See [`thawing::end_of_room`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn end_of_room(begin: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    known::jvm(scratch).map_or(0, |jvm| thawing::end_of_room(&mut Heap(copies), jvm, begin))
}

/// See [`thawing::end_within`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn end_within(begin: u64, from: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    known::jvm(scratch).map_or(0, |jvm| thawing::end_within(&mut Heap(copies), jvm, begin, from))
}

/// See [`thawing::find_taken`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_taken(own: u64, taken: u64, stack: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    known::jvm(scratch).map_or(0, |jvm| thawing::find_taken(&mut Heap(copies), jvm, own, taken, stack))
}

/// See [`frozen::chunk_bounds`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn chunk_bounds(chunk: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return frozen::NO_CHUNK;
    };
    let bounds = |jvm| frozen::chunk_bounds(&mut Heap(copies), jvm, chunk);
    known::jvm(scratch).map_or(frozen::NO_CHUNK, bounds)
}

/// See [`frozen::left_to_thaw`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn left_to_thaw(chunk: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return frozen::NOT_SAID;
    };
    let left = |jvm| frozen::left_to_thaw(&mut Heap(copies), jvm, chunk);
    known::jvm(scratch).map_or(frozen::NOT_SAID, left)
}

/// See [`references::follow`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn follow(slot: u64, is_root: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return references::UNKNOWN;
    };
    let to = |jvm| references::follow(&mut Heap(copies), jvm, slot, is_root != 0);
    known::jvm(scratch).map_or(references::UNKNOWN, to)
}

/// See [`references::new_place`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn new_place(table: u64, object: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return references::UNDECIDED;
    };
    let Some(jvm) = known::jvm(scratch) else {
        return references::UNDECIDED;
    };
    references::new_place(&mut Heap(copies), jvm, table, object)
}
