//! Layout of one HotSpot JVM for the kernel program: addresses and field offsets that the daemon
//! read from the JVM's own vmStructs.

use crate::address::Avma;
use crate::verifier::is_less;

/// Code heaps of one JVM, at most: non-nmethods, profiled, non-profiled (openjdk
/// src/hotspot/share/code/codeCache.cpp), and the hot code heap that later versions may add.
pub const MAX_CODE_HEAPS: usize = 4;
/// Offset of a field that this JVM doesn't have.
pub const NO_FIELD: u16 = u16::MAX;

/// One code heap (openjdk src/hotspot/share/memory/heap.hpp, `CodeHeap`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeHeap {
    /// First address of the memory reserved for it; it never moves.
    pub start: u64,
    /// First address after the reserved memory; equal to `start` for an unused entry.
    pub end: u64,
    /// First address of the segment map: one byte a segment, 0xff if free, 0 at a block's start,
    /// else how many segments to go back (more hops may follow).
    pub segment_map: u64,
    /// Segment size as a power of two.
    pub log2_segment: u64,
}

/// Field offsets in bytes, [`NO_FIELD`] where the JVM has no such field, and what differs by its
/// version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JvmLayout {
    /// `sizeof(HeapBlock)`: a `CodeBlob` begins this far after its block's begin.
    pub heap_block_bytes: u16,
    /// `HeapBlock::Header::_used`, one byte, from the block's begin.
    pub block_used: u16,
    /// `CodeBlob::_name`, a `const char*`.
    pub blob_name: u16,
    /// `CodeBlob::_kind`, one byte (JDK 24 and later).
    pub blob_kind: u16,
    /// The kind of an nmethod.
    pub nmethod_kind: u16,
    /// Begin of the code: an address ([`JvmLayout::code_is_offset`] 0) or an `int` offset from
    /// the blob (1).
    pub blob_code_begin: u16,
    pub code_is_offset: u16,
    /// `CodeBlob::_frame_complete_offset`: bytes of code after which the frame is built;
    /// `frame_complete_bytes` wide (2, 4).
    pub blob_frame_complete: u16,
    pub frame_complete_bytes: u16,
    /// `CodeBlob::_frame_size`, an `int`: words, return address included.
    pub blob_frame_size: u16,
    /// `nmethod::_verified_entry_point`: an address, or (`entry_is_offset` 1) a `u2` offset from
    /// the code's begin.
    pub nmethod_verified_entry: u16,
    pub entry_is_offset: u16,
    /// `nmethod::_compile_id`, an `int`.
    pub nmethod_compile_id: u16,
    /// `nmethod::_entry_bci`, an `int`: -1 unless the nmethod is an on-stack replacement.
    pub nmethod_entry_bci: u16,
    /// `nmethod::_orig_pc_offset`, an `int`: where a deoptimized frame keeps its pc, from its stack
    /// pointer.
    pub nmethod_orig_pc: u16,
    /// The deoptimization handlers: addresses, or (`deopt_is_offset` 1) `int` offsets from the
    /// blob.
    pub nmethod_deopt: u16,
    pub nmethod_deopt_mh: u16,
    pub deopt_is_offset: u16,
    /// `Method::_constMethod`.
    pub method_const: u16,
    /// `ConstMethod::_constants`.
    pub const_constants: u16,
    /// `ConstMethod::_code_size`, a `u2` followed by the `u2` indices of name, signature and idnum.
    pub const_code_size: u16,
    /// `sizeof(ConstMethod)`: the bytecodes begin there.
    pub const_bytes: u16,
    /// `ConstantPool::_pool_holder`.
    pub pool_holder: u16,
    /// `Klass::_name`.
    pub klass_name: u16,
    /// `Symbol::_length`, a `u2`.
    pub symbol_length: u16,
    /// `Symbol::_body`.
    pub symbol_body: u16,
    /// Which word below the frame pointer holds the bytecode pointer of an interpreted frame: 8 (7
    /// on JDK 8).
    pub interpreter_bcp_slot: u16,
    /// `JavaThread::_cont_entry` (JDK 19 and later).
    pub thread_cont_entry: u16,
    /// `sizeof(ContinuationEntry)`: its frame's saved frame pointer and return address stand there.
    pub cont_entry_bytes: u16,
    /// `nmethod::_comp_level`, of which the lowest byte is read.
    pub nmethod_level: u16,
    /// Zero.
    pub reserved: [u16; 2],
}

