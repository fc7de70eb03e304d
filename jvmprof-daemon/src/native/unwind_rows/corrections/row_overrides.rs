//! Rows that replace those of frame information.

use std::ops::Range;

use jvmprof_common::rows::Row;

use crate::types::Svma;

/// Rows in order of their addresses; none overlaps another.
#[derive(Debug, Default)]
pub(crate) struct RowOverrides(Box<[RowOverride]>);

/// A row and the code where it holds.
pub(crate) type RowOverride = (Range<u64>, Row);

impl RowOverrides {
    /// Sorts the overrides; one that overlaps an earlier one is left out.
    pub(crate) fn new(mut overrides: Vec<RowOverride>) -> Self {
        overrides.sort_by_key(|(range, _)| range.start);
        let mut end = 0;
        overrides.retain(|(range, _)| {
            let is_kept = range.start >= end && !range.is_empty();
            end = if is_kept { range.end } else { end };
            is_kept
        });
        Self(overrides.into())
    }

    pub(crate) fn find(&self, pc: Svma) -> Option<Row> {
        let (range, row) = self.from(pc.0).first()?;
        range.contains(&pc.0).then_some(*row)
    }

    /// Passes on `row`, which holds from `start` to `end`, with the overrides in its place.
    pub(crate) fn apply(&self, start: u64, end: u64, row: Row, handle: &mut dyn FnMut(u64, u64, Row)) {
        let mut at = start;
        for (range, other) in self.from(start).iter().take_while(|(range, _)| range.start < end) {
            let (from, to) = (range.start.max(at), range.end.min(end));
            if at < from {
                handle(at, from, row);
            }
            handle(from, to, *other);
            at = to;
        }
        if at < end || start >= end {
            handle(at, end, row);
        }
    }

    /// Returns the overrides that end after `at`.
    fn from(&self, at: u64) -> &[RowOverride] {
        &self.0[self.0.partition_point(|(range, _)| range.end <= at)..]
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use jvmprof_common::rows::CfaRule;

    use super::*;

    fn row(offset: i32) -> Row {
        Row { cfa: CfaRule::Rsp(offset), ..Row::AT_CALL }
    }

    #[test]
    fn overrides_take_the_place_of_what_they_cover_and_of_nothing_else() {
        let all =
            vec![(0x18..0x28, row(3)), (0x10..0x14, row(1)), (0x14..0x18, row(2)), (0x20..0x30, row(4))];
        let overrides = RowOverrides::new(all);
        for (start, end) in [(0, 8), (0, 0x12), (0x8, 0x40), (0x12, 0x16), (0x26, 0x28), (0x28, 0x30)] {
            let mut handed = Vec::new();
            overrides.apply(start, end, row(0), &mut |start, end, row| handed.push((start, end, row)));
            assert_eq!((handed[0].0, handed[handed.len() - 1].1), (start, end));
            assert!(handed.windows(2).all(|pair| pair[0].1 == pair[1].0), "{handed:?}");
            for address in start..end {
                let expected = match address {
                    0x10..0x14 => row(1),
                    0x14..0x18 => row(2),
                    0x18..0x28 => row(3),
                    _ => row(0),
                };
                let found = handed.iter().find(|(start, end, _)| (*start..*end).contains(&address));
                assert_eq!(found.map(|it| it.2), Some(expected), "{address:#x}");
                assert_eq!(overrides.find(Svma(address)).unwrap_or(row(0)), expected, "{address:#x}");
            }
        }
    }
}
