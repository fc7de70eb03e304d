//! Names of threads as labels have them.

/// Returns a name without control characters.
pub(super) fn with_numbers(name: &str) -> String {
    name.replace(char::is_control, " ")
}

/// Folds digits, so that threads that differ by a number have one name: `http-nio-8080-exec-12` is
/// `http-nio-N-exec-N`.
pub(super) fn folded(name: &str) -> String {
    let mut folded = String::with_capacity(name.len());
    let mut in_number = false;
    for char in name.chars() {
        let is_digit = char.is_ascii_digit();
        if !is_digit {
            folded.push(if char.is_control() { ' ' } else { char });
        } else if !in_number {
            folded.push('N');
        }
        in_number = is_digit;
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_of_threads_are_folded() {
        assert_eq!(with_numbers("pool-1\n-thread-2"), "pool-1 -thread-2");
        for (name, expected) in [
            ("pool-1\n-thread-2", "pool-N -thread-N"),
            ("http-nio-8080-exec-12", "http-nio-N-exec-N"),
            ("GC Thread#0", "GC Thread#N"),
            ("C2 CompilerThre", "CN CompilerThre"),
            ("N1N22", "NNNN"),
            ("main", "main"),
            ("a\nb", "a b"),
            ("", ""),
        ] {
            assert_eq!(folded(name), expected, "{name:?}");
        }
    }
}
