//! Bytes for more than one purpose.

/// Takes a piece off the front whose length stands before it, in two bytes.
pub fn piece<'a>(data: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return &[] };
    let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    *data = rest;
    piece
}
