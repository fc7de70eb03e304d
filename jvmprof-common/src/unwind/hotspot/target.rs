//! What the stepper needs of a target, and what a target may do in its own way.
//!
//! In the kernel program most of these are global functions: the verifier checks the paths of one once, instead of once for each path
//! that leads to it.

use super::known::Nmethod;
use super::{
    CODE_WORDS, Code, find, frozen, interrupted, is_called, is_search, leaf, prologue, pushed,
    pushed_arguments, pushed_words, references, returns_to_java, spilled, thawing, traits,
};
use crate::jvm::{Jvm, MethodIdentity, method_identity};
use crate::rows::Rules;
use crate::unwind::Memory;

/// The target as this stepper sees it. `load_*` copy a piece of it, which the other functions then read.
pub trait Target: Memory {
    type Row: Rules;

    /// The byte at this address.
    fn read_u8(&mut self, address: u64) -> Option<u8>;

    /// The byte at an address, and the word at another one behind it, in one read if the target has a cheap way. Of a word that isn't
    /// aligned to 8 the upper half is anything.
    fn read_pair(&mut self, byte: u64, word: u64) -> Option<(u8, u64)> {
        Some((self.read_u8(byte)?, self.read_object(word)?))
    }

    /// Loads the [`HEADER_BYTES`](super::HEADER_BYTES) at this address (or [`SHORT_HEADER_BYTES`](super::SHORT_HEADER_BYTES), and zeros behind them).
    fn load_header(&mut self, address: u64) -> bool;

    /// A word of the loaded header; the index is taken modulo [`HEADER_WORDS`](super::HEADER_WORDS).
    fn header_word(&self, index: usize) -> u64;

    /// Loads the [`CODE_BYTES`](super::CODE_BYTES) at this address.
    fn load_code(&mut self, address: u64) -> bool;

    /// The loaded code; the first byte is the lowest of the first word.
    fn code(&self) -> &[u64; CODE_WORDS];

    /// How far the frame is built at the pc whose surroundings are loaded, as [`leaf::Leaf::to_bits`]: [`leaf::judge`],
    /// unless the target has a cheaper way to call it.
    fn judge_leaf(&mut self, left: u64, bytes: u64) -> u64
    where
        Self: Sized,
    {
        leaf::judge(self.code(), left, bytes).to_bits()
    }

    /// The same behind the prologue: [`leaf::judge_body`].
    fn judge_body(&mut self, bytes: u64) -> u64 {
        leaf::judge_body(self.code(), bytes).to_bits()
    }

    /// [`traits`], unless the target has a cheaper way to call it.
    fn traits(&mut self, entry: u64, bytes: u64, level: u64) -> u64
    where
        Self: Sized,
    {
        traits(self, entry, bytes, level)
    }

    /// [`prologue::behind_store`] of the loaded code, unless the target has a cheaper way to call it.
    fn behind_store(&self, at: usize, bytes: u64) -> u64 {
        prologue::behind_store(self.code(), at, bytes)
    }

    /// [`interrupted`], unless the target has a cheaper way to call it.
    fn interrupted(&mut self, pc: u64, bytes: u64) -> u64
    where
        Self: Sized,
    {
        interrupted(self, pc, bytes)
    }

    /// [`is_search`], unless the target has a cheaper way to call it.
    fn is_search(&mut self, usual: u64, saved: u64, pc: u64, jvm: &Jvm) -> bool
    where
        Self: Sized,
    {
        is_search(self, jvm, usual, saved, pc)
    }

    /// [`is_called`], unless the target has a cheaper way to call it.
    fn is_called(&mut self, slot: u64, callee: u64) -> bool
    where
        Self: Sized,
    {
        is_called(self, slot, callee)
    }

    /// What code an address belongs to, as [`Code::to_bits`], and loads its header: [`find`], unless the target has a cheaper way
    /// to call it.
    fn find_code(&mut self, at: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        Code::to_bits(find(at, self, jvm))
    }

    /// Bytes that the caller of a stub at this pc has pushed for it: [`pushed_arguments`], unless the target has a cheaper way
    /// to call it.
    fn pushed_arguments(&mut self, pc: u64) -> u64
    where
        Self: Sized,
    {
        pushed_arguments(self, pc)
    }

