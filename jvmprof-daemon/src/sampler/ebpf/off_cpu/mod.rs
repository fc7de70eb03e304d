//! Waits off the CPU: the scheduler's programs, what raises their interrupts, and their maps.

mod followed_threads;
pub(in crate::sampler) mod maps;
pub(super) mod programs;
mod switch_interrupts;
mod waiting_threads;
