//! Sums of the profiles of a series over an hour and longer, which answers read in place of the
//! profiles.
//!
//! `background_thread` searches for periods that have ended, `sum_of_period` adds one of them up,
//! and [`stored_sum`] is its form on disk.

mod background_thread;
pub mod stored_sum;
pub(in crate::export::collector) mod sum_of_period;
#[cfg(test)]
mod tests;

pub use background_thread::{BackgroundSums, SumCounts, sum_all};