/// Data of a collector that is needed to follow references within the Java heap. Collectors that
/// move objects while threads run leave references to where an object was; their forwarding tables
/// lead on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GarbageCollector {
    /// [`GarbageCollector::STOPS`] and the following.
    pub kind: u16,
    /// Fields of what ZGC knows of a page whose objects move (openjdk
    /// src/hotspot/share/gc/z/zForwarding.hpp): its begin, how objects are aligned, and the length
    /// of its hash table, which lies after these `forwarding_bytes`.
    pub forwarding_start: u16,
    pub forwarding_alignment: u16,
    pub forwarding_length: u16,
    pub forwarding_bytes: u16,
    /// Bytes that an entry of the following tables stands for, as a power of two.
    pub granule_shift: u16,
    /// Zero.
    pub reserved: [u16; 2],
    /// Address of the mask of colors: good ones ([`GarbageCollector::Z`]), bad ones
    /// ([`GarbageCollector::X`]).
    pub mask_at: u64,
    /// The bits of an address that are an offset within the heap, and what its other bits are.
    pub offset_mask: u64,
    pub base: u64,
    /// Tables of pages whose objects move: of the young generation or the only one, and of the old
    /// one.
    pub young: u64,
    pub old: u64,
}

impl GarbageCollector {
    /// Moves objects only while it stops all threads that run Java code.
    pub const STOPS: u16 = 0;
    /// The generational ZGC.
    pub const Z: u16 = 1;
    /// The ZGC without generations (JDK 11 to 23), whose sources were `gc/x` at last.
    pub const X: u16 = 2;
    pub const SHENANDOAH: u16 = 3;
}

/// Layout of the objects in which the Java heap keeps the frames of virtual threads that aren't on
/// a stack: `jdk.internal.vm.StackChunk`. All 0 where they can't be walked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackChunkLayout {
    /// A chunk is known by its class: the word at `klass_at` under this mask.
    pub klass: u64,
    pub klass_mask: u64,
    /// Added to a narrow reference that is shifted left by `oop_shift`.
    pub oop_base: u64,
    pub oop_shift: u16,
    /// 1 if references have 32 bits.
    pub oops_are_narrow: u16,
    pub klass_at: u16,
    /// `Continuation.tail`: the youngest chunk.
    pub cont_tail: u16,
    /// `StackChunk.parent`: the next older one.
    pub parent: u16,
    /// Words of its stack.
    pub size: u16,
    /// Index of the youngest frame's first word.
    pub sp: u16,
    /// Index of the word after the oldest frame, or (`bottom_is_argsize` 1) how many words it is
    /// from the end.
    pub bottom: u16,
    pub bottom_is_argsize: u16,
    /// Bytes from the object to its stack.
    pub stack: u16,
    /// `StackChunk.maxThawingSize`: words of stack that its frames take once they are thawed; 0
    /// where it isn't known.
    pub max_thawing: u16,
    /// Zero.
    pub reserved: u16,
    pub collector: GarbageCollector,
}

/// One of the stubs by which frames of a virtual thread come back from the heap: offsets of its
/// instructions from [`Jvm::return_barrier_start`] (openjdk
/// src/hotspot/cpu/x86/stubGenerator_x86_64.cpp, `generate_cont_thaw`). All 0 where they aren't
/// known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThawStub {
    pub begin: u16,
    /// `sub rsp, rbx`, which allocates stack for the frames.
    pub allocation: u16,
    /// `mov rbx, rax`, after the call that has copied them.
    pub thawed: u16,
    /// `mov rsp, rbx`, by which the stack pointer gets to the youngest of them.
    pub restore: u16,
}

/// The stub by which a thread continues, the return barrier, and that for exceptions.
pub const THAW_STUBS: usize = 3;

