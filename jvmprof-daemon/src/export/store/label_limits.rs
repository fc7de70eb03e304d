//! Limits of labels: what a label set may have, and what the index keeps of all series.
//!
//! Labels are what a store keeps in memory of whatever size they are pushed with. What is beyond
//! these limits is refused before anything of it is written: a label set that isn't read at the
//! next start would take its profiles with it.

use crate::profile::model::LabelSet;

/// The most that the names and values of a label set may have. As JSON it is less than what is read
/// of its file, whatever has to be escaped.
pub const MAX_LABEL_SET_BYTES: usize = 64 << 10;

/// The same of all series of a store: half a million of them with 500 bytes each.
pub(super) const MAX_LABEL_BYTES: u64 = 256 << 20;

/// Characters of a name that a message shows.
pub(super) const SHOWN_CHARACTERS: usize = 100;

/// Returns the bytes of the names and values of a label set.
pub(super) fn label_set_bytes(labels: &LabelSet) -> usize {
    labels.iter().map(|(name, value)| name.len() + value.len()).sum()
}