    /// [`pushed_words`], unless the target has a cheaper way to call it.
    fn pushed_words(&mut self, pc: u64, usual: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        pushed_words(self, jvm, pc, usual)
    }

    /// Bytes that the loaded code takes off the stack at once, from this byte on: [`pushed::popped`], unless the target has a cheaper
    /// way to call it.
    fn popped(&self, at: usize) -> u64 {
        pushed::popped(self.code(), at)
    }

    /// [`pushed::copy`] of the loaded code, unless the target has a cheaper way to call it.
    fn last_copy(&self) -> u64 {
        pushed::copy(self.code()) as u64
    }

    /// [`returns_to_java`], unless the target has a cheaper way to call it.
    fn returns_to_java(&mut self, slot: u64, jvm: &Jvm) -> bool
    where
        Self: Sized,
    {
        returns_to_java(self, jvm, slot)
    }

    /// Bytes below the frame of compiled code at a return address: [`spilled::below`], unless the target has a cheaper way to call
    /// it.
    fn spilled(&mut self, pc: u64) -> u64
    where
        Self: Sized,
    {
        spilled::below(self, pc)
    }

    /// [`spilled::restoring`], unless the target has a cheaper way to call it.
    fn restoring(&self, word: u64) -> u64 {
        spilled::restoring(word)
    }

    /// [`frozen::youngest_chunk`], unless the target has a cheaper way to call it.
    fn youngest_chunk(&mut self, entry: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        frozen::youngest_chunk(self, jvm, entry)
    }

    /// [`thawing::may_end_room`], unless the target has a cheaper way to call it.
    fn may_end_room(&mut self, begin: u64, entry: u64, jvm: &Jvm) -> bool
    where
        Self: Sized,
    {
        thawing::may_end_room(self, jvm, begin, entry)
    }

    /// [`thawing::end_of_room`], unless the target has a cheaper way to call it.
    fn end_of_room(&mut self, begin: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        thawing::end_of_room(self, jvm, begin)
    }

    /// [`thawing::end_within`], unless the target has a cheaper way to call it.
    fn end_within(&mut self, begin: u64, from: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        thawing::end_within(self, jvm, begin, from)
    }

    /// [`thawing::find_taken`], unless the target has a cheaper way to call it.
    fn find_taken(&mut self, own: u64, taken: u64, stack: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        thawing::find_taken(self, jvm, own, taken, stack)
    }

    /// [`frozen::chunk_bounds`], unless the target has a cheaper way to call it.
    fn chunk_bounds(&mut self, chunk: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        frozen::chunk_bounds(self, jvm, chunk)
    }

    /// [`frozen::left_to_thaw`], unless the target has a cheaper way to call it.
    fn left_to_thaw(&mut self, chunk: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        frozen::left_to_thaw(self, jvm, chunk)
    }

    /// [`references::follow`], unless the target has a cheaper way to call it.
    fn follow(&mut self, slot: u64, is_root: bool, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        references::follow(self, jvm, slot, is_root)
    }

    /// [`references::new_place`], unless the target has a cheaper way to call it.
    fn new_place(&mut self, table: u64, object: u64, jvm: &Jvm) -> u64
    where
        Self: Sized,
    {
        references::new_place(self, jvm, table, object)
    }

    /// Brings the nmethod that was met at this address before, if one was, to `into`.
    fn recall_nmethod(&mut self, address: u64, into: &mut Nmethod) -> bool {
        let _ = (address, into);
        false
    }

    /// What identifies the method at this address: [`method_identity`], unless the target remembers it. `is_entered`: it is just
    /// being entered, and may be an intrinsic, which the JVM makes without loading a class.
    fn identify_method(&mut self, method: u64, is_entered: bool, jvm: &Jvm) -> Option<MethodIdentity>
    where
        Self: Sized,
    {
        let _ = is_entered;
        method_identity(method, &jvm.layout, self)
    }

    /// The row of generated code at this address, from the JVM's own table.
    fn stub_row(&mut self, table: u32, address: u64) -> Option<Self::Row>;
}
