//! Objects in the Java heap: their classes and sizes, how references to them are followed, what a
//! thread's buffer consists of, and what the objects of threads say.

pub(crate) mod blocker_fields;
pub(crate) mod collector_layout;
pub(crate) mod heap_layout;
pub mod klass;
pub mod thread_objects;
pub mod tlab_census;

pub use heap_layout::{HeapLayout, KlassWord};
pub use klass::{JavaClass, KlassReader};
pub use thread_objects::{ThreadNameLayout, ThreadObject, ThreadObjects};
pub use tlab_census::{CensusError, ObjectCount, TlabCensus, TlabObjects, TlabScreen};
