//! Where profiles go: backends, the local store, and the spool in between.

pub mod collector;
pub mod delivery;
pub mod listener;
pub mod parca;
pub mod spool;
pub mod store;
