//! The target's memory and registers as the unwinder reads them from here.

use core::hint::black_box;

use aya_ebpf::helpers::{bpf_get_current_task, bpf_probe_read_user, bpf_probe_read_user_buf};
use jvmprof_common::{
    abi::Stop,
    jvm::{Jvm, MethodIdentity, method_identity},
    rows::Register,
    tables::PackedRule,
    unwind::{
        Memory, Source,
        hotspot::{
            self, CODE_BYTES, CODE_WORDS, Code, HEADER_BYTES, HEADER_WORDS, SHORT_HEADER_BYTES, Target,
            known::Nmethod,
            leaf::{self, Leaf},
            prologue,
        },
        memory::{Veil, WINDOW_BYTES, WINDOW_WORDS},
    },
};

use crate::{
    heap::{Heap, chunk_bounds, end_of_room, find_taken, follow, left_to_thaw, shared_calls, youngest_chunk},
    known::{self, NMETHODS, RecentNmethod},
    methods,
    scratch::{self, Copies, KNOWN_WORDS},
    tables,
    task::Task,
};

pub struct User<'a> {
    pub copies: *mut Copies,
    pub veil: &'a mut Veil,
    /// Of the interrupted frame; `None` once it is left.
    pub registers: Option<&'a [u64; 16]>,
    /// Where the JVM's own table counts from.
    pub code_start: u64,
    /// Gets the rule of a stub.
    pub rule: &'a mut PackedRule,
    pub nmethods: &'a mut [RecentNmethod; NMETHODS],
    pub epoch: u32,
}

/// The target, as the frame in work sees it.
macro_rules! user {
    ($scratch:ident, $copies:ident, $registers:expr, $code_start:expr) => {
        $crate::memory::User {
            copies: $copies,
            veil: &mut $scratch.veil,
            registers: $registers,
            code_start: $code_start,
            rule: &mut $scratch.rule,
            nmethods: &mut $scratch.recent.nmethods,
            epoch: $scratch.process.epoch,
        }
    };
}
pub(crate) use user;

impl Memory for User<'_> {
    #[inline(always)]
    fn read_u64(&mut self, address: u64) -> Option<u64> {
        // SAFETY: the reference ends before anything else uses the copies.
        if let Some(word) = unsafe { (*self.copies).window.get(address) } {
            return Some(word);
        }
        if refill(address) == 0 {
            return None;
        }
        // SAFETY: as above.
        Some(unsafe { (*self.copies).window.first() })
    }

    #[inline(always)]
    fn read_object(&mut self, address: u64) -> Option<u64> {
        // SAFETY: the helper reads any user address without faulting and reports failure.
        unsafe { bpf_probe_read_user(address as *const u64) }.ok()
    }

    #[inline(always)]
    fn register(&self, register: Register) -> Option<u64> {
        self.registers.map(|registers| registers[usize::from(register.0) & 15])
    }

    #[inline(always)]
    fn thread_pointer(&self) -> Option<u64> {
        // SAFETY: no arguments; the helper returns the current task.
        Task(unsafe { bpf_get_current_task() }).thread_pointer()
    }
}

