//! pprof: profiles made from batches, read within limits, checked, and merged.

mod cpu_time;
pub mod decode;
mod encode;
pub mod jvm_pauses;
pub mod line_column;
pub mod merge;
pub mod sample_times;
mod sampled_events;
pub mod stack_sum;
mod strings;
mod tables;
#[cfg(test)]
mod tests;

pub use cpu_time::add_cpu_time;
pub use encode::{PushEncoder, for_file, for_file_of_events, for_push, to_bytes};
pub use sampled_events::{sampled_events, total};
pub use strings::text_at;
pub use tables::{CheckedTables, InvalidProfile};
