//! The embedded collector: the page.

mod api;
pub mod page;
mod reading;
mod selection;
mod timeline;

pub use reading::ReadLimits;
