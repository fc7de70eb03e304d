//! Kinds of the code of blobs and interpreter codelets, by the name that HotSpot gave it.

/// The state in which code is entered, and what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlobKind {
    /// Called as a function: runtime stubs, signature handlers.
    Stub,
    /// Many functions with tables between them, and some entries that are jumped to.
    StubRoutines,
    /// As [`Self::Stub`], never moving the stack pointer, and still growing: vtable stubs, inline
    /// cache stubs.
    Frameless,
    /// The entry of interpreted methods of one kind: the caller's stack pointer is in r13.
    InterpreterEntry,
    /// The entries of method handle intrinsics, one after the other.
    MethodHandles,
    /// Bytecodes and all else that runs in a complete interpreter frame.
    InterpreterFrame,
    /// An i2c adapter and the c2i adapters behind it.
    Adapter,
    /// Jumped to by compiled code whose frame is whole, with the throwing address in rdx.
    Exception,
    /// Jumped to by a stub whose frame, with a frame pointer, is complete.
    Framed,
    /// Jumped to from a safepoint poll; the signal handler keeps the address where a poll that
    /// isn't a return was.
    Safepoint,
    /// Replaces a compiled frame by interpreted ones.
    Deoptimization,
    /// As [`Self::Deoptimization`], called by the code that gives up.
    UncommonTrap,
    /// Thawing of continuations: its frames' return addresses are where the continuation began, not
    /// on the stack.
    Continuations,
}

impl BlobKind {
    /// All kinds, in the order of their declaration.
    pub(super) const ALL: [Self; 13] = [
        Self::Stub,
        Self::StubRoutines,
        Self::Frameless,
        Self::InterpreterEntry,
        Self::MethodHandles,
        Self::InterpreterFrame,
        Self::Adapter,
        Self::Exception,
        Self::Framed,
        Self::Safepoint,
        Self::Deoptimization,
        Self::UncommonTrap,
        Self::Continuations,
    ];

    /// Returns true if data lies between pieces of code.
    pub(super) fn has_tables(self) -> bool {
        self == Self::StubRoutines
    }
}

/// The kind of a code blob; `None` for nmethods, and for blobs whose code is never run.
///
/// Names: openjdk src/hotspot/share/code/codeBlob.cpp and the generators, JDK 8 to 28. Blobs that
/// come out of an ahead-of-time cache are named as in src/hotspot/share/runtime/stubInfo.cpp.
pub fn kind_of_blob(name: &str) -> Option<BlobKind> {
    let has = |part: &str| name.contains(part);
    Some(match name {
        "nmethod" | "native nmethod" | "adapters" | "Interpreter" | "Signature Handler Temp Buffer" => {
            return None;
        }
        _ if has("temporary CodeBuffer") => return None,
        // Buffers that code is added to as the program runs.
        "vtable chunks" | "InlineCacheBuffer" | "native signature handlers" => BlobKind::Frameless,
        "ExceptionBlob" | "exception_blob (C2 runtime)" | "C2 Runtime exception_blob" => BlobKind::Exception,
        "DeoptimizationBlob" | "deopt_blob (shared runtime)" | "Shared Runtime deopt_blob" => {
            BlobKind::Deoptimization
        }
        "UncommonTrapBlob" | "uncommon_trap_blob (C2 runtime)" | "C2 Runtime uncommon_trap_blob" => {
            BlobKind::UncommonTrap
        }
        "SafepointBlob" => BlobKind::Safepoint,
        // C1's; `StubRoutines` has another one, which is called. openjdk
        // src/hotspot/cpu/x86/c1_Runtime1_x86.cpp.
        _ if has("forward_exception") => BlobKind::Framed,
        "MethodHandles adapters" => BlobKind::MethodHandles,
        _ if has("I2C/C2I adapters") => BlobKind::Adapter,
        _ if has("polling_page") && has("handler_blob") => BlobKind::Safepoint,
        _ if is_stub_routines(name) && has("continuation") => BlobKind::Continuations,
        _ if is_stub_routines(name) => BlobKind::StubRoutines,
        _ => BlobKind::Stub,
    })
}

/// Returns true for the blobs of `StubRoutines`, which have many stubs each.
pub(crate) fn is_stub_routines(blob_name: &str) -> bool {
    blob_name.starts_with("StubRoutines") || blob_name.ends_with("_blob (stub gen)")
}

/// The kind of an interpreter codelet by its description; bytecodes are described by their names.
///
/// Descriptions: openjdk src/hotspot/share/interpreter/templateInterpreterGenerator.cpp, JDK 8 to
/// 28.
pub fn kind_of_codelet(description: &str) -> BlobKind {
    match description {
        _ if description.contains("method entry point") => BlobKind::InterpreterEntry,
        // Called by the entries of native methods.
        "slow signature handler" | "result handlers for native calls" => BlobKind::Stub,
        _ => BlobKind::InterpreterFrame,
    }
}
