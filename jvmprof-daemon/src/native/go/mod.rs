//! Go programs: the table of functions that each carries, and the code that it describes.

pub mod pclntab;
pub(crate) mod program;
