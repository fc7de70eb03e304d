//! Formats in which runtimes write names of generated code: HotSpot, V8, CPython, .NET.

use std::borrow::Cow;

/// Name and source position of a function, parsed from a runtime's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeName<'a> {
    /// Name without the runtime's markup. If it differs from the text, the text is the profile's
    /// `system_name`.
    pub name: Cow<'a, str>,
    pub file: Option<&'a str>,
    /// First line of the function, 1-based; 0 if unknown.
    pub line: u32,
}

impl<'a> CodeName<'a> {
    fn plain(name: impl Into<Cow<'a, str>>) -> Self {
        Self { name: name.into(), file: None, line: 0 }
    }
}

/// Parses the `raw` text of a perf map or a jitdump.
///
/// - HotSpot (`Compiler.perfmap`): `int com.acme.Order.total(int[][])` is `com.acme.Order.total`;
///   the number of a hidden class, another one in every run, is left out
///   (`com.acme.Order$$Lambda/0x00007f3160001440.get`). Stubs (`Interpreter`) stay as they are.
/// - V8 (`--perf-basic-prof`, `--perf-prof`): `LazyCompile:*total /app/order.js:12:3` and
///   `JS:~total …` are `total` in line 12 of `/app/order.js`. The tier (`~` interpreted, `^`
///   baseline, `+` Maglev, `*` optimized) is only in the raw text: one function is one function,
///   however it was compiled. One without a name is named after its position: `(anonymous
///   order.js:12:3)`. `RegExp:a+b` is `RegExp: a+b`, `Builtin:ArrayMap` is `ArrayMap`.
/// - CPython (`-X perf`): `py::Order.total:/app/order.py` is `Order.total` of `/app/order.py`.
/// - .NET: `instance void [Acme] Acme.Order::Total(int32)[OptimizedTier1]` is `Acme.Order.Total`.
pub fn code_name(raw: &str) -> CodeName<'_> {
    v8(raw)
        .or_else(|| python(raw))
        .or_else(|| dotnet(raw))
        .or_else(|| hotspot(raw))
        .unwrap_or(CodeName::plain(raw))
}

/// Returns a name with its control characters replaced, which must not reach a terminal.
pub(super) fn printable(name: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(name);
    if text.contains(char::is_control) { text.replace(char::is_control, "\u{fffd}").into() } else { text }
}

fn v8(raw: &str) -> Option<CodeName<'_>> {
    if let Some(builtin) = raw.strip_prefix("Builtin:").filter(|name| !name.is_empty()) {
        return Some(CodeName::plain(builtin));
    }
    if let Some(pattern) = raw.strip_prefix("RegExp:") {
        return Some(CodeName::plain(format!("RegExp: {pattern}")));
    }
    // V8 src/logging/log.cc, CodeEventLogger and ComputeMarker: the kinds of code that JavaScript
    // functions have.
    let kinds = ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];
    let function = kinds.iter().find_map(|kind| raw.strip_prefix(kind))?;
    let function = function.strip_prefix(['~', '^', '+', '*', '\'', '-']).unwrap_or(function);
    if function.is_empty() {
        return None;
    }
    let Some((name, file, line, place)) = script_position(function) else {
        return Some(CodeName::plain(function.trim_start()));
    };
    let name = if name.is_empty() {
        let base = place.rsplit_once('/').map_or(place, |(_, base)| base);
        format!("(anonymous {base})").into()
    } else {
        name.into()
    };
    Some(CodeName { name, file: (!file.is_empty()).then_some(file), line })
}

/// Splits `name file:line:column` into name, file, line, and the text after the name.
fn script_position(function: &str) -> Option<(&str, &str, u32, &str)> {
    // Names (`get value`) and paths may have spaces. A path is recognized by its start, else it is
    // the last word.
    let starts = [" /", " file://", " node:", " http://", " https://", " webpack://", " evalmachine."];
    let split =
        starts.iter().filter_map(|start| function.find(start)).min().or_else(|| function.rfind(' '))?;
    let (name, place) = (&function[..split], &function[split + 1..]);
    let (rest, column) = place.rsplit_once(':')?;
    let (file, line) = rest.rsplit_once(':')?;
    column.parse::<u32>().ok()?;
    Some((name, file, line.parse().ok()?, place))
}

fn python(raw: &str) -> Option<CodeName<'_>> {
    // CPython Python/perf_trampoline.c, perf_map_write_entry.
    let (function, file) = raw.strip_prefix("py::")?.split_once(':')?;
    Some(CodeName { name: function.into(), file: (!file.is_empty()).then_some(file), line: 0 })
}