impl Target for User<'_> {
    type Row = PackedRule;

    shared_calls!();

    #[inline(always)]
    fn read_u8(&mut self, address: u64) -> Option<u8> {
        // SAFETY: as above.
        unsafe { bpf_probe_read_user(address as *const u8) }.ok()
    }

    #[inline(always)]
    fn read_pair(&mut self, byte: u64, word: u64) -> Option<(u8, u64)> {
        let distance = word.wrapping_sub(byte);
        if distance > (KNOWN_WORDS * 8 - 8) as u64 || !distance.is_multiple_of(4) {
            return Some((self.read_u8(byte)?, self.read_object(word)?));
        }
        // SAFETY: nobody else uses the copies meanwhile.
        let known = unsafe { &mut (*self.copies).known };
        let bytes = bounded::<{ KNOWN_WORDS * 8 }>(distance as usize + 8);
        // SAFETY: `bytes` is within the words.
        let into = unsafe { core::slice::from_raw_parts_mut(known.as_mut_ptr().cast::<u8>(), bytes) };
        if !read(byte, into) {
            return None;
        }
        let found = known[self.veil.hide(distance >> 3) as usize & (KNOWN_WORDS - 1)];
        Some((known[0] as u8, found >> ((distance & 4) << 3)))
    }

    #[inline(always)]
    fn load_header(&mut self, address: u64) -> bool {
        load_header(self.copies, address)
    }

    #[inline(always)]
    fn header_word(&self, index: usize) -> u64 {
        // SAFETY: the index is in range.
        unsafe { (*self.copies).header[index & (HEADER_WORDS - 1)] }
    }

    #[inline(always)]
    fn load_code(&mut self, address: u64) -> bool {
        load_code(self.copies, address)
    }

    #[inline(always)]
    fn code(&self) -> &[u64; CODE_WORDS] {
        // SAFETY: the code stays as it is until it is loaded again.
        unsafe { &(*self.copies).code }
    }

    #[inline(always)]
    fn judge_leaf(&mut self, left: u64, bytes: u64) -> u64 {
        judge_leaf(left, bytes)
    }

    #[inline(always)]
    fn traits(&mut self, entry: u64, bytes: u64, level: u64) -> u64 {
        traits(entry, bytes, level)
    }

    #[inline(always)]
    fn interrupted(&mut self, pc: u64, bytes: u64) -> u64 {
        interrupted(pc, bytes)
    }

    #[inline(always)]
    fn is_search(&mut self, usual: u64, saved: u64, pc: u64, _: &Jvm) -> bool {
        is_search(usual, saved, pc) != 0
    }

    #[inline(always)]
    fn is_called(&mut self, slot: u64, callee: u64) -> bool {
        is_called(slot, callee) != 0
    }

    #[inline(always)]
    fn find_code(&mut self, at: u64, _: &Jvm) -> u64 {
        find_code(at)
    }

    #[inline(always)]
    fn pushed_arguments(&mut self, pc: u64) -> u64 {
        pushed_arguments(pc)
    }

    #[inline(always)]
    fn pushed_words(&mut self, pc: u64, usual: u64, _: &Jvm) -> u64 {
        pushed_words(pc, usual)
    }

    #[inline(always)]
    fn spilled(&mut self, pc: u64) -> u64 {
        spilled(pc)
    }

    #[inline(always)]
    fn end_of_room(&mut self, begin: u64, _: &Jvm) -> u64 {
        end_of_room(begin)
    }

    #[inline(always)]
    fn identify_method(&mut self, method: u64, is_entered: bool, _: &Jvm) -> Option<MethodIdentity> {
        if identify_method(method, u64::from(is_entered)) == 0 {
            return None;
        }
        // SAFETY: nobody writes the copies meanwhile.
        Some(unsafe { (*self.copies).method })
    }

    #[inline(always)]
    fn recall_nmethod(&mut self, address: u64, into: &mut Nmethod) -> bool {
        known::recall_nmethod(self.nmethods, self.veil, self.epoch, address, into)
    }

    #[inline(always)]
    fn stub_row(&mut self, table: u32, address: u64) -> Option<PackedRule> {
        let rule = *tables::row(table, address.wrapping_sub(self.code_start))?;
        *self.rule = rule;
        Some(rule)
    }
}

/// Copies another stretch of the stack; 1 if that went well.
///
/// A global function, as are the following: the verifier checks its paths once, instead of once for each path that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn refill(address: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    // SAFETY: nobody else uses the copies meanwhile.
    u64::from(unsafe { (*copies).window.refill(&mut Stack, address) })
}

#[inline(always)]
pub fn load_header(copies: *mut Copies, address: u64) -> bool {
    // SAFETY: nobody else uses the copies meanwhile.
    let header = unsafe { &mut (*copies).header };
    if read(address, bytes_of(header, HEADER_BYTES)) {
        return true;
    }
    // The last blob of a heap may be shorter than an nmethod's header.
    read(address, bytes_of(header, SHORT_HEADER_BYTES))
}

#[inline(always)]
pub fn load_code(copies: *mut Copies, address: u64) -> bool {
    // SAFETY: the words are CODE_BYTES long, and nobody else uses the copies meanwhile.
    let into = unsafe { core::slice::from_raw_parts_mut((&raw mut (*copies).code).cast::<u8>(), CODE_BYTES) };
    read(address, into)
}

/// See [`hotspot::find`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_code(at: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return NOTHING_FOUND;
    };
    let Some(jvm) = known::jvm(scratch) else {
        return NOTHING_FOUND;
    };
    Code::to_bits(hotspot::find(at, &mut Heap(copies), jvm))
}

const NOTHING_FOUND: u64 = Code::to_bits(Err(Stop::CodeUnreadable));

/// See [`hotspot::pushed_arguments`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn pushed_arguments(pc: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    hotspot::pushed_arguments(&mut Heap(copies), pc)
}

/// See [`hotspot::spilled::below`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn spilled(pc: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    hotspot::spilled::below(&mut Heap(copies), pc)
}

/// See [`hotspot::pushed_words`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn pushed_words(pc: u64, usual: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    let jvm = known::jvm(scratch);
    jvm.map_or(0, |jvm| hotspot::pushed_words(&mut Heap(copies), jvm, pc, usual))
}

