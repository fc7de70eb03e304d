//! Errors of the estimated bytes of each class.

use std::collections::HashMap;
use std::sync::Arc;

/// The error of the estimated bytes of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassError {
    /// Those of objects that are each an event, which the kernel program has counted: exact.
    pub counted_bytes: f64,
    /// The variance of the estimate of the others; `None` if it isn't known, as where the class was
    /// in no census, or the censuses were too few.
    pub variance: Option<f64>,
}

/// The same of a window, by the classes' names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassErrors(HashMap<Arc<str>, ClassError>);

impl ClassErrors {
    /// Adds a class of one process, whose estimate depends on no other's.
    pub(super) fn add(&mut self, class: Arc<str>, error: ClassError) {
        let sum = self.0.entry(class).or_insert(ClassError { counted_bytes: 0.0, variance: Some(0.0) });
        sum.counted_bytes += error.counted_bytes;
        sum.variance = sum.variance.zip(error.variance).map(|(sum, variance)| sum + variance);
    }

    pub fn get(&self, class: &str) -> Option<ClassError> {
        self.0.get(class).copied()
    }
}

impl ClassError {
    /// Returns one standard error in percent of the bytes of the class, if it is known.
    pub fn percent(&self, bytes: u64) -> Option<f64> {
        self.variance.map(|variance| 100.0 * variance.sqrt() / bytes.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variances_of_processes_are_added_and_one_that_is_unknown_makes_their_sum_so() {
        let mut errors = ClassErrors::default();
        let error = |counted_bytes, variance| ClassError { counted_bytes, variance };
        for (class, of) in [
            ("A", error(10.0, Some(9.0))),
            ("A", error(20.0, Some(16.0))),
            ("B", error(0.0, Some(9.0))),
            ("B", error(5.0, None)),
        ] {
            errors.add(class.into(), of);
        }
        assert_eq!(errors.get("A"), Some(error(30.0, Some(25.0))));
        assert_eq!(errors.get("A").and_then(|error| error.percent(100)), Some(5.0));
        assert_eq!(errors.get("B"), Some(error(5.0, None)));
        assert_eq!(errors.get("B").and_then(|error| error.percent(100)), None);
        assert_eq!(errors.get("C"), None);
    }
}
