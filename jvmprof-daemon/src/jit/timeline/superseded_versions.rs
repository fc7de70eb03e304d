//! The versions of a piece below its newest one.

use super::{Entry, MAX_OLDER};

/// Indexes of entries, oldest first, by the time since when they were there. Mostly empty: a
/// pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Older(Option<Box<Kept>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kept {
    /// There was more that isn't known any more.
    is_dropped: bool,
    entries: Vec<u32>,
}

impl Older {
    /// With all versions that are allowed.
    pub(super) const MAX_BYTES: usize = size_of::<Kept>() + 16 + (MAX_OLDER + 1) * size_of::<u32>();

    /// What one more version takes.
    pub(super) const ONE_BYTES: usize = size_of::<Kept>() + 16 + size_of::<u32>();

    pub(super) fn entries(&self) -> &[u32] {
        self.0.as_deref().map_or(&[], |kept| &kept.entries)
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.0.as_deref().is_some_and(|kept| kept.is_dropped)
    }

    pub(super) fn size_bytes(&self) -> usize {
        let kept = |kept: &Kept| size_of::<Kept>() + 16 + kept.entries.capacity() * size_of::<u32>();
        self.0.as_deref().map_or(0, kept)
    }

    /// Puts `new` where its time belongs: mostly in the place of `top`, which goes below. True if a
    /// version had to be forgotten before its time.
    pub(super) fn push(&mut self, top: &mut u32, new: u32, entries: &[Entry], horizon_ns: u64) -> bool {
        let since = |entry: u32| entries.get(entry as usize).map_or(0, |entry| entry.since_ns);
        let kept = self.0.get_or_insert_default();
        kept.entries.reserve_exact(1);
        if since(new) >= since(*top) {
            kept.entries.push(std::mem::replace(top, new));
        } else {
            // Threads may write their records out of order.
            let at = kept.entries.partition_point(|entry| since(*entry) <= since(new));
            kept.entries.insert(at, new);
        }
        self.expire(*top, entries, horizon_ns);
        let Some(kept) = self.0.as_deref_mut().filter(|kept| kept.entries.len() > MAX_OLDER) else {
            return false;
        };
        kept.entries.remove(0);
        kept.is_dropped = true;
        true
    }

    /// Forgets versions that were superseded before `horizon_ns`.
    pub(super) fn expire(&mut self, top: u32, entries: &[Entry], horizon_ns: u64) {
        let Some(kept) = self.0.as_deref_mut() else { return };
        let since = |entry: u32| entries.get(entry as usize).map_or(0, |entry| entry.since_ns);
        let successors = kept.entries.iter().skip(1).copied().chain([top]);
        let expired = successors.take_while(|successor| since(*successor) <= horizon_ns).count();
        let expired = expired.min(kept.entries.len());
        if expired > 0 {
            kept.entries.drain(..expired);
            kept.entries.shrink_to_fit();
            kept.is_dropped = true;
        }
    }

    /// Forgets all versions, and tells how many.
    pub(super) fn drop_all(&mut self) -> u64 {
        let Some(kept) = self.0.as_deref_mut() else { return 0 };
        kept.is_dropped |= !kept.entries.is_empty();
        std::mem::take(&mut kept.entries).len() as u64
    }

    pub(super) fn merge_dropped(&mut self, other: &Self) {
        if other.is_dropped() {
            self.0.get_or_insert_default().is_dropped = true;
        }
    }

    pub(super) fn renumber(&mut self, moved_to: &[u32]) {
        for entry in self.0.iter_mut().flat_map(|kept| &mut kept.entries) {
            *entry = moved_to[*entry as usize];
        }
    }
}
