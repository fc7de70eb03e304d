//! Growth of vectors whose unused capacity counts against a memory limit.

/// Returns the number of elements to reserve for `more` ones: 0 while the capacity suffices, else
/// `more` and about an eighth of the length on top. Doubling would leave an unused half that counts
/// against the limit.
pub(super) fn elements_to_reserve(capacity: usize, len: usize, more: usize) -> usize {
    if capacity - len >= more { 0 } else { more + len / 8 + 64 }
}

/// Returns the number of elements by which a vector's capacity grows for `more` ones.
pub(super) fn growth(capacity: usize, len: usize, more: usize) -> usize {
    match elements_to_reserve(capacity, len, more) {
        0 => 0,
        reserved => len + reserved - capacity,
    }
}
