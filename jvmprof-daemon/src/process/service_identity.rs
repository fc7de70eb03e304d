//! The service that a process says it is: in its published context, its environment or, if it is a
//! JVM, in its options, by the names of OpenTelemetry.
//!
//! Anyone may write there what they like: what is read and what is kept is bounded.

use std::fs::File;
use std::io::Read;

use percent_encoding::percent_decode_str;

use super::java_launcher::{LauncherArgument, launcher_arguments};
use super::resource_attributes::{ResourceAttributes, kept};

/// Bytes of an environment, and of a list of arguments, that are read.
const MAX_BYTES: u64 = 128 << 10;

/// Attributes of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// `service.name`.
    pub name: Option<String>,
    /// `service.namespace`.
    pub namespace: Option<String>,
    /// `deployment.environment.name`, or `deployment.environment` as it was called before.
    pub environment: Option<String>,
    /// All attributes of the service's resource that are kept, those above among them.
    pub attributes: ResourceAttributes,
}

/// The identity that a process states of its service, by the place where it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatedIdentity {
    environment: ServiceIdentity,
    /// Of the options that a JVM would have by its arguments and environment.
    options: ServiceIdentity,
}

impl StatedIdentity {
    /// Reads a process's environment and arguments; what can't be read says nothing.
    pub(super) fn read(pid: u32) -> Self {
        let read = |file: &str| read_start(&format!("/proc/{pid}/{file}"));
        let (environment, arguments) = (read("environ"), read("cmdline"));
        Self { environment: of_environment(&environment), options: of_options(&arguments, &environment) }
    }

    /// Returns each attribute from the first place that has it: the environment, then, if the
    /// process is a JVM, its options.
    pub fn identity(&self, is_jvm: bool) -> ServiceIdentity {
        let of_environment = self.environment.clone();
        if is_jvm { of_environment.or(&self.options) } else { of_environment }
    }
}

impl ServiceIdentity {
    /// Returns the attributes, and of another identity those that are missing.
    pub(crate) fn or(self, other: &Self) -> Self {
        Self {
            name: self.name.or_else(|| other.name.clone()),
            namespace: self.namespace.or_else(|| other.namespace.clone()),
            environment: self.environment.or_else(|| other.environment.clone()),
            attributes: self.attributes.or(&other.attributes),
        }
    }

    /// Returns the identity that these attributes of a resource give, and the number of those that
    /// are not kept.
    pub(super) fn of_pairs(pairs: &[(impl AsRef<str>, String)]) -> (Self, u64) {
        let value =
            |key: &str| pairs.iter().find(|(name, _)| name.as_ref() == key).and_then(|(_, it)| kept(it));
        let mut attributes = ResourceAttributes::default();
        let left_out =
            pairs.iter().filter(|(name, value)| !attributes.insert(name.as_ref(), value)).count() as u64;
        let identity = Self {
            name: value("service.name"),
            namespace: value("service.namespace"),
            environment: value("deployment.environment.name").or_else(|| value("deployment.environment")),
            attributes,
        };
        (identity, left_out)
    }

    /// Parses `OTEL_RESOURCE_ATTRIBUTES`: `KEY=VALUE,KEY=VALUE`, values percent-encoded.
    fn of_attributes(text: &str) -> Self {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        let decoded = |value: &str| percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
        let pairs: Vec<_> = pairs.map(|(name, value)| (name.trim(), decoded(value))).collect();
        Self::of_pairs(&pairs).0
    }
}

/// Returns the start of a file that ends with a whole, terminated text.
fn read_start(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    let end = bytes.iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
    bytes.truncate(end);
    bytes
}

fn texts(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok())
}

/// Returns a variable of an environment: `NAME=VALUE`, each followed by a zero byte. Of two with
/// the same name the first one counts, as for `getenv`.
fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a str> {
    texts(environment).find_map(|text| text.strip_prefix(name)?.strip_prefix('='))
}

fn of_environment(bytes: &[u8]) -> ServiceIdentity {
    let variable = |name: &str| variable(bytes, name);
    let named =
        ServiceIdentity { name: variable("OTEL_SERVICE_NAME").and_then(kept), ..ServiceIdentity::default() };
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    named.or(&ServiceIdentity::of_attributes(attributes))
}

