//! The rows of all generated code of one JVM, kept as its code cache grows.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;

use jvmprof_common::rows::Row;

use super::{CodeKind, Span, analyze, kind_of_blob, kind_of_codelet};
use crate::hotspot::{Codelet, StubBlob};
use crate::types::Avma;

/// Unwind rows of a JVM's stubs, interpreter and adapters.
#[derive(Debug, Default)]
pub struct StubRows {
    /// By first address.
    pieces: BTreeMap<u64, Piece>,
    rows: Rows,
}

/// The few different rows that some ten thousand spans have, by number.
#[derive(Debug, Default)]
struct Rows {
    numbers: HashMap<Row, u32>,
    rows: Vec<Row>,
}

/// The number of no row.
const NO_ROW: u32 = u32::MAX;

/// Where a row begins to hold.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// From the begin of its piece.
    offset: u32,
    row: u32,
}

/// One range of code.
#[derive(Debug)]
struct Piece {
    end: u64,
    name: Arc<str>,
    /// Of kind and bytes: code that is the same has the same rows.
    check: u64,
    spans: Box<[Start]>,
    covered_bytes: u64,
}

/// How much of a JVM's generated code has rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Bytes of code, tables and padding within it included.
    pub code_bytes: u64,
    /// Bytes of it that have a row.
    pub covered_bytes: u64,
    /// Spans, those without a row included.
    pub spans: usize,
}

impl StubRows {
    /// Takes over what the code cache holds now; only code that is new or has changed is analysed. True if a row changed.
    ///
    /// `blobs`: all blobs that aren't nmethods. `interpreter`: the bytes that hold the code of `codelets`, from
    /// `interpreter_start` on.
    pub fn update(
        &mut self,
        blobs: &[StubBlob],
        codelets: &[Codelet],
        interpreter_start: Avma,
        interpreter: &[u8],
    ) -> bool {
        let mut before = std::mem::take(&mut self.pieces);
        let count = before.len();
        let mut changed = false;
        let blobs = blobs.iter().filter_map(|StubBlob { blob, bytes }| {
            Some((&blob.code, kind_of_blob(&blob.name)?, &blob.name, &**bytes))
        });
        let codelets = codelets.iter().filter_map(|codelet| {
            let bytes = part(interpreter, interpreter_start, &codelet.code)?;
            Some((&codelet.code, kind_of_codelet(&codelet.description), &codelet.description, bytes))
        });
        for (code, kind, name, bytes) in blobs.chain(codelets) {
            let check = check(kind, bytes);
            let known = before.remove(&code.start.0).filter(|piece| piece.check == check);
            changed |= known.is_none();
            let piece =
                known.unwrap_or_else(|| Piece::new(code.start, bytes, kind, name, check, &mut self.rows));
            self.pieces.insert(code.start.0, piece);
        }
        changed || self.pieces.len() != count
    }

    /// The row for code at `pc`; `None` where nothing is known. For a return address ask at address - 1.
    pub fn row(&self, pc: Avma) -> Option<Row> {
        let (start, piece) = self.pieces.range(..=pc.0).next_back()?;
        if pc.0 >= piece.end {
            return None;
        }
        let behind = piece.spans.partition_point(|span| start + u64::from(span.offset) <= pc.0);
        self.rows.get(piece.spans.get(behind.checked_sub(1)?)?.row)
    }

    /// What HotSpot calls the code at an address: a blob's name, a codelet's description.
    pub fn name(&self, pc: Avma) -> Option<&Arc<str>> {
        let (_, piece) = self.pieces.range(..=pc.0).next_back()?;
        (pc.0 < piece.end).then_some(&piece.name)
    }

    /// Hands on all rows in order of their addresses, which count from `base`: first address, first one behind it, row.
    pub fn for_each(&self, base: u64, handle: &mut dyn FnMut(u64, u64, Row)) {
        for (start, piece) in &self.pieces {
            let at = |span: &Start| start + u64::from(span.offset);
            let ends = piece.spans.iter().skip(1).map(at).chain([piece.end]);
            for (span, end) in piece.spans.iter().zip(ends) {
                if let Some(row) = self.rows.get(span.row) {
                    handle(at(span).wrapping_sub(base), end.wrapping_sub(base), row);
                }
            }
        }
    }

    /// All spans in the order of their addresses: each reaches to the next one, and the last one has no row.
    pub fn spans(&self) -> Vec<Span> {
        let mut all: Vec<Span> = Vec::new();
        let mut add = |span: Span| {
            // What one piece ends with may be what the next one begins with.
            if all.last().is_some_and(|last| last.start == span.start) {
                all.pop();
            }
            if all.last().is_none_or(|last| last.row != span.row) {
                all.push(span);
            }
        };
        for (start, piece) in &self.pieces {
            for span in &piece.spans {
                add(Span { start: Avma(start + u64::from(span.offset)), row: self.rows.get(span.row) });
            }
            add(Span { start: Avma(piece.end), row: None });
        }
        all
    }

