//! HotSpot from outside: what a JVM is made of, read from its memory while it runs.
//!
//! Nothing is asked of the JVM and nothing in it changes. Offsets come from the tables that every
//! HotSpot exports ([`vmstructs`]); whatever is read may be stale, torn or hostile, so every read
//! is bounded and every object checked.

mod attach;
pub mod code_cache;
pub mod diagnostics;
pub mod error;
mod java_cache;
pub mod methods;
mod naming;
pub mod process_memory;
pub mod stubs;
mod threads;
mod version;
pub mod vmstructs;

pub use attach::Hotspot;
pub use code_cache::code_heaps::{Blob, StubBlob};
pub use code_cache::interpreter_codelets::Codelet;
pub use code_cache::nmethod::Compiled;
pub use diagnostics::vm_flags::{Flag, Origin};
pub use error::HotspotError;
pub use java_cache::JavaCache;
pub use methods::class_unloading::Times;
pub use naming::callee::Called;
pub use naming::code_at_pc::Explanation;
pub use naming::java_frames::{CodeRef, Frames, How, JavaFrame};
pub use naming::naming_error::Unnamed;
pub use process_memory::{LiveMemory, ProcessMemory, RecordedMemory};
pub use threads::java_threads::JavaThread;
pub use version::Version;
pub use vmstructs::exported_symbols::{Image, images};
