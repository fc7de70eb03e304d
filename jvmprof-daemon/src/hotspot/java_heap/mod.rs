//! Objects in the Java heap: their classes and sizes, what a thread's buffer consists of, and what
//! the objects of threads say.

pub mod allocation_functions;
pub(crate) mod blocker_fields;
pub(crate) mod heap_layout;
pub mod klass;
pub mod thread_objects;
pub mod tlab_census;

pub use allocation_functions::{FunctionsError, find_allocation_functions};
pub use heap_layout::{HeapLayout, KlassWord};
pub use klass::{JavaClass, KlassReader};
pub use thread_objects::{ThreadNameLayout, ThreadObject, ThreadObjects};
pub use tlab_census::{CensusError, ObjectCount, TlabCensus, TlabObjects, TlabScreen};
