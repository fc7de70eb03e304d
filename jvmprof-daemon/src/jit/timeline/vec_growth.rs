//! Growth of vectors whose unused capacity counts against a memory limit.

/// How many elements to reserve for `more` ones: none while there is room, else an eighth of what
/// is there instead of as much again, whose unused half would count against the limit.
pub(super) fn reserve(capacity: usize, len: usize, more: usize) -> usize {
    if capacity - len >= more { 0 } else { more + len / 8 + 64 }
}

/// By how many elements a vector grows for `more` ones.
pub(super) fn growth(capacity: usize, len: usize, more: usize) -> usize {
    match reserve(capacity, len, more) {
        0 => 0,
        reserved => len + reserved - capacity,
    }
}