/// One JVM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jvm {
    /// The memory reserved for the code cache.
    pub code_start: u64,
    pub code_end: u64,
    pub heaps: [CodeHeap; MAX_CODE_HEAPS],
    /// The interpreter's code.
    pub interpreter_start: u64,
    pub interpreter_end: u64,
    /// Addresses of the strings "nmethod" and "native nmethod" as blobs point to them; 0 where
    /// nmethods are recognized by kind, or where none has been seen yet.
    pub nmethod_name: u64,
    pub native_nmethod_name: u64,
    /// Code of `StubRoutines` that a frozen continuation's bottom frame returns to; empty where
    /// there are no continuations.
    pub return_barrier_start: u64,
    pub return_barrier_end: u64,
    pub thaw_stubs: [ThawStub; THAW_STUBS],
    /// `ContinuationEntry::_return_pc`.
    pub cont_entry_return_pc: u64,
    /// Address of the blob that `call_stub` is in, which stays as long as the JVM; 0 if it isn't
    /// known.
    pub call_stub: u64,
    /// Address of the counter `java.cls.loadedClasses`; 0 if the JVM keeps none. While it stays as
    /// it is, no class takes the memory of another: it is incremented for each class that was
    /// parsed, versions of redefined classes included, before any of its methods can run (openjdk
    /// src/hotspot/share/classfile/classFileParser.cpp, `fill_instance_klass`).
    pub loaded_classes: u64,
    /// Unwind rows of stubs, interpreter and adapters: see [`crate::unwind_tables`]; 0 if there are
    /// none.
    pub table: u32,
    pub reserved: u32,
    pub layout: JvmLayout,
    pub chunks: StackChunkLayout,
}

const _: () =
    assert!(size_of::<JvmLayout>() == 32 * size_of::<u16>(), "no padding: the daemon writes its bytes");
const _: () =
    assert!(size_of::<GarbageCollector>() == 8 * 2 + 5 * 8, "no padding: the daemon writes its bytes");
const _: () = assert!(
    size_of::<StackChunkLayout>() == 3 * 8 + 12 * 2 + size_of::<GarbageCollector>(),
    "no padding: the daemon writes its bytes"
);
const _: () = assert!(
    size_of::<Jvm>()
        == 11 * 8
            + THAW_STUBS * size_of::<ThawStub>()
            + MAX_CODE_HEAPS * size_of::<CodeHeap>()
            + 2 * 4
            + size_of::<JvmLayout>()
            + size_of::<StackChunkLayout>(),
    "no padding: the daemon writes its bytes"
);

impl Jvm {
    /// Returns which of the stubs by which frames come back an instruction belongs to, and its
    /// offset from [`Self::return_barrier_start`].
    #[inline(always)]
    pub fn thaw_stub(&self, pc: Avma) -> Option<(usize, ThawStub, u64)> {
        let offset = pc.0.wrapping_sub(self.return_barrier_start);
        let mut index = THAW_STUBS;
        while index > 0 {
            index -= 1;
            let stub = self.thaw_stubs[index];
            if stub.restore != 0 && offset >= u64::from(stub.begin) {
                return (pc.0 < self.return_barrier_end).then_some((index, stub, offset));
            }
        }
        None
    }

    /// Returns true for an address within the memory of the code cache.
    #[inline(always)]
    pub const fn in_code_cache(&self, address: Avma) -> bool {
        is_less(address.0.wrapping_sub(self.code_start), self.code_end.wrapping_sub(self.code_start))
    }

    /// Returns true for a return address of the interpreter: the call is before it.
    #[inline(always)]
    pub const fn returns_to_interpreter(&self, pc: Avma) -> bool {
        pc.0 > self.interpreter_start && pc.0 <= self.interpreter_end
    }

    /// Returns the code heap that holds an address.
    #[inline(always)]
    pub fn code_heap(&self, address: Avma) -> Option<CodeHeap> {
        let mut index = 0;
        while index < MAX_CODE_HEAPS {
            let heap = self.heaps[index];
            if address.0 >= heap.start && address.0 < heap.end {
                return Some(heap);
            }
            index += 1;
        }
        None
    }
}
