//! The table of subprograms: the parts of the stepper that the kernel program runs as global
//! functions, each of which the verifier checks once ([`crate::verifier`]).
//!
//! A row is the subprogram's name, arguments and result, the function that does it, and what the
//! kernel program says in its place where its own memory is missing, which doesn't happen. From the
//! same rows are made
//! - the methods of [`super::HotspotTarget`] by which the stepper calls them: they run the function
//!   at once, in the daemon and in tests;
//! - the global functions of the kernel program and its targets' methods that call those
//!   (`jvmprof-ebpf/src/walk/target/subprograms.rs`).
//!
//! A row's group says what a subprogram reads and writes beside its arguments:
//! - `arguments`: nothing;
//! - `code`: it reads the code that is loaded;
//! - `memory`: it reads the target's memory, and may load other code or another header (its comment
//!   says so);
//! - `jvm`: as `memory`, and it reads the JVM's entry.
//!
//! `memory` and `jvm` subprograms don't see the registers of the interrupted frame.

/// Calls the macro `$expand` with the table. The names in it are resolved where that macro is
/// called.
#[macro_export]
macro_rules! hotspot_subprograms {
    ($expand:ident) => {
        $expand! {
            arguments {
                /// Returns the length of an instruction that restores a register after a barrier's
                /// call.
                fn restore_length(instruction: u64) -> u64 = barrier_spills::restore_length;
            }
            code {
                /// Returns the bytes that the loaded code takes off the stack at once, from this
                /// byte on.
                fn popped_bytes(at: usize) -> u64 = c1_pushed_words::popped_bytes, else 0;
                /// Returns how far the loaded code has come with C1's copy of an array.
                fn array_copy_state() -> ArrayCopyState = c1_pushed_words::array_copy_state,
                    else ArrayCopyState::UNKNOWN;
                /// Returns true if there is an instruction in the loaded code that only searches in
                /// strings have.
                fn has_pcmpestri() -> bool = string_indexof::has_pcmpestri, else false;
                /// Returns where the instruction of the loaded code ends that saves rbp, from this
                /// byte on.
                fn rbp_store_end(at: usize, bytes: u64) -> u64 = prologue::rbp_store_end, else 0;
                /// Returns the layout at the pc if an instruction that builds the frame is so many
                /// bytes ahead.
                fn layout_before(ahead: usize, bytes: u64) -> Option<FrameLayout> = prologue::layout_before,
                    else None;
                /// Returns true if the loaded code returns at this byte, with at most the end of a
                /// poll before.
                fn returns_at(at: usize) -> bool = epilogue::returns_at, else false;
            }
            memory {
                /// Returns the layout at the pc whose code is loaded.
                fn layout_at_pc(left: u64, bytes: u64) -> FrameLayout = layout_at_pc::layout_at_pc,
                    else FrameLayout::AT_ENTRY;
                /// Returns the layout at the pc, after the prologue, whose code is loaded.
                fn layout_after_prologue(bytes: u64) -> FrameLayout = layout_at_pc::layout_after_prologue,
                    else FrameLayout::AT_ENTRY;
                /// Loads the code around a pc where a signal has interrupted it, and returns the
                /// layout there.
                fn layout_at_signal(pc: Avma, bytes: u64) -> FrameLayout = layout_at_pc::layout_at_signal,
                    else FrameLayout::built(bytes);
                /// Loads the code at the entry point, and returns what it says of an nmethod's
                /// frames.
                fn frame_shape(entry: Avma, bytes: u64, level: u64) -> u64 = compiled::frame_shape, else 0;
                /// Returns true if the return address in a slot is that of a direct call to
                /// `callee`.
                fn is_direct_call(slot: StackAddress, callee: Avma) -> bool = compiled::is_direct_call,
                    else false;
                /// Loads the code at a return address, and returns the bytes that it pops as a
                /// stub's arguments.
                fn pushed_arguments(pc: Avma) -> u64 = c1_pushed_words::pushed_arguments, else 0;
                /// Returns the bytes of registers that compiled code keeps below its frame for a
                /// barrier's call.
                fn spilled_bytes(pc: Avma) -> u64 = barrier_spills::spilled_bytes, else 0;
                /// Returns the bytes of arguments that a native wrapper keeps below its frame while
                /// it waits for its monitor.
                fn saved_arguments(pc: Avma) -> u64 = saved_arguments::saved_arguments, else 0;
                /// Returns true if this is a pc of `doYield` from the call on that freezes frames.
                fn is_yielding(pc: Avma) -> bool = yielding::is_yielding, else false;
                /// Returns the bytes of the continuation's entry on top of what `doYield` returns
                /// by.
                fn yielded_entry_bytes(pc: Avma) -> u64 = yielding::entry_bytes, else 0;
            }
            jvm {
                /// Loads the header of the code blob that holds an address, and returns its kind.
                fn find_code_blob(at: Avma) -> Result<CodeBlob, Stop> = code_blobs::find_code_blob,
                    else Err(Stop::CodeUnreadable);
                /// Returns true if `String.indexOf` has moved the stack pointer; loads the code
                /// around `pc`.
                fn in_string_indexof(usual: StackAddress, saved: StackAddress, pc: Avma) -> bool
                    = string_indexof::in_string_indexof, else false;
                /// Loads code around `pc`, and returns the bytes that C1's code has pushed above
                /// its frame.
                fn c1_pushed_bytes(pc: Avma, usual: StackAddress) -> u64 = c1_pushed_words::pushed_bytes, else 0;
                /// Returns true if there is a return address of generated code in this slot.
                fn returns_to_java(slot: StackAddress) -> bool = compiled::returns_to_java, else false;
                /// Returns the youngest chunk of the continuation whose entry may be here.
                fn youngest_chunk(entry: StackAddress) -> Avma = stack_chunk::youngest_chunk, else Avma(0);
                /// Returns where the frames of a chunk begin and end.
                fn chunk_bounds(chunk: Avma) -> ChunkBounds = stack_chunk::chunk_bounds,
                    else ChunkBounds::NONE;
                /// Returns the words of stack that it takes to thaw all frames of a chunk.
                fn words_to_thaw(chunk: Avma) -> u64 = stack_chunk::words_to_thaw,
                    else stack_chunk::NOT_COUNTED;
                /// Returns the continuation entry where the memory ends that the JVM thaws frames
                /// to.
                fn find_continuation_entry(begin: StackAddress) -> StackAddress
                    = thawing::find_continuation_entry, else StackAddress(0);
                /// Returns the same, if it is one of the next few places.
                fn find_entry_nearby(begin: StackAddress, from: StackAddress) -> StackAddress
                    = thawing::find_entry_nearby, else StackAddress(0);
                /// Returns true if the memory that begins here may end at an entry.
                fn may_end_at_entry(begin: StackAddress, entry: StackAddress) -> bool
                    = thawing::may_end_at_entry, else false;
                /// Returns the stack pointer of the interpreted frame that alone was thawed off a
                /// chunk.
                fn find_thawed_frame(own: StackAddress, thawed: u64, stack: StackAddress) -> StackAddress
                    = thawing::find_thawed_frame, else StackAddress(0);
                /// Returns the object that a field or root refers to, through the collector's
                /// barrier.
                fn load_reference(slot: Avma, is_root: bool) -> Avma = load_barriers::load_reference,
                    else load_barriers::UNRESOLVED;
                /// Returns where an object has moved that was here when its page got into this
                /// table.
                fn forwardee(table: Avma, object: Avma) -> Avma = load_barriers::forwardee,
                    else load_barriers::UNDECIDED;
            }
        }
    };
}
