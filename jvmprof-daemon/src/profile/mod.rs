//! Profiles: what was sampled, by label set, and the formats it is written in.

pub mod assets;
pub mod decode;
pub mod gzip;
pub mod html;
pub mod merge;
pub mod model;
mod source;
mod strings;
pub mod tree;
