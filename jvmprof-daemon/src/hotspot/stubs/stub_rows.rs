//! The rows of all generated code of one JVM, kept as its code cache grows.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use jvmprof_common::rows::Row;

use super::analyses_on_disk::AnalysesOnDisk;
use super::analysis_cache::AnalysisCache;
use super::piece_shape::{PieceShape, SpanStart};
use super::{BlobKind, RowSpan, analyze_piece, kind_of_blob, kind_of_codelet};
use crate::hotspot::{InterpreterCodelet, StubBlob};
use crate::intern::Interner;
use crate::own_process::thread_priority;
use crate::types::Avma;

/// Unwind rows of a JVM's stubs, interpreter and adapters.
#[derive(Debug, Default)]
pub struct StubRows {
    /// Sorted by first address.
    pieces: Box<[CodePiece]>,
    shapes: Arc<PieceShapes>,
}

/// The shapes of the pieces of all JVMs: those of one version are the same, wherever they lie.
#[derive(Debug, Default)]
pub(crate) struct PieceShapes {
    state: Mutex<ShapesAndAnalyses>,
    on_disk: Option<Arc<AnalysesOnDisk>>,
    /// The thread that writes to disk.
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct ShapesAndAnalyses {
    /// None before the first piece of code.
    known: Option<AnalysisCache>,
    shapes: Interner<PieceShape>,
    /// True if `known` has more than is on disk.
    is_new: bool,
}

impl PieceShapes {
    /// Shapes that know what an earlier run has analysed.
    pub(crate) fn with_analyses(on_disk: Arc<AnalysesOnDisk>) -> Self {
        Self { state: Mutex::default(), on_disk: Some(on_disk), writer: Mutex::default() }
    }

    /// Returns the shape of this code, which is analysed unless it was before.
    fn of(&self, start: Avma, bytes: &[u8], kind: BlobKind, name: &Arc<str>) -> Arc<PieceShape> {
        let mut state = lock(&self.state);
        let all = &mut *state;
        let load = || self.on_disk.as_deref().map(AnalysesOnDisk::load).unwrap_or_default();
        let known = all.known.get_or_insert_with(load);
        if let Some(known) = known.find(start, bytes, kind, name) {
            return all.shapes.share(known);
        }
        let (spans, fields) = analyze_piece(bytes, start, kind, &[]);
        let shape = all.shapes.share(Arc::new(PieceShape::new(start, bytes.len(), &spans, name)));
        all.is_new |= known.insert_shape((start, bytes, kind), name, fields, &shape);
        shape
    }

    /// Writes what was analysed since the last time to disk, in the background.
    pub(crate) fn store_new(&self) {
        let Some(on_disk) = &self.on_disk else { return };
        let mut writer = lock(&self.writer);
        if writer.as_ref().is_some_and(|writer| !writer.is_finished()) {
            return;
        }
        let encoded = {
            let mut state = lock(&self.state);
            if !std::mem::take(&mut state.is_new) {
                return;
            }
            AnalysesOnDisk::encode(state.known.get_or_insert_default())
        };
        let on_disk = Arc::clone(on_disk);
        let write = move || {
            thread_priority::lower_priority_and_io();
            on_disk.store(&encoded);
        };
        match thread::Builder::new().name("stub-analyses".to_owned()).spawn(write) {
            Ok(started) => *writer = Some(started),
            Err(error) => tracing::debug!(%error, "no thread to write analyses of stubs to disk"),
        }
    }
}

impl Drop for PieceShapes {
    fn drop(&mut self) {
        let wait = || lock(&self.writer).take().map(JoinHandle::join);
        // A write that is under way lacks what was analysed since.
        wait();
        self.store_new();
        wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One range of code.
#[derive(Clone, Debug)]
struct CodePiece {
    start: u64,
    /// A hash of kind and bytes: code that is the same has the same rows.
    check: u64,
    shape: Arc<PieceShape>,
}

/// Code as it is read: where it is, of which kind, what it is called, its bytes.
type PieceCode<'a> = (&'a Range<Avma>, BlobKind, &'a Arc<str>, &'a [u8]);

fn code_of(blobs: &[StubBlob]) -> impl Iterator<Item = PieceCode<'_>> {
    blobs.iter().filter_map(|StubBlob { blob, bytes }| {
        Some((&blob.code, kind_of_blob(&blob.name)?, &blob.name, &**bytes))
    })
}

/// The share of a JVM's generated code that has rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCoverage {
    /// Bytes of code, tables and padding within it included.
    pub code_bytes: u64,
    /// Bytes of it that have a row.
    pub covered_bytes: u64,
    /// Spans, those without a row included.
    pub spans: usize,
}