fn dotnet(raw: &str) -> Option<CodeName<'_>> {
    // dotnet/runtime src/coreclr/vm/perfmap.cpp, PerfMap::LogJITCompiledMethod: full signature and
    // `[tier]`.
    let (head, _) = raw.split_once('(')?;
    let (before, method) = head.split_once("::")?;
    let (_, class) = before.rsplit_once("] ")?;
    let is_plain = !method.is_empty() && !class.is_empty() && before.contains('[') && !class.contains(' ');
    is_plain.then(|| CodeName::plain(format!("{class}.{method}")))
}

fn hotspot(raw: &str) -> Option<CodeName<'_>> {
    // openjdk jdk-17 src/hotspot/share/code/codeCache.cpp, CodeCache::write_perf_map:
    // Method::external_name.
    let (head, parameters) = raw.split_once('(')?;
    let (result, method) = head.split_once(' ')?;
    let (class, name) = method.rsplit_once('.')?;
    let is_java = parameters.ends_with(')') && is_type(result) && is_name(name) && !class.is_empty();
    if !is_java || class.contains([' ', ':']) {
        return None;
    }
    match class.split_once("/0x") {
        Some((class, number)) if number.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Some(CodeName::plain(format!("{class}.{name}")))
        }
        _ => Some(CodeName::plain(method)),
    }
}

/// Returns true if this may be the type of a method's result, with dots and array brackets.
fn is_type(text: &str) -> bool {
    let element = text.trim_end_matches("[]");
    let primitives = ["void", "boolean", "byte", "char", "short", "int", "long", "float", "double"];
    // A class without a package is a type, too: only the method after it distinguishes it from
    // other words.
    primitives.contains(&element) || (!element.is_empty() && !element.contains(['[', ']', ':', ',']))
}

fn is_name(text: &str) -> bool {
    matches!(text, "<init>" | "<clinit>")
        || (!text.is_empty() && !text.contains(['<', '>', '/', ';', '[', ']']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_methods_lose_their_types() {
        for (raw, name) in [
            ("int com.acme.Acme$Order.total(int[][], java.lang.String[])", "com.acme.Acme$Order.total"),
            ("void com.acme.Acme$Circle.<init>(double)", "com.acme.Acme$Circle.<init>"),
            ("java.util.HashMap$Node[] java.util.HashMap.resize()", "java.util.HashMap.resize"),
            ("Order[] Main.orders()", "Main.orders"),
            ("void com.acme.Acme$$Lambda$1/0x00007f3160001440.<init>(int)", "com.acme.Acme$$Lambda$1.<init>"),
            ("java.lang.Object com.acme.Acme$$Lambda/0x0000000084040ca8.get()", "com.acme.Acme$$Lambda.get"),
        ] {
            assert_eq!(code_name(raw), CodeName::plain(name));
        }
    }

    #[test]
    fn stubs_and_foreign_names_stay_as_they_are() {
        for raw in [
            "Interpreter",
            "I2C/C2I adapters",
            "StackOverflowError throw_exception",
            "Shared Runtime throw_StackOverflowError_blob",
            "StubRoutines (compiler stubs)",
            "BytecodeHandler:LdaZero",
            "std::vector<int>::push_back(int const&)",
            "wasm[0]::function[7]",
            "JS:",
            "Builtin:",
            "py::",
            "(",
            "",
        ] {
            assert_eq!(code_name(raw), CodeName::plain(raw));
        }
    }

    #[test]
    fn scripts_give_function_file_and_line() {
        for (raw, name, file, line) in [
            ("LazyCompile:*total /app/order.js:12:3", "total", Some("/app/order.js"), 12),
            ("JS:~total file:///app/order.mjs:1:10", "total", Some("file:///app/order.mjs"), 1),
            ("JS:^get node:internal/url:3:1", "get", Some("node:internal/url"), 3),
            ("JS:*get total /my app/order.js:7:9", "get total", Some("/my app/order.js"), 7),
            ("JS:* /app/order.js:7:9", "(anonymous order.js:7:9)", Some("/app/order.js"), 7),
            (
                "Script:~ evalmachine.<anonymous>:1:1",
                "(anonymous evalmachine.<anonymous>:1:1)",
                Some("evalmachine.<anonymous>"),
                1,
            ),
            ("Function:~emit", "emit", None, 0),
            ("Builtin:ArrayPrototypeJoin", "ArrayPrototypeJoin", None, 0),
            ("RegExp:^a b:1:2$", "RegExp: ^a b:1:2$", None, 0),
            ("py::Order.total:/app/order.py", "Order.total", Some("/app/order.py"), 0),
            ("py::<module>:/app/order.py", "<module>", Some("/app/order.py"), 0),
            (
                "void [System.Private.CoreLib] System.String::Concat(string,string)[Tier0]",
                "System.String.Concat",
                None,
                0,
            ),
        ] {
            assert_eq!(code_name(raw), CodeName { name: name.into(), file, line }, "{raw}");
        }
    }
}