/// See [`hotspot::returns_to_java`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn returns_to_java(slot: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    let jvm = known::jvm(scratch);
    u64::from(jvm.is_some_and(|jvm| hotspot::returns_to_java(&mut Heap(copies), jvm, slot)))
}

/// Brings what identifies a method to the copies; 0 if it can't be read. See [`Target::identify_method`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn identify_method(method: u64, is_entered: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    let Some(jvm) = known::jvm(scratch) else {
        return 0;
    };
    // SAFETY: nobody else uses the copies meanwhile.
    let recent = unsafe { &mut (*copies).methods };
    let generation = methods::generation(recent, scratch.process.epoch, jvm);
    let found = if is_entered == 0 { recent.recall(method, generation, &mut scratch.veil) } else { None };
    let Some(identity) = found.or_else(|| method_identity(method, &jvm.layout, &mut Heap(copies))) else {
        return 0;
    };
    if found.is_none() {
        recent.remember(method, generation, identity, &mut scratch.veil);
    }
    // SAFETY: as above.
    unsafe {
        (*copies).method = identity;
        (*copies).is_recalled = u64::from(found.is_some());
    }
    1
}

/// See [`leaf::judge`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn judge_leaf(left: u64, bytes: u64) -> u64 {
    if left == 0 {
        return judge_body(bytes);
    }
    prologue::prologue(left, bytes, |ahead| state_before(ahead as u64, bytes)).to_bits()
}

/// See [`prologue::state_before`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn state_before(ahead: u64, bytes: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return prologue::OTHER;
    };
    // SAFETY: nobody writes the copies meanwhile.
    prologue::state_before(unsafe { &(*copies).code }, ahead as usize, bytes)
}

/// See [`leaf::judge_body`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn judge_body(bytes: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    // SAFETY: as above.
    let code = unsafe { &(*copies).code };
    if ends(leaf::behind_first(code) as u64) != 0 {
        return Leaf::AT_ENTRY.to_bits();
    }
    leaf::body(code, bytes).to_bits()
}

/// See [`leaf::ends`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn ends(at: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    // SAFETY: as above.
    u64::from(leaf::ends(unsafe { &(*copies).code }, at as usize))
}

/// See [`hotspot::traits`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traits(entry: u64, bytes: u64, level: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    hotspot::traits(&mut Heap(copies), entry, bytes, level)
}

/// See [`prologue::behind_store`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn behind_store(at: u64, bytes: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    // SAFETY: as above.
    prologue::behind_store(unsafe { &(*copies).code }, at as usize, bytes)
}

/// See [`hotspot::interrupted`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn interrupted(pc: u64, bytes: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return Leaf::built(bytes).to_bits();
    };
    hotspot::interrupted(&mut Heap(copies), pc, bytes)
}

/// See [`hotspot::is_search`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_search(usual: u64, saved: u64, pc: u64) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return 0;
    };
    let jvm = known::jvm(scratch);
    u64::from(jvm.is_some_and(|jvm| hotspot::is_search(&mut Heap(copies), jvm, usual, saved, pc)))
}

/// See [`hotspot::is_called`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_called(slot: u64, callee: u64) -> u64 {
    let Some(copies) = scratch::copies() else {
        return 0;
    };
    u64::from(hotspot::is_called(&mut Heap(copies), slot, callee))
}

#[inline(always)]
fn bytes_of(words: &mut [u64; HEADER_WORDS], bytes: usize) -> &mut [u8] {
    let bytes = if bytes > HEADER_BYTES { HEADER_BYTES } else { bytes };
    // SAFETY: `bytes` is within the words.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bytes) }
}

#[inline(always)]
pub fn read(address: u64, into: &mut [u8]) -> bool {
    // SAFETY: the helper reads any user address without faulting and reports failure.
    unsafe { bpf_probe_read_user_buf(address as *const u8, into) }.is_ok()
}

/// The same number of bytes, in 1..=MAX (a power of two), so that the verifier sees it too.
///
/// A comparison doesn't do: the compiler leaves out one that it knows the result of, and before 6.8 the verifier learns
/// nothing where both sides are unknown, nor for a copy of the value that was put on the stack before.
#[inline(always)]
pub fn bounded<const MAX: usize>(bytes: usize) -> usize {
    (black_box(bytes).wrapping_sub(1) & (MAX - 1)) + 1
}

struct Stack;

impl Source for Stack {
    #[inline(always)]
    fn copy(&mut self, address: u64, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool {
        let bytes = bounded::<WINDOW_BYTES>(bytes);
        // SAFETY: `bytes` is within the window.
        let into = unsafe { core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), bytes) };
        read(address, into)
    }
}