impl StubRows {
    /// Makes an empty set of rows; those to come share what they can with others of the same
    /// `shapes`.
    pub(crate) fn sharing(shapes: &Arc<PieceShapes>) -> Self {
        Self { pieces: Box::default(), shapes: Arc::clone(shapes) }
    }

    /// Makes an empty set of rows, of a JVM that may have code of this other one.
    #[must_use]
    pub fn sharing_with(other: &Self) -> Self {
        Self::sharing(&other.shapes)
    }

    /// Takes over what the code cache holds now; only code that is new or has changed is analysed.
    /// True if a row changed.
    ///
    /// `blobs`: all blobs that aren't nmethods. `interpreter`: the bytes that hold the code of
    /// `codelets`, from `interpreter_start` on.
    pub fn update(
        &mut self,
        blobs: &[StubBlob],
        codelets: &[InterpreterCodelet],
        interpreter_start: Avma,
        interpreter: &[u8],
    ) -> bool {
        let codelets = codelets.iter().filter_map(|codelet| {
            let bytes = part(interpreter, interpreter_start, &codelet.code)?;
            Some((&codelet.code, kind_of_codelet(&codelet.description), &codelet.description, bytes))
        });
        self.take(code_of(blobs).chain(codelets), Vec::with_capacity(self.pieces.len()))
    }

    /// As [`Self::update`] where the interpreter was read before, which doesn't change once it is
    /// made: what is in `interpreter` stays.
    pub fn update_blobs(&mut self, blobs: &[StubBlob], interpreter: &Range<Avma>) -> bool {
        let is_kept = |piece: &&CodePiece| interpreter.contains(&Avma(piece.start));
        let kept = self.pieces.iter().filter(is_kept).cloned().collect();
        self.take(code_of(blobs), kept)
    }

    /// Takes other pieces, and returns true if any has changed. `pieces`: those that stay. `code`:
    /// of the others.
    fn take<'a>(&mut self, code: impl Iterator<Item = PieceCode<'a>>, mut pieces: Vec<CodePiece>) -> bool {
        let mut changed = false;
        for (code, kind, name, bytes) in code {
            let check = check(kind, bytes);
            let known = self.starting_at(code.start.0).filter(|piece| piece.check == check);
            changed |= known.is_none();
            let shape = known.map(|piece| Arc::clone(&piece.shape));
            let shape = shape.unwrap_or_else(|| self.shapes.of(code.start, bytes, kind, name));
            pieces.push(CodePiece { start: code.start.0, check, shape });
        }
        // Of two at one address the one that was read last counts.
        pieces.reverse();
        pieces.sort_by_key(|piece| piece.start);
        pieces.dedup_by_key(|piece| piece.start);
        changed |= pieces.len() != self.pieces.len();
        self.pieces = pieces.into();
        changed
    }

    fn starting_at(&self, start: u64) -> Option<&CodePiece> {
        let index = self.pieces.binary_search_by_key(&start, |piece| piece.start).ok()?;
        self.pieces.get(index)
    }

    /// The piece that holds an address.
    fn piece(&self, pc: Avma) -> Option<&CodePiece> {
        let behind = self.pieces.partition_point(|piece| piece.start <= pc.0);
        self.pieces.get(behind.checked_sub(1)?).filter(|piece| pc.0 < piece.end())
    }

    /// The row for code at `pc`; `None` where nothing is known. For a return address ask at address
    /// - 1.
    pub fn row(&self, pc: Avma) -> Option<Row> {
        let piece = self.piece(pc)?;
        let behind = piece.shape.spans.partition_point(|span| piece.at(span) <= pc.0);
        piece.shape.row(piece.shape.spans.get(behind.checked_sub(1)?)?)
    }

    /// Returns HotSpot's name of the code at an address, and all code that is called so there: a
    /// blob's name, a codelet's description.
    pub fn name(&self, pc: Avma) -> Option<(&Arc<str>, Range<Avma>)> {
        let piece = self.piece(pc)?;
        Some((&piece.shape.name, Avma(piece.start)..Avma(piece.end())))
    }

    /// Hands on all rows in order of their addresses, which count from `base`: first address, first
    /// one behind it, row.
    pub fn for_each(&self, base: u64, handle: &mut dyn FnMut(u64, u64, Row)) {
        for piece in &self.pieces {
            let spans = &piece.shape.spans;
            let ends = spans.iter().skip(1).map(|span| piece.at(span)).chain([piece.end()]);
            for (span, end) in spans.iter().zip(ends) {
                if let Some(row) = piece.shape.row(span) {
                    handle(piece.at(span).wrapping_sub(base), end.wrapping_sub(base), row);
                }
            }
        }
    }

    /// All spans in the order of their addresses: each reaches to the next one, and the last one
    /// has no row.
    pub fn spans(&self) -> Vec<RowSpan> {
        let mut all: Vec<RowSpan> = Vec::new();
        let mut add = |span: RowSpan| {
            // What one piece ends with may be what the next one begins with.
            if all.last().is_some_and(|last| last.start == span.start) {
                all.pop();
            }
            if all.last().is_none_or(|last| last.row != span.row) {
                all.push(span);
            }
        };
        for piece in &self.pieces {
            for span in &piece.shape.spans {
                add(RowSpan { start: Avma(piece.at(span)), row: piece.shape.row(span) });
            }
            add(RowSpan { start: Avma(piece.end()), row: None });
        }
        all
    }

    pub fn coverage(&self) -> RowCoverage {
        let mut sum = RowCoverage { spans: self.spans().len(), ..RowCoverage::default() };
        for piece in &self.pieces {
            sum.code_bytes += u64::from(piece.shape.bytes);
            sum.covered_bytes += u64::from(piece.shape.covered_bytes);
        }
        sum
    }
}

