//! Names of generated code for people, without the markup of their writers.

use std::borrow::Cow;

/// The name for people of a perf map's `raw` text. Where it differs from the text, the text is for `system_name`.
///
/// - HotSpot (`Compiler.perfmap`): `int com.acme.Order.total(int[][])` is `com.acme.Order.total`; the number of a
///   hidden class, another one in every run, is left out (`com.acme.Order$$Lambda/0x00007f3160001440.get`). Stubs
///   (`Interpreter`) stay as they are.
/// - V8 (`--perf-basic-prof`): `LazyCompile:*total /app/order.js:12:3` and `JS:~total …` are
///   `total /app/order.js:12:3`.
/// - CPython (`-X perf`): `py::total:/app/order.py` is `total /app/order.py`.
pub fn display_name(raw: &str) -> Cow<'_, str> {
    v8(raw).or_else(|| python(raw)).or_else(|| hotspot(raw)).unwrap_or(Cow::Borrowed(raw))
}

fn v8(raw: &str) -> Option<Cow<'_, str>> {
    // V8 src/logging/log.cc, CodeEventLogger and ComputeMarker: the kinds of code that JavaScript functions have.
    let kinds = ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];
    let function = kinds.iter().find_map(|kind| raw.strip_prefix(kind))?;
    let function = function.strip_prefix(['~', '^', '+', '*', '\'', '-']).unwrap_or(function);
    if function.is_empty() {
        return None;
    }
    match function.strip_prefix(' ') {
        Some(place) => Some(format!("(anonymous) {place}").into()),
        None => Some(function.into()),
    }
}

fn python(raw: &str) -> Option<Cow<'_, str>> {
    // CPython Python/perf_trampoline.c, perf_map_write_entry.
    let (function, file) = raw.strip_prefix("py::")?.split_once(':')?;
    Some(format!("{function} {file}").into())
}

fn hotspot(raw: &str) -> Option<Cow<'_, str>> {
    // openjdk jdk-17 src/hotspot/share/code/codeCache.cpp, CodeCache::write_perf_map: Method::external_name.
    let (head, parameters) = raw.split_once('(')?;
    let (result, method) = head.split_once(' ')?;
    let (class, name) = method.rsplit_once('.')?;
    let is_java = parameters.ends_with(')') && is_type(result) && is_name(name) && !class.is_empty();
    if !is_java || class.contains([' ', ':']) {
        return None;
    }
    match class.split_once("/0x") {
        Some((class, number)) if number.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Some(format!("{class}.{name}").into())
        }
        _ => Some(method.into()),
    }
}

/// Whether this may be the type of a method's result, with dots and array brackets.
fn is_type(text: &str) -> bool {
    let element = text.trim_end_matches("[]");
    let primitives = ["void", "boolean", "byte", "char", "short", "int", "long", "float", "double"];
    // A class without a package is a type, too: what tells it from other words is only the method behind it.
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
            assert_eq!(display_name(raw), name);
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
            "void [System.Private.CoreLib] System.String::Concat(string,string)[Tier0]",
            "BytecodeHandler:LdaZero",
            "Builtin:ArrayPrototypeJoin",
            "std::vector<int>::push_back(int const&)",
            "JS:",
            "py::",
            "(",
            "",
        ] {
            assert_eq!(display_name(raw), raw);
        }
    }

    #[test]
    fn scripts_keep_the_place_that_tells_functions_of_the_same_name_apart() {
        for (raw, name) in [
            ("LazyCompile:*total /app/order.js:12:3", "total /app/order.js:12:3"),
            ("JS:~total file:///app/order.mjs:1:10", "total file:///app/order.mjs:1:10"),
            ("JS:^get node:internal/url:3:1", "get node:internal/url:3:1"),
            ("JS:* /app/order.js:7:9", "(anonymous) /app/order.js:7:9"),
            ("py::Order.total:/app/order.py", "Order.total /app/order.py"),
            ("py::<module>:/app/order.py", "<module> /app/order.py"),
        ] {
            assert_eq!(display_name(raw), name);
        }
    }
}
