//! Suggestions for misspelt names.

/// Names that are less alike than this aren't suggested (Jaro-Winkler similarity).
const MIN_SIMILARITY: f64 = 0.8;

/// Returns the candidate that is most like a name, if one is.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (candidate, strsim::jaro_winkler(candidate, name)))
        .filter(|(_, similarity)| *similarity > MIN_SIMILARITY)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(candidate, _)| candidate)
}
