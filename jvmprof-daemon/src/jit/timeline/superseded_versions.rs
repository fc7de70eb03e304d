//! The superseded versions of a piece.

use super::{CodeEntry, MAX_SUPERSEDED};

/// Indexes of entries, ordered by their times, oldest first. It is mostly empty, and then a null
/// pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SupersededVersions(Option<Box<VersionList>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VersionList {
    /// Older versions have been dropped.
    is_dropped: bool,
    entries: Vec<u32>,
}

impl SupersededVersions {
    /// Bytes of the largest number of versions.
    pub(super) const MAX_BYTES: usize =
        size_of::<VersionList>() + 16 + (MAX_SUPERSEDED + 1) * size_of::<u32>();

    /// Bytes of one version.
    pub(super) const ONE_BYTES: usize = size_of::<VersionList>() + 16 + size_of::<u32>();

    pub(super) fn entries(&self) -> &[u32] {
        self.0.as_deref().map_or(&[], |list| &list.entries)
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.0.as_deref().is_some_and(|list| list.is_dropped)
    }

    pub(super) fn size_bytes(&self) -> usize {
        let bytes =
            |list: &VersionList| size_of::<VersionList>() + 16 + list.entries.capacity() * size_of::<u32>();
        self.0.as_deref().map_or(0, bytes)
    }

    /// Inserts `new` by its time: mostly in place of `top`, which becomes superseded. Returns true
    /// if a version was dropped early.
    pub(super) fn push(&mut self, top: &mut u32, new: u32, entries: &[CodeEntry], horizon_ns: u64) -> bool {
        let since = |entry: u32| entries.get(entry as usize).map_or(0, |entry| entry.since_ns);
        let list = self.0.get_or_insert_default();
        list.entries.reserve_exact(1);
        if since(new) >= since(*top) {
            list.entries.push(std::mem::replace(top, new));
        } else {
            // Threads may write their records out of order.
            let at = list.entries.partition_point(|entry| since(*entry) <= since(new));
            list.entries.insert(at, new);
        }
        self.expire(*top, entries, horizon_ns);
        let Some(list) = self.0.as_deref_mut().filter(|list| list.entries.len() > MAX_SUPERSEDED) else {
            return false;
        };
        list.entries.remove(0);
        list.is_dropped = true;
        true
    }

    /// Drops versions that were superseded before `horizon_ns`.
    pub(super) fn expire(&mut self, top: u32, entries: &[CodeEntry], horizon_ns: u64) {
        let Some(list) = self.0.as_deref_mut() else { return };
        let since = |entry: u32| entries.get(entry as usize).map_or(0, |entry| entry.since_ns);
        let successors = list.entries.iter().skip(1).copied().chain([top]);
        let expired = successors.take_while(|successor| since(*successor) <= horizon_ns).count();
        let expired = expired.min(list.entries.len());
        if expired > 0 {
            list.entries.drain(..expired);
            list.entries.shrink_to_fit();
            list.is_dropped = true;
        }
    }

    /// Drops all versions, and returns their number.
    pub(super) fn drop_all(&mut self) -> u64 {
        let Some(list) = self.0.as_deref_mut() else { return 0 };
        list.is_dropped |= !list.entries.is_empty();
        std::mem::take(&mut list.entries).len() as u64
    }

    pub(super) fn merge_dropped(&mut self, other: &Self) {
        if other.is_dropped() {
            self.0.get_or_insert_default().is_dropped = true;
        }
    }

    pub(super) fn renumber(&mut self, moved_to: &[u32]) {
        for entry in self.0.iter_mut().flat_map(|list| &mut list.entries) {
            *entry = moved_to[*entry as usize];
        }
    }
}
