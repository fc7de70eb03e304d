//! The embedded collector: the page.

mod api;
pub mod page;
mod reading;
mod selection;

pub use reading::ReadLimits;
