//! Recorded frames and addresses of code to Java methods with lines.

pub(crate) mod callee;
pub(crate) mod code_at_pc;
pub(crate) mod java_frames;
mod stub_at_pc;
