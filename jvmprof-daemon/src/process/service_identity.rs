//! The service that a process says it is: in its environment or, if it is a JVM, in its arguments,
//! by the names of OpenTelemetry.
//!
//! Anyone may write there what they like: what is read and what is kept is bounded.

use std::fs::File;
use std::io::Read;

use percent_encoding::percent_decode_str;

use super::java_launcher::{LauncherArgument, launcher_arguments};

/// Bytes of an environment, and of a list of arguments, that are read.
const MAX_BYTES: u64 = 128 << 10;

/// Bytes of a value that are kept: a label of it is cut before that, at 1,024 characters.
pub(crate) const MAX_VALUE_BYTES: usize = 4 * 1025;

/// Attributes of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// `service.name`.
    pub name: Option<String>,
    /// `service.namespace`.
    pub namespace: Option<String>,
    /// `deployment.environment.name`, or `deployment.environment` as it was called before.
    pub environment: Option<String>,
}

/// What a process says of its service, by the place where it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatedIdentity {
    environment: ServiceIdentity,
    /// Of its arguments, read as those of a JVM.
    arguments: ServiceIdentity,
}

impl StatedIdentity {
    /// Reads a process's environment and arguments; what can't be read says nothing.
    pub(super) fn read(pid: u32) -> Self {
        let read = |file: &str| read_start(&format!("/proc/{pid}/{file}"));
        Self { environment: of_environment(&read("environ")), arguments: of_arguments(&read("cmdline")) }
    }

    /// Returns each attribute from the first place that has it: the environment, then, if the
    /// process is a JVM, the arguments.
    pub fn identity(&self, is_jvm: bool) -> ServiceIdentity {
        let of_environment = self.environment.clone();
        if is_jvm { of_environment.or(&self.arguments) } else { of_environment }
    }
}

impl ServiceIdentity {
    /// Returns the attributes, and of another identity those that are missing.
    fn or(self, other: &Self) -> Self {
        Self {
            name: self.name.or_else(|| other.name.clone()),
            namespace: self.namespace.or_else(|| other.namespace.clone()),
            environment: self.environment.or_else(|| other.environment.clone()),
        }
    }

    /// Parses `OTEL_RESOURCE_ATTRIBUTES`: `KEY=VALUE,KEY=VALUE`, values percent-encoded.
    fn of_attributes(text: &str) -> Self {
        let value = |key: &str| {
            let mut pairs = text.split(',').filter_map(|pair| pair.split_once('='));
            let (_, value) = pairs.find(|(name, _)| name.trim() == key)?;
            kept(&percent_decode_str(value.trim()).decode_utf8_lossy())
        };
        Self {
            name: value("service.name"),
            namespace: value("service.namespace"),
            environment: value("deployment.environment.name").or_else(|| value("deployment.environment")),
        }
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

/// Returns a value as far as it is kept, and `None` for one that says nothing.
fn kept(value: &str) -> Option<String> {
    let value = value.trim();
    (!value.is_empty()).then(|| value[..value.floor_char_boundary(MAX_VALUE_BYTES)].to_owned())
}

fn texts(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok())
}

/// Parses an environment: `NAME=VALUE`, each followed by a zero byte. Of two with the same name the
/// first one counts, as for `getenv`.
fn of_environment(bytes: &[u8]) -> ServiceIdentity {
    let variable = |name: &str| texts(bytes).find_map(|text| text.strip_prefix(name)?.strip_prefix('='));
    let named =
        ServiceIdentity { name: variable("OTEL_SERVICE_NAME").and_then(kept), ..ServiceIdentity::default() };
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    named.or(&ServiceIdentity::of_attributes(attributes))
}

/// Parses the arguments of the `java` launcher, each followed by a zero byte. Of two properties
/// with the same name the last one counts, as for the JVM.
fn of_arguments(bytes: &[u8]) -> ServiceIdentity {
    let (mut otel, mut spring, mut attributes) = (None, None, "");
    for argument in launcher_arguments(texts(bytes).skip(1)) {
        let LauncherArgument::Option(option) = argument else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(texts: &[&str]) -> Vec<u8> {
        texts.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect()
    }

    fn identity(name: &str, namespace: &str, environment: &str) -> ServiceIdentity {
        let some = |value: &str| (!value.is_empty()).then(|| value.to_owned());
        ServiceIdentity { name: some(name), namespace: some(namespace), environment: some(environment) }
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
            assert_eq!(of_environment(&joined(environment)), expected, "{environment:?}");
        }
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
            assert_eq!(of_arguments(&joined(arguments)), expected, "{arguments:?}");
        }
    }

    #[test]
    fn the_environment_comes_before_the_arguments_which_only_a_jvm_has() {
        let stated = StatedIdentity {
            environment: identity("", "shop", ""),
            arguments: identity("cart", "other", "prod"),
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
        assert_eq!(of_arguments(b"\0\0java\0-D=\0-D"), identity("", "", ""));
        assert_eq!(StatedIdentity::read(u32::MAX), StatedIdentity::default());
    }
}
