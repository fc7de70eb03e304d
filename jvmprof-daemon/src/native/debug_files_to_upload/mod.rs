//! Debug information for a server that resolves addresses itself: the queue of files to upload, and
//! the extraction of the part that is uploaded.

pub mod extract_debug_info;
pub mod queue;
