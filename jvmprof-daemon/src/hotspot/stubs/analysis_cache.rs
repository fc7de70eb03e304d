//! Code that was analysed before, in another JVM: JVMs of one version make the same stubs, at other
//! addresses.
//!
//! What differs are addresses in the code, and how far away what is outside of it lies. The
//! analysis makes nothing of either, as long as the code begins at an address that is aligned the
//! same: where all other bytes are the same, so are the rows.

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::sync::Arc;

use super::BlobKind;
use super::machine_code::relocatable_fields::RelocatableField;
use super::piece_shape::PieceShape;
use crate::native::file_identity::HashKey;
use crate::types::Avma;

/// Fields and spans of what is remembered, at most, and as much for each piece: some megabytes.
/// Those of JDK 17 are a tenth.
const MAX_KNOWN: usize = 1 << 19;
const PER_PIECE: usize = 16;
/// Different pieces with the same key that are remembered, at most.
const MAX_ALIKE: usize = 16;
/// Alignments up to this show in what is made of code.
const ALIGNMENT: u64 = 64;

/// The properties of a piece that are quickly compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PieceKey {
    pub(super) kind: BlobKind,
    pub(super) name: Arc<str>,
    pub(super) len: usize,
    pub(super) alignment: u64,
}

impl PieceKey {
    fn of(start: Avma, bytes: &[u8], kind: BlobKind, name: &Arc<str>) -> Self {
        Self { kind, name: Arc::clone(name), len: bytes.len(), alignment: start.0 % ALIGNMENT }
    }
}

/// A piece of code, apart from its fields.
#[derive(Debug)]
pub(super) struct AnalyzedPiece {
    /// In order of their offsets.
    pub(super) fields: Box<[RelocatableField]>,
    /// A hash of all other bytes.
    pub(super) rest: u64,
    pub(super) shape: Arc<PieceShape>,
}

impl AnalyzedPiece {
    fn is(&self, bytes: &[u8], hash_key: HashKey) -> bool {
        self.fields.iter().all(|field| field.leads_out(bytes))
            && rest(bytes, &self.fields, hash_key) == self.rest
    }

    /// Returns the size in the unit of [`MAX_KNOWN`].
    fn size(&self) -> usize {
        self.fields.len() + self.shape.spans() + PER_PIECE
    }
}

/// Pieces of code of all JVMs.
#[derive(Debug)]
pub(super) struct AnalysisCache {
    /// Adapters are of few lengths.
    pieces: HashMap<PieceKey, Vec<AnalyzedPiece>>,
    /// In the unit of [`MAX_KNOWN`].
    size: usize,
    /// A secret: no process can make code that is taken for another's.
    hash_key: HashKey,
}

impl AnalysisCache {
    /// An empty cache, whose hashes are by this key.
    pub(super) fn new(hash_key: HashKey) -> Self {
        Self { pieces: HashMap::new(), size: 0, hash_key }
    }

    /// Returns the shape that was made of the same code.
    pub(super) fn find(
        &self,
        start: Avma,
        bytes: &[u8],
        kind: BlobKind,
        name: &Arc<str>,
    ) -> Option<Arc<PieceShape>> {
        let alike = self.pieces.get(&PieceKey::of(start, bytes, kind, name))?;
        alike.iter().find(|known| known.is(bytes, self.hash_key)).map(|known| Arc::clone(&known.shape))
    }

    /// Inserts the analysis of code whose instructions have these fields. Returns false if it
    /// isn't kept.
    pub(super) fn insert_shape(
        &mut self,
        (start, bytes, kind): (Avma, &[u8], BlobKind),
        name: &Arc<str>,
        mut fields: Vec<RelocatableField>,
        shape: &Arc<PieceShape>,
    ) -> bool {
        // Nothing of them is analysed, and their bytes differ from JVM to JVM.
        if matches!(kind, BlobKind::Frameless | BlobKind::Continuations) {
            return false;
        }
        fields.sort_unstable_by_key(|field| field.offset());
        let rest = rest(bytes, &fields, self.hash_key);
        let piece = AnalyzedPiece { rest, fields: fields.into(), shape: Arc::clone(shape) };
        self.insert(PieceKey::of(start, bytes, kind, name), piece)
    }

    /// Adds a piece. Where there is no space for it, all others are forgotten. Returns false if it
    /// is too large, or if there are many like it.
    pub(super) fn insert(&mut self, key: PieceKey, piece: AnalyzedPiece) -> bool {
        let size = piece.size();
        if size > MAX_KNOWN {
            return false;
        }
        if self.size + size > MAX_KNOWN {
            *self = Self::new(self.hash_key);
        }
        let alike = self.pieces.entry(key).or_default();
        let has_space = alike.len() < MAX_ALIKE;
        if has_space {
            alike.push(piece);
            self.size += size;
        }
        has_space
    }

    /// Returns all pieces.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (&PieceKey, &AnalyzedPiece)> {
        self.pieces.iter().flat_map(|(key, alike)| alike.iter().map(move |piece| (key, piece)))
    }
}

