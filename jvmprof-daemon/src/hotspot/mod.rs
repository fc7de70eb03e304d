//! HotSpot from outside: what a JVM is made of, read from its memory while it runs.
//!
//! Nothing is asked of the JVM and nothing in it changes. Offsets come from the tables that every
//! HotSpot exports ([`vmstructs`]); whatever is read may be stale, torn or hostile, so every read
//! is bounded and every object checked.

mod attach;
mod bytecodes;
mod cache;
mod calls;
mod chunks;
mod collector;
pub mod command;
mod continuation;
pub mod error;
mod explain;
mod flags;
pub mod heap;
pub mod image;
pub mod interpreter;
mod layout;
pub mod lines;
pub mod memory;
mod method;
pub mod names;
mod nmethod;
mod resolve;
pub mod scopes;
pub mod stubs;
mod threads;
mod unloads;
mod unnamed;
pub mod unsigned5;
mod version;
pub mod vmstructs;

pub use attach::Hotspot;
pub use cache::JavaCache;
pub use calls::Called;
pub use error::HotspotError;
pub use explain::Explanation;
pub use flags::{Flag, Origin};
pub use heap::{Blob, StubBlob};
pub use image::{Image, images};
pub use interpreter::Codelet;
pub use memory::{LiveMemory, ProcessMemory, RecordedMemory};
pub use nmethod::Compiled;
pub use resolve::{CodeRef, Frames, How, JavaFrame};
pub use threads::JavaThread;
pub use unloads::Times;
pub use unnamed::Unnamed;
pub use version::Version;
