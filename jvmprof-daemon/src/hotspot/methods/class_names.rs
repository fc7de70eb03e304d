//! Names as people know them, the same in every run.
//!
//! The JVM makes classes up while it runs, and numbers them or names them by addresses: openjdk
//! src/hotspot/share/classfile/classFileParser.cpp (`mangle_hidden_class_name`),
//! src/java.base/share/classes java/lang/invoke/InnerClassLambdaMetafactory,
//! java/lang/reflect/Proxy, jdk/internal/reflect/MethodAccessorGenerator.

/// Decodes a symbol: "modified UTF-8", with surrogate pairs of three bytes each (JVMS 4.4.7).
/// `None` if it isn't that.
pub fn decode_symbol(bytes: &[u8]) -> Option<String> {
    if bytes.is_ascii() {
        // Zero is stored as two bytes.
        return if bytes.contains(&0) { None } else { String::from_utf8(bytes.to_vec()).ok() };
    }
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        let continuation = |index: usize| {
            tail.get(index).filter(|byte| **byte & 0xc0 == 0x80).map(|byte| u16::from(byte & 0x3f))
        };
        let first = u16::from(*first);
        let (unit, len) = match first {
            0x01..=0x7f => (first, 1),
            0xc0..=0xdf => ((first & 0x1f) << 6 | continuation(0)?, 2),
            0xe0..=0xef => ((first & 0x0f) << 12 | continuation(0)? << 6 | continuation(1)?, 3),
            _ => return None,
        };
        units.push(unit);
        rest = rest.get(len..)?;
    }
    Some(String::from_utf16_lossy(&units))
}

/// A class's name with dots, without what differs from run to run.
pub fn class_name(internal: &str) -> String {
    let name = without_address(internal);
    // `Proxy` numbers the modules that it defines proxies in, too.
    let name = match name.strip_prefix("jdk/proxy").or_else(|| name.strip_prefix("com/sun/proxy")) {
        Some(rest) if rest.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with("/$Proxy") => {
            "$Proxy"
        }
        _ => name,
    };
    let mut name = name.replace('/', ".");
    for numbered in [
        "$Proxy",
        "$$Lambda$",
        "$MockitoMock$",
        "GeneratedMethodAccessor",
        "GeneratedConstructorAccessor",
        "GeneratedSerializationConstructorAccessor",
    ] {
        if let Some(at) = name.rfind(numbered) {
            let number = &name[at + numbered.len()..];
            if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
                name.truncate(at + numbered.trim_end_matches('$').len());
            }
        }
    }
    // ByteBuddy adds eight random letters and digits.
    if let Some(at) = name.rfind("$ByteBuddy$")
        && name.len() == at + "$ByteBuddy$".len() + 8
    {
        name.truncate(at + "$ByteBuddy".len());
    }
    name
}

/// Returns a class's name without its end that differs in each JVM. Hidden classes end in `+0x` and
/// an address (JDK 15 and later), unsafe anonymous ones in `/0x` and an address or `/` and a hash.
fn without_address(name: &str) -> &str {
    let Some(at) = name.rfind(['+', '/']) else { return name };
    let suffix = &name[at + 1..];
    let hex = suffix
        .strip_prefix("0x")
        .is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    let number = !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit());
    if hex || number { &name[..at] } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_classes_have_the_same_name_in_every_run() {
        for (internal, shown) in [
            ("com/acme/Order", "com.acme.Order"),
            ("Load", "Load"),
            ("com/acme/Order$Line$1", "com.acme.Order$Line$1"),
            ("com/acme/Main$$Lambda+0x00007f8c5c000400", "com.acme.Main$$Lambda"),
            ("com/acme/Main$$Lambda$14+0x0000000800066840", "com.acme.Main$$Lambda"),
            ("com/acme/Main$$Lambda$1/1521118594", "com.acme.Main$$Lambda"),
            ("com/acme/Main$$Lambda$27", "com.acme.Main$$Lambda"),
            ("java/lang/invoke/LambdaForm$MH+0x00007f0001001000", "java.lang.invoke.LambdaForm$MH"),
            ("java/lang/invoke/LambdaForm$DMH/0x0000000800c02400", "java.lang.invoke.LambdaForm$DMH"),
            ("java/lang/invoke/DirectMethodHandle$Holder", "java.lang.invoke.DirectMethodHandle$Holder"),
            ("jdk/proxy2/$Proxy12", "$Proxy"),
            ("com/sun/proxy/$Proxy3", "$Proxy"),
            ("$Proxy7", "$Proxy"),
            ("jdk/proxy/Other", "jdk.proxy.Other"),
            ("sun/reflect/GeneratedMethodAccessor13", "sun.reflect.GeneratedMethodAccessor"),
            ("com/acme/Service$MockitoMock$190765489", "com.acme.Service$MockitoMock"),
            ("com/acme/Service$ByteBuddy$Ab3dE9xY", "com.acme.Service$ByteBuddy"),
            ("com/acme/v2/0xface/Name", "com.acme.v2.0xface.Name"),
        ] {
            assert_eq!(class_name(internal), shown, "{internal}");
        }
    }

    #[test]
    fn symbols_are_modified_utf_8() {
        assert_eq!(decode_symbol(b"total").as_deref(), Some("total"));
        assert_eq!(decode_symbol("Größe€".as_bytes()).as_deref(), Some("Größe€"));
        assert_eq!(decode_symbol(&[0xed, 0xa0, 0xbd, 0xed, 0xb8, 0x80]).as_deref(), Some("😀"));
        assert_eq!(decode_symbol(&[b'a', 0xc0, 0x80]).as_deref(), Some("a\0"));
        for garbage in
            [&b"a\0b"[..], &[0xc3], &[0xc3, 0x20], &[0x80], &[0xf0, 0x9f, 0x98, 0x80], &[0xe2, 0x82]]
        {
            assert_eq!(decode_symbol(garbage), None, "{garbage:x?}");
        }
    }
}
