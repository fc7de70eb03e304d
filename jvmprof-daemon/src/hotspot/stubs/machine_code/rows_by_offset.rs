//! Rows by offset, as the analysis finds them.

use jvmprof_common::rows::Row;

/// The row before each instruction, by its offset: neighbours mostly share one.
#[derive(Debug)]
pub(in crate::hotspot::stubs) struct RowsByOffset {
    /// By offset: which of `rows` it is.
    numbers: Vec<u32>,
    rows: Vec<Option<Row>>,
}

/// There is no instruction whose row is known.
const NO_NUMBER: u32 = u32::MAX;

impl RowsByOffset {
    pub(in crate::hotspot::stubs) fn new(bytes: usize) -> Self {
        Self { numbers: vec![NO_NUMBER; bytes], rows: Vec::new() }
    }

    pub(in crate::hotspot::stubs) fn get(&self, offset: u32) -> Option<Option<Row>> {
        let number = *self.numbers.get(offset as usize)?;
        self.rows.get(number as usize).copied()
    }

    pub(in crate::hotspot::stubs) fn set(&mut self, offset: u32, row: Option<Row>) {
        if self.rows.last() != Some(&row) {
            self.rows.push(row);
        }
        if let Some(number) = self.numbers.get_mut(offset as usize) {
            *number = self.rows.len() as u32 - 1;
        }
    }
}
