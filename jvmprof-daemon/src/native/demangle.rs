//! Names of compilers' symbols for people.

/// The name for people of `raw`; `None` if it isn't mangled (or can't be demangled within bounds), and is to be shown
/// as it is.
pub fn demangle(_raw: &str) -> Option<String> {
    None
}
