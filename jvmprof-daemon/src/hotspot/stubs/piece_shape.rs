//! The rows of one piece of generated code by the offset of each instruction, wherever it lies.

use std::sync::Arc;

use jvmprof_common::rows::Row;

use super::RowSpan;
use crate::types::Avma;

/// A range of code, wherever it lies.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct PieceShape {
    pub(super) name: Arc<str>,
    pub(super) bytes: u32,
    pub(super) covered_bytes: u32,
    /// The few different rows that the spans have.
    pub(super) rows: Box<[Row]>,
    pub(super) spans: Box<[SpanStart]>,
}

/// The first offset at which a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SpanStart {
    /// From the begin of its piece.
    pub(super) offset: u32,
    /// Its number among those of the shape; [`NO_ROW`].
    pub(super) row: u32,
}

/// The number of no row.
pub(super) const NO_ROW: u32 = u32::MAX;

impl PieceShape {
    /// Makes the shape of code that begins at `start`. `bytes`: less than 4 GiB: a code cache has 2
    /// GiB at most. `spans`: what [`super::analyze`] gives.
    pub(super) fn new(start: Avma, bytes: usize, spans: &[RowSpan], name: &Arc<str>) -> Self {
        let mut rows = Vec::new();
        let mut number = |row: Row| {
            let known = rows.iter().position(|known| *known == row);
            known.unwrap_or_else(|| {
                rows.push(row);
                rows.len() - 1
            }) as u32
        };
        let compact = |span: &RowSpan| SpanStart {
            offset: span.start.0.wrapping_sub(start.0) as u32,
            row: span.row.map_or(NO_ROW, &mut number),
        };
        let spans: Box<[SpanStart]> = spans.iter().map(compact).collect();
        Self::from_parts(Arc::clone(name), bytes as u32, rows.into(), spans)
    }

    /// A shape of rows and of spans in the order of their offsets, all of which are less than
    /// `bytes`.
    pub(super) fn from_parts(name: Arc<str>, bytes: u32, rows: Box<[Row]>, spans: Box<[SpanStart]>) -> Self {
        let ends = spans.iter().skip(1).map(|span| span.offset).chain([bytes]);
        let covered = spans.iter().zip(ends).filter(|(span, _)| span.row != NO_ROW);
        let covered_bytes = covered.map(|(span, end)| end - span.offset).sum();
        Self { name, bytes, covered_bytes, rows, spans }
    }

    /// The number of its spans.
    pub(super) fn spans(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn row(&self, span: &SpanStart) -> Option<Row> {
        self.rows.get(span.row as usize).copied()
    }
}
