//! The stepper for HotSpot's generated code: interpreted methods, nmethods, stubs.
//!
//! What code a pc belongs to is read from the JVM's own code heap at the instant of the sample: block, `CodeBlob`, nmethod.
//! Compiled frames have a fixed size (openjdk src/hotspot/cpu/x86/frame_x86.inline.hpp, `sender_for_compiled_frame`),
//! interpreted ones hang on rbp (`sender_for_interpreter_frame`), stubs have rows that the daemon made of their code.

pub mod barrier;
mod compiled;
pub mod frozen;
mod interpreted;
pub mod known;
pub mod leaf;
pub mod prologue;
pub mod pushed;
pub mod references;
pub mod spilled;
mod target;
pub mod thawing;

pub use target::Target;

use super::{Cursor, is_code_address};
use crate::abi::{MAX_FRAME_WORDS, Stop};
use crate::frame::FrameWord;
use crate::jvm::{Jvm, Layout, NO_FIELD};
use known::{Known, Nmethod};

/// Bytes of a `CodeBlob` and nmethod header that hold every field of a [`Layout`]. A power of two.
pub const HEADER_BYTES: usize = 512;
pub const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// What is read where that much isn't readable: enough for every blob that is no nmethod.
pub const SHORT_HEADER_BYTES: usize = 128;
/// Bytes of code that a leaf is judged by. A power of two.
pub const CODE_BYTES: usize = 64;
pub const CODE_WORDS: usize = CODE_BYTES / 8;
/// How many of them lie before the pc.
pub const CODE_BEFORE: usize = 24;
/// Hops through a segment map. One hop crosses up to 253 segments of 128 bytes or more: 32 hops cross one megabyte.
const MAX_HOPS: u32 = 32;
/// Mark of a free segment (openjdk src/hotspot/share/memory/heap.hpp).
const FREE_SEGMENT: u8 = 0xff;
/// Largest compiled frame, bytes.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// The words of one frame, see [`crate::frame::UserFrame`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    pub words: [u64; MAX_FRAME_WORDS],
    /// How many of them.
    pub count: u64,
    /// What holds of this pc as long as the code is there.
    pub known: Known,
    /// The interrupted nmethod.
    pub nmethod: Nmethod,
}

impl Words {
    #[inline(always)]
    fn set(&mut self, first: FrameWord, second: u64, third: u64, count: u64) {
        self.words = [first.0, second, third];
        self.count = count;
        self.known.kind = Known::NOTHING;
        self.nmethod.blob = 0;
    }
}

/// What a pc belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Interpreter,
    /// An nmethod, whose header is loaded.
    Nmethod {
        blob: u64,
    },
    /// Another blob, whose header is loaded.
    Stub {
        blob: u64,
    },
}

impl Code {
    const INTERPRETER: u64 = 1;
    const NMETHOD: u64 = 2;
    const STUB: u64 = 3;

    /// As one word: what it is in the lowest bits, blobs being aligned.
    #[inline(always)]
    pub const fn to_bits(code: Result<Self, Stop>) -> u64 {
        match code {
            Ok(Self::Interpreter) => Self::INTERPRETER,
            Ok(Self::Nmethod { blob }) => blob | Self::NMETHOD,
            Ok(Self::Stub { blob }) => blob | Self::STUB,
            Err(Stop::UnknownCode) => 0,
            Err(_) => 4,
        }
    }

    /// The reverse of [`Self::to_bits`].
    ///
    /// # Errors
    /// Why nothing was found.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Result<Self, Stop> {
        let blob = bits & !7;
        match bits & 7 {
            Self::INTERPRETER => Ok(Self::Interpreter),
            Self::NMETHOD => Ok(Self::Nmethod { blob }),
            Self::STUB => Ok(Self::Stub { blob }),
            0 => Err(Stop::UnknownCode),
            _ => Err(Stop::CodeUnreadable),
        }
    }
}

/// Moves the cursor from a frame that was left by a call to its caller, and says what the frame is.
///
/// # Errors
/// Why there is no caller to be found; `words` are the frame's all the same. [`Stop::Frozen`]: it may be found by [`frozen`].
#[inline(always)]
pub fn step(cursor: &mut Cursor, target: &mut impl Target, jvm: &Jvm, words: &mut Words) -> Result<(), Stop> {
    words.set(FrameWord::native(cursor.pc, cursor.exact), 0, 0, 1);
    let at = if cursor.exact { cursor.pc } else { cursor.pc - 1 };
    match Code::from_bits(target.find_code(at, jvm))? {
        Code::Interpreter => interpreted::step(cursor, target, jvm, None, words),
        Code::Nmethod { blob } => compiled::step(cursor, target, jvm, blob, words),
        Code::Stub { blob } => stub(cursor, target, jvm, at, blob, words),
    }
}

