//! Compact table of rows of code that has no call frame information.

use std::collections::HashMap;

use jvmprof_common::rows::Row;

use crate::types::Svma;

/// Rows that are compared one by one: what most functions have is among the first ones of a file.
const FIRST_ROWS: usize = 16;

/// A row and the code where it holds: first address, first one after it, row.
pub(super) type RowRange = (u64, u64, Row);

/// Rows by address, six bytes each: an address and the number of a row.
#[derive(Debug, Default)]
pub(super) struct CompactRowTable {
    base: u64,
    /// Start addresses, sorted. Each row holds up to the next one.
    starts: Vec<u32>,
    numbers: Vec<u16>,
    /// Distinct rows. Number 0 is none.
    rows: Vec<Row>,
    /// Numbers of the rows; empty once all have been pushed.
    by_row: HashMap<Row, u16>,
    end: u64,
}

impl CompactRowTable {
    /// Adds the row from `start` to `end`. Rows come in order; one that overlaps an earlier one,
    /// lies 4 GiB after the first, or is beyond 65,535 different ones is left out.
    pub(super) fn push(&mut self, start: u64, end: u64, row: Row) {
        if self.starts.is_empty() {
            (self.base, self.end) = (start, start);
        }
        let start = start.max(self.end);
        let Some(number) = self.number(row).filter(|_| start < end) else { return };
        let offset = |address: u64| u32::try_from(address - self.base).ok();
        let (Some(from), Some(hole), Some(_)) = (offset(start), offset(self.end), offset(end)) else {
            return;
        };
        if start > self.end {
            self.set(hole, 0);
        }
        self.set(from, number);
        self.end = end;
    }

    fn set(&mut self, from: u32, number: u16) {
        if self.numbers.last() != Some(&number) {
            self.starts.push(from);
            self.numbers.push(number);
        }
    }

    fn number(&mut self, row: Row) -> Option<u16> {
        let first = &self.rows[..self.rows.len().min(FIRST_ROWS)];
        if let Some(index) = first.iter().position(|known| *known == row) {
            return u16::try_from(index + 1).ok();
        }
        if let Some(number) = self.by_row.get(&row) {
            return Some(*number);
        }
        let number = u16::try_from(self.rows.len() + 1).ok()?;
        self.rows.push(row);
        self.by_row.insert(row, number);
        Some(number)
    }

    pub(super) fn find(&self, pc: Svma) -> Option<Row> {
        if pc.0 >= self.end {
            return None;
        }
        let at = u32::try_from(pc.0.checked_sub(self.base)?).ok()?;
        let index = self.starts.partition_point(|start| *start <= at).checked_sub(1)?;
        self.row(index)
    }

    fn row(&self, index: usize) -> Option<Row> {
        self.rows.get(usize::from(*self.numbers.get(index)?).checked_sub(1)?).copied()
    }

    /// Returns all rows, in order: first address, first one after it, row.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, Row)> {
        let end = u32::try_from(self.end - self.base).unwrap_or(u32::MAX);
        let ends = self.starts.iter().skip(1).copied().chain([end]);
        self.starts.iter().zip(ends).enumerate().filter_map(|(index, (start, end))| {
            Some((self.base + u64::from(*start), self.base + u64::from(end), self.row(index)?))
        })
    }

    /// Adds rows, in order of their addresses, between those that are there.
    pub(super) fn add(&mut self, rows: Vec<RowRange>) {
        if rows.is_empty() {
            return;
        }
        let (mut merged, mut rows) = (Self::default(), rows.into_iter().peekable());
        for (start, end, row) in self.iter() {
            while let Some((start, end, row)) = rows.next_if(|(first, ..)| *first < start) {
                merged.push(start, end, row);
            }
            merged.push(start, end, row);
        }
        rows.for_each(|(start, end, row)| merged.push(start, end, row));
        merged.finish();
        *self = merged;
    }

    /// Frees what only [`Self::push`] needs.
    pub(super) fn finish(&mut self) {
        self.by_row = HashMap::new();
        self.starts.shrink_to_fit();
        self.numbers.shrink_to_fit();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.starts.capacity() * 4 + self.numbers.capacity() * 2 + self.rows.capacity() * size_of::<Row>()
    }
}

#[cfg(test)]
mod tests {
    use jvmprof_common::rows::CfaRule;

    use super::*;

    #[test]
    fn rows_are_found_by_address_and_holes_stay_holes() {
        let row = |offset| Row { cfa: CfaRule::Rsp(offset), ..Row::AT_CALL };
        let mut table = CompactRowTable::default();
        let pushed = [
            (0x100, 0x110, row(8)),
            (0x110, 0x120, row(16)),
            (0x130, 0x140, row(8)),
            (0x138, 0x150, row(24)),
        ];
        for (start, end, row) in pushed {
            table.push(start, end, row);
        }
        for address in 0xf0..0x160 {
            let expected = pushed.iter().find(|(start, end, _)| (*start..*end).contains(&address));
            assert_eq!(table.find(Svma(address)), expected.map(|it| it.2), "{address:#x}");
        }
        let all: Vec<_> = table.iter().collect();
        assert_eq!(all, [pushed[0], pushed[1], pushed[2], (0x140, 0x150, row(24))]);
        table.add(vec![(0x80, 0x90, row(32)), (0x122, 0x130, row(40))]);
        let found = [0x80, 0x90, 0x100, 0x121, 0x122, 0x12f, 0x130].map(|at| table.find(Svma(at)));
        let expected = [Some(32), None, Some(8), None, Some(40), Some(40), Some(8)];
        assert_eq!(found, expected.map(|offset| offset.map(row)));
    }
}
