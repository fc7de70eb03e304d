//! The stepper for HotSpot's generated code: interpreted methods, nmethods, stubs.
//!
//! [`code_blobs`] finds what code a pc belongs to, in the JVM's own code heap at the instant of the
//! sample: block, `CodeBlob`, nmethod. Then the frame is left by its kind:
//!
//! - [`compiled`] frames have a fixed size (openjdk src/hotspot/cpu/x86/frame_x86.inline.hpp,
//!   `sender_for_compiled_frame`). Where one was interrupted, it may not be built yet, or be taken
//!   down already: [`frame_layout`] says what is where.
//! - [`interpreted_frames`] hang on rbp (`sender_for_interpreter_frame`), and are known by their
//!   method's identity ([`mod@method_identity`]).
//! - Stubs have rows that the daemon made of their code.
//! - [`continuation`]: frames of a virtual thread that lie in the Java heap.
//!
//! [`cached_frames`] are those of an earlier sample that are still what they were. The steppers see
//! the process as a [`HotspotTarget`], and call some of their own parts through it, as
//! [`subprograms`].

pub mod cached_frames;
pub mod code_blobs;
pub mod compiled;
pub mod continuation;
pub mod frame_layout;
mod interpreted_frames;
pub mod method_identity;
pub mod subprograms;

pub use code_blobs::CodeBlob;

use super::{Cursor, Memory, is_code_address};
use crate::abi::{MAX_FRAME_WORDS, Stop};
use crate::address::{Avma, StackAddress};
use crate::frame::FrameWord;
use crate::hotspot_subprograms;
use crate::jvm::Jvm;
use crate::rows::RowRules;
use cached_frames::{CachedFrame, Nmethod};
use code_blobs::{frame_bytes, pointer};
use compiled::c1_pushed_words::{self, ArrayCopyState};
use compiled::instructions::LoadedCode;
use compiled::{barrier_spills, epilogue, layout_at_pc, prologue, saved_arguments, string_indexof};
use continuation::stack_chunk::{self, ChunkBounds};
use continuation::{load_barriers, thaw_stubs, thawing, yielding};
use frame_layout::FrameLayout;
use method_identity::{MethodIdentity, method_identity};

