//! Analyses of stubs that are kept on disk: the first JVM after a restart of this program needn't
//! be analysed again, which takes some 40 ms of CPU.
//!
//! They are compared with the code itself like those that are in memory
//! ([`super::analysis_cache`]), by hashes whose key is the folder's, and believed only as they were
//! written ([`ChecksummedCache`]).

use std::path::Path;
use std::sync::Arc;

use jvmprof_common::rows::Row;
use jvmprof_common::unwind_tables::PackedRule;
use prost::Message;

use super::BlobKind;
use super::analysis_cache::{AnalysisCache, AnalyzedPiece, PieceKey};
use super::machine_code::relocatable_fields::RelocatableField;
use super::piece_shape::{NO_ROW, PieceShape, SpanStart};
use crate::native::file_identity::checksummed_cache::{ChecksummedCache, ChecksummedCacheError};

/// Ending of the file's name.
const ENDING: &str = ".stubs";
/// Its name. The number is that of the format, and of what the analysis makes of code: the version
/// of this program is part of its identity.
const NAME: &str = "analyses2";
/// Most bytes of all versions' files: one is some hundred kilobytes for each version of the JDK.
const LIMIT_BYTES: u64 = 32 << 20;

/// A folder with the analyses of an earlier run.
#[derive(Debug)]
pub struct AnalysesOnDisk(ChecksummedCache);

/// All pieces that were analysed.
#[derive(Clone, PartialEq, Message)]
struct StoredPieces {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<StoredPiece>,
}

/// One piece of code, wherever it lies.
#[derive(Clone, PartialEq, Message)]
struct StoredPiece {
    /// Its index in [`BlobKind::ALL`].
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint32, tag = "3")]
    bytes: u32,
    #[prost(uint32, tag = "4")]
    alignment: u32,
    /// The hash of the bytes between the fields.
    #[prost(fixed64, tag = "5")]
    rest: u64,
    #[prost(uint32, repeated, tag = "6")]
    fields: Vec<u32>,
    /// Two words for each row.
    #[prost(uint64, repeated, tag = "7")]
    rows: Vec<u64>,
    /// Spans: their offsets, in ascending order, and the numbers of their rows plus one, 0 for
    /// none.
    #[prost(uint32, repeated, tag = "8")]
    offsets: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    row_numbers: Vec<u32>,
}

impl AnalysesOnDisk {
    /// Opens the folder, as [`crate::kernel_tables::RowsOnDisk::open`] does, with which it may be
    /// shared.
    ///
    /// # Errors
    /// See [`ChecksummedCacheError`].
    pub fn open(path: &Path) -> Result<Self, ChecksummedCacheError> {
        ChecksummedCache::open(path, ENDING, LIMIT_BYTES).map(Self)
    }

    /// Returns the analyses of an earlier run; none if there are none. Those that are added have to
    /// be by the same key of hashes.
    pub(super) fn load(&self) -> AnalysisCache {
        let mut analyses = AnalysisCache::new(self.0.key());
        let Some(bytes) = self.0.get(NAME) else { return analyses };
        let stored = StoredPieces::decode(&*bytes).unwrap_or_default();
        for (key, piece) in stored.pieces.iter().filter_map(from_stored) {
            analyses.insert(key, piece);
        }
        tracing::debug!(pieces = stored.pieces.len(), "analyses of stubs were on disk");
        analyses
    }

    /// Returns what [`Self::store`] takes.
    pub(super) fn encode(analyses: &AnalysisCache) -> Vec<u8> {
        let pieces = analyses.pieces().filter_map(|(key, piece)| to_stored(key, piece)).collect();
        StoredPieces { pieces }.encode_to_vec()
    }

    /// Stores analyses for the next run.
    pub(super) fn store(&self, encoded: &[u8]) {
        self.0.store(NAME, encoded);
    }
}

/// Returns a piece as it is stored; `None` if a row of it has no packed form.
fn to_stored(key: &PieceKey, piece: &AnalyzedPiece) -> Option<StoredPiece> {
    let shape = &piece.shape;
    let words = |row: &Row| {
        let packed = PackedRule::pack(row);
        (packed.unpack() == *row).then(|| packed.to_words())
    };
    let rows = shape.rows.iter().map(words).collect::<Option<Vec<_>>>()?;
    Some(StoredPiece {
        kind: BlobKind::ALL.iter().position(|kind| *kind == key.kind)? as u32,
        name: key.name.to_string(),
        bytes: shape.bytes,
        alignment: u32::try_from(key.alignment).ok()?,
        rest: piece.rest,
        fields: piece.fields.iter().map(|field| field.to_bits()).collect(),
        rows: rows.into_flattened(),
        offsets: shape.spans.iter().map(|span| span.offset).collect(),
        row_numbers: shape.spans.iter().map(|span| span.row.wrapping_add(1)).collect(),
    })
}

