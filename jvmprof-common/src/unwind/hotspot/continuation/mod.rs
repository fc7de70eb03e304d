//! Frames of a virtual thread that lie in the Java heap.
//!
//! When a virtual thread continues, only its youngest frames are copied back to the carrier's
//! stack. The lowest of them returns to the return barrier ([`thaw_stubs`]), which thaws the next
//! ones; those lie in a list of `StackChunk` objects ([`stack_chunk`]; openjdk
//! src/hotspot/share/runtime/continuationFreezeThaw.cpp, share/oops/stackChunkOop.inline.hpp). In a
//! chunk they look as on a stack, except that what points to an interpreted frame, or from it, is a
//! distance in words from where it stands (share/runtime/stackChunkFrameStream.inline.hpp).
//! [`frozen_frames`] walks them.
//!
//! The thread that is walked is the one that was interrupted, so nobody else changes its chunks,
//! but for a collector, which may move them meanwhile ([`load_barriers`]). It changes neither
//! return addresses nor what identifies methods.
//!
//! The return barrier itself allocates stack for what it is about to thaw, and calls the JVM to
//! copy it ([`thawing`]).

pub mod frozen_frames;
pub mod load_barriers;
pub mod stack_chunk;
pub mod thaw_stubs;
pub mod thawing;
pub mod yielding;
