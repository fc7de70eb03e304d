//! Profiles: what was sampled, by label set, and the formats it is written in.

pub mod aggregate;
pub mod assets;
pub mod decode;
pub mod folded;
pub mod gzip;
pub mod html;
pub mod merge;
pub mod model;
pub mod pprof;
pub mod room;
mod source;
mod strings;
pub mod svg;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod tree;
