//! HotSpot from outside: what a JVM is made of, read from its memory while it runs.
//!
//! Nothing is asked of the JVM and nothing in it changes. Offsets come from the tables that every
//! HotSpot exports ([`vmstructs`]); whatever is read may be stale, torn or hostile, so every read
//! is bounded and every object checked.

pub mod code_cache;
pub mod error;
mod java_cache;
pub mod java_heap;
mod jvm_reader;
mod loaded_pieces;
pub mod methods;
mod naming;
pub mod probed_functions;
pub mod process_memory;
pub mod runtime_state;
pub mod stubs;
mod version;
mod virtual_threads;
pub mod vmstructs;

pub use code_cache::code_heaps::{CodeBlobDesc, StubBlob};
pub use code_cache::interpreter_codelets::InterpreterCodelet;
pub use code_cache::nmethod::CompiledMethod;
pub use error::{HotspotError, NamingError};
pub use java_cache::JavaCache;
pub use java_heap::blocker_fields::JvmBlockers;
pub use jvm_reader::Hotspot;
pub(crate) use loaded_pieces::LoadedPieces;
pub use methods::call_operands::Callee;
pub use methods::class_unloading::ReadTimes;
pub use naming::code_at_pc::CodeAtPc;
pub use naming::java_frames::{JavaFrame, JavaFrames, PhysicalFrame};
pub use probed_functions::{OperationNames, PauseSymbols, PauseTimes, find_pause_symbols};
pub use process_memory::{LiveMemory, ProcessMemory, RecordedMemory};
pub use runtime_state::java_threads::JavaThread;
pub use runtime_state::monitor_owners::{OwnerFields, OwnerThread, monitor_owner};
pub use runtime_state::pause_variables::PauseVariables;
pub use runtime_state::perf_counters::{CauseCounters, PerfDataLayout};
#[cfg(test)]
pub(crate) use runtime_state::safepoint_counters::testing as safepoint_testing;
pub use runtime_state::safepoint_counters::{SafepointCounters, SafepointEntries, SafepointSums};
pub use runtime_state::vm_flags::{FlagOrigin, VmFlag};
pub use version::JvmVersion;
pub use virtual_threads::census::{CensusTimes, VirtualThreads, WaitingStack};
pub use virtual_threads::census_error::VirtualThreadsError;
pub use vmstructs::exported_symbols::{Image, images};
pub use vmstructs::symtab_variables::SymtabVariables;