/// Parses the options of a JVM, in the order in which it reads them: those of `JAVA_TOOL_OPTIONS`,
/// those that the `java` launcher has of `JDK_JAVA_OPTIONS` and of its arguments, each followed by
/// a zero byte, and those of `_JAVA_OPTIONS`. Of two properties with the same name the last one
/// counts, as for the JVM.
fn of_options(arguments: &[u8], environment: &[u8]) -> ServiceIdentity {
    let of_variable = |name: &str| split_options(variable(environment, name).unwrap_or_default());
    let [tool, launcher, last] = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"].map(of_variable);
    // Only the launcher reads its variable: other programs may have a JVM, too.
    let is_launcher = texts(arguments).next().is_some_and(|name| name.rsplit('/').next() == Some("java"));
    let launcher = launcher.iter().map(String::as_str).filter(|_| is_launcher);
    let arguments = launcher.chain(texts(arguments).skip(1));
    let of_launcher = launcher_arguments(arguments).filter_map(|argument| match argument {
        LauncherArgument::Option(option) => Some(option),
        _ => None,
    });
    let of_tool = tool.iter().map(String::as_str);
    let (mut otel, mut spring, mut attributes) = (None, None, "");
    for option in of_tool.chain(of_launcher).chain(last.iter().map(String::as_str)) {
        match option.strip_prefix("-D").and_then(|property| property.split_once('=')) {
            Some(("otel.service.name", value)) => otel = kept(value),
            Some(("spring.application.name", value)) => spring = kept(value),
            Some(("otel.resource.attributes", value)) => attributes = value,
            _ => {}
        }
    }
    let of_attributes = ServiceIdentity::of_attributes(attributes);
    let name = otel.or_else(|| of_attributes.name.clone()).or(spring);
    ServiceIdentity { name, ..of_attributes }
}