impl Default for AnalysisCache {
    fn default() -> Self {
        Self::new(HashKey::random())
    }
}

/// A hash of the bytes between the fields.
fn rest(bytes: &[u8], fields: &[RelocatableField], hash_key: HashKey) -> u64 {
    let mut hasher = hash_key.hasher();
    let mut from = 0;
    for field in fields {
        let (at, behind) = (field.offset(), field.offset() + field.bytes());
        hasher.write(bytes.get(from..at).unwrap_or_default());
        from = behind;
    }
    hasher.write(bytes.get(from..).unwrap_or_default());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::stubs::analyze_piece;

    const BASE: Avma = Avma(0x7f00_0000_1000);

    /// mov rax, imm64; test [rip + d], eax; push rbp; call out; pop rbp; je back; jmp out
    fn code(address: u64, data: i32, call: i32, jump: i32) -> Vec<u8> {
        let mut code = vec![0x48, 0xb8];
        code.extend(address.to_le_bytes());
        code.extend([0x85, 0x05]);
        code.extend(data.to_le_bytes());
        code.extend([0x55, 0xe8]);
        code.extend(call.to_le_bytes());
        code.extend([0x5d, 0x74, 0xf7, 0xe9]);
        code.extend(jump.to_le_bytes());
        code
    }

    fn known(bytes: &[u8]) -> (AnalysisCache, Arc<PieceShape>, Arc<str>) {
        let name: Arc<str> = "a stub".into();
        let (spans, fields) = analyze_piece(bytes, BASE, BlobKind::Stub, &[]);
        let shape = Arc::new(PieceShape::new(BASE, bytes.len(), &spans, &name));
        let mut known = AnalysisCache::default();
        known.insert_shape((BASE, bytes, BlobKind::Stub), &name, fields, &shape);
        (known, shape, name)
    }

    #[test]
    fn code_that_differs_in_addresses_only_is_known() {
        let (known, shape, name) = known(&code(0x7f11_2233_4455_6677, 0x100, 0x1000, -0x2000));
        let find = |start: Avma, bytes: &[u8]| known.find(start, bytes, BlobKind::Stub, &name);
        let is_known =
            |start: Avma, bytes: &[u8]| find(start, bytes).is_some_and(|it| Arc::ptr_eq(&it, &shape));
        let elsewhere = Avma(BASE.0 + 0x12_3440);
        assert!(is_known(elsewhere, &code(1, -7, -0x9000, 0x7777)));
        // Another alignment, a branch into the code, another instruction, another kind.
        assert!(!is_known(Avma(elsewhere.0 + 16), &code(1, -7, -0x9000, 0x7777)));
        assert!(!is_known(elsewhere, &code(1, -7, -4, 0x7777)));
        let mut other = code(1, -7, -0x9000, 0x7777);
        other[22] = 0x5b;
        assert!(!is_known(elsewhere, &other));
        assert!(known.find(elsewhere, &code(1, -7, -0x9000, 0x7777), BlobKind::Framed, &name).is_none());
        assert!(!is_known(elsewhere, &code(1, -7, -0x9000, 0x7777)[..27]));
    }

    #[test]
    fn no_more_is_remembered_than_has_room() {
        let (mut known, shape, name) = known(&code(1, 2, 0x1000, -0x2000));
        let mut bytes = code(1, 2, 0x1000, -0x2000);
        for number in 0..2 * (MAX_KNOWN / PER_PIECE) {
            bytes.resize(32 + number / 8, 0);
            bytes[0] = number as u8;
            known.insert_shape((BASE, &bytes, BlobKind::Stub), &name, Vec::new(), &shape);
            let pieces: usize = known.pieces.values().map(Vec::len).sum();
            assert!(known.size <= MAX_KNOWN && pieces <= MAX_KNOWN / PER_PIECE);
        }
        assert!(known.find(BASE, &bytes, BlobKind::Stub, &name).is_some(), "the last one");
        for number in 0..=2 * MAX_ALIKE {
            bytes[0] = number as u8;
            known.insert_shape((BASE, &bytes, BlobKind::Stub), &name, Vec::new(), &shape);
        }
        assert!(known.pieces.values().all(|alike| alike.len() <= MAX_ALIKE));
    }

    #[test]
    fn what_is_known_is_what_would_be_found() {
        let first = code(0x7f11_2233_4455_6677, 0x100, 0x1000, -0x2000);
        let second = code(9, -0x100, 0x55_0000, 0x33_0000);
        let (known, ..) = known(&first);
        let start = Avma(BASE.0 + 0x4000);
        let found = known.find(start, &second, BlobKind::Stub, &"a stub".into()).expect("it is known");
        let (spans, _) = analyze_piece(&second, start, BlobKind::Stub, &[]);
        assert_eq!(*found, PieceShape::new(start, second.len(), &spans, &"a stub".into()));
        assert!(spans.len() > 2, "{spans:?}");
    }
}
