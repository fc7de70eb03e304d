//! Objects in the Java heap: their classes and sizes, and what a thread's buffer consists of.

pub mod allocation_functions;
pub(crate) mod blocker_fields;
pub(crate) mod heap_layout;
pub mod klass;
pub mod tlab_census;

pub use allocation_functions::{FunctionsError, find_allocation_functions};
pub use heap_layout::{HeapLayout, KlassWord};
pub use klass::{JavaClass, KlassReader};
pub use tlab_census::{CensusError, ObjectCount, TlabCensus, TlabObjects};