/// The methods that call the subprograms: they run the function itself, unless the target has
/// another way to.
macro_rules! methods {
    (
        arguments {$(
            $(#[$pure_doc:meta])*
            fn $pure:ident($($pure_arg:ident: $pure_type:ty),*) -> $pure_result:ty = $pure_rule:path;
        )*}
        code {$(
            $(#[$code_doc:meta])*
            fn $code:ident($($code_arg:ident: $code_type:ty),*) -> $code_result:ty = $code_rule:path,
                else $_0:expr;
        )*}
        memory {$(
            $(#[$memory_doc:meta])*
            fn $memory:ident($($memory_arg:ident: $memory_type:ty),*) -> $memory_result:ty = $memory_rule:path,
                else $_1:expr;
        )*}
        jvm {$(
            $(#[$jvm_doc:meta])*
            fn $jvm:ident($($jvm_arg:ident: $jvm_type:ty),*) -> $jvm_result:ty = $jvm_rule:path,
                else $_2:expr;
        )*}
    ) => {
        $(
            $(#[$pure_doc])*
            fn $pure(&self, $($pure_arg: $pure_type),*) -> $pure_result {
                $pure_rule($($pure_arg),*)
            }
        )*
        $(
            $(#[$code_doc])*
            fn $code(&self, $($code_arg: $code_type),*) -> $code_result {
                $code_rule(self.code() $(, $code_arg)*)
            }
        )*
        $(
            $(#[$memory_doc])*
            fn $memory(&mut self, $($memory_arg: $memory_type),*) -> $memory_result
            where
                Self: Sized,
            {
                $memory_rule(self $(, $memory_arg)*)
            }
        )*
        $(
            $(#[$jvm_doc])*
            fn $jvm(&mut self, jvm: &Jvm $(, $jvm_arg: $jvm_type)*) -> $jvm_result
            where
                Self: Sized,
            {
                $jvm_rule(self, jvm $(, $jvm_arg)*)
            }
        )*
    };
}

/// A process with a HotSpot JVM. `load_*` copy a piece of its memory, which other methods then
/// read.
pub trait HotspotTarget: Memory {
    type Row: RowRules;

    /// Reads the byte at an address.
    fn read_u8(&mut self, address: Avma) -> Option<u8>;

    /// Reads the byte at an address, and the word at another one after it, in one read if the
    /// target has a cheap way. Of a word that isn't aligned to 8 the upper half is anything.
    fn read_pair(&mut self, byte: Avma, word: Avma) -> Option<(u8, u64)> {
        Some((self.read_u8(byte)?, self.read_object(word)?))
    }

    /// Loads the [`HEADER_BYTES`](code_blobs::HEADER_BYTES) at an address (or
    /// [`SHORT_HEADER_BYTES`](code_blobs::SHORT_HEADER_BYTES), and zeros after them).
    fn load_header(&mut self, address: Avma) -> bool;

    /// Returns a word of the loaded header; the index is taken modulo
    /// [`HEADER_WORDS`](code_blobs::HEADER_WORDS).
    fn header_word(&self, index: usize) -> u64;

    /// Loads the [`CODE_BYTES`](compiled::instructions::CODE_BYTES) at an address.
    fn load_code(&mut self, address: Avma) -> bool;

    /// Returns the loaded code; the first byte is the lowest of the first word.
    fn code(&self) -> &LoadedCode;

    /// Copies the nmethod that was interrupted at this address lately, if one was, to `into`.
    fn cached_nmethod(&mut self, address: Avma, into: &mut Nmethod) -> bool {
        let _ = (address, into);
        false
    }

    /// Returns what identifies the method at this address: [`method_identity()`], unless the target
    /// has it cached. `is_entered`: it is just being entered, and may be an intrinsic, which the
    /// JVM makes without loading a class.
    fn identify_method(&mut self, method: Avma, is_entered: bool, jvm: &Jvm) -> Option<MethodIdentity>
    where
        Self: Sized,
    {
        let _ = is_entered;
        method_identity(method, &jvm.layout, self)
    }

    /// Returns the row of generated code at an address, from the JVM's own table.
    fn stub_row(&mut self, table: u32, address: Avma) -> Option<Self::Row>;

    hotspot_subprograms!(methods);
}

/// The current frame as it will stand in the sample, and what is to be cached of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodedFrame {
    /// Its words, see [`crate::frame::UserFrame`].
    pub words: [u64; MAX_FRAME_WORDS],
    /// Number of its words.
    pub count: u64,
    pub cached: CachedFrame,
    /// The interrupted nmethod.
    pub nmethod: Nmethod,
}

impl EncodedFrame {
    #[inline(always)]
    fn set(&mut self, first: FrameWord, second: u64, third: u64, count: u64) {
        self.words = [first.0, second, third];
        self.count = count;
        self.cached.kind = CachedFrame::NOTHING;
        self.nmethod.blob = Avma(0);
    }
}

/// Moves the cursor from a frame that was left by a call to its caller, and encodes the frame.
///
/// # Errors
/// The reason why no caller was found; `frame` is encoded all the same. [`Stop::Frozen`]: it may be
/// found by [`continuation`].
#[inline(always)]
pub fn step(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    frame: &mut EncodedFrame,
) -> Result<(), Stop> {
    frame.set(FrameWord::native(cursor.pc.0, cursor.exact), 0, 0, 1);
    let at = if cursor.exact { cursor.pc } else { cursor.pc - 1 };
    match target.find_code_blob(jvm, at)? {
        CodeBlob::Interpreter => interpreted_frames::step(cursor, target, jvm, None, frame),
        CodeBlob::Nmethod(blob) => compiled::step(cursor, target, jvm, blob, frame),
        CodeBlob::Stub(blob) => step_stub(cursor, target, jvm, at, blob, frame),
    }
}

/// As [`step`], for the interrupted frame: its frame may not be built yet, or be taken down
/// already.
///
/// # Errors
/// As [`step`].
#[inline(always)]
pub fn step_leaf(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    frame: &mut EncodedFrame,
) -> Result<(), Stop> {
    frame.set(FrameWord::exact(cursor.pc.0), 0, 0, 1);
    let at = cursor.pc;
    if !(target.cached_nmethod(at, &mut frame.nmethod) && frame.nmethod.is_valid(target, jvm)) {
        match target.find_code_blob(jvm, at)? {
            CodeBlob::Interpreter => return interpreted_frames::step_leaf(cursor, target, jvm, frame),
            CodeBlob::Nmethod(blob) => compiled::read_nmethod(target, jvm, blob, frame),
            CodeBlob::Stub(blob) => {
                step_stub(cursor, target, jvm, at, blob, frame)?;
                skip_pushed_arguments(cursor, target, jvm);
                return Ok(());
            }
        }
    }
    compiled::step_leaf(cursor, target, jvm, frame)
}

/// Takes the arguments of a stub off the stack that C1 pushes for some of them and pops after the
/// call (openjdk src/hotspot/cpu/x86/c1_LIRAssembler_x86.cpp, slow_subtype_check): the caller's
/// frame is that much longer then.
#[inline(always)]
pub fn skip_pushed_arguments(cursor: &mut Cursor, target: &mut impl HotspotTarget, jvm: &Jvm) {
    if jvm.in_code_cache(cursor.pc) {
        cursor.sp += target.pushed_arguments(cursor.pc);
    }
}

/// Leaves a frame of generated code that is no method.
#[inline(always)]
fn step_stub(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    at: Avma,
    blob: Avma,
    frame: &mut EncodedFrame,
) -> Result<(), Stop> {
    let name = pointer(target, jvm.layout.blob_name);
    frame.set(FrameWord::stub(cursor.pc.0, cursor.exact), name, 0, 2);
    if at.0 + 1 >= jvm.return_barrier_start && at.0 < jvm.return_barrier_end {
        return if cursor.exact { thaw_stubs::step_thawed(cursor, target, jvm) } else { Err(Stop::Frozen) };
    }
    if let Some(row) = target.stub_row(jvm.table, at) {
        frame.cached = CachedFrame { kind: CachedFrame::STUB, blob, word: name, ..CachedFrame::default() };
        return super::row_stepper::step(cursor, &row, target);
    }
    let bytes = frame_bytes(target, &jvm.layout);
    if cursor.exact || bytes == 0 {
        return Err(Stop::UnknownStub);
    }
    step_fixed_size(cursor, target, bytes)
}

/// Leaves a frame of fixed size: return address and saved rbp are its uppermost words.
#[inline(always)]
fn step_fixed_size(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    frame_bytes: u64,
) -> Result<(), Stop> {
    let caller_sp = cursor.sp + frame_bytes;
    let fp = target.read_u64(caller_sp - 16).ok_or(Stop::StackUnreadable)?;
    let pc = target.read_u64(caller_sp - 8).ok_or(Stop::StackUnreadable)?;
    return_to(cursor, Avma(pc), caller_sp, StackAddress(fp))
}

/// Moves the cursor to a caller, if `pc` may be one.
#[inline(always)]
fn return_to(cursor: &mut Cursor, pc: Avma, sp: StackAddress, fp: StackAddress) -> Result<(), Stop> {
    if pc.0 == 0 {
        return Err(Stop::ChainEnded);
    }
    if !is_code_address(pc) {
        return Err(Stop::ReturnAddressInvalid);
    }
    *cursor = Cursor { pc, sp, fp, exact: false };
    Ok(())
}
