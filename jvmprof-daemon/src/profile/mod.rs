//! Profiles: what was sampled, by label set, and the formats it is written in.
//!
//! Symbolized stacks are counted by [`aggregate`] into a [`model::Batch`], one for each window and
//! with one series for each label set. Everything that leaves the program is made from a batch:
//! [`pprof`] for backends, the store and `record -o x.pb.gz`; [`folded_stacks`], [`flamegraph_svg`]
//! and [`recording_page`] for `record`. The pages draw a [`call_tree`], which is merged from
//! batches (`record`) or from pprof (the collector, and `diff`, whose page is [`diff_page`]).
//! [`comparison`] says what of a difference may be chance; [`java_view`] leaves only Java's frames;
//! [`jvm_activity`] says what a JVM's samples were taken in.

pub mod aggregate;
pub mod call_tree;
pub mod comparison;
pub mod diff_page;
pub mod flamegraph_svg;
pub mod folded_stacks;
pub mod gzip;
pub mod java_view;
pub mod jvm_activity;
pub mod model;
pub mod page_assets;
pub mod pprof;
pub mod recording_page;
pub mod stack_budget;
#[cfg(test)]
pub(crate) mod testing;
