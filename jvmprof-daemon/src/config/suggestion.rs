//! Suggestions for misspelt names.

/// Least similarity of a suggested name (Jaro-Winkler).
const MIN_SIMILARITY: f64 = 0.8;

/// Returns the candidate that is most similar to a name, if one is.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (candidate, strsim::jaro_winkler(candidate, name)))
        .filter(|(_, similarity)| *similarity > MIN_SIMILARITY)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(candidate, _)| candidate)
}
