//! Debug information for a server that names addresses itself: the files that wait to be uploaded,
//! and the part of each that is.

pub mod extract_debug_info;
pub mod queue;