/// As [`step`], for the interrupted frame: its frame may not be built yet, or be torn down already.
///
/// # Errors
/// As [`step`].
#[inline(always)]
pub fn step_leaf(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    words: &mut Words,
) -> Result<(), Stop> {
    words.set(FrameWord::exact(cursor.pc), 0, 0, 1);
    let at = cursor.pc;
    if !(target.recall_nmethod(at, &mut words.nmethod) && words.nmethod.holds(target, jvm)) {
        match Code::from_bits(target.find_code(at, jvm))? {
            Code::Interpreter => return interpreted::step_leaf(cursor, target, jvm, words),
            Code::Nmethod { blob } => compiled::judge(target, jvm, blob, words),
            Code::Stub { blob } => {
                stub(cursor, target, jvm, at, blob, words)?;
                skip_pushed_arguments(cursor, target, jvm);
                return Ok(());
            }
        }
    }
    compiled::step_leaf(cursor, target, jvm, words)
}

/// C1 calls some of its stubs with arguments that it pushed and pops behind the call (openjdk
/// src/hotspot/cpu/x86/c1_LIRAssembler_x86.cpp, slow_subtype_check): its frame is that much longer then.
#[inline(always)]
pub fn skip_pushed_arguments(cursor: &mut Cursor, target: &mut impl Target, jvm: &Jvm) {
    if cursor.pc >= jvm.code_start && cursor.pc < jvm.code_end {
        cursor.sp += target.pushed_arguments(cursor.pc);
    }
}

/// Bytes that the code at a return address takes off the stack at once.
#[inline(always)]
pub fn pushed_arguments(target: &mut impl Target, pc: u64) -> u64 {
    if target.load_code(pc) { target.popped(0) } else { 0 }
}

/// Bytes that the interrupted code of C1 has pushed above its frame, which is built and whose return address would be at `usual`
/// without them. What is there may look like one: the remainder of an earlier call.
#[inline(always)]
pub fn pushed_words(target: &mut impl Target, jvm: &Jvm, pc: u64, usual: u64) -> u64 {
    compiled::pushed_words(target, jvm, pc, usual)
}

/// What the code at its begin tells of an nmethod: see [`Nmethod::traits`].
#[inline(always)]
pub fn traits(target: &mut impl Target, entry: u64, bytes: u64, level: u64) -> u64 {
    compiled::traits(target, entry, bytes, level)
}

/// How far a compiled frame of `bytes` is built that a signal has interrupted at `pc`, behind its prologue:
/// [`Leaf::to_bits`](leaf::Leaf::to_bits).
#[inline(always)]
pub fn interrupted(target: &mut impl Target, pc: u64, bytes: u64) -> u64 {
    match target.load_code(pc - CODE_BEFORE as u64) {
        true => target.judge_body(bytes),
        false => leaf::Leaf::built(bytes).to_bits(),
    }
}

/// Whether C2's search in strings has moved the stack pointer of the frame whose code is loaded, so that its return address is at
/// `saved` instead of the `usual` place. `pc`: of the frame, whose code stays loaded.
#[inline(always)]
pub fn is_search(target: &mut impl Target, jvm: &Jvm, usual: u64, saved: u64, pc: u64) -> bool {
    compiled::is_search(target, jvm, usual, saved, pc)
}

/// Whether there is a return address of generated code at `slot` on the stack. Those into the interpreter have no call before them.
#[inline(always)]
pub fn returns_to_java(target: &mut impl Target, jvm: &Jvm, slot: u64) -> bool {
    compiled::returns_to_java(target, jvm, slot)
}

/// Whether the return address at `slot` is that of a direct call to `callee`.
#[inline(always)]
pub fn is_called(target: &mut impl Target, slot: u64, callee: u64) -> bool {
    compiled::is_called(target, slot, callee)
}

/// A frame of generated code that is no method.
#[inline(always)]
fn stub(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    at: u64,
    blob: u64,
    words: &mut Words,
) -> Result<(), Stop> {
    let name = pointer(target, jvm.layout.blob_name);
    words.set(FrameWord::stub(cursor.pc, cursor.exact), name, 0, 2);
    if at + 1 >= jvm.return_barrier_start && at < jvm.return_barrier_end {
        return if cursor.exact { barrier::step_thawed(cursor, target) } else { Err(Stop::Frozen) };
    }
    if let Some(row) = target.stub_row(jvm.table, at) {
        words.known = Known { kind: Known::STUB, blob, word: name, leaf: 0 };
        return super::rows::step(cursor, &row, target);
    }
    let bytes = frame_bytes(target, &jvm.layout);
    if cursor.exact || bytes == 0 {
        return Err(Stop::UnknownStub);
    }
    leave(cursor, target, bytes)
}