/// Splits the options of a variable as the JVM and its launcher do: at white space that isn't
/// quoted, without the quotes.
///
/// Source: openjdk src/hotspot/share/runtime/arguments.cpp, `parse_options_buffer`, and
/// src/java.base/share/native/libjli/args.c, `expand`.
fn split_options(text: &str) -> Vec<String> {
    let (mut options, mut option, mut quote): (Vec<String>, Option<String>, Option<char>) =
        Default::default();
    for character in text.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '"' | '\'') => {
                quote = Some(character);
                option.get_or_insert_default();
            }
            (None, ' ' | '\t'..='\r') => options.extend(option.take()),
            _ => option.get_or_insert_default().push(character),
        }
    }
    options.extend(option);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::resource_attributes::MAX_VALUE_BYTES;

    fn joined(texts: &[&str]) -> Vec<u8> {
        texts.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect()
    }

    fn identity(name: &str, namespace: &str, environment: &str) -> ServiceIdentity {
        let some = |value: &str| (!value.is_empty()).then(|| value.to_owned());
        ServiceIdentity {
            name: some(name),
            namespace: some(namespace),
            environment: some(environment),
            attributes: ResourceAttributes::default(),
        }
    }

    fn without_attributes(identity: ServiceIdentity) -> ServiceIdentity {
        ServiceIdentity { attributes: ResourceAttributes::default(), ..identity }
    }

    #[test]
    fn a_service_is_read_from_the_environment() {
        const ALL: &str = "OTEL_RESOURCE_ATTRIBUTES=service.name=a%20b, service.namespace = shop ,\
                           deployment.environment=old,deployment.environment.name=prod,x,=,y=";
        for (environment, expected) in [
            (&[][..], identity("", "", "")),
            (&["OTEL_SERVICE_NAME=cart"], identity("cart", "", "")),
            (&["OTEL_SERVICE_NAME=cart", "OTEL_SERVICE_NAME=later"], identity("cart", "", "")),
            (&["OTEL_SERVICE_NAME= "], identity("", "", "")),
            (&["OTEL_SERVICE_NAMES=cart", "NOT_OTEL_SERVICE_NAME=cart"], identity("", "", "")),
            (&[ALL], identity("a b", "shop", "prod")),
            (&[ALL, "OTEL_SERVICE_NAME=cart"], identity("cart", "shop", "prod")),
            (
                &["OTEL_RESOURCE_ATTRIBUTES=deployment.environment=old,service.name=%ff%"],
                identity("\u{fffd}%", "", "old"),
            ),
        ] {
            let found = without_attributes(of_environment(&joined(environment)));
            assert_eq!(found, expected, "{environment:?}");
        }
    }

    #[test]
    fn the_attributes_of_a_resource_are_kept() {
        let texts = ["OTEL_RESOURCE_ATTRIBUTES=service.name=a%20b, k8s.pod.name = cart-0,k8s.pod.name=x"];
        let attributes = of_environment(&joined(&texts)).attributes;
        let pairs: Vec<_> = attributes.iter().collect();
        assert_eq!(pairs, [("k8s.pod.name", "cart-0"), ("service.name", "a b")]);
    }

    #[test]
    fn a_service_is_read_from_the_arguments_of_a_jvm_and_not_from_its_programs() {
        const OTEL: &str = "-Dotel.service.name=cart";
        const SPRING: &str = "-Dspring.application.name=spring";
        const ATTRIBUTES: &str = "-Dotel.resource.attributes=service.name=r,service.namespace=shop";
        for (arguments, expected) in [
            (&[][..], identity("", "", "")),
            (&["java", OTEL, "Main"], identity("cart", "", "")),
            (&["java", OTEL, "-Dotel.service.name=last", "Main"], identity("last", "", "")),
            (&["java", SPRING, OTEL, "-jar", "x.jar"], identity("cart", "", "")),
            (&["java", SPRING, "-jar", "x.jar"], identity("spring", "", "")),
            (&["java", SPRING, ATTRIBUTES, "Main"], identity("r", "shop", "")),
            (&["java", "-cp", "x.jar", OTEL, "Main"], identity("cart", "", "")),
            (&["java", "@options", OTEL, "Main"], identity("cart", "", "")),
            (&["java", "-jar", "x.jar", OTEL], identity("", "", "")),
            (&["java", "--module=acme.app", OTEL], identity("", "", "")),
            (&["java", "Main", OTEL], identity("", "", "")),
            (&["java", "-cp", OTEL, "Main"], identity("", "", "")),
            (&["java", "-Dotel.service.name", "Main"], identity("", "", "")),
        ] {
            let found = without_attributes(of_options(&joined(arguments), b""));
            assert_eq!(found, expected, "{arguments:?}");
        }
    }

    #[test]
    fn options_of_the_environment_are_split_as_the_jvm_does() {
        for (text, expected) in [
            ("", &[][..]),
            (" -Da=b\t-Dc=d\n", &["-Da=b", "-Dc=d"]),
            (r#"-Da="x y" '-Db=it is' -Dc=x'"'y"#, &["-Da=x y", "-Db=it is", "-Dc=x\"y"]),
            (r"-Da=b\ c", &[r"-Da=b\", "c"]),
            ("'' -Da='no end", &["", "-Da=no end"]),
        ] {
            assert_eq!(split_options(text), expected, "{text:?}");
        }
    }

    #[test]
    fn options_of_the_environment_are_read_in_the_order_of_the_jvm() {
        const TOOL: &str = "JAVA_TOOL_OPTIONS=-Xmx1g -Dotel.service.name='tool 1'";
        const JDK: &str = "JDK_JAVA_OPTIONS=-Dotel.service.name=jdk -Dspring.application.name=spring";
        const LAST: &str = "_JAVA_OPTIONS=-Dotel.service.name=last";
        const CART: &[&str] = &["java", "-Dotel.service.name=cart", "Main"];
        const PLAIN: &[&str] = &["java", "-Dotel.resource.attributes=service.namespace=shop", "Main"];
        for (arguments, environment, expected) in [
            (PLAIN, &[TOOL][..], identity("tool 1", "shop", "")),
            (PLAIN, &[JDK, TOOL], identity("jdk", "shop", "")),
            (PLAIN, &[JDK, TOOL, LAST], identity("last", "shop", "")),
            (CART, &[JDK, TOOL], identity("cart", "", "")),
            (CART, &[LAST], identity("last", "", "")),
            // The agent's property goes before Spring's, wherever they are.
            (&["java", "-Dspring.application.name=x", "Main"], &[TOOL], identity("tool 1", "", "")),
            (PLAIN, &["JDK_JAVA_OPTIONS=-cp -Dotel.service.name=jdk"], identity("", "shop", "")),
            (PLAIN, &["NOT_JAVA_TOOL_OPTIONS=-Dotel.service.name=x"], identity("", "shop", "")),
        ] {
            let found = without_attributes(of_options(&joined(arguments), &joined(environment)));
            assert_eq!(found, expected, "{arguments:?} {environment:?}");
        }
    }

    #[test]
    fn the_environment_comes_before_the_options_which_only_a_jvm_has() {
        let stated = StatedIdentity {
            environment: identity("", "shop", ""),
            options: identity("cart", "other", "prod"),
        };
        assert_eq!(stated.identity(true), identity("cart", "shop", "prod"));
        assert_eq!(stated.identity(false), identity("", "shop", ""));
    }

    #[test]
    fn a_hostile_environment_is_bounded() {
        let long = format!("OTEL_SERVICE_NAME={}", "é".repeat(MAX_VALUE_BYTES));
        let name = of_environment(&joined(&[&long])).name.expect("a name");
        assert_eq!(name.len(), MAX_VALUE_BYTES);
        assert_eq!(of_environment(b"OTEL_SERVICE_NAME=\xff\0"), identity("", "", ""));
        assert_eq!(of_options(b"\0\0java\0-D=\0-D", b"JAVA_TOOL_OPTIONS='\0"), identity("", "", ""));
        assert_eq!(StatedIdentity::read(u32::MAX), StatedIdentity::default());
    }
}
