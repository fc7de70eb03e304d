//! Where profiles go: files, and (in time) every other sink.

pub mod collector;
pub mod parca;
pub mod sink;
pub mod store;
