//! Free list of a kernel array.

use std::collections::BTreeMap;
use std::ops::Range;

/// First-fit allocator of an array's ranges.
#[derive(Debug)]
pub(super) struct FreeExtents {
    /// Free ranges: length by start. Neighbours are merged.
    free: BTreeMap<u32, u32>,
}

impl FreeExtents {
    pub(super) fn new(entries: Range<u32>) -> Self {
        let mut extents = Self { free: BTreeMap::new() };
        extents.release(entries);
        extents
    }

    /// Allocates a range of this length; `None` if there is none.
    pub(super) fn take(&mut self, length: u32) -> Option<Range<u32>> {
        let (&start, &free) = self.free.iter().find(|(_, free)| **free >= length)?;
        self.free.remove(&start);
        if free > length {
            self.free.insert(start + length, free - length);
        }
        Some(start..start + length)
    }

    pub(super) fn release(&mut self, extent: Range<u32>) {
        if extent.is_empty() {
            return;
        }
        let (mut start, mut end) = (extent.start, extent.end);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_neighbours_become_one_stretch_again() {
        let mut extents = FreeExtents::new(1..11);
        let parts: Vec<_> = (0..5).map(|_| extents.take(2).expect("there is space")).collect();
        assert_eq!(extents.take(1), None);
        for index in [0, 2, 1, 4, 3] {
            extents.release(parts[index].clone());
        }
        assert_eq!(extents.take(10), Some(1..11));
    }
}