    pub fn coverage(&self) -> Coverage {
        let mut sum = Coverage { spans: self.spans().len(), ..Coverage::default() };
        for (start, piece) in &self.pieces {
            sum.code_bytes += piece.end - start;
            sum.covered_bytes += piece.covered_bytes;
        }
        sum
    }
}

impl Rows {
    fn number(&mut self, row: Row) -> u32 {
        *self.numbers.entry(row).or_insert_with(|| {
            self.rows.push(row);
            self.rows.len() as u32 - 1
        })
    }

    fn get(&self, number: u32) -> Option<Row> {
        self.rows.get(number as usize).copied()
    }
}

impl Piece {
    /// `bytes` are less than 4 GiB: a code cache has 2 GiB at most.
    fn new(start: Avma, bytes: &[u8], kind: CodeKind, name: &Arc<str>, check: u64, rows: &mut Rows) -> Self {
        let end = start.0 + bytes.len() as u64;
        let spans = analyze(bytes, start, kind, &[]);
        let ends = spans.iter().skip(1).map(|span| span.start.0).chain([end]);
        let covered = spans.iter().zip(ends).filter(|(span, _)| span.row.is_some());
        let covered_bytes = covered.map(|(span, end)| end - span.start.0).sum();
        let compact = |span: &Span| Start {
            offset: span.start.0.wrapping_sub(start.0) as u32,
            row: span.row.map_or(NO_ROW, |row| rows.number(row)),
        };
        let spans = spans.iter().map(compact).collect();
        Self { end, name: Arc::clone(name), check, spans, covered_bytes }
    }
}

/// Vtable stubs and the like are added to their blob as the program runs, and have the same row whatever they are.
fn check(kind: CodeKind, bytes: &[u8]) -> u64 {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    match kind {
        CodeKind::Frameless => hasher.hash_one((kind, bytes.len())),
        _ => hasher.hash_one((kind, bytes)),
    }
}

/// The part of `bytes`, which begin at `start`, that `code` is.
fn part<'b>(bytes: &'b [u8], start: Avma, code: &Range<Avma>) -> Option<&'b [u8]> {
    let from = usize::try_from(code.start.0.checked_sub(start.0)?).ok()?;
    let until = usize::try_from(code.end.0.checked_sub(start.0)?).ok()?;
    bytes.get(from..until)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::Blob;

    fn blob(name: &str, start: u64, bytes: &[u8]) -> StubBlob {
        let code = Avma(start)..Avma(start + bytes.len() as u64);
        let blob = Blob {
            address: Avma(start - 64),
            name: name.into(),
            name_at: Avma(1),
            kind: None,
            code,
            bytes: 64 + bytes.len() as u64,
            frame_size_words: 0,
        };
        StubBlob { blob, bytes: bytes.into() }
    }

    #[test]
    fn pieces_are_kept_while_their_code_is_the_same() {
        let stub = blob("g1_pre_barrier_slow", 0x1000, &[0x55, 0x5d, 0xc3]); // push rbp; pop rbp; ret
        let codelet =
            Codelet { description: "nop".into(), bytecode: Some(0), code: Avma(0x2004)..Avma(0x2006) };
        let interpreter = [0, 0, 0, 0, 0xff, 0xe0]; // jmp rax
        let mut rows = StubRows::default();
        let codelets = [codelet];
        assert!(rows.update(std::slice::from_ref(&stub), &codelets, Avma(0x2000), &interpreter));
        assert!(!rows.update(&[stub], &codelets, Avma(0x2000), &interpreter));
        assert_eq!(rows.row(Avma(0xfff)), None);
        assert_eq!(rows.row(Avma(0x1000)), Some(Row::AT_CALL));
        assert_ne!(rows.row(Avma(0x1001)), rows.row(Avma(0x1000)));
        assert_eq!(rows.row(Avma(0x1003)), None);
        assert!(rows.row(Avma(0x2005)).is_some());
        assert_eq!(rows.coverage(), Coverage { code_bytes: 5, covered_bytes: 5, spans: 6 });
        let spans = rows.spans();
        assert!(spans.iter().all(|span| rows.row(span.start) == span.row), "{spans:?}");
        let moved = blob("g1_pre_barrier_slow", 0x1000, &[0xc3]);
        assert!(rows.update(&[moved], &[], Avma(0x2000), &[]));
        assert_eq!(rows.row(Avma(0x1001)), None);
        assert_eq!(rows.row(Avma(0x2005)), None);
    }
}
