//! What the stepper needs of the process that it walks.

use super::cached_frames::Nmethod;
use super::compiled::{barrier_spills, c1_pushed_words, epilogue, layout_at_pc, prologue, string_indexof};
use super::compiled::{c1_pushed_words::ArrayCopyState, frame_layout::FrameLayout, instructions::LoadedCode};
use super::continuation::{coloured_pointers, stack_chunk, stack_chunk::ChunkBounds, thawing};
use super::{CodeBlob, code_blobs, compiled};
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::hotspot_subprograms;
use crate::jvm::{Jvm, MethodIdentity, method_identity};
use crate::rows::RowRules;
use crate::unwind::Memory;

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

    /// Returns what identifies the method at this address: [`method_identity`], unless the target
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
