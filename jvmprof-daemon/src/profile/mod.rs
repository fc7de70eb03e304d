//! Profiles: what was sampled, by label set, and the formats it is written in.

pub mod model;
pub mod tree;