/// Leaves a frame of fixed size: return address and saved rbp are its uppermost words.
#[inline(always)]
fn leave(cursor: &mut Cursor, target: &mut impl Target, frame_bytes: u64) -> Result<(), Stop> {
    let caller_sp = cursor.sp + frame_bytes;
    let fp = target.read_u64(caller_sp - 16).ok_or(Stop::StackUnreadable)?;
    let pc = target.read_u64(caller_sp - 8).ok_or(Stop::StackUnreadable)?;
    arrive(cursor, pc, caller_sp, fp)
}

#[inline(always)]
fn arrive(cursor: &mut Cursor, pc: u64, sp: u64, fp: u64) -> Result<(), Stop> {
    if pc == 0 {
        return Err(Stop::ChainEnded);
    }
    if !is_code_address(pc) {
        return Err(Stop::ReturnAddressInvalid);
    }
    *cursor = Cursor { pc, sp, fp, exact: false };
    Ok(())
}

/// Finds what code an address belongs to, and loads its header.
///
/// # Errors
/// [`Stop::UnknownCode`] where there is none, [`Stop::CodeUnreadable`].
#[inline(always)]
pub fn find(at: u64, target: &mut impl Target, jvm: &Jvm) -> Result<Code, Stop> {
    let is_interpreter = at >= jvm.interpreter_start && at < jvm.interpreter_end;
    if is_interpreter {
        return Ok(Code::Interpreter);
    }
    let heap = jvm.heap(at).ok_or(Stop::UnknownCode)?;
    let shift = heap.log2_segment & 31;
    let mut segment = (at - heap.start) >> shift;
    let mut hop = 0;
    loop {
        let back = target.read_u8(heap.segment_map + segment).ok_or(Stop::CodeUnreadable)?;
        if back == FREE_SEGMENT {
            return Err(Stop::UnknownCode);
        }
        if back == 0 {
            break;
        }
        segment = segment.checked_sub(u64::from(back)).ok_or(Stop::CodeUnreadable)?;
        hop += 1;
        if hop == MAX_HOPS {
            return Err(Stop::CodeUnreadable);
        }
    }
    let blob = heap.start + (segment << shift) + u64::from(jvm.layout.heap_block_bytes);
    if !target.load_header(blob) {
        return Err(Stop::CodeUnreadable);
    }
    Ok(if is_nmethod(target, jvm) { Code::Nmethod { blob } } else { Code::Stub { blob } })
}

/// "nmethod" and the begin of "native nmethod", as the bytes of a word.
const NMETHOD: u64 = u64::from_le_bytes(*b"nmethod\0");
const NATIVE_NMETHOD: u64 = u64::from_le_bytes(*b"native n");

/// Whether the loaded header is an nmethod's.
#[inline(always)]
fn is_nmethod(target: &mut impl Target, jvm: &Jvm) -> bool {
    let layout = &jvm.layout;
    if layout.blob_kind != NO_FIELD {
        return byte(target, layout.blob_kind) == layout.nmethod_kind;
    }
    let name = pointer(target, layout.blob_name);
    if name == jvm.nmethod_name || name == jvm.native_nmethod_name {
        return name != 0;
    }
    if jvm.nmethod_name != 0 && jvm.native_nmethod_name != 0 {
        return false;
    }
    // Early in a JVM's life: the daemon has seen no nmethod yet.
    let text = target.read_object(name).unwrap_or(0);
    text == NMETHOD || text == NATIVE_NMETHOD
}

/// Size of the loaded header's frame in bytes; 0 if it has none of its own.
#[inline(always)]
fn frame_bytes(target: &impl Target, layout: &Layout) -> u64 {
    let words = int(target, layout.blob_frame_size);
    let bytes = u64::from(words) * 8;
    if words < 2 || bytes > MAX_FRAME_BYTES { 0 } else { bytes }
}

/// A pointer of the loaded header. All fields are aligned to their size.
#[inline(always)]
fn pointer(target: &impl Target, offset: u16) -> u64 {
    target.header_word(usize::from(offset) >> 3)
}

/// An `int` of the loaded header.
#[inline(always)]
fn int(target: &impl Target, offset: u16) -> u32 {
    (pointer(target, offset) >> ((offset & 4) << 3)) as u32
}

/// A `u2` of the loaded header.
#[inline(always)]
fn short(target: &impl Target, offset: u16) -> u16 {
    (pointer(target, offset) >> ((offset & 6) << 3)) as u16
}

/// A byte of the loaded header.
#[inline(always)]
fn byte(target: &impl Target, offset: u16) -> u16 {
    (pointer(target, offset) >> ((offset & 7) << 3)) as u16 & 0xff
}

/// A code address of the loaded header that is an address, or an `int` offset from `base`.
#[inline(always)]
fn code_address(target: &impl Target, field: u16, is_offset: bool, base: u64) -> u64 {
    if field == NO_FIELD {
        return 0;
    }
    if !is_offset {
        return pointer(target, field);
    }
    let offset = int(target, field);
    // -1: the nmethod has none.
    if offset as i32 <= 0 { 0 } else { base + u64::from(offset) }
}