/// The reverse of [`to_stored`]; `None` if that can't have made it.
fn from_stored(stored: &StoredPiece) -> Option<(PieceKey, AnalyzedPiece)> {
    let len = stored.bytes as usize;
    let fields: Box<[_]> = stored.fields.iter().map(|bits| RelocatableField::from_bits(*bits)).collect();
    let (words, []) = stored.rows.as_chunks() else { return None };
    let rows: Box<[Row]> = words.iter().map(|words| PackedRule::from_words(*words).unpack()).collect();
    let span = |(offset, number): (&u32, &u32)| SpanStart { offset: *offset, row: number.wrapping_sub(1) };
    let spans: Box<[_]> = stored.offsets.iter().zip(&stored.row_numbers).map(span).collect();
    let is_valid = stored.offsets.len() == stored.row_numbers.len()
        && fields.is_sorted_by(|one, next| one.offset() + one.bytes() <= next.offset())
        && fields.last().is_none_or(|field| field.offset() + field.bytes() <= len)
        && spans.is_sorted_by(|one, next| one.offset < next.offset)
        && spans.last().is_none_or(|span| span.offset < stored.bytes)
        && spans.iter().all(|span| span.row == NO_ROW || (span.row as usize) < rows.len());
    if !is_valid {
        return None;
    }
    let kind = *BlobKind::ALL.get(stored.kind as usize)?;
    let name: Arc<str> = stored.name.as_str().into();
    let shape = Arc::new(PieceShape::from_parts(Arc::clone(&name), stored.bytes, rows, spans));
    let key = PieceKey { kind, name, len, alignment: u64::from(stored.alignment) };
    Some((key, AnalyzedPiece { fields, rest: stored.rest, shape }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::stubs::analyze_piece;
    use crate::native::file_identity::HashKey;
    use crate::types::Avma;

    const START: Avma = Avma(0x7f00_0000_1000);
    /// push rbp; call far away; pop rbp; ret
    const CODE: [u8; 8] = [0x55, 0xe8, 0, 0, 0x10, 0, 0x5d, 0xc3];

    fn analyzed(hash_key: HashKey) -> (AnalysisCache, Arc<PieceShape>, Arc<str>) {
        let name: Arc<str> = "a stub".into();
        let (spans, fields) = analyze_piece(&CODE, START, BlobKind::Stub, &[]);
        assert_eq!(fields.len(), 1);
        let shape = Arc::new(PieceShape::new(START, CODE.len(), &spans, &name));
        let mut analyses = AnalysisCache::new(hash_key);
        analyses.insert_shape((START, &CODE, BlobKind::Stub), &name, fields, &shape);
        (analyses, shape, name)
    }

    #[test]
    fn what_was_kept_is_found_for_the_same_code_only() {
        let scratch = tempfile::tempdir().expect("a directory");
        let secret = HashKey::random();
        let open = || AnalysesOnDisk(ChecksummedCache::with_key(scratch.path(), ENDING, secret, 7));
        let (analyses, shape, name) = analyzed(secret);
        assert!(open().load().find(START, &CODE, BlobKind::Stub, &name).is_none(), "nothing is kept yet");
        open().store(&AnalysesOnDisk::encode(&analyses));
        let again = open().load();
        let mut elsewhere = CODE;
        elsewhere[2] = 9;
        assert_eq!(again.find(START, &elsewhere, BlobKind::Stub, &name), Some(shape));
        let other = [0x56, 0xe8, 0, 0, 0x10, 0, 0x5e, 0xc3];
        assert_eq!(again.find(START, &other, BlobKind::Stub, &name), None);
        assert_eq!(again.find(START, &CODE, BlobKind::Framed, &name), None);
    }

    #[test]
    fn what_the_analysis_cannot_have_made_is_left_out() {
        let (analyses, ..) = analyzed(HashKey::random());
        let stored = StoredPieces::decode(&*AnalysesOnDisk::encode(&analyses)).expect("encoded above");
        let [whole] = &*stored.pieces else { panic!("one piece: {stored:?}") };
        assert!(from_stored(whole).is_some() && whole.offsets.len() > 2, "{whole:?}");
        let lies: [fn(&mut StoredPiece); 8] = [
            |piece| piece.kind = BlobKind::ALL.len() as u32,
            |piece| piece.bytes = 3,
            |piece| piece.fields.push(piece.fields[0]),
            |piece| piece.fields = vec![5],
            |piece| piece.offsets.reverse(),
            |piece| piece.row_numbers[0] = 1 + piece.rows.len() as u32,
            |piece| piece.row_numbers.truncate(1),
            |piece| piece.rows.push(1),
        ];
        for (number, lie) in lies.iter().enumerate() {
            let mut lying = whole.clone();
            lie(&mut lying);
            assert!(from_stored(&lying).is_none(), "lie {number}: {lying:?}");
        }
    }
}
