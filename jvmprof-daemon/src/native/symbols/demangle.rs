//! Demangling of compilers' symbols.
//!
//! The result has the shape of `perf report`: C++ without parameter lists and return types but with
//! template arguments (`std::vector<int>::push_back`), Rust without the hash (`core::fmt::write`).
//! A part that a compiler split off or copied (`.cold`, `.constprop.0`) has the name of the
//! function in the source. The mangled name belongs in pprof's `system_name`, where overloads and
//! copies stay distinct.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Longest symbol that is demangled, in bytes. Deep template code has symbols of some thousand.
const MAX_MANGLED: usize = 16 << 10;
/// Longest name that demangling may give, in bytes: back references expand exponentially.
const MAX_DEMANGLED: usize = 16 << 10;
/// Deepest nesting that is followed; it bounds the parser's stack, and threads have 2 MiB here. A
/// chain of pointers, the greediest of the shapes tried, took between 768 KiB and 1 MiB at this
/// depth without optimization. A depth of 96 needs up to 1.5 MiB, and demangles eight more of
/// 154,000 C++ symbols (node, LLVM, libstdc++).
const MAX_DEPTH: u32 = 64;

/// Returns the demangled name of `raw`; `None` if it isn't mangled (or can't be demangled within
/// bounds), and is to be shown as it is.
///
/// A version (`memcpy@@GLIBC_2.14`), which belongs to linking, isn't part of the name.
pub fn demangle(raw: &str) -> Option<String> {
    let name = match raw.split_once('@') {
        Some((name, _)) if !name.is_empty() => name,
        _ => raw,
    };
    let demangled = if name.len() > MAX_MANGLED { None } else { rust(name).or_else(|| cpp(name)) };
    demangled.or_else(|| (name.len() != raw.len()).then(|| name.to_owned()))
}

fn rust(name: &str) -> Option<String> {
    if !name.starts_with("_R") && !name.starts_with("_ZN") {
        return None;
    }
    let mut text = BoundedText::default();
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    write!(text, "{demangled:#}").ok()?;
    // What is beyond rustc_demangle's own bounds it writes in braces instead of failing.
    if text.0.contains("{invalid syntax}") || text.0.contains("{recursion limit reached}") {
        return None;
    }
    Some(text.0)
}

fn cpp(name: &str) -> Option<String> {
    let mangled = ["_Z", "__Z", "___Z", "_GLOBAL_"].iter().any(|prefix| name.starts_with(prefix));
    if !mangled {
        return None;
    }
    let limits = ParseOptions::default().recursion_limit(MAX_DEPTH);
    let symbol = Symbol::new_with_options(name, &limits).ok()?;
    let mut text = BoundedText::default();
    let shape = DemangleOptions::new().no_params().no_return_type().recursion_limit(MAX_DEPTH);
    symbol.structured_demangle(&mut text, &shape).ok()?;
    Some(text.0)
}

/// Text that fails to grow above [`MAX_DEMANGLED`].
#[derive(Default)]
struct BoundedText(String);

impl Write for BoundedText {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if self.0.len() + piece.len() > MAX_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(piece);
        Ok(())
    }
}