impl CodePiece {
    fn end(&self) -> u64 {
        self.start + u64::from(self.shape.bytes)
    }

    fn at(&self, span: &SpanStart) -> u64 {
        self.start + u64::from(span.offset)
    }
}

/// Returns a checksum of a piece. Vtable stubs and the like are added to their blob as the program
/// runs, and have the same row whatever they are.
fn check(kind: BlobKind, bytes: &[u8]) -> u64 {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    match kind {
        BlobKind::Frameless => hasher.hash_one((kind, bytes.len())),
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
    use crate::hotspot::CodeBlobDesc;

    fn blob(name: &str, start: u64, bytes: &[u8]) -> StubBlob {
        let code = Avma(start)..Avma(start + bytes.len() as u64);
        let blob = CodeBlobDesc {
            address: Avma(start - 64),
            name: name.into(),
            name_at: Avma(1),
            kind: None,
            code,
            bytes: 64 + bytes.len() as u64,
        };
        StubBlob { blob, bytes: bytes.into() }
    }

    #[test]
    fn pieces_are_kept_while_their_code_is_the_same() {
        let stub = blob("g1_pre_barrier_slow", 0x1000, &[0x55, 0x5d, 0xc3]); // push rbp; pop rbp; ret
        let codelet = InterpreterCodelet {
            description: "nop".into(),
            bytecode: Some(0),
            code: Avma(0x2004)..Avma(0x2006),
        };
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
        assert_eq!(rows.coverage(), RowCoverage { code_bytes: 5, covered_bytes: 5, spans: 6 });
        let spans = rows.spans();
        assert!(spans.iter().all(|span| rows.row(span.start) == span.row), "{spans:?}");
        let stub = blob("g1_pre_barrier_slow", 0x1000, &[0x55, 0x5d, 0xc3]);
        let interpreter = Avma(0x2000)..Avma(0x2006);
        assert!(!rows.update_blobs(std::slice::from_ref(&stub), &interpreter));
        assert!(rows.row(Avma(0x2005)).is_some());
        assert!(rows.update_blobs(&[stub, blob("jbyte_disjoint", 0x3000, &[0xc3])], &interpreter));
        assert_eq!(rows.row(Avma(0x3000)), Some(Row::AT_CALL));
        assert!(rows.update_blobs(&[], &interpreter));
        assert_eq!((rows.row(Avma(0x1000)), rows.row(Avma(0x2005)).is_some()), (None, true));
        let moved = blob("g1_pre_barrier_slow", 0x1000, &[0xc3]);
        assert!(rows.update(&[moved], &[], Avma(0x2000), &[]));
        assert_eq!(rows.row(Avma(0x1001)), None);
        assert_eq!(rows.row(Avma(0x2005)), None);
    }
}
