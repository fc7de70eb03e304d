//! Entry points: the programs that the kernel runs, but for those that are tail-called
//! ([`crate::walk`]) and those of [`crate::process_filter`].

pub mod allocation;
pub mod kernel_names;
pub mod mapping_events;
pub mod off_cpu;
pub mod pauses;
pub mod sample;
pub mod waiting_threads;
